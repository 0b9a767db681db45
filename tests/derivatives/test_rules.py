"""The table of derivatives against autograd applied twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scorematching.derivatives.tracing import times
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching import LogDensityField
from scorematching.derivatives import composed, rules, smoothness, tracing
from tests.laws import assert_close
from tests.tolerances import ROUTES

LINE = torch.linspace(-2.9, 2.9, 60, dtype=torch.float64)  # away from 0 and every kink below
POSITIVE = LINE.exp()
INSIDE = LINE / 3
OUTSIDE = 1.05 + POSITIVE
EXPONENTS = torch.linspace(-2, 3.5, 60, dtype=torch.float64)

RANGES = {
    "log": POSITIVE, "log2": POSITIVE, "log10": POSITIVE, "log1p": POSITIVE - 0.9,
    "asin": INSIDE, "acos": INSIDE, "atanh": INSIDE, "acosh": OUTSIDE, "lgamma": POSITIVE,
    "logit": 0.5 + INSIDE / 2.1, "sqrt": POSITIVE, "rsqrt": POSITIVE, "tan": LINE / 2,
    "hardswish": 1.5 * LINE, "hardsigmoid": 1.5 * LINE, "relu6": 3 * LINE,
}  # fmt: skip

REQUIRED = {
    "pow": [(2,)], "clamp_min": [(0.33,)], "clamp_max": [(0.33,)], "threshold": [(0.33, 0.1)],
    "clamp": [(-0.77, 1.23)], "clip": [(-0.77, 1.23)],
}  # fmt: skip


# Torch cannot differentiate its own hardsigmoid twice, and the derivatives of its own celu have
# the constants of float32 in them.


def hardsigmoid(z: Tensor, inplace: bool = False) -> Tensor:
    return F.relu6(z + 3) / 6


def celu(z: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return torch.where(z > 0, z, alpha * torch.expm1(z.clamp(max=0.0) / alpha))


WRITTEN_OUT = {"hardsigmoid": hardsigmoid, "celu": celu}
ROUNDED = {"hardsigmoid": 1e-7, "celu": 1e-7}


def function(name: str) -> Callable[..., Tensor]:
    """Torch's function of a name, wherever it lives."""
    for home in (F, torch, torch.special, torch.linalg, torch.Tensor):
        if hasattr(home, name):
            return getattr(home, name)
    raise AssertionError(f"no function of torch is called {name}")


VARIATIONS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *[(name, args, {}) for name in rules.ELEMENTWISE for args in REQUIRED.get(name, [()])],
    ("softplus", (2.5,), {}),
    ("softplus", (), {"beta": 0.4}),
    ("softplus", (1.0, 1.53), {}),
    ("gelu", (), {"approximate": "tanh"}),
    ("gelu", (), {"approximate": "none"}),
    ("elu", (1.7,), {}),
    ("elu", (), {"alpha": 0.3}),
    ("celu", (1.7,), {}),
    ("celu", (), {"alpha": 0.3}),
    ("leaky_relu", (0.2,), {}),
    ("leaky_relu", (), {"negative_slope": 0.3}),
    ("hardtanh", (-0.5, 2.03), {}),
    ("hardtanh", (), {"min_val": -0.5, "max_val": 2.03}),
    ("softshrink", (1.03,), {}),
    ("softshrink", (), {"lambd": 1.03}),
    ("threshold", (), {"threshold": -0.33, "value": -0.5}),
    ("clamp", (), {"min": -0.77}),
    ("clamp", (), {"max": 0.77}),
    ("clamp", (), {"min": -0.77, "max": 0.77}),
    ("clamp", (-LINE.abs() / 3 - 0.51,), {}),
    ("clamp_min", (), {"min": 0.33}),
    ("clamp_max", (), {"max": 0.33}),
    ("logit", (), {"eps": 1e-3}),
    *[("pow", (k,), {}) for k in (0, 1, 3, 4, 1.0, 2.0, 5.0, -1, -2)],
    ("pow", (torch.full_like(LINE, 3.0),), {}),
]


def label(variation: Any) -> str:
    name, args, kwargs = variation
    words = [f"tensor{i}" if isinstance(a, Tensor) else str(a) for i, a in enumerate(args)]
    words += [f"{k}={v}" for k, v in kwargs.items()]
    return name + "-" + ",".join(words)


