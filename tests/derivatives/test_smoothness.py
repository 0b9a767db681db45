"""Kinks: where autograd's gradient is wrong the engine refuses, and nowhere else.

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
    FiniteDifferenceSSM,
    LogDensityField,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    VectorField,
)
from scorematching.errors import SmoothnessError
from tests.models_zoo import normal

WEIGHT, HEIGHT, PRECISION, SHIFT, SIGMA = 1.3, 0.8, 0.7, 0.3, 0.5

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Bend:
    """An activation, its kinks, and k where it is C^k (None: smooth)."""

    name: str
    act: Activation
    kinks: tuple[float, ...] = ()
    order: int = 99


BENDS = [
    Bend("softplus", F.softplus),
    Bend("silu", F.silu),
    Bend("gelu", F.gelu),
    Bend("gelu tanh", lambda z: F.gelu(z, approximate="tanh")),
    Bend("mish", F.mish),
    Bend("tanh", torch.tanh),
    Bend("relu^3", lambda z: F.relu(z) ** 3, (0.0,), 2),
    Bend("relu^2", lambda z: F.relu(z) ** 2, (0.0,), 1),
    Bend("elu", F.elu, (0.0,), 1),
    Bend("celu", lambda z: F.celu(z, 1.5), (0.0,), 1),
    Bend("softsign", F.softsign, (0.0,), 1),
    Bend("elu of another height", lambda z: F.elu(z, 0.5), (0.0,), 0),
    Bend("selu", F.selu, (0.0,), 0),
    Bend("relu", F.relu, (0.0,), 0),
    Bend("leaky_relu", lambda z: F.leaky_relu(z, 0.1), (0.0,), 0),
    Bend("hardswish", F.hardswish, (-3.0, 3.0), 0),
    Bend("hardtanh", F.hardtanh, (-1.0, 1.0), 0),
    Bend("abs", torch.abs, (0.0,), 0),
    Bend("clamp", lambda z: z.clamp(-0.5, 0.9), (-0.5, 0.9), 0),
    Bend("maximum", lambda z: torch.maximum(z, 0.3 * z * z), (0.0, 1 / 0.3), 0),
    Bend("softshrink", F.softshrink, (-0.5, 0.5), 0),
]


def name(bend: Bend) -> str:
    return bend.name.replace(" ", "_")


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


def fisher(bend: Bend, shift: float, scale: float, is_density: bool) -> float:
    """``0.5 E (s_b(x) + x / scale^2)^2`` under N(0, scale^2)."""
    x, weights = quadrature(bend.kinks, shift, scale)
    if is_density:
        x = x.requires_grad_()
        (s,) = torch.autograd.grad(density(bend.act, number(shift))(x).sum(), x)
    else:
        s = network(bend.act, number(shift))(x)
    return float((weights * 0.5 * (s + x / scale**2).square().squeeze(-1)).sum().detach())


def true_slope(bend: Bend, scale: float, is_density: bool, step: float = 1e-4) -> float:
    ahead, behind = (fisher(bend, SHIFT + h, scale, is_density) for h in (step, -step))
    return (ahead - behind) / (2 * step)


def slope(loss: Callable[[Tensor], Tensor]) -> float:
    """Autograd's slope of a loss in the shift."""
    shift = number(SHIFT).requires_grad_()
    (found,) = torch.autograd.grad(loss(shift), shift, allow_unused=True)
    return 0.0 if found is None else float(found)


def sliced_slope(bend: Bend, wrap: type[Field]) -> float:
    """In one dimension, with v = 1, sliced score matching is exact score matching."""
    x, weights = quadrature(bend.kinks, SHIFT, 1.0)
    make = density if wrap is LogDensityField else network

    def loss(shift: Tensor) -> Tensor:
        field = wrap(make(bend.act, shift), check_smoothness=False)
        losses = SlicedScoreMatchingVR().loss(field, x, torch.ones(1, *x.shape, dtype=x.dtype))
        return (weights * losses).sum()

    return slope(loss)


