"""The closed form is the minimum of the loss it claims to minimise, for every objective."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

import scorematching as sm
from scorematching.closed_form import (
    QuadraticForm,
    SelectableFeatures,
    quadratic_form,
    solve_linear,
)
from tests.models_zoo import Conv, Mlp, normal
from tests.tolerances import IDENTITY, ROUTES

LAM = 0.05

OBJECTIVES = [
    sm.ScoreMatching(),
    sm.SlicedScoreMatching(num_projections=2),
    sm.SlicedScoreMatchingVR(),
    sm.DenoisingScoreMatching(sigma=0.3),
    sm.DenoisingScoreMatching(sigma=0.3, control_variate=True),
    sm.FiniteDifferenceSSM(),
    sm.ApproximateBackprop(),
]
"""Those whose loss, for fixed noise, is quadratic in the weights."""

ALL = [*OBJECTIVES, sm.CurvaturePropagation()]


def name(objective: Any) -> str:
    return type(objective).__name__ + ("-cv" if getattr(objective, "control_variate", 0) else "")


class Problem:
    """Four features, a base that is not a constant, and seven points."""

    def __init__(self, points: int = 7, dim: int = 3, features: int = 4) -> None:
        generator = torch.Generator().manual_seed(0)
        self.features = Mlp(dim, outputs=features).double()
        for parameter in self.features.parameters():
            parameter.data = normal(*parameter.shape, generator=generator)
        self.x = normal(points, dim, generator=generator)

    @staticmethod
    def base(x: Tensor) -> Tensor:
        return -0.4 * x.square().sum(-1) + 0.1 * x.sum(-1).sin()

    def mean_loss(self, objective: sm.Objective, noise: Any) -> Callable[[Tensor], Tensor]:
        """The mean loss of the whole model as a function of its weights."""

        def loss(alpha: Tensor) -> Tensor:
            field = sm.LogDensityField(lambda x: self.base(x) + self.features(x) @ alpha)
            return objective.loss(field, self.x, noise).mean()

        return loss


@pytest.mark.parametrize("objective", OBJECTIVES, ids=name)
def test_solution_is_stationary(objective: sm.Objective, generator: torch.Generator) -> None:
    problem = Problem()
    noise = objective.draw(problem.x, generator)
    form = quadratic_form(problem.features, problem.base, problem.x, objective, noise)
    alpha = form.solve(LAM)
    mean_loss = problem.mean_loss(objective, noise)

    def slope(alpha: Tensor) -> Tensor:
        return jacobian(lambda a: mean_loss(a) + 0.5 * LAM * a.square().sum(), alpha.detach())

    assert slope(alpha).abs().max() < 1e-8
    without_base = quadratic_form(problem.features, None, problem.x, objective, noise)
    assert slope(without_base.solve(LAM)).abs().max() > 1e-2  # the cross term forgotten


@pytest.mark.parametrize("objective", OBJECTIVES, ids=name)
def test_form_is_that_of_autodiff(objective: sm.Objective, generator: torch.Generator) -> None:
    problem = Problem()
    noise = objective.draw(problem.x, generator)
    form = quadratic_form(problem.features, problem.base, problem.x, objective, noise)
    mean_loss = problem.mean_loss(objective, noise)
    zero = torch.zeros(4, dtype=torch.float64)
    close(form.G, hessian(mean_loss, zero), ROUTES)
    close(form.b, jacobian(mean_loss, zero), ROUTES)
    close(form.constant, mean_loss(zero), ROUTES)
    alpha = normal(4, generator=generator)
    close(form(alpha), mean_loss(alpha), ROUTES)


def test_solve_linear_draws_its_noise_from_the_generator() -> None:
    problem, objective = Problem(), sm.SlicedScoreMatching()
    alpha, again = (
        solve_linear(problem.features, problem.base, problem.x, objective, LAM, seeded())
        for _ in range(2)
    )
    noise = objective.draw(problem.x, seeded())
    form = quadratic_form(problem.features, problem.base, problem.x, objective, noise)
    assert torch.equal(alpha, again)
    assert torch.equal(alpha, form.solve(LAM))


# Streaming.


@pytest.mark.parametrize("objective", OBJECTIVES, ids=name)
def test_streaming_equals_one_batch(objective: sm.Objective, generator: torch.Generator) -> None:
    problem = Problem()
    noise = objective.draw(problem.x, generator)

    def form(rows: slice) -> QuadraticForm:
        part = noise
        if isinstance(noise, Tensor):
            part = noise[rows] if noise.ndim == problem.x.ndim else noise[:, rows]
        return quadratic_form(problem.features, problem.base, problem.x[rows], objective, part)

    whole = form(slice(None))
    parts = form(slice(0, 2)).merge(form(slice(2, 5))).merge(form(slice(5, None)))
    assert parts.count == whole.count == 7
    close(parts.G, whole.G, IDENTITY)
    close(parts.b, whole.b, IDENTITY)
    close(parts.constant, whole.constant, IDENTITY)


def test_update_draws_and_merges() -> None:
    problem, objective, g = Problem(), sm.SlicedScoreMatchingVR(), seeded()
    model = (problem.features, problem.base)
    head, tail = problem.x[:3], problem.x[3:]
    first = quadratic_form(*model, head, objective, objective.draw(head, g))
    updated = first.update(*model, tail, objective, g)
    g = seeded()
    objective.draw(head, g)
    merged = first.merge(quadratic_form(*model, tail, objective, objective.draw(tail, g)))
    assert torch.equal(updated.G, merged.G)
    assert torch.equal(updated.b, merged.b)


# Derivatives.


@pytest.mark.parametrize("objective", ALL, ids=name)
def test_gradient_through_the_solution(objective: sm.Objective) -> None:
    x = normal(4, 2, generator=seeded(1))
    theta = normal(2, 2, generator=seeded(2)).requires_grad_()
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    lam = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def alpha(theta: Tensor, scale: Tensor, lam: Tensor) -> Tensor:
        def features(x: Tensor) -> Tensor:
            return torch.exp(0.3 * torch.tanh(x @ theta) @ theta)

        def base(x: Tensor) -> Tensor:
            return -0.5 * scale * x.square().sum(-1)

        return solve_linear(features, base, x, objective, lam, seeded())

    assert torch.autograd.gradcheck(alpha, (theta, scale, lam), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("objective", ALL, ids=name)
def test_without_gradients_the_same_numbers(objective: sm.Objective) -> None:
    problem = Problem()
    arguments = (problem.features, problem.base, problem.x, objective, LAM)
    with torch.no_grad():
        alpha = solve_linear(*arguments, seeded())
    assert not alpha.requires_grad
    close(alpha, solve_linear(*arguments, seeded()), ROUTES)


class Opaque(torch.autograd.Function):
    """``sin x`` by a hidden implementation that no tape can follow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos()


