"""Every objective against the slow oracle, its limits, and the engine's own variations."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from scorematching import (
    DenoisingScoreMatching,
    FiniteDifferenceSSM,
    Gaussian,
    LogDensityField,
    MaximumLikelihood,
    NoiseContrastive,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    Sphere,
    VectorField,
)
from scorematching.derivatives import double_backward as reverse
from tests import oracles
from tests.laws import (
    assert_close,
    assert_same,
    check_against_oracle,
    normal_quadrature,
    one_by_one,
    oracle,
)
from tests.models_zoo import (
    CONV,
    CONV_SCORE,
    DENSITIES,
    DIFFICULT,
    FUSED,
    INSTANCE_NORM,
    LAYER_NORM,
    MLP,
    MLP_SCORE,
    MULTIHEAD,
    QUADRATIC,
    SCORES,
    WIDE,
    Case,
    ConditionalScore,
    Mlp,
    both_routes,
    name,
    normal,
)
from tests.tolerances import FLOAT32, IDENTITY

NO_DIRECTIONS = [
    ScoreMatching(),
    DenoisingScoreMatching(sigma=0.3),
    DenoisingScoreMatching(sigma=0.3, control_variate=True),
]


def along_directions(num: int) -> list[Objective]:
    """The objectives along directions, each with another distribution of them."""
    return [
        SlicedScoreMatching(num_projections=num),
        SlicedScoreMatchingVR(Gaussian(), num_projections=num),
        SlicedScoreMatchingVR(Sphere(), num_projections=num, beta=0.4),
        FiniteDifferenceSSM(num_projections=num, eps=0.3),
    ]


LAWFUL = [*NO_DIRECTIONS, *along_directions(1), *along_directions(3)]
OF_DENSITIES = [
    MaximumLikelihood(),
    NoiseContrastive(num_projections=1, eps=0.5),
    NoiseContrastive(num_projections=3, eps=0.5),
]


def label(objective: Objective) -> str:
    num = getattr(objective, "num_projections", None)
    control = "-control" if getattr(objective, "control_variate", False) else ""
    beta = f"-beta{objective.beta}" if hasattr(objective, "beta") else ""
    return type(objective).__name__ + beta + control + (f"-M{num}" if num else "")


@pytest.mark.parametrize("objective", [*LAWFUL, *OF_DENSITIES], ids=label)
@pytest.mark.parametrize("case", both_routes(DENSITIES), ids=name)
def test_log_densities(case: Case, objective: Objective) -> None:
    check_against_oracle(objective, case)


@pytest.mark.parametrize("objective", LAWFUL, ids=label)
@pytest.mark.parametrize("case", both_routes(SCORES), ids=name)
def test_score_networks(case: Case, objective: Objective) -> None:
    check_against_oracle(objective, case)


@pytest.mark.parametrize("objective", LAWFUL, ids=label)
@pytest.mark.parametrize("route", ["traced", "reverse"])
def test_conditional_score_networks(route: str, objective: Objective) -> None:
    # The context comes in by closure, one row per point, and no derivative is taken in it.
    case = Case("conditional", partial(ConditionalScore, 3, 2), (3,), VectorField, route)
    net, x = case.module(), case.points(2)
    context = normal(2, 2, generator=torch.Generator().manual_seed(5))
    noise = objective.draw(x, torch.Generator().manual_seed(3))

    def one_context_at_a_time() -> Tensor:
        slow = oracle(objective, case)
        rows = []
        for i in range(2):
            row = slice(i, i + 1)
            own = noise if noise is None else noise[..., row, :]
            rows.append(slow(lambda z, row=row: net(z, context[row]), x[row], own))
        return torch.cat(rows)

    field = case.field(lambda z: net(z, context))
    assert_same(lambda: objective.loss(field, x, noise), one_context_at_a_time, net, 1e-9)


# Operations whose double backward torch gets wrong, or has not.


@pytest.mark.parametrize(
    "objective",
    [ScoreMatching(), SlicedScoreMatchingVR(), SlicedScoreMatchingVR(num_projections=3)],
    ids=label,
)
@pytest.mark.parametrize("route", ["auto", "reverse"])
@pytest.mark.parametrize("case", DIFFICULT, ids=name)
def test_difficult_operations(case: Case, route: str, objective: Objective) -> None:
    check_against_oracle(objective, replace(case, route=route))


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize(
    "case", both_routes([LAYER_NORM, INSTANCE_NORM, MULTIHEAD, FUSED, MLP]), ids=name
)
def test_parameter_gradient_against_finite_differences(case: Case, num: int) -> None:
    module, field, x = case.make(n=2)
    for objective in (SlicedScoreMatchingVR(num_projections=num), SlicedScoreMatching(Gaussian())):
        noise = objective.draw(x, torch.Generator().manual_seed(3))
        loss = partial(objective.loss, field, x, noise)
        differences = oracles.finite_difference_gradient(loss, module)
        assert_close(oracles.parameter_gradient(loss, module), differences, 1e-6)


@pytest.mark.parametrize("case", both_routes([LAYER_NORM, INSTANCE_NORM]), ids=name)
def test_bare_double_backward_through_norms_is_wrong(case: Case) -> None:
    # Why the norms are written out: torch's own value is right, its parameter gradient is not.
    module, field, x = case.make(n=2)
    v = Gaussian().sample(x, generator=torch.Generator().manual_seed(3))

    def textbook() -> Tensor:
        points = x.clone().requires_grad_()
        (s,) = torch.autograd.grad(module(points).sum(), points, create_graph=True)
        (hv,) = torch.autograd.grad((s * v[0]).sum(), points, create_graph=True)
        return 0.5 * s.flatten(1).square().sum(-1) + (hv * v[0]).flatten(1).sum(-1)

    ours = partial(SlicedScoreMatchingVR().loss, field, x, v)
    assert_close(textbook(), ours(), IDENTITY)
    differences = oracles.finite_difference_gradient(textbook, module)
    assert_close(oracles.parameter_gradient(ours, module), differences, 1e-6)
    with pytest.raises(AssertionError, match="differs by"):
        assert_close(oracles.parameter_gradient(textbook, module), differences, 1e-2)


# Precision.


@pytest.mark.parametrize("objective", [*LAWFUL, *OF_DENSITIES], ids=label)
@pytest.mark.parametrize("case", both_routes([MLP, CONV, LAYER_NORM, MULTIHEAD]), ids=name)
def test_float32(case: Case, objective: Objective) -> None:
    module, _, x = case.make()
    noise = objective.draw(x, torch.Generator().manual_seed(3))
    single = copy.deepcopy(module).float()

    def loss(f: nn.Module, dtype: torch.dtype) -> Tensor:
        cast = noise if noise is None else noise.to(dtype)
        return objective.loss(case.field(f), x.to(dtype), cast)

    assert loss(single, torch.float32).dtype == torch.float32
    # Second differences lose precision / eps^2.
    tolerance = FLOAT32 * (10 if isinstance(objective, FiniteDifferenceSSM) else 1)
    double = loss(module, torch.float64)
    assert_close(loss(single, torch.float32).double(), double, tolerance)
    gradient = oracles.parameter_gradient(lambda: loss(single, torch.float32), single)
    truth = oracles.parameter_gradient(lambda: loss(module, torch.float64), module)
    assert_close(gradient.double(), truth, tolerance)


# Chunks of directions.

CHUNKED = [MLP, WIDE, CONV, LAYER_NORM, MULTIHEAD, MLP_SCORE, CONV_SCORE]


def answer(question: Callable[[], tuple[Tensor, Tensor]], module: nn.Module) -> tuple[Tensor, ...]:
    """What a field answers, and the parameter gradient of its second part."""
    return *question(), oracles.parameter_gradient(lambda: question()[1], module)


@pytest.mark.parametrize("numbers", [1, 7, 13, 20])
@pytest.mark.parametrize("case", [replace(case, route="reverse") for case in CHUNKED], ids=name)
def test_chunks_of_directions_do_not_change_the_answer(
    case: Case, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, field, x = case.make(n=2)
    v = Gaussian().sample(x, 5, torch.Generator().manual_seed(3))
    for question in (
        partial(field.score_and_curvature, x, v),
        partial(field.score_and_divergence, x),
    ):
        with monkeypatch.context() as patch:
            whole = answer(question, module)
            patch.setattr(reverse, "CHUNK_NUMBERS", numbers)
            for part, truth in zip(answer(question, module), whole, strict=True):
                assert_close(part, truth, IDENTITY)
            with torch.no_grad():
                assert_close(question()[1], whole[1].detach(), IDENTITY)


def test_chunks_of_directions_are_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Seven directions of 2 x 3 coordinates, at most 13 coordinates at a time: 2 + 2 + 2 + 1.
    sizes = []
    pull_back = reverse._pull_back

    def spy(s: Tensor, x: Tensor, v: Tensor, create_graph: bool) -> Tensor | None:
        sizes.append(len(v))
        return pull_back(s, x, v, create_graph)

    monkeypatch.setattr(reverse, "CHUNK_NUMBERS", 13)
    monkeypatch.setattr(reverse, "_pull_back", spy)
    _, field, x = replace(MLP, route="reverse").make(n=2)
    SlicedScoreMatching(num_projections=7)(field, x, torch.Generator().manual_seed(0))
    assert sizes[-4:] == [2, 2, 2, 1]  # after those of the checks


@pytest.mark.parametrize("case", [replace(case, route="traced") for case in CHUNKED], ids=name)
def test_little_memory_does_not_change_the_divergence(case: Case) -> None:
    module, field, x = case.make(n=2)
    whole = answer(partial(field.score_and_divergence, x), module)
    for max_memory in (1, 20_000):
        question = partial(field.score_and_divergence, x, max_memory=max_memory)
        for part, truth in zip(answer(question, module), whole, strict=True):
            assert_close(part, truth, IDENTITY)
        with torch.no_grad():
            assert_close(question()[1], whole[1].detach(), IDENTITY)


# Derivatives beyond the parameter gradient.


@pytest.mark.parametrize(
    "objective",
    [ScoreMatching(), SlicedScoreMatching(num_projections=2), SlicedScoreMatchingVR()],
    ids=label,
)
@pytest.mark.parametrize("case", both_routes([MLP, WIDE, CONV, LAYER_NORM, MLP_SCORE]), ids=name)
def test_gradient_in_the_points(case: Case, objective: Objective) -> None:
    # Points that come out of an encoder pass the gradient of the loss on to it.
    _, field, x = case.make(n=2)
    noise = objective.draw(x, torch.Generator().manual_seed(3))
    encoder = nn.Module()
    encoder.x = nn.Parameter(x.clone())

    def loss() -> Tensor:
        return objective.loss(field, 1.0 * encoder.x, noise)

    differences = oracles.finite_difference_gradient(loss, encoder)
    assert_close(oracles.parameter_gradient(loss, encoder), differences, 1e-6)


@pytest.mark.parametrize("objective", [ScoreMatching(), SlicedScoreMatchingVR()], ids=label)
@pytest.mark.parametrize("case", both_routes([MLP, WIDE, LAYER_NORM, MLP_SCORE]), ids=name)
def test_hessian_in_the_parameters(case: Case, objective: Objective) -> None:
    # What standard errors are made of.
    module, field, x = case.make(n=2)
    noise = objective.draw(x, torch.Generator().manual_seed(3))
    weights = [p for p in module.parameters() if p.ndim > 1]
    probe = [normal(*w.shape, generator=torch.Generator().manual_seed(7)) for w in weights]

    def slope() -> Tensor:
        loss = objective.loss(field, x, noise).mean()
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        return sum((g * u).sum() for g, u in zip(gradients, probe, strict=True))[None]

    differences = oracles.finite_difference_gradient(slope, module)
    assert_close(oracles.parameter_gradient(slope, module), differences, 1e-6)


# Features.


@pytest.mark.parametrize("objective", LAWFUL, ids=label)
def test_terms_of_features_are_those_of_each(objective: Objective) -> None:
    features, x = Case("", partial(Mlp, 3, 6), (3,)).module(), MLP.points(2)
    noise = objective.draw(x, torch.Generator().manual_seed(3))
    alone = [
        objective.terms(LogDensityField(lambda x, k=k: features(x)[:, k]), x, noise)
        for k in range(6)
    ]
    first, second = (torch.stack(parts, dim=1) for parts in zip(*alone, strict=True))
    together = objective.terms(LogDensityField(features), x, noise)
    assert_close(together.first, first, IDENTITY)
    assert_close(together.second, second, IDENTITY)

    grid = LogDensityField(lambda x: features(x).unflatten(1, (3, 2)))
    tabled = objective.terms(grid, x, noise)
    assert_close(tabled.first, first.unflatten(1, (3, 2)), IDENTITY)
    assert_close(tabled.second, second.unflatten(1, (3, 2)), IDENTITY)


def test_terms_of_features_of_images() -> None:
    module, field, x = CONV.make(n=2)
    features = LogDensityField(lambda x: torch.stack([module(x), module(2 * x)], dim=-1))
    doubled = LogDensityField(lambda x: module(2 * x))
    for objective in LAWFUL:
        noise = objective.draw(x, torch.Generator().manual_seed(3))
        together = objective.terms(features, x, noise)
        for k, alone in enumerate((field, doubled)):
            for part, truth in zip(together, objective.terms(alone, x, noise), strict=True):
                assert_close(part[:, k], truth, IDENTITY)


def test_loss_of_log_linear_model_is_quadratic_in_its_terms() -> None:
    # For log p = q0 + alpha.phi the loss is 0.5 |first(q0) + alpha.first(phi)|^2 + ...
    features, base = Case("", partial(Mlp, 3, 4), (3,)).module(), QUADRATIC.module()
    alpha = normal(4, generator=torch.Generator().manual_seed(9))
    x = MLP.points(3)
    model = LogDensityField(lambda x: base(x) + features(x) @ alpha)
    for objective in LAWFUL:
        noise = objective.draw(x, torch.Generator().manual_seed(3))
        of_phi = objective.terms(LogDensityField(features), x, noise)
        of_base = objective.terms(LogDensityField(base), x, noise)
        first = of_base.first + torch.einsum("nlk,l->nk", of_phi.first, alpha)
        loss = 0.5 * first.square().sum(-1) + of_base.second + of_phi.second @ alpha
        if isinstance(objective, SlicedScoreMatchingVR):
            objective = SlicedScoreMatchingVR()  # the terms are those of beta = 1
        assert_close(objective.loss(model, x, noise), loss, IDENTITY)


# Denoising: the control variate.


@pytest.mark.parametrize("dim", [1, 2])
def test_denoising_control_variate_lowers_the_variance(dim: int) -> None:
    # Mean and variance over the noise by quadrature: no chance involved.
    case = Case("", partial(Mlp, dim), (dim,))
    _, field, x = case.make(n=2)
    grid, weights = normal_quadrature(dim, nodes=12)
    eps = grid[:, None].expand(-1, 2, dim)
    moments = []
    for control_variate in (False, True):
        objective = DenoisingScoreMatching(sigma=0.01, control_variate=control_variate)
        losses = one_by_one(objective, field, x, eps).detach()
        mean = weights @ losses
        moments.append((mean, weights @ (losses - mean).square()))
    (mean, variance), (controlled_mean, controlled_variance) = moments
    assert_close(controlled_mean, mean, 1e-11)
    score = field.score(x).detach()
    leading = score.square().sum(-1) / 0.01**2
    assert_close(variance / leading, torch.ones(2, dtype=x.dtype), 0.05)
    assert controlled_variance.mean() < 0.01 * variance.mean()


# Limits, with their order of convergence.


def orders(errors: list[float]) -> list[float]:
    """Observed orders of errors at steps that halve."""
    return [math.log2(a / b) for a, b in itertools.pairwise(errors)]


def assert_second_order(loss: Callable[[float], Tensor], limit: Tensor, module: nn.Module) -> None:
    """A loss tends to a limit with an error of order eps^2, and so does its gradient."""
    slope = oracles.parameter_gradient(lambda: limit, module)
    values, gradients = [], []
    for eps in (0.1, 0.05, 0.025, 0.0125):
        gradient = oracles.parameter_gradient(lambda eps=eps: loss(eps), module)
        values.append((loss(eps) - limit).abs().mean().item())
        gradients.append((gradient - slope).abs().mean().item())
    for errors in (values, gradients):
        assert errors[-1] < 1e-3
        assert all(1.9 < order < 2.1 for order in orders(errors)), orders(errors)


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("case", [MLP, CONV, MLP_SCORE, CONV_SCORE], ids=name)
def test_finite_differences_tend_to_sliced_score_matching(case: Case, num: int) -> None:
    module, field, x = case.make()
    v = Gaussian().sample(x, num, torch.Generator().manual_seed(3))

    def loss(eps: float) -> Tensor:
        return FiniteDifferenceSSM(eps=eps).loss(field, x, v)

    assert_second_order(loss, SlicedScoreMatching().loss(field, x, v), module)


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("case", [MLP, CONV], ids=name)
def test_noise_contrast_tends_to_sliced_score_matching(case: Case, num: int) -> None:
    # With a = f(x) - f(x -+ h v): -log sigmoid(a) = log 2 - a/2 + a^2/8 + ..., and the two sum to
    # J = 2 log 2 + h^2 (v'Hv / 2 + (v.s)^2 / 4) + O(h^4) = 2 log 2 + h^2 / 2 SSM + O(h^4).
    module, field, x = case.make()
    v = Gaussian().sample(x, num, torch.Generator().manual_seed(3))

    def loss(eps: float) -> Tensor:
        h = eps / x[0].numel() ** 0.5
        return (NoiseContrastive(eps=eps).loss(field, x, v) - 2 * math.log(2)) * 2 / h**2

    assert_second_order(loss, SlicedScoreMatching().loss(field, x, v), module)