def denoising_slope(bend: Bend, wrap: type[Field]) -> float:
    """Over noisy points y and, given y, the noise: the loss is linear in it, so two nodes do."""
    scale = (1 + SIGMA**2) ** 0.5
    y, weights = quadrature(bend.kinks, SHIFT, scale)
    mean, spread = SIGMA * y / scale**2, 1 / scale
    eps = torch.cat([mean + spread, mean - spread])
    x, half = torch.cat([y, y]) - SIGMA * eps, torch.cat([weights, weights]) / 2
    make = density if wrap is LogDensityField else network

    def loss(shift: Tensor) -> Tensor:
        field = wrap(make(bend.act, shift), check_smoothness=False)
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


# ------------------------------------------------------------- recomputed, then guarded

X = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("bend", BENDS, ids=name)
def test_log_densities_need_two_derivatives(bend: Bend) -> None:
    f = density(bend.act, number(SHIFT))
    assert_verdict(
        sliced_slope(bend, LogDensityField),
        true_slope(bend, 1.0, is_density=True),
        smooth=bend.order >= 2,
        was_refused=refused(lambda: SlicedScoreMatchingVR()(f, X)),
    )


@pytest.mark.parametrize("bend", BENDS, ids=name)
def test_score_networks_need_one_derivative(bend: Bend) -> None:
    field = VectorField(network(bend.act, number(SHIFT)))
    assert_verdict(
        sliced_slope(bend, VectorField),
        true_slope(bend, 1.0, is_density=False),
        smooth=bend.order >= 1,
        was_refused=refused(lambda: SlicedScoreMatchingVR()(field, X)),
    )


@pytest.mark.parametrize("bend", BENDS, ids=name)
def test_denoising_log_densities_needs_one_derivative(bend: Bend) -> None:
    f = density(bend.act, number(SHIFT))
    assert_verdict(
        denoising_slope(bend, LogDensityField),
        true_slope(bend, (1 + SIGMA**2) ** 0.5, is_density=True),
        smooth=bend.order >= 1,
        was_refused=refused(lambda: DenoisingScoreMatching(SIGMA)(f, X)),
    )


JUMPS = [
    Bend("hardshrink", F.hardshrink, (-0.5, 0.5), -1),
    Bend("threshold", lambda z: F.threshold(z, 0.2, -0.4), (0.2,), -1),
]


@pytest.mark.parametrize("bend", [*BENDS, *JUMPS], ids=name)
def test_denoising_score_networks_needs_none(bend: Bend) -> None:
    field = VectorField(network(bend.act, number(SHIFT)))
    assert_verdict(
        denoising_slope(bend, VectorField),
        true_slope(bend, (1 + SIGMA**2) ** 0.5, is_density=False),
        smooth=bend.order >= 0,
        was_refused=refused(lambda: DenoisingScoreMatching(SIGMA)(field, X)),
    )


@pytest.mark.parametrize("objective", [ScoreMatching(), SlicedScoreMatching()], ids=["SM", "SSM"])
@pytest.mark.parametrize("bend", BENDS, ids=name)
def test_every_objective_with_a_curvature_is_guarded(bend: Bend, objective: Any) -> None:
    f = density(bend.act, number(SHIFT))
    assert refused(lambda: objective(f, X)) is (bend.order < 2)


def test_differences_take_no_derivative_of_the_model() -> None:
    # Central differences see a kink within their reach, and their gradient in the shift is theirs.
    assert not refused(lambda: FiniteDifferenceSSM()(density(F.softplus, number(SHIFT)), X))


@pytest.mark.parametrize("bend", [*BENDS, *JUMPS], ids=name)
def test_evaluation_needs_one_derivative_less(bend: Bend) -> None:
    f, h = density(bend.act, number(SHIFT)), network(bend.act, number(SHIFT))
    with torch.no_grad():
        assert refused(lambda: ScoreMatching()(f, X)) is (bend.order < 1)
        assert refused(lambda: SlicedScoreMatchingVR()(f, X)) is (bend.order < 1)
        assert refused(lambda: ScoreMatching()(VectorField(h), X)) is (bend.order < 0)
        assert refused(lambda: SlicedScoreMatchingVR()(VectorField(h), X)) is (bend.order < 0)
        assert refused(lambda: LogDensityField(f).score(X)) is (bend.order < 0)


