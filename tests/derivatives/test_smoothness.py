"""Kinks: an objective refuses a model where its gradient would be wrong, and nowhere else.

The truth is a Fisher divergence in one dimension, ``J(b) = 0.5 E (s_b(x) - s(x))^2`` for standard
normal data, which needs first derivatives only. Its slope in b by differences is what the gradient
of a score-matching loss should be. All integrals are split at the kinks, so that quadrature is
exact on either side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching import (
    DenoisingScoreMatching,
    Field,
    LogDensityField,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    VectorField,
)
from scorematching.derivatives import smoothness
from scorematching.errors import SmoothnessError
from tests.models_zoo import normal

WEIGHT, HEIGHT, PRECISION, SHIFT, SIGMA = 1.3, 0.8, 0.7, 0.3, 0.5

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Activated:
    """An activation, its kinks, and k where it is C^k (99: smooth)."""

    name: str
    act: Activation
    kinks: tuple[float, ...] = ()
    order: int = 99


CASES = [
    Activated("softplus", F.softplus),
    Activated("silu", F.silu),
    Activated("gelu", F.gelu),
    Activated("gelu tanh", lambda z: F.gelu(z, approximate="tanh")),
    Activated("mish", F.mish),
    Activated("tanh", torch.tanh),
    Activated("relu^3", lambda z: F.relu(z) ** 3, (0.0,), 2),
    Activated("relu^2", lambda z: F.relu(z) ** 2, (0.0,), 1),
    Activated("elu", F.elu, (0.0,), 1),
    Activated("celu", lambda z: F.celu(z, 1.5), (0.0,), 1),
    Activated("softsign", F.softsign, (0.0,), 1),
    Activated("elu of another height", lambda z: F.elu(z, 0.5), (0.0,), 0),
    Activated("selu", F.selu, (0.0,), 0),
    Activated("relu", F.relu, (0.0,), 0),
    Activated("leaky_relu", lambda z: F.leaky_relu(z, 0.1), (0.0,), 0),
    Activated("hardswish", F.hardswish, (-3.0, 3.0), 0),
    Activated("hardtanh", F.hardtanh, (-1.0, 1.0), 0),
    Activated("abs", torch.abs, (0.0,), 0),
    Activated("clamp", lambda z: z.clamp(-0.5, 0.9), (-0.5, 0.9), 0),
    Activated("maximum", lambda z: torch.maximum(z, 0.3 * z * z), (0.0, 1 / 0.3), 0),
    Activated("softshrink", F.softshrink, (-0.5, 0.5), 0),
]


def name(case: Activated) -> str:
    return case.name.replace(" ", "_")


def quadrature(kinks: Sequence[float], shift: float, scale: float) -> tuple[Tensor, Tensor]:
    """Points ``(K, 1)`` and weights ``(K,)`` of N(0, scale^2), split where w x + b is a kink."""
    cuts = [(k - shift) / WEIGHT for k in kinks]
    ends = sorted({*np.linspace(-9 * scale, 9 * scale, 10), *cuts})
    nodes, weights = np.polynomial.legendre.leggauss(30)
    half = [(b - a) / 2 for a, b in pairwise(ends)]
    x = np.concatenate([a + h * (nodes + 1) for a, h in zip(ends, half)])
    w = np.concatenate([h * weights for h in half])
    w = w * np.exp(-0.5 * (x / scale) ** 2) / (scale * np.sqrt(2 * np.pi))
    return torch.from_numpy(x)[:, None], torch.from_numpy(w)


def density(act: Activation, shift: Tensor) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        return (HEIGHT * act(WEIGHT * x + shift) - 0.5 * PRECISION * x.square()).squeeze(-1)

    return f


def network(act: Activation, shift: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: HEIGHT * act(WEIGHT * x + shift) - PRECISION * x


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def fisher(case: Activated, shift: float, scale: float, is_density: bool) -> float:
    """``0.5 E (s_b(x) + x / scale^2)^2`` under N(0, scale^2)."""
    x, weights = quadrature(case.kinks, shift, scale)
    if is_density:
        x = x.requires_grad_()
        (s,) = torch.autograd.grad(density(case.act, number(shift))(x).sum(), x)
    else:
        s = network(case.act, number(shift))(x)
    return float((weights * 0.5 * (s + x / scale**2).square().squeeze(-1)).sum().detach())


def true_slope(case: Activated, scale: float, is_density: bool, step: float = 1e-4) -> float:
    ahead, behind = (fisher(case, SHIFT + h, scale, is_density) for h in (step, -step))
    return (ahead - behind) / (2 * step)


def slope(loss: Callable[[Tensor], Tensor]) -> float:
    """Autograd's slope of a loss in the shift."""
    shift = number(SHIFT).requires_grad_()
    (found,) = torch.autograd.grad(loss(shift), shift, allow_unused=True)
    return 0.0 if found is None else float(found)


