"""What was found out about a model lies on the model, for each of its modes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching import LogDensityField, VectorField
from scorematching.derivatives.memory import ATTRIBUTE, findings_of
from tests.models_zoo import normal

X = normal(6, 3, generator=torch.Generator().manual_seed(0))
VR = sm.SlicedScoreMatchingVR()


class Net(nn.Module):
    """A log-density that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3).double()
        self.calls = 0

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.calls += 1
        return -scale * torch.tanh(self.layer(x)).square().sum(-1) - x.square().sum(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        return self(x)

    def both(self, x: Tensor) -> Tensor:
        return 2 * self(x)


class Vmapped(Net):
    """The same inside vmap, where it cannot be traced."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return torch.func.vmap(super().forward)(x)


def calls_of(net: Net, ask: Callable[[], Any]) -> int:
    before = net.calls
    ask()
    return net.calls - before


HOLDERS: dict[str, Callable[[Net], Any]] = {
    "module": lambda net: net,
    "bound method": lambda net: net.log_prob,
    "partial": lambda net: partial(net, scale=2.0),
    "partial of a method": lambda net: partial(net.forward, scale=2.0),
    "closure": lambda net: lambda x: net(x),
    "closure in a closure": lambda net: (lambda f: lambda x: f(x))(lambda x: net(x)),
    "default argument": lambda net: lambda x, net=net: net(x),
    "list in a closure": lambda net: (lambda nets: lambda x: nets[0](x))([net]),
    "object": lambda net: Holder(net),
}


class Holder:
    """An object with a model inside."""

    def __init__(self, net: Net) -> None:
        self.parts = {"net": net}

    def __call__(self, x: Tensor) -> Tensor:
        return self.parts["net"](x)


@pytest.mark.parametrize("how", HOLDERS)
def test_findings_lie_on_the_module_however_it_is_held(how: str) -> None:
    net = Net()
    VR(HOLDERS[how](net), X)
    (findings,) = vars(net)[ATTRIBUTE].values()
    assert findings.uses["curvature"] == 1


@pytest.mark.parametrize("how", HOLDERS)
def test_a_callable_made_anew_shares_them(how: str) -> None:
    """A step measures nothing twice: from the fifth on it evaluates the model once."""
    net = Net()
    for _ in range(4):
        VR(HOLDERS[how](net), X)
    assert calls_of(net, lambda: VR(HOLDERS[how](net), X)) == 1
    (findings,) = vars(net)[ATTRIBUTE].values()
    assert findings.uses["curvature"] == 5


def test_two_functions_of_one_module_have_their_own() -> None:
    net = Net()
    for f in (net, net.log_prob, net.both, lambda x: net(x), lambda x: net(2 * x)):
        VR(f, X)
    assert len(vars(net)[ATTRIBUTE]) == 5


def test_modes_and_kinds_have_their_own() -> None:
    net = Net()
    VR(net, X)
    VR(net.eval(), X)
    assert len(vars(net)[ATTRIBUTE]) == 2
    layer = net.layer
    VR(VectorField(layer), X)
    LogDensityField(layer, check_smoothness=False).score_and_curvature(X, X)
    # The outputs of the layer, as features, are also checked together, as another callable.
    kinds = [key[0] for key in vars(layer)[ATTRIBUTE]]
    assert sorted(kinds) == ["log-density", "log-density", "vector field"]


def test_plain_functions_keep_their_own() -> None:
    def f(x: Tensor) -> Tensor:
        return -x.square().sum(-1)

    VR(f, X)
    VR(f, X)
    (findings,) = vars(f)[ATTRIBUTE].values()
    assert findings.uses["curvature"] == 2


def test_callables_without_a_place_for_them_work() -> None:
    class Slotted:
        __slots__ = ()

        def __call__(self, x: Tensor) -> Tensor:
            return -x.square().sum(-1)

    assert torch.equal(VR(Slotted(), X), VR(Slotted(), X))


def with_findings() -> Net:
    net = Net()
    VR(net, X)
    assert vars(net)[ATTRIBUTE]
    return net


def saved(net: nn.Module) -> nn.Module:
    stream = io.BytesIO()
    torch.save(net, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "torch.save": saved,
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_start_without(how: str) -> None:
    net = with_findings()
    other = COPIES[how](net)
    assert not vars(other).get(ATTRIBUTE)
    assert vars(net)[ATTRIBUTE]
    VR(other, X)  # and can have their own
    assert findings_of(other, "log-density").uses["curvature"] == 1
    assert findings_of(net, "log-density").uses["curvature"] == 1


def test_modules_look_the_same_with_and_without() -> None:
    fresh, used = Net(), with_findings()
    assert fresh.state_dict().keys() == used.state_dict().keys()
    assert [n for n, _ in fresh.named_buffers()] == [n for n, _ in used.named_buffers()]
    assert repr(fresh) == repr(used)
    used.load_state_dict(fresh.state_dict())
    assert used.double().half().float() is used


# --------------------------------------------------------------------------------- warnings


def test_the_slow_route_is_announced_once_for_each_mode() -> None:
    net = Vmapped()
    with pytest.warns(sm.PerformanceWarning) as caught:
        for _ in range(9):
            VR(lambda x: net(x), X)
    assert len(caught) == 1
    with pytest.warns(sm.PerformanceWarning) as caught:
        net.eval()
        for _ in range(3):
            VR(lambda x: net(x), X)
    assert len(caught) == 1


def test_the_warning_says_what_where_and_what_to_do() -> None:
    with pytest.warns(sm.PerformanceWarning) as caught:
        VR(Vmapped(), X)
    text = str(caught[0].message)
    for part in ("vmap", "test_memory.py:", "double backward", "sm.explain", 'route="reverse"'):
        assert part in text


def test_a_failed_trace_is_not_repeated() -> None:
    """On the slow route a step evaluates the model once, as double backward alone does."""
    traces = []

    class Counting(Vmapped):
        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            traces.append(type(x).__name__)
            return super().forward(x)

    net = Counting()
    with pytest.warns(sm.PerformanceWarning):
        for _ in range(4):
            VR(net, X)
    assert traces.count("Traced") == 1
    traces.clear()
    VR(net, X)
    assert traces == ["Tensor"]


@pytest.mark.parametrize("objective", [VR, sm.ScoreMatching(), sm.SlicedScoreMatching()])
def test_the_reverse_route_is_silent(objective: sm.Objective) -> None:
    """Warnings are errors here; no trace is tried and nothing is verified."""
    net = Vmapped()
    field = LogDensityField(net, route="reverse", check_smoothness=False)
    field.score_and_curvature(X, X)
    for _ in range(3):
        objective(field, X)
    findings = findings_of(net, "log-density")
    assert findings.obstacle is None
    assert not findings.warned


def test_the_traced_route_raises_what_stopped_it() -> None:
    field = LogDensityField(Vmapped(), route="traced")
    with pytest.raises(Exception, match="vmap"):
        VR(field, X)


HELD: dict[str, Callable[..., Any]] = {
    "closure": lambda net, act: lambda x: act(net(x)).sum(-1),
    "default": lambda net, act: lambda x, net=net, act=act: act(net(x)).sum(-1),
    "partial": lambda net, act: partial(lambda x, act: act(net(x)).sum(-1), act=act),
}


@pytest.mark.parametrize("how", HELD)
def test_functions_of_torch_in_one_piece_of_code_are_told_apart(how: str) -> None:
    """A ReLU must not pass as the tanh that the same lines of code were measured with."""
    net, x = nn.Linear(3, 8).double(), torch.linspace(-2, 2, 192).double().reshape(64, 3).sin()
    objective = sm.SlicedScoreMatchingVR()
    objective(HELD[how](net, torch.tanh), x)
    with pytest.raises(sm.SmoothnessError):
        objective(HELD[how](net, torch.relu), x)


@pytest.mark.parametrize("objective", [VR, sm.DenoisingScoreMatching(0.3)])
def test_functions_that_are_global_are_told_apart(objective: sm.Objective) -> None:
    """As in a notebook, where one cell is run again with another activation."""
    net, x = nn.Linear(3, 8).double(), normal(64, 3, generator=torch.Generator().manual_seed(0))
    cell: dict[str, Any] = {"net": net, "act": torch.tanh}
    exec("def density(x):\n    return act(net(x)).sum(-1)", cell)
    objective(cell["density"], x)
    cell["act"] = torch.relu
    with pytest.raises(sm.SmoothnessError):
        objective(cell["density"], x)


class Sum:
    """A log-density of two parts, no module itself."""

    def __init__(self, base: nn.Module, tilt: nn.Module) -> None:
        self.base, self.tilt = base, tilt

    def __call__(self, x: Tensor) -> Tensor:
        return self.base(x) + self.tilt(x)

    def log_prob(self, x: Tensor) -> Tensor:
        return self(x)


def add(base: nn.Module, tilt: nn.Module, x: Tensor) -> Tensor:
    return base(x) + tilt(x)


SUMS: dict[str, Callable[[nn.Module, nn.Module], Any]] = {
    "closure": lambda base, tilt: lambda x: base(x) + tilt(x),
    "default": lambda base, tilt: lambda x, a=base, b=tilt: a(x) + b(x),
    "list": lambda base, tilt: (lambda parts: lambda x: sum(f(x) for f in parts))([base, tilt]),
    "partial": lambda base, tilt: partial(add, base, tilt),
    "object": Sum,
    "bound method": lambda base, tilt: Sum(base, tilt).log_prob,
}


@pytest.mark.parametrize("objective", [VR, sm.DenoisingScoreMatching(0.3)])
@pytest.mark.parametrize("how", SUMS)
def test_models_that_share_a_module_are_told_apart(how: str, objective: sm.Objective) -> None:
    base, x = Net(), normal(64, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        objective(SUMS[how](base, Net()), x)
    kinked = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)).double()
    with pytest.raises(sm.SmoothnessError):
        objective(SUMS[how](base, kinked), x)


def test_findings_about_models_that_are_gone_are_dropped() -> None:
    base = Net()
    for _ in range(5):
        findings_of(SUMS["closure"](base, Net()), "log-density")
    kept = Net()
    first = findings_of(SUMS["closure"](base, kept), "log-density")
    assert findings_of(SUMS["closure"](base, kept), "log-density") is first
    assert len(vars(base)[ATTRIBUTE]) <= 2
