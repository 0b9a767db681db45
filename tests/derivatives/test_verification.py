"""Answers are checked on the user's model: wrong rules are found, and nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import scorematching as sm
from scorematching import LogDensityField, VectorField
from scorematching.derivatives import verification
from scorematching.derivatives.ops.registry import OPERATIONS
from scorematching.errors import WrongDerivativeError
from tests import oracles
from tests.laws import assert_close
from tests.models_zoo import DENSITIES, SCORES, Case, name, normal
from tests.tolerances import ROUTES

VR, SSM, SM = sm.SlicedScoreMatchingVR(), sm.SlicedScoreMatching(), sm.ScoreMatching()
X = normal(8, 3, generator=torch.Generator().manual_seed(0))

Model = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """A log-density, or a score network, with two sines."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 5).double(), nn.Linear(5, outputs).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sin(torch.sin(self.first(x)))).squeeze(-1)


@pytest.fixture
def net() -> Iterator[Net]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield Net()


# ------------------------------------------------------------------------- planted errors


def plant(patch: pytest.MonkeyPatch, operation: str, **changes: Any) -> None:
    """Change the registry's entries of one operation."""
    for function, entry in list(OPERATIONS.items()):
        if entry.name == operation:
            patch.setitem(OPERATIONS, function, replace(entry, **changes))


def plant_sine(patch: pytest.MonkeyPatch, derivatives: Callable[[Tensor, Tensor], Any]) -> None:
    facts = OPERATIONS[torch.sin].facts
    plant(patch, "sin", facts=facts._replace(derivatives=derivatives))


WRONG_SINES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "no second derivative": lambda z, y: (torch.cos(z), None),
    "wrong sign of the second": lambda z, y: (torch.cos(z), y),
    "second off by one percent": lambda z, y: (torch.cos(z), -1.01 * y),
    "first off by one percent": lambda z, y: (1.01 * torch.cos(z), -y),
    "second cut from the graph": lambda z, y: (torch.cos(z), -y.detach()),
    "first cut from the graph": lambda z, y: (torch.cos(z).detach(), -y),
    "not a number": lambda z, y: (torch.cos(z), -y / 0 * 0),
}


def assert_moved(
    objective: sm.Objective, field: sm.Field, truth: sm.Field, module: nn.Module, named: str
) -> None:
    """The first answer is right already, and one warning names the operation."""
    noise = objective.draw(X, torch.Generator().manual_seed(1))
    with pytest.warns(sm.PerformanceWarning) as caught:
        loss = objective.loss(field, X, noise)
    assert len(caught) == 1
    wanted = partial(objective.loss, truth, X, noise)
    assert_close(loss, wanted(), ROUTES)
    gradient = oracles.parameter_gradient(lambda: objective.loss(field, X, noise), module)
    assert_close(gradient, oracles.parameter_gradient(wanted, module), ROUTES)
    assert "wrong answer" in str(caught[0].message)
    assert named in str(caught[0].message)