def sliced_slope(case: Activated, wrap: type[Field]) -> float:
    """In one dimension, with v = 1, sliced score matching is exact score matching."""
    x, weights = quadrature(case.kinks, SHIFT, 1.0)
    make = density if wrap is LogDensityField else network

    def loss(shift: Tensor) -> Tensor:
        field = wrap(make(case.act, shift), check_smoothness=False)
        losses = SlicedScoreMatchingVR().loss(field, x, torch.ones(1, *x.shape, dtype=x.dtype))
        return (weights * losses).sum()

    return slope(loss)


def denoising_slope(case: Activated, wrap: type[Field]) -> float:
    """Over noisy points y and, given y, the noise: the loss is linear in it, so two nodes do."""
    scale = (1 + SIGMA**2) ** 0.5
    y, weights = quadrature(case.kinks, SHIFT, scale)
    mean, spread = SIGMA * y / scale**2, 1 / scale
    eps = torch.cat([mean + spread, mean - spread])
    x, half = torch.cat([y, y]) - SIGMA * eps, torch.cat([weights, weights]) / 2
    make = density if wrap is LogDensityField else network

    def loss(shift: Tensor) -> Tensor:
        field = wrap(make(case.act, shift), check_smoothness=False)
        return (half * DenoisingScoreMatching(SIGMA).loss(field, x, eps)).sum()

    return slope(loss)