@pytest.mark.parametrize("objective", OBJECTIVES[:-1], ids=name)
def test_features_that_cannot_be_traced(objective: sm.Objective) -> None:
    problem = Problem()
    w = normal(3, 4, generator=seeded(3))

    def solve(sin: Callable[[Tensor], Tensor]) -> Tensor:
        features = lambda x: sin(x @ w)  # noqa: E731
        return solve_linear(features, problem.base, problem.x, objective, LAM, seeded())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sm.PerformanceWarning)
        found = solve(Opaque.apply)
    close(found, solve(torch.sin), ROUTES)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=name)
def test_more_coordinates_than_features(objective: sm.Objective) -> None:
    problem = Problem(dim=6, features=1)
    padded = lambda x: torch.cat([problem.features(x), 1e-9 * x], dim=1)  # noqa: E731
    few, many = (
        solve_linear(features, problem.base, problem.x, objective, LAM, seeded())
        for features in (problem.features, padded)
    )
    close(many[:1], few, 1e-7)


def test_points_of_any_shape(generator: torch.Generator) -> None:
    conv = Conv(1).double()
    x = normal(3, 1, 2, 3, generator=generator)
    features = lambda x: torch.stack([conv(x), x.sin().flatten(1).sum(1)], dim=1)  # noqa: E731
    flat = lambda x: features(x.reshape(-1, 1, 2, 3))  # noqa: E731
    for objective in ALL:
        alpha = solve_linear(features, None, x, objective, LAM, seeded())
        close(alpha, solve_linear(flat, None, x.flatten(1), objective, LAM, seeded()), ROUTES)