@pytest.mark.parametrize("error", WRONG_SINES)
@pytest.mark.parametrize("objective", [VR, SSM, SM], ids=["VR", "SSM", "SM"])
def test_a_wrong_rule_is_found(
    error: str, objective: sm.Objective, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_sine(monkeypatch, WRONG_SINES[error])
    truth = LogDensityField(net, route="reverse")
    assert_moved(objective, LogDensityField(net), truth, net, "sin")


@pytest.mark.parametrize("error", ["first off by one percent", "first cut from the graph"])
@pytest.mark.parametrize("objective", [VR, SM], ids=["VR", "SM"])
def test_a_wrong_rule_in_a_score_network_is_found(
    error: str, objective: sm.Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_sine(monkeypatch, WRONG_SINES[error])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net(outputs=3)
    truth = VectorField(net, route="reverse")
    assert_moved(objective, VectorField(net), truth, net, "sin")


def wrong_flip(call: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """A rule that ignores its argument: consistent, and of another function."""
    return x * 1


def test_a_rule_with_a_wrong_value_is_found(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "flip", rule=wrong_flip)

    def model(x: Tensor) -> Tensor:
        return net(x.flip(1))

    truth = LogDensityField(model, route="reverse")
    assert_moved(VR, LogDensityField(model), truth, net, "flip")


def shuffled(call: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """A rule for the exponential that credits its curvature to the next point."""
    y = torch.exp(x.p)
    return call.tape.dense(x, y, lambda u: y * u, lambda u: (y * u * u).roll(1, 1), x.axis)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 64])
def test_answers_credited_to_the_wrong_points_are_found(
    n: int, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "exp", rule=shuffled)
    x = normal(n, 3, generator=torch.Generator().manual_seed(2))
    with pytest.warns(sm.PerformanceWarning, match="wrong answer"):
        VR(lambda x: net(x) - torch.exp(x).sum(1), x)


def test_a_wrong_rule_is_found_where_nothing_is_trained(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_sine(monkeypatch, WRONG_SINES["second off by one percent"])
    with torch.no_grad(), pytest.warns(sm.PerformanceWarning):
        VR(net, X)


def test_a_wrong_rule_is_found_in_single_precision(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_sine(monkeypatch, WRONG_SINES["wrong sign of the second"])
    with pytest.warns(sm.PerformanceWarning):
        VR(net.float(), X.float())


def test_a_wrong_rule_is_found_in_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are checked together, as one random combination of them."""
    plant_sine(monkeypatch, WRONG_SINES["second off by one percent"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        features = LogDensityField(Net(outputs=4))
    noise = VR.draw(X, torch.Generator().manual_seed(1))
    with pytest.warns(sm.PerformanceWarning, match="wrong answer by .*sin"):
        found = VR.terms(features, X, noise)
    wanted = VR.terms(LogDensityField(features.model.call, route="reverse"), X, noise)
    assert_close(found.second, wanted.second, ROUTES)


def test_errors_of_rounding_are_no_wrong_rule(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of 5%, as of sums that cancel, which change with the last digits of the points."""

    def rounded(z: Tensor, y: Tensor) -> Any:
        return torch.cos(z), -y * (1 + 0.05 * torch.sin(1e16 * z.detach()))

    plant_sine(monkeypatch, rounded)
    with torch.no_grad():  # parameters would not be moved by rounding alone
        VR(net, X)
    assert "traced" in str(sm.explain(net, X))


def test_a_wrong_rule_is_found_behind_dropout(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_sine(monkeypatch, WRONG_SINES["second off by one percent"])
    with torch.random.fork_rng(), pytest.warns(sm.PerformanceWarning, match="wrong answer"):
        VR(lambda x: net(F.dropout(x, 0.5, True)), X)


def test_a_wrong_rule_is_found_with_a_context_of_as_many_rows(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_sine(monkeypatch, WRONG_SINES["second off by one percent"])
    context = normal(8, 3, generator=torch.Generator().manual_seed(5))
    with pytest.warns(sm.PerformanceWarning, match="wrong answer"):
        VR(lambda x: net(x + context), X)


@pytest.mark.parametrize("use", [1, 2, 4, 8, 16])
def test_late_changes_are_found(use: int, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a compiler that specialises after a few calls: wrong from some use on."""
    for _ in range(use - 1):
        VR(net, X)
    plant_sine(monkeypatch, WRONG_SINES["second off by one percent"])
    noise = VR.draw(X, torch.Generator().manual_seed(1))
    with pytest.warns(sm.PerformanceWarning, match="wrong answer"):
        loss = VR.loss(LogDensityField(net), X, noise)
    assert_close(loss, VR.loss(LogDensityField(net, route="reverse"), X, noise), ROUTES)


class Misdifferentiated(torch.autograd.Function):
    """A sine whose derivative cannot be differentiated rightly."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return torch.sin(z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return grads[0] * (torch.cos(z).detach() + 1e-2 * (torch.sin(z) - torch.sin(z).detach()))


@pytest.mark.parametrize("objective", [VR, SSM, SM], ids=["VR", "SSM", "SM"])
@pytest.mark.parametrize("training", [True, False])
def test_derivatives_that_are_wrong_by_every_route_are_refused(
    objective: sm.Objective, training: bool, net: Net
) -> None:
    def model(x: Tensor) -> Tensor:
        return net.last(Misdifferentiated.apply(net.first(x))).squeeze(-1)

    with torch.set_grad_enabled(training):
        for _ in range(2):  # it is not accepted the second time either
            with pytest.raises(WrongDerivativeError, match="disagree with finite differences"):
                objective(model, X)


def test_a_model_that_becomes_wrong_is_refused(net: Net) -> None:
    late = False

    def model(x: Tensor) -> Tensor:
        h = net.first(x)
        return net.last(Misdifferentiated.apply(h) if late else torch.sin(h)).squeeze(-1)

    for _ in range(3):
        VR(model, X)
    late = True
    with pytest.raises(WrongDerivativeError):
        VR(model, X)


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
def test_answers_that_are_not_finite_are_refused() -> None:
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)

    def model(x: Tensor) -> Tensor:
        return torch.where(x > -99, x.square() * weight, torch.sqrt(x - x)).sum(1)

    assert model(X).isfinite().all()
    with pytest.raises(WrongDerivativeError, match="finite"):
        VR(model, X)


# --------------------------------------------------------------------------- false alarms


def scaled(model: Any, unit: float) -> Model:
    return lambda x: model(x / unit)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", [*DENSITIES, *SCORES], ids=name)
def test_right_models_are_silent(case: Case, dtype: torch.dtype, unit: float) -> None:
    # Warnings are errors here.
    module, x = case.module().to(dtype), case.points(8).to(dtype)
    field = case.wrap(scaled(module, unit))
    for _ in range(2):
        VR(field, unit * x)
    assert field.model.findings.uses["curvature"] == 2
    assert not field.model.findings.routes


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 64])
def test_batches_of_any_size(n: int, net: Net) -> None:
    x = normal(n, 3, generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        VR(net, x)


def test_points_that_are_all_the_same(net: Net) -> None:
    VR(net, torch.ones(5, 3, dtype=torch.float64))
    VR(net, torch.zeros(5, 3, dtype=torch.float64))


def test_a_context_of_as_many_rows(net: Net) -> None:
    for _ in range(2):
        context = normal(8, 3, generator=torch.Generator().manual_seed(5))
        VR(lambda x, c=context: net(x + c), X)
        context = normal(5, 3, generator=torch.Generator().manual_seed(5))
        VR(lambda x, c=context: net(x + c), X[:5])


def test_a_context_for_every_point_after_one_for_all(net: Net) -> None:
    def strict(x: Tensor, c: Tensor) -> Tensor:
        if len(c) not in (1, len(x)):
            raise IndexError("one context, or one for each point")
        return net(x + c)

    for use in range(9):
        rows = 1 if use < 3 else 8
        context = normal(rows, 3, generator=torch.Generator().manual_seed(use))
        noise = VR.draw(X, torch.Generator().manual_seed(use))
        found = VR.loss(LogDensityField(lambda x, c=context: strict(x, c)), X, noise)
        truth = LogDensityField(lambda x, c=context: net(x + c), route="reverse")
        assert_close(found, VR.loss(truth, X, noise), ROUTES)


SPARSE_POINTS = X * (torch.arange(24).reshape(8, 3) % 3 > 0)
"""Points of which every first coordinate is zero."""

BY_CONVENTION: dict[str, Model] = {
    "modulus squared": lambda z: -z.abs().square(),
    "modulus cubed over it": lambda z: -(z * z).abs(),
    "log cosh by hand": lambda z: -z.abs() - torch.log1p(torch.exp(-2 * z.abs())),
    "softplus by hand": lambda z: -z.clamp(min=0) - torch.log1p(torch.exp(-z.abs())),
}

ORDINARY: dict[str, Model] = {
    "square": lambda z: -z.square(),
    "log cosh": lambda z: -z - F.softplus(-2 * z),
    "relu cubed": lambda z: -(F.relu(z) ** 3) - z.square(),
    "fourth power": lambda z: -(z**4) - z.square(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("objective", [VR, SM])
@pytest.mark.parametrize("how", BY_CONVENTION)
def test_derivatives_that_are_wrong_at_zeros_are_refused(
    how: str, objective: sm.Objective, dtype: torch.dtype
) -> None:
    """All routes agree on them, and the function itself is smooth."""

    def model(x: Tensor) -> Tensor:
        return BY_CONVENTION[how](x).sum(1)

    objective(model, X.to(dtype))
    with pytest.raises(WrongDerivativeError, match="right beside them"):
        objective(lambda x: model(x), SPARSE_POINTS.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_of_very_different_units_are_ordinary(dtype: torch.dtype) -> None:
    units = torch.tensor([1e6, 1.0, 1e-6], dtype=dtype)
    VR(lambda x: -torch.log1p((x / units).square()).sum(1), SPARSE_POINTS.to(dtype) * units)


def test_points_on_the_boundary_of_a_support_are_ordinary() -> None:
    def model(x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("negative")
        return -x.square().sum(1)

    VR(model, SPARSE_POINTS.abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ORDINARY)
def test_zeros_are_ordinary_points_of_other_functions(how: str, dtype: torch.dtype) -> None:
    x = SPARSE_POINTS.to(dtype)
    VR(lambda x: ORDINARY[how](x).sum(1), x)
    SM(lambda x: ORDINARY[how](x).sum(1), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", BY_CONVENTION)
def test_zeros_may_be_anywhere_in_a_batch(how: str, dtype: torch.dtype) -> None:
    """The points at which answers are compared with another route are the first four."""
    ordinary = normal(500, 3, generator=torch.Generator().manual_seed(1))
    x = torch.cat([ordinary, SPARSE_POINTS]).to(dtype)
    with pytest.raises(WrongDerivativeError, match="right beside them"):
        VR(lambda x: BY_CONVENTION[how](x).sum(1), x)
    VR(lambda x: ORDINARY["log cosh"](x).sum(1), x)


def test_centres_may_be_anywhere_in_a_batch() -> None:
    """Torch takes 0 as the slope of a distance at zero, so that its square has no curvature."""
    x = normal(60, 3, generator=torch.Generator().manual_seed(1))
    centres = x[30:50]
    with pytest.raises(WrongDerivativeError, match="right beside them"):
        VR(lambda x: -torch.cdist(x, centres).square().sum(1), x)
    VR(lambda x: -(x[:, None] - centres).square().sum((1, 2)), x)


@pytest.mark.parametrize("objective", [VR, SM])
def test_derivatives_that_are_nan_beside_ordinary_points(objective: sm.Objective) -> None:
    """The second derivative of sinc at zero is NaN in torch."""
    x = torch.cat([X, SPARSE_POINTS])
    with pytest.raises(WrongDerivativeError, match="or where it is NaN"):
        objective(lambda x: torch.sinc(x).sum(1) - x.square().sum(1), x)


def test_features_of_different_numbers() -> None:
    """They share findings, because one piece of code computes them."""
    features = Net(5)
    v = verification.fixed_signs(X, seed=0)
    for num in (2, 5, 1, 3):
        for _ in range(2):
            field = LogDensityField(lambda x, n=num: features(x)[:, :n])
            score, curvature = field.score_and_curvature(X, v)
            assert score.shape == (8, num, 3)
            assert curvature.shape == (8, num)


@pytest.mark.parametrize("frozen", ["first", "last", "all", "inside"])
def test_frozen_parameters(frozen: str, net: Net) -> None:
    parts = {"first": net.first, "last": net.last, "all": net, "inside": nn.Module()}
    parts[frozen].requires_grad_(False)
    fixed = net.first.weight.detach()
    wrapped = net if frozen != "inside" else lambda x: net(x) + F.linear(x, fixed).sin().sum(1)
    VR(wrapped, X)


def test_parameters_used_twice(net: Net) -> None:
    tied = nn.Linear(3, 3).double()
    VR(lambda x: net(tied(torch.tanh(tied(x)))), X)


def test_parameters_that_were_computed_before_the_model(net: Net) -> None:
    """A hypernetwork: the weights that the model reads are not leaves."""
    weight = net.first.weight.tanh() @ torch.eye(3, dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        return torch.sin(x @ weight.T).sum(1)

    VR(model, X).sum().backward()
    assert net.first.weight.grad is not None


# ------------------------------------------------------------------------- batch coupling

COUPLED: dict[str, Callable[[Tensor, nn.Module], Tensor]] = {
    "centred": lambda x, net: net(x - x.mean(0)),
    "softmax over points": lambda x, net: net(torch.softmax(x, 0)),
    "distances between points": lambda x, net: net(x) - (x[:, None] - x).square().sum((1, 2)),
    "sorted": lambda x, net: net(x) + x.sort(0).values.sum(1),
}


@pytest.mark.parametrize("how", COUPLED)
def test_models_that_couple_points_are_refused(how: str, net: Net) -> None:
    field = LogDensityField(lambda x: COUPLED[how](x, net), check_smoothness=False)
    with pytest.raises(ValueError, match=r"every point by itself.*model\.eval"):
        VR(field, X)


def test_models_that_begin_to_couple_points_are_refused(net: Net) -> None:
    """By a layer of their own in training mode, say."""
    centres = False

    def model(x: Tensor) -> Tensor:
        return net(x - x.mean(0) if centres else x)

    for _ in range(3):
        VR(model, X)
    centres = True
    with pytest.raises(ValueError, match="every point by itself"):
        VR(model, X)


def test_models_that_couple_points_are_refused_after_a_single_point(net: Net) -> None:
    """One point has no others to be coupled with."""
    coupled = COUPLED["distances between points"]
    field = LogDensityField(lambda x: coupled(x, net), check_smoothness=False)
    VR(field, X[:1])
    with pytest.raises(ValueError, match="every point by itself"):
        VR(field, X)


class Schedule(nn.Module):
    """A log-density that grows with every call, counted in an attribute or in a buffer."""

    def __init__(self, net: Net, in_buffer: bool) -> None:
        super().__init__()
        self.net = net
        if in_buffer:
            self.register_buffer("calls", torch.zeros(()))
        else:
            self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x) * (1 + 0.01 * self.calls)


def test_models_that_change_with_every_call_are_refused_by_name(net: Net) -> None:
    """Not as models that couple points; a buffer is put back, so that one counts nothing."""
    with pytest.raises(ValueError, match=r"same values at every call.*register_buffer"):
        VR(Schedule(net, in_buffer=False), X)
    model, v = Schedule(net, in_buffer=True), VR.draw(X)
    fixed = LogDensityField(lambda x: 1.01 * net(x))
    assert_close(VR.loss(LogDensityField(model), X, v), VR.loss(fixed, X, v), ROUTES)
    assert model.calls == 1


# ----------------------------------------------------------------------- nothing is changed


class Counter(nn.Module):
    """A layer with buffers that change at every call, as spectral norms have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x


HOLDERS: dict[str, Callable[[nn.Module], Any]] = {
    "module": lambda module: module,
    "bound method": lambda module: module.forward,
    "closure": lambda module: lambda x: module(x),
    "partial": lambda module: partial(lambda x, f: f(x), f=module),
}


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """A region that must leave the parameters of a module and the random state alone."""
    parameters = list(module.parameters())
    before = [(p.data_ptr(), p._version, p.detach().clone(), p.requires_grad) for p in parameters]
    state = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), state)
    for p, (pointer, version, data, trained) in zip(parameters, before):
        assert (p.data_ptr(), p._version, p.requires_grad) == (pointer, version, trained)
        assert torch.equal(p, data)
        assert p.grad is None


@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize("objective", [VR, SM, sm.DenoisingScoreMatching(0.1)])
def test_parameters_and_random_state_are_left_alone(
    how: str, objective: sm.Objective, net: Net
) -> None:
    generator = torch.Generator().manual_seed(0)
    with unchanged(net):
        for _ in range(4):
            objective(HOLDERS[how](net), X, generator)


@pytest.mark.parametrize("how", HOLDERS)
def test_buffers_change_as_by_one_evaluation(how: str, net: Net) -> None:
    module, plain = (nn.Sequential(Counter(), net) for _ in range(2))
    for use in range(1, 6):
        VR(HOLDERS[how](module), X)
        plain(X)
        assert module[0].calls == use
        assert torch.equal(module[0].mean, plain[0].mean)


def test_spectral_norms_advance_as_by_one_evaluation() -> None:
    def build() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))
            return nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()

    used, plain = build(), build()
    for _ in range(3):
        VR(used, X)
        plain(X)
    for a, b in zip(used.buffers(), plain.buffers()):
        assert_close(a, b, ROUTES)


@pytest.mark.parametrize("route", ["traced", "reverse"])
def test_running_statistics_of_instances_advance_as_by_one_evaluation(route: str) -> None:
    """Models in evaluation mode use them."""
    x = normal(8, 2, 5, generator=torch.Generator().manual_seed(0))
    used, plain = (nn.InstanceNorm1d(2, track_running_stats=True).double() for _ in range(2))
    field = LogDensityField(lambda x: -used(x).exp().flatten(1).sum(1), route=route)
    for _ in range(3):
        VR(field, x)
        plain(x)
    for a, b in zip(used.buffers(), plain.buffers()):
        assert_close(a, b, ROUTES)


def assert_random_state_of_one_evaluation(model: Model) -> None:
    """One use of a model leaves the random state that one call of it leaves."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model(X)
        wanted = torch.get_rng_state()
        torch.manual_seed(1)
        VR(model, X, torch.Generator().manual_seed(0))
        assert torch.equal(torch.get_rng_state(), wanted)


def test_the_random_state_advances_as_by_one_evaluation(net: Net) -> None:
    def model(x: Tensor) -> Tensor:
        return net(F.dropout(x, 0.5, True))

    for _ in range(4):
        assert_random_state_of_one_evaluation(model)


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
def test_a_failed_trace_leaves_the_random_state_alone(net: Net) -> None:
    assert_random_state_of_one_evaluation(lambda x: torch.func.vmap(net)(F.dropout(x, 0.5, True)))


def test_gradients_that_were_there_are_not_added_to(net: Net) -> None:
    net(X).sum().backward()
    before = [p.grad.clone() for p in net.parameters()]
    VR(net, X)
    for p, g in zip(net.parameters(), before):
        assert torch.equal(p.grad, g)


# ------------------------------------------------------------------------------- cost


def test_answers_are_checked_at_the_powers_of_two(net: Net) -> None:
    calls = []

    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return net(x)

    checked = []
    for use in range(1, 40):
        calls.clear()
        VR(counted, X)
        checked += [use] if len(calls) > 1 else []
    assert checked == [1, 2, 4, 8, 16, 32]


def test_checks_evaluate_few_points(net: Net) -> None:
    rows = []

    def counted(x: Tensor) -> Tensor:
        rows.append(len(x))
        return net(x)

    x = normal(500, 3, generator=torch.Generator().manual_seed(0))
    field = LogDensityField(counted, check_smoothness=False)
    VR(field, x)
    rows.clear()
    VR(field, x)  # the second use is checked too
    assert rows.count(500) == 1
    assert set(rows) - {500} == {verification.NUM_POINTS, 2 * verification.NUM_POINTS}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_gradients_that_oscillate_in_the_parameters(dtype: torch.dtype, factor: float) -> None:
    """Differences over a period, or several, of a parameter agree with each other and are wrong."""
    steps = {torch.float32: 2.0**-6, torch.float64: 2.0**-13}
    noise = torch.randn((1,), generator=torch.Generator().manual_seed(0), dtype=dtype).abs()
    rate = 2 * math.pi * factor / (steps[dtype] * float(noise))
    scale = torch.nn.Parameter(torch.ones(1, dtype=dtype))
    answer = _gaussian(lambda: 1 + 0.1 * torch.sin(rate * (scale - 1)))
    x, v = _points_and_ones(dtype)
    assert verification.check_gradient(answer, x, v).agree
    wrong = verification.check_gradient(lambda x, v: _with_half_gradient(*answer(x, v)), x, v)
    assert wrong.conclusive and not wrong.agree


def _gaussian(precision: Callable[[], Tensor]) -> verification.Answer:
    """Score and curvature of a Gaussian."""
    return lambda x, v: (-precision() * x, -precision() * v.square().sum((0, 2)))


def _points_and_ones(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.linspace(-1, 1, 8, dtype=dtype).reshape(4, 2), torch.ones(1, 4, 2, dtype=dtype)


def _with_half_gradient(score: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
    return score.lerp(score.detach(), 0.5), curvature.lerp(curvature.detach(), 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_parameter_that_hardly_matters(dtype: torch.dtype) -> None:
    """Differences show rounding only, by every step, which says nothing about the gradient."""
    scale = torch.nn.Parameter(torch.ones(1, dtype=dtype))
    answer = _gaussian(lambda: 1 + 0.1 * torch.finfo(dtype).eps * scale)
    assert verification.check_gradient(answer, *_points_and_ones(dtype)).agree


def test_later_checks_take_the_answer_itself(net: Net) -> None:
    rows = []

    def counted(x: Tensor) -> Tensor:
        rows.append(len(x))
        return net(x)

    x = normal(500, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        VR(counted, x)
    rows.clear()
    VR(counted, x)
    assert rows == [500, verification.NUM_POINTS]


class CutBackward(torch.autograd.Function):
    """The hyperbolic tangent with a backward pass that is not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Tanh."""
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Its derivative, of a detached tensor."""
        (x,) = ctx.saved_tensors
        return gradient * (1 - x.detach().tanh().square())


class TurnsWrong(Net):
    """A model that cannot be traced, whose second derivative is lost when it is told so."""

    wrong = False

    def forward(self, x: Tensor) -> Tensor:
        z = torch.func.vmap(torch.tanh)(self.first(x))
        return self.last(CutBackward.apply(z) if self.wrong else z.tanh()).squeeze(-1)


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
@pytest.mark.parametrize("route", ["auto", "reverse"])
@pytest.mark.parametrize("objective", [VR, SM], ids=["VR", "SM"])
def test_double_backward_is_checked_later_too(objective: sm.Objective, route: str) -> None:
    """It was after the second use by exact score matching only, and never where it was imposed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TurnsWrong()
    field = LogDensityField(model, route=route)
    for _ in range(5):
        objective(field, X)
    model.wrong = True
    with pytest.raises(WrongDerivativeError, match="by every route"):
        for _ in range(3):
            objective(field, X)


@pytest.mark.parametrize("objective", [VR, SM], ids=["VR", "SM"])
def test_double_backward_that_is_imposed_is_checked(objective: sm.Objective) -> None:
    model = TurnsWrong()
    model.wrong = True
    with pytest.raises(WrongDerivativeError, match="by every route"):
        objective(LogDensityField(model, route="reverse"), X)


HOOKS: dict[str, Callable[[Tensor], Tensor]] = {
    "clipped": lambda gradient: gradient.clamp(-1e-3, 1e-3),
    "masked": lambda gradient: gradient * (gradient > 0),
    "stopped": torch.zeros_like,
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_hooks_on_parameters_change_gradients_on_purpose(
    net: Net, hook: Callable[[Tensor], Tensor]
) -> None:
    """They were taken for wrong derivatives."""
    VR(net, X, torch.Generator().manual_seed(0)).mean().backward()
    wanted = [p.grad for p in net.parameters()]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hooked = Net()
    hooked.first.weight.register_hook(hook)
    VR(hooked, X, torch.Generator().manual_seed(0)).mean().backward()
    assert hooked.first.weight.grad is not None
    assert wanted[0] is not None
    torch.testing.assert_close(hooked.first.weight.grad, hook(wanted[0]))
    assert hooked.first.bias.grad is not None
    assert wanted[1] is not None
    torch.testing.assert_close(hooked.first.bias.grad, wanted[1])


class WithPenalty(Net):
    """A log-density that keeps a penalty on its hidden units, to be added to the loss."""

    penalty: Tensor

    def forward(self, x: Tensor) -> Tensor:
        z = torch.sin(self.first(x))
        self.penalty = z.square().mean()
        return self.last(z).squeeze(-1)


def test_a_value_that_the_model_keeps_needs_double_backward() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = WithPenalty()
    with pytest.raises(Exception, match=r'must not hold a value that .*route="reverse"'):
        (VR(model, X).mean() + model.penalty).backward()
    for use in range(1, 17):
        x = X + 0.1 * use
        VR(LogDensityField(model, route="reverse"), x)
        assert_close(model.penalty, torch.sin(model.first(x)).square().mean(), ROUTES)


@pytest.mark.parametrize("count", [1, 40])
def test_copies_of_a_point_in_small_units(net: Net, count: int) -> None:
    """They were called exceptional, compared with points a million of their units away."""
    unit, v = 1e-8, torch.ones(1, count, 3)
    x, single = X[:1].float().expand(count, 3), net.float()
    wanted = VR.loss(LogDensityField(single), x, v)
    found = VR.loss(LogDensityField(lambda z: single(z / unit)), unit * x, v)
    torch.testing.assert_close(found * unit**2, wanted, rtol=1e-4, atol=1e-4)