def refused(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except SmoothnessError:
        return True
    return False


def assert_verdict(found: float, truth: float, smooth: bool, was_refused: bool) -> None:
    """A gradient is right, and allowed; or it is wrong, and refused."""
    error = abs(found - truth)
    assert error < 1e-6 if smooth else error > 1e-3, f"gradient {found:.4f}, truth {truth:.4f}"
    assert was_refused is not smooth


# --------------------------------------------------------------------- against the truth

X = torch.linspace(-3, 3, 13, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_log_densities_need_two_derivatives(case: Activated) -> None:
    f = density(case.act, number(SHIFT))
    assert_verdict(
        sliced_slope(case, LogDensityField),
        true_slope(case, 1.0, is_density=True),
        smooth=case.order >= 2,
        was_refused=refused(lambda: SlicedScoreMatchingVR()(f, X)),
    )


@pytest.mark.parametrize("case", CASES, ids=name)
def test_score_networks_need_one_derivative(case: Activated) -> None:
    field = VectorField(network(case.act, number(SHIFT)))
    assert_verdict(
        sliced_slope(case, VectorField),
        true_slope(case, 1.0, is_density=False),
        smooth=case.order >= 1,
        was_refused=refused(lambda: SlicedScoreMatchingVR()(field, X)),
    )


@pytest.mark.parametrize("case", CASES, ids=name)
def test_denoising_log_densities_needs_one_derivative(case: Activated) -> None:
    f = density(case.act, number(SHIFT))
    assert_verdict(
        denoising_slope(case, LogDensityField),
        true_slope(case, (1 + SIGMA**2) ** 0.5, is_density=True),
        smooth=case.order >= 1,
        was_refused=refused(lambda: DenoisingScoreMatching(SIGMA)(f, X)),
    )


JUMPS = [
    Activated("hardshrink", F.hardshrink, (-0.5, 0.5), -1),
    Activated("threshold", lambda z: F.threshold(z, 0.2, -0.4), (0.2,), -1),
]


@pytest.mark.parametrize("case", [*CASES, *JUMPS], ids=name)
def test_denoising_score_networks_needs_none(case: Activated) -> None:
    field = VectorField(network(case.act, number(SHIFT)))
    assert_verdict(
        denoising_slope(case, VectorField),
        true_slope(case, (1 + SIGMA**2) ** 0.5, is_density=False),
        smooth=case.order >= 0,
        was_refused=refused(lambda: DenoisingScoreMatching(SIGMA)(field, X)),
    )


BY_NAME = {case.name: case for case in [*CASES, *JUMPS]}


@pytest.mark.parametrize("objective", [ScoreMatching(), SlicedScoreMatching()], ids=["SM", "SSM"])
@pytest.mark.parametrize("activation", ["softplus", "relu^3", "elu", "relu"])
def test_every_objective_with_a_curvature_refuses(activation: str, objective: Any) -> None:
    case = BY_NAME[activation]
    assert refused(lambda: objective(density(case.act, number(SHIFT)), X)) is (case.order < 2)


@pytest.mark.parametrize("activation", ["softplus", "elu", "relu", "hardshrink"])
def test_evaluation_needs_one_derivative_less(activation: str) -> None:
    case = BY_NAME[activation]
    f, h = density(case.act, number(SHIFT)), network(case.act, number(SHIFT))
    with torch.no_grad():
        assert refused(lambda: ScoreMatching()(f, X)) is (case.order < 1)
        assert refused(lambda: SlicedScoreMatchingVR()(f, X)) is (case.order < 1)
        assert refused(lambda: ScoreMatching()(VectorField(h), X)) is (case.order < 0)
        assert refused(lambda: SlicedScoreMatchingVR()(VectorField(h), X)) is (case.order < 0)


@pytest.mark.parametrize("activation", ["elu", "relu", "hardshrink"])
def test_the_check_can_be_switched_off(activation: str) -> None:
    case = BY_NAME[activation]
    f, h = density(case.act, number(SHIFT)), network(case.act, number(SHIFT))
    for field in (LogDensityField(f, check_smoothness=False), VectorField(h, False)):
        for objective in (ScoreMatching(), SlicedScoreMatchingVR(), DenoisingScoreMatching(1.0)):
            assert not refused(lambda field=field, objective=objective: objective(field, X))


# ----------------------------------------------------------------- however it is written

POINTS = normal(32, 4, generator=torch.Generator().manual_seed(0))
HIDDEN = normal(4, 4, generator=torch.Generator().manual_seed(1))

KINKED: dict[str, Callable[[Any], Any]] = {
    "module in place": nn.ReLU(inplace=True),
    "function": lambda z: F.leaky_relu(z, negative_slope=0.2),
    "where": lambda z: torch.where(z > 0, z, 0.1 * z),
    "mask": lambda z: z * (z > 0),
    "norm of order 1": lambda z: z.norm(p=1, dim=-1),
    "norm of order infinity": lambda z: z.norm(p=float("inf"), dim=-1),
    "root of a square": lambda z: z.square().sqrt(),
    "sign": lambda z: z * z.sign(),
    "sum by axis before": lambda z: torch.relu(z) + z.square().sum(axis=-1, keepdim=True),
    "Laplace": lambda z: torch.distributions.Laplace(0.3, 1.0).log_prob(z),
    "recurrent cell": lambda z: nn.RNNCell(4, 3, nonlinearity="relu", dtype=z.dtype)(z),
    "vmap": lambda z: torch.func.vmap(torch.relu)(z),
    "quantile": lambda z: z.quantile(0.5, dim=-1),
    "cummax": lambda z: z.cummax(-1).values,
    "sort": lambda z: z.sort(-1).values * torch.arange(4.0, dtype=torch.float64),
    "max pooling": lambda z: F.max_pool1d(z.unsqueeze(1), 2),
    "huber_loss": lambda z: F.huber_loss(z, torch.zeros_like(z), reduction="none"),
    "bilinear interpolation": lambda z: F.grid_sample(
        torch.arange(16.0, dtype=z.dtype).sin().reshape(1, 1, 4, 4).expand(len(z), 1, 4, 4),
        torch.tanh(z)[:, None, None, :2],
        align_corners=True,
    ),
    "bucketize": lambda z: (
        z * torch.arange(4.0).double()[torch.bucketize(z, HIDDEN[0, :3].sort()[0])]
    ),
    "relu^2": lambda z: torch.relu(z) ** 2,
    "heights of bins by numpy": lambda z: (
        torch.sin(z) + torch.from_numpy(np.digitize(z.detach().numpy(), [-0.5, 0.2]))
    ),
    "heights by a branch": lambda z: torch.stack(
        [row.sin().sum() + (1.0 if row[0].item() > 0 else -1.0) for row in z]
    ),
    "a step that no point falls into": lambda z: torch.sin(z) + torch.sigmoid(1e7 * (z - 0.1)),
    "sign of a real spectrum": lambda z: torch.fft.rfft(torch.exp(z)).angle().cos()[:, -1],
}

SMOOTH: dict[str, Callable[[Any], Any]] = {
    "relu^3": lambda z: torch.relu(z) ** 3,
    "abs squared": lambda z: z.abs().square(),
    "log of the modulus": lambda z: z.exp().abs().log(),
    "clamp never active": lambda z: F.softplus(z).clamp(min=1e-6).log(),
    "clamp of both sides": lambda z: torch.exp(-z.clamp(-30, 20)),
    "clamped norm": lambda z: z / z.norm(dim=-1, keepdim=True).clamp_min(1e-8),
    "logsumexp by hand": lambda z: (lambda m: (z - m).exp().sum(-1, keepdim=True).log() + m)(
        z.max(-1, keepdim=True).values
    ),
    "softplus by hand": lambda z: z.clamp(min=0) + torch.log1p(torch.exp(-z.abs())),
    "log cosh by hand": lambda z: z.abs() + torch.log1p(torch.exp(-2 * z.abs())),
    "angle modulo": lambda z: torch.cos((z + torch.pi) % (2 * torch.pi) - torch.pi),
    "maximum never active": lambda z: torch.maximum(z.exp(), torch.zeros_like(z)),
    "relu of a constant": lambda z: z * F.relu(HIDDEN[0]),
    "relu never used": lambda z: (F.relu(z), torch.tanh(z))[1],
    "relu times zero": lambda z: torch.tanh(z) + 0.0 * torch.relu(z),
    "sharp softplus": lambda z: F.softplus(z, beta=20),
    "steep sigmoid": lambda z: torch.sigmoid(100 * (z - 0.1)),
}


def one_layer(act: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        return act(x @ HIDDEN).reshape(len(x), -1).sum(1) - 0.5 * x.square().sum(1)

    return f


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
@pytest.mark.parametrize("how", KINKED)
def test_refused_however_it_is_written(how: str) -> None:
    with torch.random.fork_rng(), pytest.raises(SmoothnessError):
        SlicedScoreMatchingVR()(one_layer(KINKED[how]), POINTS)


@pytest.mark.parametrize("how", SMOOTH)
def test_accepted_however_it_is_written(how: str) -> None:
    SlicedScoreMatchingVR()(one_layer(SMOOTH[how]), POINTS)
    ScoreMatching()(one_layer(SMOOTH[how]), POINTS)


def test_a_context_may_have_kinks() -> None:
    context = normal(32, 2, generator=torch.Generator().manual_seed(2))
    encoder = nn.Linear(2, 4, dtype=torch.float64)

    def score(z: Tensor) -> Tensor:
        return torch.tanh(z + F.relu(encoder(context)))

    for objective in (ScoreMatching(), SlicedScoreMatchingVR(), DenoisingScoreMatching(0.1)):
        objective(VectorField(score), POINTS).sum().backward()


# ------------------------------------------------------------------------------ messages


class Net(nn.Module):
    def __init__(self, act: nn.Module, outputs: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, outputs)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


def message(ask: Callable[[], Any]) -> str:
    with pytest.raises(SmoothnessError) as caught:
        ask()
    return str(caught.value)


@pytest.mark.parametrize("route", ["auto", "traced", "reverse"])
def test_message_names_the_operation_and_what_to_do(route: str) -> None:
    field = LogDensityField(Net(nn.ReLU()), route=route)
    text = message(lambda: SlicedScoreMatchingVR()(field, POINTS))
    assert re.search(r"relu at net\.1 ReLU \(test_smoothness\.py:\d+\)", text)
    assert "must be continuously differentiable for the curvature of a log-density" in text
    assert "the score jumps" in text
    assert "use softplus" in text
    assert "check_smoothness=False" in text
    assert "\n" not in text


def test_message_of_a_function() -> None:
    text = message(lambda: ScoreMatching()(one_layer(torch.abs), POINTS))
    assert re.search(r"abs at test_smoothness\.py:\d+", text)
    assert "use sqrt(z^2 + eps)" in text


def test_message_says_what_the_question_needs() -> None:
    net = Net(nn.ReLU(), outputs=4)
    text = message(lambda: SlicedScoreMatchingVR()(VectorField(net), POINTS))
    assert "for the curvature of a vector field" in text
    assert "the derivative of the score jumps" in text
    text = message(lambda: DenoisingScoreMatching(0.1)(Net(nn.ReLU()), POINTS))
    assert "must be continuous for the score of a log-density" in text


def test_it_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="relu"):
        ScoreMatching()(one_layer(F.relu), POINTS)


# ---------------------------------------------------------------------------- few points first


def points(n: int, seed: int = 0) -> Tensor:
    return normal(n, 2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("uses", [1, 5])
def test_many_points_after_few_are_measured_again(uses: int) -> None:
    def hinge(x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(-1) + 0.3 * F.relu(x[:, 0] - 1).square()

    field, objective = LogDensityField(hinge), SlicedScoreMatchingVR()
    few, many = 0.05 * points(6), points(64)
    for _ in range(uses):
        objective(field, few)
    with pytest.raises(SmoothnessError, match="relu"):
        objective(field, many)


def test_few_points_are_measured_again_at_the_16th_use() -> None:
    def spline(x: Tensor) -> Tensor:  # without an operation that the engine knows to have kinks
        above = (x[:, 0].detach() > 1).double()
        return -0.5 * x.square().sum(-1) + 0.3 * above * (x[:, 0] - 1).square()

    field, objective = LogDensityField(spline), SlicedScoreMatchingVR()
    objective(field, 0.05 * points(6))
    with pytest.raises(SmoothnessError):
        for seed in range(2, 17):
            objective(field, points(6, seed))


def layers(act: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 8), act, nn.Linear(8, 1), nn.Flatten(0)).double()


@pytest.mark.parametrize("uses", [1, 2, 3, 5])
def test_a_layer_that_is_exchanged_is_measured(uses: int) -> None:
    net = layers(nn.Softplus())
    objective, x = SlicedScoreMatchingVR(), points(64)
    for _ in range(uses):
        objective(net, x)
    net[1] = nn.ELU()
    with pytest.raises(SmoothnessError, match="elu"):
        objective(net, x)


def test_a_second_layer_that_is_exchanged_is_measured() -> None:
    net = layers(nn.Softplus())
    objective, x = SlicedScoreMatchingVR(), points(64)
    for act in (nn.Softplus(), nn.SiLU()):
        net[1] = act
        objective(net, x)
    net[1] = nn.ELU()
    with pytest.raises(SmoothnessError, match="elu"):
        objective(net, x)


class WithFunction(nn.Module):
    """A layer of a function that is an attribute."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, z: Tensor) -> Tensor:
        return self.function(z)


@pytest.mark.parametrize("objective", [SlicedScoreMatchingVR(), DenoisingScoreMatching(SIGMA)])
@pytest.mark.parametrize("closure", [False, True])
def test_layers_that_are_not_traced_are_measured_when_exchanged(
    objective: Any, closure: bool
) -> None:
    """Denoising and double backward see values and scores only, which tell nothing of kinks."""

    def loss(net: nn.Module) -> Tensor:
        call = (lambda z: net(z) - z.square().sum(-1)) if closure else net
        return objective(LogDensityField(call, route="reverse"), x)

    x, net = points(64), layers(nn.Softplus())
    loss(net)
    net[1] = nn.ReLU()
    with pytest.raises(SmoothnessError, match="relu"):
        loss(net)
    net = layers(WithFunction(F.softplus))
    loss(net)
    net[1].function = torch.relu
    with pytest.raises(SmoothnessError, match="relu"):
        loss(net)


def test_layers_that_take_turns_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[None] = []

    def count(*arguments: Any) -> Any:
        measured.append(None)
        return measure(*arguments)

    measure = smoothness.measure
    monkeypatch.setattr(smoothness, "measure", count)
    net, objective, heads = layers(nn.Tanh()), DenoisingScoreMatching(SIGMA), (nn.SiLU(), nn.GELU())
    for use in range(8):
        net[1] = heads[use % 2]
        objective(net, points(64))
    assert len(measured) == 2


class Vmapped(nn.Module):
    """ReLU where the engine cannot follow it."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.func.vmap(torch.relu)(z)


@pytest.mark.parametrize("uses", [1, 2, 3, 5])
def test_a_layer_that_cannot_be_traced_is_measured(uses: int) -> None:
    net = layers(nn.Softplus())
    objective, x = SlicedScoreMatchingVR(), points(64)
    for _ in range(uses):
        objective(net, x)
    net[1] = Vmapped()
    with pytest.raises(SmoothnessError):
        objective(net, x)


@pytest.mark.parametrize("objective", [SlicedScoreMatchingVR(), DenoisingScoreMatching(SIGMA)])
def test_a_model_is_accepted_after_the_advice_was_followed(objective: Any) -> None:
    net, x = layers(nn.ReLU()), points(64)
    with pytest.raises(SmoothnessError, match="SiLU"):
        objective(net, x)
    net[1] = nn.SiLU()
    objective(net, x)


def test_the_strongest_of_several_kinks_decides() -> None:
    """Its soft clip has a weak kink, which alone is accepted, its activation a stronger one."""
    pytest.importorskip("zuko", reason="the extra flows is not installed")
    from tests.zoo.entry import settings
    from tests.zoo.libraries.zuko_flows import ENTRIES

    model = next(entry for entry in ENTRIES if entry.name == "NICE, ELU").fresh()
    with settings(), pytest.raises(SmoothnessError, match="elu"):
        SlicedScoreMatchingVR()(model.call, model.x)
