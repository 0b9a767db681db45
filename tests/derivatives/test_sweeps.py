"""The layerwise baselines, against all combinations of signs and a recursion written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching import ApproximateBackprop, CurvaturePropagation, LogDensityField
from scorematching.derivatives import routes
from scorematching.derivatives.engine.sweeps import _squared
from scorematching.derivatives.engine.tape import ONES, Tape
from scorematching.errors import WrongDerivativeError
from scorematching.objectives.layerwise import (
    SignTape,
    approximate_divergence,
    propagated_curvature,
)
from tests import oracles
from tests.derivatives.ways import WAYS, Bank, Way
from tests.derivatives.ways.habits import Cube
from tests.derivatives.ways.models import coupling_flow, kernel_mixture
from tests.laws import assert_close, sign_design
from tests.models_zoo import normal
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

Model = Callable[[Tensor], Tensor]


# ------------------------------------------------------------------------------- models


def one_layer(x: Tensor, p: Bank) -> Tensor:
    hidden = F.softplus(x @ p(2, 3) + p(3))
    return hidden @ (3 * p(3, k=1)) - 0.5 * (x.square() * p(2).exp()).sum(1)


def two_layers(x: Tensor, p: Bank) -> Tensor:
    return torch.tanh(torch.tanh(x @ p(2, 2) + p(2)) @ (3 * p(2, 2, k=1))) @ (2 * p(2, k=1))


def gated(x: Tensor, p: Bank) -> Tensor:
    return ((x @ p(2, 2)) * torch.sin(x @ p(2, 2, k=1))) @ p(2)


def outer(x: Tensor, p: Bank) -> Tensor:
    return torch.einsum("na,nb,ab->n", x, torch.sin(x), p(2, 2))


def bilinear(x: Tensor, p: Bank) -> Tensor:
    return (x.unsqueeze(1) @ p(2, 2) @ x.unsqueeze(2)).flatten()


def divided(x: Tensor, p: Bank) -> Tensor:
    return (p(2) * x).sum(1) / (1 + x[:, 0].square())


def normalised(x: Tensor, p: Bank) -> Tensor:
    return torch.softmax(x * p(2), 1)[:, 0] + torch.logsumexp(x @ p(2, 2), 1)


TINY: dict[str, Callable[[Tensor, Bank], Tensor]] = {
    "one layer": one_layer,
    "two layers": two_layers,
    "product": gated,
    "outer product": outer,
    "bilinear": bilinear,
    "quotient": divided,
    "softmax": normalised,
    "angle": lambda x, p: torch.atan2(x[:, 0], 2 + (x * p(2)).sum(1)),
    "in place": lambda x, p: torch.sin((x @ p(2, 2)).add_(1).mul_(x)).sum(1),
}


def mlp(x: Tensor, p: Bank) -> Tensor:
    net = p.net(
        "mlp",
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)
        ),
    )
    return net(x).squeeze(-1) - 0.1 * x.square().sum(1)


def convolutional(x: Tensor, p: Bank) -> Tensor:
    image = x.reshape(-1, 1, 2, 2)
    hidden = F.silu(F.conv2d(image, p(3, 1, 2, 2), p(3), padding=1))
    return F.conv_transpose2d(hidden, p(3, 1, 2, 2)).tanh().flatten(1).sum(1)


def residual(x: Tensor, p: Bank) -> Tensor:
    for k in range(2):
        x = x + torch.tanh(x @ p(4, 4, k=k)) * p(4)
    return -x.square().sum(1)


SMALL: dict[str, Callable[[Tensor, Bank], Tensor]] = {
    "mlp": mlp,
    "couplings": coupling_flow,
    "convolution": convolutional,
    "residual": residual,
    "product": lambda x, p: ((x @ p(4, 3)) * torch.sin(x @ p(4, 3, k=1))) @ p(3),
    "kernel": lambda x, p: kernel_mixture(x[:, :3], p),
}


def points(n: int, d: int) -> Tensor:
    return normal(n, d, generator=torch.Generator().manual_seed(1))


def exact(f: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    terms = [oracles.log_density_terms(f, x_i) for x_i in x]
    return torch.stack([t[1] for t in terms]), torch.stack([t[2].trace() for t in terms])


# -------------------------------------------------------------- curvature propagation


class AllSigns:
    """Every combination of signs that a model asks for, one to a row of the batch."""

    def __init__(self) -> None:
        self.bits = 0

    def count(self, like: Tensor) -> Tensor:
        """Signs for a batch of one, to learn how many are needed."""
        self.bits += like[0].numel()
        return torch.ones_like(like)

    def play(self) -> Callable[[Tensor], Tensor]:
        table = torch.arange(2**self.bits)[:, None] >> torch.arange(self.bits) & 1
        table = 2.0 * table.double() - 1
        used = 0

        def signs(like: Tensor) -> Tensor:
            nonlocal used
            width = like[0].numel()
            used += width
            return table[:, used - width : used].reshape(like.shape)

        return signs


def all_estimates(f: Model, x: Tensor) -> Tensor:
    """The estimated trace at one point, for every combination of signs."""
    every, field = AllSigns(), LogDensityField(f)
    propagated_curvature(field, x, every.count)
    assert 0 < every.bits <= 14
    copies = x.expand(2**every.bits, -1)
    return propagated_curvature(field, copies, every.play())[1]


@pytest.mark.parametrize("name", TINY)
def test_noise_averages_to_the_trace(name: str) -> None:
    bank, x = Bank(), points(1, 2)

    def f(x: Tensor) -> Tensor:
        return TINY[name](x, bank)

    estimates = all_estimates(f, x)
    assert estimates.std() > 1e-3  # it is an estimate, and not the trace itself
    _, trace = exact(f, x)
    assert_close(estimates.mean()[None], trace, IDENTITY)


@pytest.mark.parametrize("name", TINY)
def test_noise_averages_to_the_gradient_of_the_trace(name: str) -> None:
    bank, x = Bank(), points(1, 2)

    def f(x: Tensor) -> Tensor:
        return TINY[name](x, bank)

    def gradient(value: Tensor) -> Tensor:
        parameters = list(bank.parameters())
        found = torch.autograd.grad(value, parameters, allow_unused=True)
        pairs = zip(parameters, found)
        return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])

    estimate = all_estimates(f, x).mean()
    assert_close(gradient(estimate), gradient(exact(f, x)[1].sum()), ROUTES)


def test_no_noise_for_a_quadratic() -> None:
    # Curvature of one sign at x itself: the squares of the signs are all there is.
    x = points(5, 3)
    scale = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
    field = LogDensityField(lambda x: (scale * x.square()).sum(1))
    _, trace = propagated_curvature(field, x, lambda like: torch.ones_like(like))
    assert_close(trace, torch.zeros(5, dtype=torch.float64), IDENTITY)


def test_objective_is_unbiased() -> None:
    bank = Bank()
    x = points(1, 2)

    def f(x: Tensor) -> Tensor:
        return two_layers(x, bank)

    with torch.no_grad():
        copies = x.expand(40_000, 2)
        losses = CurvaturePropagation()(f, copies, torch.Generator().manual_seed(0))
    s, trace = exact(f, x)
    truth = float((trace + 0.5 * s.square().sum(1)).detach())
    assert_mean(losses, truth, detect=0.1)


def test_a_tape_of_signs_repeats_itself() -> None:
    tape = SignTape(torch.Generator().manual_seed(0))
    like = [torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 5)]
    first, again = (list(map(tape.play(), like)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], first[1])
    assert all(set(a.unique().tolist()) <= {-1.0, 1.0} for a in first)
    other = SignTape(torch.Generator().manual_seed(1)).play()
    assert not torch.equal(torch.cat([other(t) for t in like], 1), torch.cat(first, 1))


def test_every_point_has_its_own_signs() -> None:
    bank = Bank()
    x = points(1, 2).expand(64, 2)
    losses = CurvaturePropagation()(
        lambda x: two_layers(x, bank), x, torch.Generator().manual_seed(0)
    )
    assert losses.unique().numel() > 2


# ------------------------------------------------------- approximate backpropagation


ONE_HIDDEN_LAYER: dict[str, Callable[[Tensor, Bank], Tensor]] = {
    "softplus": one_layer,
    "tanh": lambda x, p: torch.tanh(x @ p(2, 3) + p(3)) @ p(3, k=1),
    "convolution": lambda x, p: (
        torch.sin(F.conv1d(x.unsqueeze(1), p(3, 1, 2), p(3), padding=1)).flatten(1) @ p(9)
    ),
    "einsum": lambda x, p: torch.exp(torch.einsum("nd,dk->nk", x, p(2, 3))) @ p(3),
    "on the left": lambda x, p: p(3) @ torch.sin(p(3, 2) @ x.T),
    "concatenation": lambda x, p: torch.sin(torch.cat([x, 2 - x @ p(2, 2)], 1) / 3) @ p(4),
    "mean": lambda x, p: torch.sin(x.mean(1, keepdim=True) * p(3)) @ p(3, k=1),
    "scaled difference": lambda x, p: torch.sin(p(2) - 3 * x).sum(1),
    "where": lambda x, p: torch.where(torch.tensor([True, False]), x**3, torch.sin(x)) @ p(2),
    "gaussian": lambda x, p: -0.5 * ((x - p(2)) / p(2, k=1).exp()).square().sum(1),
}


@pytest.mark.parametrize("name", ONE_HIDDEN_LAYER)
def test_diagonals_are_exact_for_one_hidden_layer(name: str) -> None:
    bank, x = Bank(), points(3, 2)

    def f(x: Tensor) -> Tensor:
        return ONE_HIDDEN_LAYER[name](x, bank)

    s, trace = approximate_divergence(LogDensityField(f), x)
    wanted, truth = exact(f, x)
    assert_close(s, wanted, IDENTITY)
    assert_close(trace, truth, IDENTITY)


@pytest.mark.parametrize("name", ["two layers", "product"])
def test_diagonals_are_biased_for_more(name: str) -> None:
    bank, x = Bank(), points(3, 2)

    def f(x: Tensor) -> Tensor:
        return TINY[name](x, bank)

    _, trace = approximate_divergence(LogDensityField(f), x)
    assert (trace - exact(f, x)[1]).abs().min() > 1e-3


def backward_recursion(x: Tensor, layers: list[nn.Linear], act: Any) -> tuple[Tensor, Tensor]:
    """Gradient and approximate Hessian diagonal of an MLP, from the output back, by hand.

    ``g_z = g_y f'(z)``, ``h_z = h_y f'(z)^2 + g_y f''(z)`` through an activation, and
    ``g_x = W' g_z``, ``h_x = (W^2)' h_z`` through a linear map.
    """
    inputs, pre = [x], []
    for layer in layers:
        pre.append(inputs[-1] @ layer.weight.T + layer.bias)
        inputs.append(act(pre[-1])[0])
    g = torch.ones_like(pre[-1])
    h = torch.zeros_like(g)
    for i in reversed(range(len(layers))):
        if i < len(layers) - 1:
            _, first, second = act(pre[i])
            g, h = g * first, h * first**2 + g * second
        weight = layers[i].weight
        g, h = g @ weight, h @ weight**2
    return g, h.sum(1)


def tanh_and_derivatives(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.tanh(z)
    return y, 1 - y**2, -2 * y * (1 - y**2)


def test_diagonals_are_those_of_the_backward_recursion() -> None:
    bank, x = Bank(), points(3, 4)
    widths = [(4, 6), (6, 5), (5, 3), (3, 1)]
    layers = [bank.net(f"layer{i}", lambda w=w: nn.Linear(*w)) for i, w in enumerate(widths)]

    def f(x: Tensor) -> Tensor:
        for layer in layers[:-1]:
            x = torch.tanh(layer(x))
        return layers[-1](x).squeeze(-1)

    s, trace = approximate_divergence(LogDensityField(f), x)
    wanted, diagonal = backward_recursion(x, layers, tanh_and_derivatives)
    assert_close(s, wanted, IDENTITY)
    assert_close(trace, diagonal, IDENTITY)
    gradients = (
        torch.autograd.grad(t.sum(), list(bank.parameters()), allow_unused=True)
        for t in (trace, diagonal)
    )
    for found, truth in zip(*gradients):
        assert (found is None) == (truth is None)
        if found is not None:
            assert_close(found, truth, ROUTES)


class Coefficients(Tape):
    """Checks what linear operations declare about their coefficients."""

    differentiates = True

    def linear(self, x: Any, y: Tensor, push: Any, axis: Any, coefficients: Any = None,
               shared: bool = False) -> Any:  # fmt: skip
        if coefficients is not None and x.p.numel() and not y.is_complex():
            for place in {0, x.p.numel() // 2, x.p.numel() - 1}:
                unit = torch.zeros(x.p.numel(), dtype=x.p.dtype)
                unit[place] = 1
                unit = unit.reshape(1, *x.p.shape)
                square = push(unit) if coefficients is ONES else push(unit, _squared(coefficients))
                assert_close(square.detach(), push(unit).detach().square(), IDENTITY)
        return super().linear(x, y, push, axis, coefficients, shared)


@pytest.mark.parametrize("way", [w for w in WAYS if w.traced], ids=lambda way: way.name)
def test_squares_of_coefficients(way: Way) -> None:
    bank, x = Bank(), way.points()
    field = LogDensityField(way.density(bank))
    with torch.enable_grad():
        field.model.trace(x.requires_grad_(), None, partial(Coefficients, len(x)))


# ------------------------------------------------------------------------------- both


@pytest.mark.parametrize("name", SMALL)
def test_both_sweeps_have_the_score(name: str) -> None:
    bank, x = Bank(), points(3, 4)

    def f(x: Tensor) -> Tensor:
        return SMALL[name](x, bank)

    leaf = x.clone().requires_grad_()
    (truth,) = torch.autograd.grad(f(leaf).sum(), leaf)
    field = LogDensityField(f)
    signs = SignTape(torch.Generator().manual_seed(0)).play()
    assert_close(approximate_divergence(field, x)[0], truth, IDENTITY)
    assert_close(propagated_curvature(field, x, signs)[0], truth, IDENTITY)
    with torch.no_grad():
        signs = SignTape(torch.Generator().manual_seed(0)).play()
        assert_close(propagated_curvature(field, x, signs)[0], truth, IDENTITY)


@pytest.mark.parametrize("name", ["everything", "first layer"])
def test_both_sweeps_take_frozen_models(name: str) -> None:
    weight = normal(5, 3, generator=torch.Generator().manual_seed(0))
    top = torch.ones(5, dtype=torch.float64, requires_grad=name == "first layer")
    x = points(4, 3)
    field = LogDensityField(lambda x: torch.sin(F.linear(x, weight)) @ top)
    truth, trace = exact(field.model.call, x)
    s, diagonal = approximate_divergence(field, x)
    assert_close(s, truth, IDENTITY)
    assert_close(diagonal, trace, IDENTITY)
    signs = SignTape(torch.Generator().manual_seed(0)).play()
    assert_close(propagated_curvature(field, x, signs)[0], truth, IDENTITY)


def determinant(x: Tensor) -> Tensor:
    return torch.logdet(3 * torch.eye(2, dtype=x.dtype) + x[:, :, None] * x[:, None, :])[:, None]


OBJECTIVES = [ApproximateBackprop(), CurvaturePropagation()]


def label(objective: Any) -> str:
    return type(objective).__name__


@pytest.mark.parametrize("objective", OBJECTIVES, ids=label)
@pytest.mark.parametrize(
    "op",
    [torch.i0, torch.func.vmap(torch.sin), Cube.apply, determinant],
    ids=["i0", "vmap", "custom function", "determinant"],
)
def test_operations_without_rules_are_refused(op: Any, objective: Any) -> None:
    with pytest.raises(ValueError, match=r"layerwise objective.*use SlicedScoreMatchingVR"):
        objective(lambda x: torch.sin(op(x)).sum(1), points(3, 2))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=label)
def test_an_error_of_the_model_is_raised_again(objective: Any) -> None:
    def broken(x: Tensor) -> Tensor:
        return (x @ torch.ones(7, 2, dtype=torch.float64)).sum(1)

    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        objective(broken, points(3, 2))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=label)
def test_kinks_are_refused(objective: Any) -> None:
    with pytest.raises(ValueError, match="relu"):
        objective(lambda x: torch.relu(x).sum(1), points(3, 2))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=label)
def test_derivatives_by_convention_are_refused(objective: Any) -> None:
    """Where a coordinate is zero torch takes 0 for the slope of its modulus."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    objective(lambda x: -0.5 * x.abs().square().sum(-1), x)
    x[:, 1] = 0
    with pytest.raises(WrongDerivativeError, match="right beside them"):
        objective(lambda x: -0.5 * x.abs().square().sum(-1), x)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=label)