# Curvature propagation: one estimate for every feature.


class EverySign:
    """Noise that runs through all sign patterns: point n of N has pattern n, operation by bit."""

    def __init__(self, num: int) -> None:
        self.num = num

    def play(self) -> Callable[[Tensor], Tensor]:
        bit = count()

        def signs(like: Tensor) -> Tensor:
            pattern = torch.arange(like.shape[0]) % self.num >> next(bit) & 1
            return (2.0 * pattern - 1).reshape(-1, *[1] * (like.ndim - 1)).expand(like.shape)

        return signs


def _nested(x: Tensor, w: Tensor) -> Tensor:
    return nn.functional.softplus(3 * torch.tanh(x @ w))


@pytest.mark.parametrize("selectable", [False, True])
def test_propagated_curvature_averages_to_the_exact_form(selectable: bool) -> None:
    w = torch.tensor([[0.8, -0.5], [0.3, 1.1]], dtype=torch.float64)
    base = lambda x: -0.5 * x.square().sum(-1)  # noqa: E731
    features: Any = lambda x: _nested(x, w)  # noqa: E731
    if selectable:
        features = SelectableFeatures(
            features,
            lambda x, i: _nested((x * w.T[i]).sum(-1, keepdim=True), w.new_ones(1, 1))[:, 0],
        )
    x = torch.tensor([[0.4, -0.7]], dtype=torch.float64)
    exact = quadratic_form(features, base, x, sm.ScoreMatching())
    patterns = 8
    copies = x.expand(patterns, 2)
    objective: Any = sm.CurvaturePropagation()
    averaged = quadratic_form(features, base, copies, objective, EverySign(patterns))
    close(averaged.G, exact.G, IDENTITY)
    close(averaged.b, exact.b, IDENTITY)
    close(averaged.constant, exact.constant, IDENTITY)
    one = quadratic_form(features, base, x, objective, objective.draw(x, seeded()))
    assert (one.b - exact.b).abs().max() > 1e-3  # one pattern alone is noise


# What is refused.


def test_penalty_is_checked() -> None:
    form = QuadraticForm(torch.eye(2), torch.ones(2), torch.zeros(()), 1)
    for lam in (-0.1, float("nan"), torch.tensor(-1.0)):
        with pytest.raises(ValueError, match="lam must be finite and not negative"):
            form.solve(lam)
    for wrong in ("0.1", torch.ones(2), None):
        with pytest.raises(TypeError, match="lam must be a number"):
            form.solve(wrong)  # type: ignore[arg-type]


def test_dependent_features_need_a_penalty() -> None:
    x = normal(5, 2, generator=seeded())
    twice = lambda x: torch.stack([x.sum(-1), x.sum(-1)], dim=1)  # noqa: E731
    with pytest.raises(ValueError, match=r"lam = 0 and .* number 2 depends .*; raise lam"):
        solve_linear(twice, Problem.base, x, sm.ScoreMatching(), 0.0)
    alpha = solve_linear(twice, Problem.base, x, sm.ScoreMatching(), 0.1)
    close(alpha[0], alpha[1], IDENTITY)


def test_features_that_are_not_finite() -> None:
    x = normal(5, 2, generator=seeded())
    with pytest.raises(ValueError, match="G must be finite, got NaN or infinity"):
        solve_linear(lambda x: (1e4 * x).exp(), None, x, sm.ScoreMatching(), LAM)