def derivatives(f: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """First and second derivative of an elementwise function, by autograd twice."""
    z = z.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(z).sum(), z, create_graph=True)
    if not first.requires_grad:
        return first, torch.zeros_like(z)
    (second,) = torch.autograd.grad(first.sum(), z, allow_unused=True)
    return first.detach(), torch.zeros_like(z) if second is None else second


def entry(name: str, z: Tensor, y: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Both derivatives of the table, the second one as a number."""
    first, second = rules.ELEMENTWISE[name](z, y, *args, **kwargs)
    return first, None if second is None else times(second, torch.ones_like(z))


def assert_entry(name: str, z: Tensor, args: Any, kwargs: Any) -> None:
    f = WRITTEN_OUT.get(name) or function(name)
    y = f(z, *args, **kwargs)
    first, second = entry(name, z, y, *args, **kwargs)
    true_first, true_second = derivatives(lambda w: f(w, *args, **kwargs), z)
    zero = torch.zeros_like(z)
    assert_close(zero + first, true_first, ROUTES)
    assert_close(zero if second is None else zero + second, true_second, ROUTES)
    if name in rules.ONE_TANGENT:
        short = rules.ONE_TANGENT[name](y, z, first * z, *args, **kwargs)
        assert_close(short, true_second * z.square(), ROUTES)


@pytest.mark.parametrize("variation", VARIATIONS, ids=label)
def test_derivatives(variation: Any) -> None:
    name, args, kwargs = variation
    assert_entry(name, RANGES.get(name, LINE), args, kwargs)


def exponent(k: Any) -> str:
    return "tensor" if isinstance(k, Tensor) else str(k)


@pytest.mark.parametrize("k", [0.5, -0.5, 1.5, 2.5, -1.0, EXPONENTS], ids=exponent)
def test_real_powers(k: Any) -> None:
    assert_entry("pow", POSITIVE, (k,), {})


@pytest.mark.parametrize(
    "name", ["square", "pow", "softplus", "silu", "gelu", "mish", "tanhshrink"]
)
def test_derivatives_at_zero(name: str) -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    for args in [(0,), (1,), (2,), (3,)] if name == "pow" else [()]:
        assert_entry(name, zero, args, {})


@pytest.mark.parametrize("name", ["softplus", "silu", "gelu", "mish", "sigmoid", "tanh", "elu"])
def test_derivatives_far_out(name: str) -> None:
    far = torch.tensor([-700.0, -90.0, -30.0, 30.0, 90.0, 700.0], dtype=torch.float64)
    first, second = entry(name, far, function(name)(far))
    assert first.isfinite().all()
    assert second.isfinite().all()
    assert_entry(name, far, (), {})


# ------------------------------------------------------------------------------- in place

IN_PLACE = [
    "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "hardtanh", "hardswish", "silu", "mish",
    "hardsigmoid", "threshold",
]  # fmt: skip


def calls(name: str) -> Iterator[Callable[[Tensor], Tensor]]:
    """The ways to ask for an activation in place."""
    f = function(name)
    required = REQUIRED.get(name, [()])[0]
    yield lambda z: f(z, *required, inplace=True)
    every = {
        "leaky_relu": (0.2,), "elu": (1.0,), "celu": (1.0,), "hardtanh": (-1.0, 1.0),
        "threshold": required,
    }  # fmt: skip
    yield lambda z: f(z, *every.get(name, ()), True)


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("how", [0, 1], ids=["keyword", "position"])
def test_in_place_activations_change_what_they_read(name: str, how: int) -> None:
    # A tape holds on to the numbers an activation reads; the name must mean the new ones.
    act = list(calls(name))[how]
    x, weight = 0.3 + torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64) * 2

    def net(x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        hidden = x @ weight
        act(hidden)
        return (hidden * torch.sin(hidden)).sum(1)

    def written_out(x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        hidden = act(x @ weight)
        return (hidden * torch.sin(hidden)).sum(1)

    plain = WRITTEN_OUT.get(name) or function(name)
    required = {**REQUIRED, "leaky_relu": [(0.2,)]}.get(name, [()])[0] if how else ()
    required = required or REQUIRED.get(name, [()])[0]

    def traced(f: Callable[[Tensor], Tensor], route: str) -> tuple[Tensor, Tensor]:
        field = LogDensityField(f, check_smoothness=False, route=route)
        return field.score_and_curvature(x, x)

    s, bend = traced(lambda x: net(x, act), "traced")
    wanted, exact = traced(lambda x: written_out(x, lambda z: plain(z, *required)), "reverse")
    assert_close(s, wanted, ROUNDED.get(name, ROUTES))
    assert_close(bend, exact, ROUNDED.get(name, ROUTES))


MODULES = [
    nn.ReLU(True), nn.ReLU6(True), nn.LeakyReLU(0.2, True), nn.ELU(0.7, True), nn.CELU(0.7, True),
    nn.SELU(True), nn.Hardtanh(-0.5, 0.7, True), nn.Hardswish(True), nn.SiLU(True), nn.Mish(True),
    nn.Hardsigmoid(True), nn.Threshold(0.2, 0.1, True), nn.Softplus(2.0), nn.GELU("tanh"),
    nn.Softsign(), nn.Tanhshrink(), nn.Softshrink(0.2), nn.LogSigmoid(), nn.Sigmoid(), nn.Tanh(),
    nn.PReLU(dtype=torch.float64), nn.Hardshrink(0.2),
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
def test_modules(module: nn.Module) -> None:
    # As users write them: every module must be traced, and agree with double backward.
    x = torch.linspace(-2.0, 2.1, 12, dtype=torch.float64).reshape(4, 3)

    def net(x: Tensor) -> Tensor:
        return torch.sin(module(1.5 * x)).sum(1)

    def trusted(x: Tensor) -> Tensor:
        act = hardsigmoid if isinstance(module, nn.Hardsigmoid) else module
        return torch.sin(act(1.5 * x)).sum(1)

    answers = [
        LogDensityField(f, check_smoothness=False, route=route).score_and_curvature(x, x)
        for f, route in ((net, "traced"), (trusted, "reverse"))
    ]
    tolerance = ROUNDED.get(type(module).__name__.lower(), ROUTES)
    for found, wanted in zip(*answers):
        assert_close(found, wanted, tolerance)


# ---------------------------------------------------------------------------------- names

HOMES = (
    torch.Tensor, torch, F, torch.special, torch.linalg, torch._C._nn, torch._C._special,
    torch._C._linalg, torch._C._VariableFunctions,
)  # fmt: skip


def known(name: str) -> bool:
    return any(hasattr(home, name) for home in HOMES)


TABLES = {
    "ELEMENTWISE": rules.ELEMENTWISE, "RESHAPES": rules.RESHAPES, "PERMUTES": rules.PERMUTES,
    "BATCHED": rules.BATCHED, "SELECTIONS": rules.SELECTIONS, "LINEAR": rules.LINEAR,
    "ALONG": rules.ALONG, "CONSTANT": rules.CONSTANT, "SHAPE_OF": rules.SHAPE_OF,
    "FROM_INPUT": rules.FROM_INPUT, "composed": composed.BY_NAME, "in place": tracing._INPLACE,
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_every_name_is_one_of_torchs(table: str) -> None:
    assert [name for name in TABLES[table] if not known(name)] == []


def test_every_alias_leads_somewhere() -> None:
    tables = {
        **tracing.RULES,
        **smoothness.ORDERS,
        **dict.fromkeys(name for t in TABLES.values() for name in t),
    }
    assert [a for a, name in rules.ALIASES.items() if name not in tables] == []
    # torch 2.x spells some of them with leading underscores only where they are operators
    assert [a for a in rules.ALIASES if not known(a) and not a.startswith("_")] == []


def test_the_smaller_tables_are_parts_of_the_larger() -> None:
    assert set(rules.ELEMENTWISE) >= rules.FROM_INPUT
    assert rules.SELECTIONS <= rules.BATCHED
    assert set(rules.ALONG) | rules.UNSURE <= rules.LINEAR


def test_what_is_shared_is_written_in_z_alone() -> None:
    for name in rules.FROM_INPUT:
        first, second = entry(name, LINE, torch.full_like(LINE, torch.nan))
        assert first.isfinite().all()
        assert second.isfinite().all()