def test_operations_with_wrong_derivatives_are_refused(
    objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(model: Any, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        score, curvature = right(model, x, v)
        return score, 1.5 * curvature

    right = routes._CURVATURE.reverse
    monkeypatch.setattr(routes, "_CURVATURE", replace(routes._CURVATURE, traced=wrong))
    with pytest.raises(WrongDerivativeError, match=r"right derivatives .* takes them by double"):
        objective(lambda x: -x.square().sum(-1), torch.ones(8, 3))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=label)
def test_a_linear_model_has_no_trace(objective: Any) -> None:
    x = points(3, 2)
    assert_close(
        objective(lambda x: x.sum(1), x, torch.Generator().manual_seed(0)),
        torch.ones(3, dtype=torch.float64),
        IDENTITY,
    )


def test_a_quadratic_is_exact_however_it_is_written() -> None:
    # Each of these has a diagonal Hessian, for which nothing is dropped.
    x = points(3, 2)
    for f in (
        lambda x: -0.5 * x.square().sum(1),
        lambda x: -0.5 * (x * x).sum(1),
        lambda x: -0.5 * (x**2).sum(1),
        lambda x: -0.5 * torch.einsum("nd,nd->n", x, x),
    ):
        _, trace = approximate_divergence(LogDensityField(f), x)
        assert_close(trace, torch.full((3,), -2.0, dtype=torch.float64), IDENTITY)


def test_signs_of_a_design_average_too() -> None:
    # With one curved operation, at x itself, the design is that of sliced score matching.
    x = points(1, 2)
    v = sign_design(x)
    f = LogDensityField(lambda x: torch.cosh(x @ torch.ones(2, 2, dtype=torch.float64)).sum(1))
    copies = x.expand(len(v), 2)
    _, traces = propagated_curvature(f, copies, lambda like: v[:, 0])
    truth = exact(f.model.call, x)[1]
    assert_close(traces.mean()[None], truth, IDENTITY)