@pytest.mark.parametrize("bend", [*BENDS, *JUMPS], ids=name)
def test_the_guard_can_be_switched_off(bend: Bend) -> None:
    f, h = density(bend.act, number(SHIFT)), network(bend.act, number(SHIFT))
    for field in (LogDensityField(f, check_smoothness=False), VectorField(h, False)):
        for objective in (ScoreMatching(), SlicedScoreMatchingVR(), DenoisingScoreMatching(1.0)):
            assert not refused(lambda field=field, objective=objective: objective(field, X))


# ----------------------------------------------------------------- however it is written


KINKED: dict[str, Callable[[Any], Any]] = {
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "nn.ReLU6": nn.ReLU6(),
    "nn.LeakyReLU": nn.LeakyReLU(0.1),
    "nn.PReLU": nn.PReLU(dtype=torch.float64),
    "nn.RReLU": nn.RReLU().eval(),
    "nn.ELU": nn.ELU(),
    "nn.ELU in place": nn.ELU(inplace=True),
    "nn.CELU": nn.CELU(),
    "nn.SELU": nn.SELU(),
    "nn.Hardtanh": nn.Hardtanh(),
    "nn.Hardswish": nn.Hardswish(),
    "nn.Hardsigmoid": nn.Hardsigmoid(),
    "nn.Hardshrink": nn.Hardshrink(),
    "nn.Softshrink": nn.Softshrink(),
    "nn.Softsign": nn.Softsign(),
    "nn.Threshold": nn.Threshold(0.1, 0.1),
    "nn.MaxPool1d": lambda z: nn.MaxPool1d(2)(z.unsqueeze(1)),
    "nn.AdaptiveMaxPool1d": lambda z: nn.AdaptiveMaxPool1d(2)(z.unsqueeze(1)),
    "F.relu": F.relu,
    "F.leaky_relu keyword": lambda z: F.leaky_relu(z, negative_slope=0.2),
    "F.elu keyword": lambda z: F.elu(z, alpha=0.5),
    "F.prelu": lambda z: F.prelu(z, torch.full((1,), 0.2, dtype=torch.float64)),
    "F.max_pool1d": lambda z: F.max_pool1d(z.unsqueeze(1), 2),
    "F.max_pool2d": lambda z: F.max_pool2d(z.reshape(-1, 1, 2, 2), 2),
    "F.l1_loss": lambda z: F.l1_loss(z, torch.zeros_like(z), reduction="none"),
    "F.smooth_l1_loss": lambda z: F.smooth_l1_loss(z, torch.zeros_like(z), reduction="none"),
    "F.huber_loss": lambda z: F.huber_loss(z, torch.zeros_like(z), reduction="none"),
    "torch.relu": torch.relu,
    "torch.relu_": lambda z: torch.relu_(z * 1),
    "torch.clamp": lambda z: torch.clamp(z, min=0),
    "torch.clip": lambda z: torch.clip(z, 0, 1),
    "torch.maximum": lambda z: torch.maximum(z, torch.zeros_like(z)),
    "torch.fmax": lambda z: torch.fmax(z, torch.zeros_like(z)),
    "torch.max of two": lambda z: torch.max(z, torch.zeros_like(z)),
    "torch.max along an axis": lambda z: torch.max(z, 1)[0],
    "torch.min along an axis": lambda z: torch.min(z, dim=1).values,
    "torch.remainder": lambda z: torch.remainder(z, 1.0),
    "torch.frac": torch.frac,
    "x.relu()": lambda z: z.relu(),
    "x.relu_()": lambda z: (z * 1).relu_(),
    "x.abs()": lambda z: z.abs(),
    "abs(x)": abs,
    "x.clamp()": lambda z: z.clamp(min=0.0),
    "x.clamp_min()": lambda z: z.clamp_min(0.0),
    "x.clamp_()": lambda z: (z * 1).clamp_(min=0.0),
    "x.max(1)": lambda z: z.max(1).values,
    "x.amax(1)": lambda z: z.amax(1),
    "x.sort()": lambda z: z.sort(1).values * torch.arange(4.0, dtype=torch.float64),
    "x.topk()": lambda z: z.topk(2).values,
    "x.median(1)": lambda z: z.median(1).values,
    "x % 1": lambda z: z % 1.0,
    "relu twice": lambda z: F.relu(F.relu(z)),
    "relu times itself": lambda z: (lambda h: h * h)(F.relu(z)),
    "relu^1.5": lambda z: F.relu(z) ** 1.5,
    "abs^1": lambda z: z.abs() ** 1,
    "relu^3 plus relu": lambda z: (lambda h: h**3 + h)(F.relu(z)),
    "relu^3 shifted": lambda z: (F.relu(z) + 1) ** 3,
    "relu6^3": lambda z: F.relu6(z) ** 3,
}

