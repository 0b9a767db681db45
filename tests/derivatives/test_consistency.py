"""Models of which a part is cut from the graph are refused, whatever cuts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import scorematching as sm
from scorematching.derivatives.smoothness import measure

DIM = 3


def weights(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


A, B, X = weights(DIM, 4), weights(DIM, 4, seed=1), weights(40, DIM, seed=2)


def quadratic(x: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


def gate(x: Tensor) -> Tensor:
    with torch.no_grad():
        share = torch.sigmoid(x @ A.to(x)).sum(1)
    return share * torch.tanh(x @ B.to(x)).sum(1) + quadratic(x)


def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(3 * x.detach().numpy())).sum(1) + quadratic(x)


CUT: dict[str, Callable[[Tensor], Tensor]] = {
    "factor": lambda x: -(x * x.detach()).sum(1),
    "norm": lambda x: torch.tanh(x / (1 + x.norm(dim=1, keepdim=True).detach())).sum(1),
    "attention": lambda x: ((x @ A).softmax(1).detach() * torch.tanh(x @ B)).sum(1) + quadratic(x),
    "data": lambda x: torch.sin(x.data).sum(1) + quadratic(x),
    "lists": lambda x: torch.tensor(x.tolist(), dtype=x.dtype).sin().sum(1) + quadratic(x),
    "gate": gate,
    "numpy": by_numpy,
}

WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "quadratic": quadratic,
    "oscillation": lambda x: torch.sin(300 * x).sum(1) + quadratic(x),
    "steep": lambda x: nn.functional.softplus(x @ A, beta=50.0).sum(1) + quadratic(x),
    "a detached maximum that cancels": lambda x: (
        (x @ A - (x @ A).amax(1, keepdim=True).detach()).exp().sum(1).log()
        + (x @ A).amax(1).detach()
    ),
    "constant": lambda x: 0 * x.sum(1) + 1e6,
    "far from zero": lambda x: 1e6 + quadratic(x),
}


@pytest.mark.parametrize("name", CUT)
def test_a_cut_is_refused(name: str) -> None:
    with pytest.raises(sm.WrongDerivativeError, match="cut from the graph"):
        sm.SlicedScoreMatchingVR()(CUT[name], X)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_others_are_not(name: str, dtype: torch.dtype) -> None:
    assert not measure(
        lambda x: WHOLE[name](x.double()).to(x.dtype), X.to(dtype), "log-density"
    ).cut


@pytest.mark.parametrize("is_cut", [False, True])
def test_vector_fields(is_cut: bool) -> None:
    def field(x: Tensor) -> Tensor:
        size = x.norm(dim=1, keepdim=True)
        return torch.tanh(x) / (1 + (size.detach() if is_cut else size)) - x

    assert measure(field, X, "vector field").cut is is_cut


@pytest.mark.parametrize("is_cut", [False, True])
def test_single_precision(is_cut: bool) -> None:
    """A model that refuses double precision is measured in single precision."""

    def density(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("this model wants float32")
        share = (x @ A.float()).softmax(1)
        share = share.detach() if is_cut else share
        return (share * torch.tanh(x @ B.float())).sum(1) + quadratic(x)

    found = measure(density, X.float(), "log-density")
    assert found.precision == "float32"
    assert found.cut is is_cut


def test_objectives_without_that_derivative_do_not_mind() -> None:
    """Differences need values alone, and denoising the score that a network returns."""
    assert bool(sm.FiniteDifferenceSSM()(CUT["factor"], X).isfinite().all())
    network = sm.VectorField(lambda x: torch.tanh(x) * torch.sigmoid(x).detach() - x)
    assert bool(sm.DenoisingScoreMatching(0.1)(network, X).isfinite().all())
    with pytest.raises(sm.WrongDerivativeError, match="cut from the graph"):
        sm.SlicedScoreMatchingVR()(network, X)


def test_the_check_can_be_switched_off() -> None:
    field = sm.LogDensityField(CUT["factor"], check_smoothness=False)
    assert bool(sm.SlicedScoreMatchingVR()(field, X).isfinite().all())


def test_check_model_refuses_it() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(DIM))

        def forward(self, x: Tensor) -> Tensor:
            return -(self.scale * x * x.detach()).sum(1)

    check = sm.check_model(Cut(), X, sm.SlicedScoreMatchingVR(), show=False)
    assert not check.passed
    assert "cut from the graph" in str(check)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_checkpoints_are_whole(dtype: torch.dtype) -> None:
    """Layers that are run again during the backward pass have the derivatives of the first run."""
    weight = nn.Parameter(weights(DIM).to(dtype))

    def density(x: Tensor) -> Tensor:
        return checkpoint(lambda z: torch.sin(z * weight), x, use_reentrant=False).sum(1)

    found = measure(density, X.to(dtype), "log-density")
    assert (found.order, found.cut) == (1, False)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_mode_inside_a_model() -> None:
    """Tensors of functorch have no memory of their own."""
    layer = lambda x: torch.tanh(x @ A)  # noqa: E731

    def density(x: Tensor) -> Tensor:
        change = torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1]
        return change.square().sum(1) + quadratic(x)

    found = measure(density, X, "log-density")
    assert found.order == 1
    assert not found.cut


class DetachedCube(torch.autograd.Function):
    """Its gradient is right, and has no derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 3 * ctx.x**2


