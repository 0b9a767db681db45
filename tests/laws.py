"""Checks that an objective must pass, as functions: tests pass them, planted bugs must not.

Randomness is replaced by designs, finite sets of directions with the moments of the random law, so
that "unbiased" is an identity between sums and holds to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scorematching import (
    DenoisingScoreMatching,
    Field,
    FiniteDifferenceSSM,
    MaximumLikelihood,
    NoiseContrastive,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
)
from tests import oracles
from tests.models_zoo import Case, trusted
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

Design = Callable[[Tensor], Tensor]
Loss = Callable[[], Tensor]


def axes_design(x: Tensor) -> Tensor:
    """The 2 D directions ``+-sqrt(D) e_i``, ``(2D, N, *event)``: E[v] = 0 and E[v v'] = I."""
    d = x[0].numel()
    basis = d**0.5 * torch.eye(d, dtype=x.dtype)
    return _for_every_point(torch.cat([basis, -basis]), x)


def sign_design(x: Tensor) -> Tensor:
    """All 2^D sign vectors, ``(2^D, N, *event)``: the whole Rademacher law."""
    d = x[0].numel()
    bits = torch.arange(2**d)[:, None] >> torch.arange(d) & 1
    return _for_every_point(2.0 * bits.to(x.dtype) - 1, x)


def _for_every_point(v: Tensor, x: Tensor) -> Tensor:
    return v.reshape(-1, 1, *x.shape[1:]).expand(-1, *x.shape)


def normal_quadrature(d: int, nodes: int) -> tuple[Tensor, Tensor]:
    """Points ``(K, D)`` and weights ``(K,)`` of N(0, I), exact for degree 2 nodes - 1 per axis."""
    points, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(nodes))
    weights = weights / weights.sum()
    grid = torch.cartesian_prod(*[points] * d).reshape(-1, d)
    return grid, torch.cartesian_prod(*[weights] * d).reshape(-1, d).prod(-1)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal within a tolerance relative to the largest number expected (at least one)."""
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    error = (actual - expected).detach().abs().max().item()
    allowed = tolerance * max(1.0, expected.detach().abs().max().item())
    assert error <= allowed, f"differs by {error:.3g}, more than {allowed:.3g}"


def assert_same(loss: Loss, truth: Loss, module: nn.Module, tolerance: float) -> None:
    """Two losses agree, point by point, and so do the gradients of their means."""
    assert_close(loss(), truth(), tolerance)
    gradient = oracles.parameter_gradient(loss, module)
    assert_close(gradient, oracles.parameter_gradient(truth, module), tolerance)


def one_by_one(objective: Objective, field: Field, x: Tensor, v: Tensor) -> Tensor:
    """Loss of every point for every direction taken alone, ``(M, N)``."""
    tiled = x.expand(v.shape).flatten(0, 1)
    noise = v.flatten(0, 1)
    noise = noise if isinstance(objective, DenoisingScoreMatching) else noise[None]
    return objective.loss(field, tiled, noise).unflatten(0, v.shape[:2])


# The checks.


def check_averages_to_exact(objective: Objective, case: Case, design: Design) -> None:
    """Over a design, a sliced objective averages to exact score matching: value and gradient."""
    module, field, x = case.make()
    v = design(x)

    def exact() -> Tensor:
        return ScoreMatching().loss(field, x, None)

    assert_same(lambda: one_by_one(objective, field, x, v).mean(0), exact, module, IDENTITY)


def check_averages_over_directions(objective: Objective, case: Case, num: int = 3) -> None:
    """The loss of M directions is the mean of the losses of each alone."""
    module, field, x = case.make()
    v = torch.randn(num, *x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)

    def together() -> Tensor:
        return objective.loss(field, x, v)

    def apart() -> Tensor:
        return one_by_one(objective, field, x, v).mean(0)

    assert_same(together, apart, module, IDENTITY)


def check_against_oracle(objective: Objective, case: Case, tolerance: float = ROUTES) -> None:
    """The loss is that of the slow oracle for the same noise: value and gradient."""
    module, field, x = case.make(n=2)
    noise = objective.draw(x, torch.Generator().manual_seed(3))
    truth = oracle(objective, case)

    assert_same(
        lambda: objective.loss(field, x, noise),
        lambda: truth(trusted(module), x, noise),
        module,
        tolerance,
    )


def check_unbiased(objective: Objective, case: Case, detect: float, n: int) -> None:
    """With the noise the objective draws itself, its mean at a point is exact score matching."""
    _, field, x = case.make(n=1)
    with torch.no_grad():
        losses = objective(field, x.expand(n, *x.shape[1:]), torch.Generator().manual_seed(4))
        exact = ScoreMatching()(field, x)
    assert_mean(losses, exact.item(), detect=detect)


def check_directions_are_independent(objective: Objective, case: Case, n: int = 20_000) -> None:
    """M directions divide the variance by M, and no two points share their noise.

    The variance of one sign vector is known from all of them. For objectives whose directions are
    independent signs, neither orthogonal nor balanced.
    """
    _, field, x = case.make(n=1)
    with torch.no_grad():
        everywhere = one_by_one(objective, field, x, sign_design(x))
        mean, variance = everywhere.mean().item(), everywhere.var(correction=0).item()
        losses = objective(field, x.expand(n, *x.shape[1:]), torch.Generator().manual_seed(5))
    deviation = losses - mean
    expected = variance / objective.num_projections  # type: ignore[attr-defined]
    assert_mean(deviation.square(), expected, detect=0.2 * expected)
    assert_mean(deviation[::2] * deviation[1::2], 0.0, detect=0.2 * expected)


# The oracle that goes with an objective.


def oracle(objective: Objective, case: Case) -> Callable[..., Tensor]:
    """The slow loss ``(model, x, noise) -> (N,)`` of an objective, by the kind of model."""
    kind = next(k for k in type(objective).__mro__ if k in _ORACLES)
    loss = _ORACLES[kind]
    prefix = "" if case.is_density else "vector_"

    def named(name: str) -> Any:
        return getattr(oracles, prefix + name)

    return lambda model, x, noise: loss(objective, named, model, x, noise)


def _exact(objective: Any, named: Any, model: Any, x: Tensor, _: Any) -> Tensor:
    return named("score_matching")(model, x)


def _sliced(objective: Any, named: Any, model: Any, x: Tensor, v: Tensor) -> Tensor:
    return named("sliced")(model, x, v)


def _sliced_vr(objective: Any, named: Any, model: Any, x: Tensor, v: Tensor) -> Tensor:
    return named("sliced_vr")(model, x, v, objective.beta)


def _denoising(objective: Any, named: Any, model: Any, x: Tensor, eps: Tensor) -> Tensor:
    loss = named("denoising")(model, x, eps, objective.sigma)
    if not objective.control_variate:
        return loss
    terms = oracles.vector_terms if named("sliced") is oracles.vector_sliced else _score_first
    scores = torch.stack([terms(model, x_i)[0] for x_i in x])
    return loss - (scores * eps.flatten(1)).sum(-1) / objective.sigma


def _score_first(model: Any, x_i: Tensor) -> tuple[Tensor, ...]:
    return oracles.log_density_terms(model, x_i)[1:]


def _finite_difference(objective: Any, named: Any, model: Any, x: Tensor, v: Tensor) -> Tensor:
    return named("finite_difference")(model, x, v, objective.eps / x[0].numel() ** 0.5)


def _contrastive(objective: Any, named: Any, model: Any, x: Tensor, v: Tensor) -> Tensor:
    return named("noise_contrastive")(model, x, objective.eps / x[0].numel() ** 0.5 * v)


def _likelihood(objective: Any, named: Any, model: Any, x: Tensor, _: Any) -> Tensor:
    return named("maximum_likelihood")(model, x)


_ORACLES: dict[type, Callable[..., Tensor]] = {
    ScoreMatching: _exact,
    SlicedScoreMatching: _sliced,
    SlicedScoreMatchingVR: _sliced_vr,
    DenoisingScoreMatching: _denoising,
    FiniteDifferenceSSM: _finite_difference,
    NoiseContrastive: _contrastive,
    MaximumLikelihood: _likelihood,
}