SMOOTH: dict[str, Callable[[Any], Any]] = {
    "nn.Softplus": nn.Softplus(),
    "nn.SiLU": nn.SiLU(inplace=True),
    "nn.GELU": nn.GELU(),
    "nn.Mish": nn.Mish(),
    "nn.Tanh": nn.Tanh(),
    "nn.Sigmoid": nn.Sigmoid(),
    "nn.LogSigmoid": nn.LogSigmoid(),
    "nn.Tanhshrink": nn.Tanhshrink(),
    "relu^3": lambda z: F.relu(z) ** 3,
    "relu^3 by torch.pow": lambda z: torch.pow(torch.relu(z), 3),
    "relu^3 by method": lambda z: z.relu().pow(3),
    "relu^4": lambda z: F.relu(z) ** 4.0,
    "relu^2 squared": lambda z: F.relu(z).square().square(),
    "relu^2.5": lambda z: F.relu(z) ** 2.5,
    "leaky_relu^3": lambda z: F.leaky_relu(z) ** 3,
    "abs^2": lambda z: z.abs() ** 2,
    "abs squared": lambda z: torch.square(torch.abs(z)),
    "abs^3": lambda z: z.abs() ** 3,
    "relu of a constant": lambda z: z * F.relu(torch.linspace(-1, 1, 4, dtype=torch.float64)),
    "relu of a detached value": lambda z: z * F.relu(z.detach()),
    "softmax": lambda z: torch.softmax(z, 1),
    "dropout in evaluation": lambda z: F.dropout(z, 0.5, False),
    "layer norm": lambda z: F.layer_norm(z, (4,)),
    "norm": lambda z: z.norm(dim=1),
    "relu never used": lambda z: (F.relu(z), torch.tanh(z))[1],
}  # fmt: skip

POINTS = normal(5, 4, generator=torch.Generator().manual_seed(0))