@pytest.mark.parametrize("is_cut", [True, False])
def test_denoising_needs_a_differentiable_score(is_cut: bool) -> None:
    cube = DetachedCube.apply if is_cut else lambda z: z**3
    weight = torch.eye(3, dtype=torch.float64, requires_grad=True)
    field = sm.LogDensityField(lambda x: -cube(x @ weight).sum(-1) - x.square().sum(-1))
    objective, x = sm.DenoisingScoreMatching(0.1), torch.linspace(-1, 1, 24).double().reshape(8, 3)
    noise = objective.draw(x, torch.Generator().manual_seed(0))
    if is_cut:
        with pytest.raises(sm.WrongDerivativeError, match=r"ctx\.saved_tensors"):
            objective.loss(field, x, noise)
        return
    (gradient,) = torch.autograd.grad(objective.loss(field, x, noise).sum(), weight)
    with torch.no_grad():
        ends = []
        for h in (1e-5, -1e-5):
            weight[0, 0] += h
            ends.append(float(objective.loss(field, x, noise).sum()))
            weight[0, 0] -= h
    assert float(gradient[0, 0]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


class Cube(nn.Module):
    """A log-density whose curvature is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(DIM, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return quadratic(x) - DetachedCube.apply(x @ self.weight).square().sum(-1)


@pytest.mark.parametrize("route", ["auto", "reverse"])
def test_a_refused_model_is_refused_again(route: str) -> None:
    """Uses that ended in an error were counted, and the third one is not checked."""
    field = sm.LogDensityField(Cube(), route=route)
    for _ in range(5):
        with pytest.raises(sm.WrongDerivativeError, match="by every route"):
            sm.ScoreMatching()(field, X)


OBJECTIVES = [
    sm.ScoreMatching(),
    sm.SlicedScoreMatchingVR(),
    sm.DenoisingScoreMatching(1e-3),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_a_log_density_of_nan_with_a_finite_score_is_refused(objective: sm.Objective) -> None:
    """log f has the derivative f'/f where f is negative, too: the loss was that of log |f|."""
    objective(lambda x: (x[:, 0] + 9).log() + quadratic(x), X)
    with pytest.raises(ValueError, match=r"log-density must be a number .* got NaN at \d+ of 40"):
        objective(lambda x: x[:, 0].log() + quadratic(x), X)
    positive = X[X[:, 0] > 0.01]
    objective(lambda x: x[:, 0].log() + quadratic(x), positive)


@pytest.mark.parametrize("route", ["auto", "reverse"])
@pytest.mark.parametrize(
    "objective",
    [
        *OBJECTIVES,
        sm.DenoisingScoreMatching(1e-3, control_variate=True),
        sm.LocalCurvatureSmoothing(sigma=1e-3),
        sm.CurvaturePropagation(),
    ],
    ids=repr,
)
def test_points_that_a_log_density_excludes_are_refused(
    objective: sm.Objective, route: str
) -> None:
    """The score beside an indicator is finite: such points had a loss of zero."""

    def truncated(x: Tensor) -> Tensor:
        return torch.where((x > 0).all(-1), quadratic(x), -torch.inf)

    field = sm.LogDensityField(truncated, route=route)
    with pytest.raises(ValueError, match=r"finite at the points, got minus infinity at \d+ of 40"):
        objective(field, X)
    objective(field, X.abs() + 0.1)
    assert field.score(X)[(X < 0).any(1)].count_nonzero() == 0  # not compared with the points


class ShiftedLog(nn.Module):
    """A log-density with ``log(x_1 + shift)``, NaN at some points if the shift is small."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(9.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, 0] + self.shift).log() + quadratic(x)


@pytest.mark.parametrize("route", ["auto", "reverse"])
@pytest.mark.parametrize(
    "objective",
    [*OBJECTIVES, sm.SlicedScoreMatching(num_projections=2), sm.ApproximateBackprop()],
    ids=repr,
)
def test_a_log_density_that_becomes_nan_in_training_is_refused(
    objective: sm.Objective, route: str
) -> None:
    """It was found at the next measurement only, mostly at the 1024th use."""
    model = ShiftedLog()
    field = sm.LogDensityField(model, route=route)
    for _ in range(4):
        objective(field, X)
    with torch.no_grad():
        model.shift.zero_()
    with pytest.raises(ValueError, match=r"log-density must be a number .* got NaN at \d+ of 40"):
        objective(field, X)


def test_a_diverged_model_has_losses_of_nan() -> None:
    """The training loop takes care of these."""
    model = sm.models.MLPDensity(dim=DIM).double()
    with torch.no_grad():
        model.net[0].weight.fill_(torch.nan)
    assert sm.SlicedScoreMatchingVR()(model, X).isnan().all()