def test_shapes_are_checked() -> None:
    x = normal(5, 2, generator=seeded())
    with pytest.raises(ValueError, match=r"features must return .* shape \(5, L\), got \(5,\)"):
        solve_linear(lambda x: x.sum(-1), None, x, sm.ScoreMatching(), LAM)
    with pytest.raises(ValueError, match=r"base must return .* shape \(5,\), got \(5, 2\)"):
        solve_linear(torch.sin, torch.cos, x, sm.ScoreMatching(), LAM)
    with pytest.raises(ValueError, match="x must have shape"):
        solve_linear(torch.sin, None, x[0], sm.ScoreMatching(), LAM)


def test_levels_of_noise_are_refused() -> None:
    """Features were called with the level, and an inner function was named."""
    ladder = sm.DenoisingScoreMatching(sm.NoiseLadder((1.0, 0.5)))
    with pytest.raises(TypeError, match=r"sigma must be a number.*got a NoiseLadder.*each level"):
        solve_linear(torch.sin, None, normal(5, 2, generator=seeded()), ladder, LAM)


def test_objectives_that_are_not_quadratic() -> None:
    x = normal(5, 2, generator=seeded())
    with pytest.raises(TypeError, match="MaximumLikelihood has no terms"):
        solve_linear(torch.sin, None, x, sm.MaximumLikelihood(), LAM)
    for beta in ("optimal", 0.5):
        with pytest.raises(ValueError, match="beta must be 1 for a closed form"):
            solve_linear(torch.sin, None, x, sm.SlicedScoreMatchingVR(beta=beta), LAM)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal to a tolerance relative to the largest entry."""
    scale = max(1.0, expected.detach().abs().max().item())
    torch.testing.assert_close(actual, expected, atol=tolerance * scale, rtol=0)


def test_features_that_rounding_cannot_tell_apart_are_refused() -> None:
    """Far from zero x and x^2 depend on each other in float32; the precision was 60% too large."""
    x = torch.randn(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phi = lambda x: torch.cat([x, -0.5 * x.square()], dim=1)  # noqa: E731
    exact = sm.ScoreMatching()
    solve = lambda x: solve_linear(phi, None, x, exact, lam=0.0)[1].item()  # noqa: E731
    precision = 1 / x.var(correction=0).item()
    assert solve((x + 10).float()) == pytest.approx(precision, rel=0.01)
    with pytest.raises(ValueError, match=r"number 2 depends .* double precision"):
        solve((x + 1000).float())
    assert solve(x + 1000) == pytest.approx(precision, rel=1e-6)


def test_features_of_any_units_are_accepted() -> None:
    """The features of a normal, x and -x^2 / 2, in units in which their gradients differ by 1e5.

    The first was refused as a function of those before it. Gradients that are rounding errors,
    here of a constant, are refused as before.
    """
    x = 1e5 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phi = lambda x: torch.cat([x, -0.5 * x.square()], dim=1)  # noqa: E731
    precision = 1 / x.var(correction=0).item()
    wanted = pytest.approx([precision * x.mean().item(), precision], rel=1e-4)
    assert solve_linear(phi, None, x.float(), sm.ScoreMatching(), lam=0.0).tolist() == wanted

    def flat(x: Tensor) -> Tensor:
        return torch.cat([x, x.sin().square() + x.cos().square()], dim=1)

    with pytest.raises(ValueError, match="number 2 depends"):
        solve_linear(flat, None, x / 1e5, sm.ScoreMatching(), lam=0.0)


def test_closed_forms_stay_in_single_precision() -> None:
    """Features without matrix products are the same under autocast; sums of their products too.

    In bfloat16 even x and -x^2 / 2 were refused as dependent.
    """
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    phi = lambda x: torch.cat([x, -0.5 * x.square()], dim=1)  # noqa: E731
    wanted = quadratic_form(phi, None, x, sm.ScoreMatching())
    alpha = wanted.solve(0.0)
    with torch.autocast("cpu", torch.bfloat16):
        form = quadratic_form(phi, None, x, sm.ScoreMatching())
        assert torch.equal(form.G, wanted.G) and torch.equal(form.b, wanted.b)
        assert torch.equal(form.solve(0.0), alpha)
        assert torch.equal(form(alpha), wanted(alpha))