def one_layer(act: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    weight = normal(4, 4, generator=torch.Generator().manual_seed(1))
    return lambda x: torch.sin(act(x @ weight)).reshape(len(x), -1).sum(1)


@pytest.mark.parametrize("how", KINKED)
def test_refused_however_it_is_written(how: str) -> None:
    field = LogDensityField(one_layer(KINKED[how]))
    with pytest.raises(SmoothnessError):
        field.score_and_curvature(POINTS, POINTS)
    with pytest.raises(SmoothnessError):
        field.score_and_divergence(POINTS)


@pytest.mark.parametrize("how", SMOOTH)
def test_allowed_however_it_is_written(how: str) -> None:
    field = LogDensityField(one_layer(SMOOTH[how]), route="traced")
    field.score_and_curvature(POINTS, POINTS)
    field.score_and_divergence(POINTS)
    field.score(POINTS)


@pytest.mark.parametrize("how", ["F.relu", "nn.LeakyReLU", "x.amax(1)", "torch.maximum"])
def test_a_model_that_cannot_be_traced_to_its_end_is_guarded_all_the_same(how: str) -> None:
    # Whatever stops the trace, double backward is taken; the kink before it is no less wrong.
    layer = one_layer(KINKED[how])

    def f(x: Tensor) -> Tensor:
        return (layer(x) + 0.1).clone().mul_(2.0)

    with pytest.raises(SmoothnessError):
        LogDensityField(f).score_and_curvature(POINTS, POINTS)


@pytest.mark.parametrize("how", ["F.relu", "nn.LeakyReLU", "x.amax(1)"])
def test_an_operation_in_no_table_does_not_hide_a_kink_from_the_score(how: str) -> None:
    layer = one_layer(KINKED[how])
    with pytest.raises(SmoothnessError):
        LogDensityField(lambda x: layer(x) + x.prod(1)).score(POINTS)


def test_a_context_may_have_kinks() -> None:
    context, encoder = normal(5, 2, generator=torch.Generator().manual_seed(2)), nn.Linear(2, 4)
    encoder.double()

    def score(z: Tensor) -> Tensor:
        return torch.tanh(z + F.relu(encoder(context)))

    for objective in (ScoreMatching(), SlicedScoreMatchingVR(), DenoisingScoreMatching(0.1)):
        objective(VectorField(score), POINTS).sum().backward()


# ------------------------------------------------------------------------------ what it says


class Net(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 1)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Net(nn.ELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def message(ask: Callable[[], Any]) -> str:
    with pytest.raises(SmoothnessError) as caught:
        ask()
    return str(caught.value)


def test_message() -> None:
    text = message(lambda: SlicedScoreMatchingVR()(Net(nn.ReLU()), POINTS))
    assert "relu" in text
    assert "net.1: ReLU" in text
    assert re.search(r"must be C2 .* which is C0", text)
    assert "softplus" in text
    assert "check_smoothness=False" in text
    assert "test_smoothness.py:" in text
    assert "\n" not in text


def test_message_of_a_functional_call() -> None:
    text = message(lambda: ScoreMatching()(one_layer(F.relu), POINTS))
    assert re.search(r"got relu at .*test_smoothness\.py:\d+", text)


def test_message_of_a_nested_module() -> None:
    text = message(lambda: ScoreMatching()(Outer(), POINTS))
    assert "net.1: ELU" in text
    assert "which is C1" in text


@pytest.mark.parametrize("wrap", [LogDensityField, VectorField])
def test_message_of_a_bare_sequential(wrap: Any) -> None:
    # No frame of the user's is in between, and one of the library's says nothing.
    out = nn.Flatten(0) if wrap is LogDensityField else nn.Identity()
    width = 1 if wrap is LogDensityField else 4
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, width), out).double()
    text = message(lambda: SlicedScoreMatchingVR()(wrap(net), POINTS))
    assert "1: ReLU" in text
    assert ".py:" not in text or "test_smoothness.py:" in text


def test_message_says_what_the_question_needs() -> None:
    f = one_layer(F.relu)
    assert "must be C1" in message(lambda: LogDensityField(f).score(POINTS))
    h = VectorField(lambda x: F.relu(x))
    assert "must be C1" in message(lambda: h.score_and_curvature(POINTS, POINTS))
    assert "vector field" in message(lambda: h.score_and_curvature(POINTS, POINTS))
    with torch.no_grad():
        text = message(lambda: LogDensityField(f).score_and_divergence(POINTS))
    assert "must be C1" in text


def test_it_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="relu"):
        ScoreMatching()(one_layer(F.relu), POINTS)


def test_double_backward_has_no_guard() -> None:
    # The route that sees no operation cannot look at them: asked for by name, it is taken at that.
    LogDensityField(one_layer(F.relu), route="reverse").score_and_curvature(POINTS, POINTS)
