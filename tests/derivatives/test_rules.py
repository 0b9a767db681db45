"""Every declared operation: derivatives of elementwise functions, and a model that meets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching import LogDensityField
from scorematching.derivatives.engine.tape import Tape, times
from scorematching.derivatives.engine.trace import Untraceable
from scorematching.derivatives.ops import catalogue, nested  # noqa: F401  (fills the registry)
from scorematching.derivatives.ops.elementwise import POWER
from scorematching.derivatives.ops.registry import OPERATIONS, Operation, find, spellings
from tests.derivatives.ways import WAYS, Bank
from tests.laws import assert_close
from tests.tolerances import ROUTES

ELEMENTWISE: dict[str, Operation] = {
    **{o.name: o for o in OPERATIONS.values() if o.kind == "elementwise" and not o.writes},
    "pow": POWER,
}

LINE = torch.linspace(-2.9, 2.9, 60, dtype=torch.float64)  # away from 0 and every kink below
POSITIVE = LINE.exp()
INSIDE = LINE / 3
UNIT = 0.5 + INSIDE / 2.1
EXPONENTS = torch.linspace(-2, 3.5, 60, dtype=torch.float64)

RANGES = {
    "log": POSITIVE, "log2": POSITIVE, "log10": POSITIVE, "log1p": POSITIVE - 0.9,
    "asin": INSIDE, "acos": INSIDE, "atanh": INSIDE, "acosh": 1.05 + POSITIVE,
    "lgamma": POSITIVE, "digamma": 0.3 + POSITIVE, "logit": UNIT, "special_ndtri": UNIT,
    "erfinv": INSIDE, "sqrt": POSITIVE, "rsqrt": POSITIVE, "tan": LINE / 2,
    "hardswish": 1.5 * LINE, "hardsigmoid": 1.5 * LINE, "relu6": 3 * LINE,
}  # fmt: skip

REQUIRED = {
    "pow": (2,), "clamp_min": (0.33,), "clamp_max": (0.33,), "threshold": (0.33, 0.1),
    "clamp": (-0.77, 1.23), "remainder": (1.37,),
}  # fmt: skip


# Torch cannot differentiate its own hardsigmoid twice, the derivatives of its own celu have the
# constants of float32 in them, and those of erfinv and ndtri end after the first.


def hardsigmoid(z: Tensor, inplace: bool = False) -> Tensor:
    return F.relu6(z + 3) / 6


def celu(z: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return torch.where(z > 0, z, alpha * torch.expm1(z.clamp(max=0.0) / alpha))


WRITTEN_OUT = {"hardsigmoid": hardsigmoid, "celu": celu}
ROUNDED = {"hardsigmoid": 1e-7, "celu": 1e-7}


def function(name: str) -> Callable[..., Tensor]:
    """Torch's function of a name, as users call it."""
    return getattr(F, name, None) or next(iter(spellings(name)))


VARIATIONS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *[(name, REQUIRED.get(name, ()), {}) for name in ELEMENTWISE],
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
    ("hardshrink", (1.03,), {}),
    ("threshold", (), {"threshold": -0.33, "value": -0.5}),
    ("clamp", (), {"min": -0.77}),
    ("clamp", (), {"max": 0.77}),
    ("clamp", (), {"min": -0.77, "max": 0.77}),
    ("clamp", (-LINE.abs() / 3 - 0.51,), {}),
    ("clamp_min", (), {"min": 0.33}),
    ("clamp_max", (), {"max": 0.33}),
    ("remainder", (-1.37,), {}),
    ("remainder", (EXPONENTS.abs() + 0.41,), {}),
    ("logit", (), {"eps": 1e-3}),
    ("logit", (0.2,), {}),
    *[("pow", (k,), {}) for k in (0, 1, 3, 4, 1.0, 2.0, 5.0, -1, -2)],
    ("pow", (torch.full_like(LINE, 3.0),), {}),
]


def label(variation: Any) -> str:
    name, args, kwargs = variation
    words = [f"tensor{i}" if isinstance(a, Tensor) else str(a) for i, a in enumerate(args)]
    words += [f"{k}={v}" for k, v in kwargs.items()]
    return name + "-" + ",".join(words)


def derivative(y: Any, z: Tensor) -> Tensor:
    """The derivative of an elementwise result, with its graph; zero for a constant."""
    if not isinstance(y, Tensor) or not y.requires_grad:
        return torch.zeros_like(z)
    (d,) = torch.autograd.grad(y.sum(), z, create_graph=True, allow_unused=True)
    return torch.zeros_like(z) if d is None else d


def entry(name: str, z: Tensor, y: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Both derivatives that an operation declares, as tensors."""
    first, second = ELEMENTWISE[name].facts.derivatives(z, y, *args, **kwargs)
    zero = torch.zeros_like(z)
    return zero + first, zero if second is None else zero + times(second, torch.ones_like(z))


def assert_entry(name: str, z: Tensor, args: Any, kwargs: Any, tolerance: float = ROUTES) -> None:
    """Declared derivatives are those of autograd, and so are their own derivatives."""
    f = WRITTEN_OUT.get(name) or function(name)
    z = z.clone().requires_grad_()
    y = f(z, *args, **kwargs)
    first, second = entry(name, z, y, *args, **kwargs)
    truth = [derivative(y, z)]
    truth += [derivative(truth[0], z)]
    assert_close(first, truth[0], tolerance)
    assert_close(second, truth[1], tolerance)
    assert_close(derivative(first, z), truth[1], tolerance)
    assert_close(derivative(second, z), derivative(truth[1], z), tolerance)
    shortcut = ELEMENTWISE[name].facts.single
    if shortcut is not None:
        short = shortcut(y, z, first * z, *args, **kwargs)
        assert_close(short, truth[1] * z.square(), tolerance)


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
    "name", ["square", "pow", "softplus", "silu", "gelu", "mish", "tanhshrink", "sin", "erf"]
)
def test_derivatives_at_zero(name: str) -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    for args in [(0,), (1,), (2,), (3,)] if name == "pow" else [()]:
        assert_entry(name, zero, args, {})


@pytest.mark.parametrize("name", ["softplus", "silu", "gelu", "mish", "sigmoid", "tanh", "elu"])
def test_derivatives_far_out(name: str) -> None:
    far = torch.tensor([-700.0, -90.0, -30.0, 30.0, 90.0, 700.0], dtype=torch.float64)
    assert_entry(name, far, (), {})


@pytest.mark.parametrize("name", [n for n, o in ELEMENTWISE.items() if o.facts.from_input])
def test_derivatives_shared_with_autograd_are_written_in_z_alone(name: str) -> None:
    first, second = entry(name, LINE, torch.full_like(LINE, torch.nan))
    assert first.isfinite().all()
    assert second.isfinite().all()


@pytest.mark.parametrize("name", [n for n, o in ELEMENTWISE.items() if o.facts.holomorphic])
def test_complex_derivatives(name: str) -> None:
    # Autograd returns the conjugate of a holomorphic derivative.
    z = (0.3 + 0.2 * LINE + 0.7j * LINE.flip(0).sin() + 0.9j).requires_grad_()
    args = (3,) if name == "pow" else ()
    y = function(name)(z, *args)
    first, second = entry(name, z, y, *args)
    (slope,) = torch.autograd.grad(y, z, torch.ones_like(y), create_graph=True)
    assert_close(first, slope.conj(), ROUTES)
    curved = slope.requires_grad and slope.grad_fn is not None
    if curved:
        (bend,) = torch.autograd.grad(slope, z, torch.ones_like(y), allow_unused=True)
        assert_close(second, torch.zeros_like(z) if bend is None else bend.conj(), ROUTES)


# ---------------------------------------------------------------------------------- kinks


def jumps(values: Tensor) -> bool:
    """Whether numbers on a fine grid change more at some point than on both sides of it."""
    change = values.diff().abs()
    beside = torch.maximum(change[:-4], change[4:])
    return bool((change[2:-2] > 0.1 + 10 * beside).any())


WHOLE_LINE = [
    n for n in ELEMENTWISE if n not in RANGES or n in ("hardswish", "hardsigmoid", "relu6")
]


@pytest.mark.parametrize("name", [n for n in WHOLE_LINE if n != "reciprocal"])
def test_declared_smoothness(name: str) -> None:
    """Of f, f' and f'' none jumps up to the declared order, and the next one does."""
    z = torch.linspace(-6.5003, 6.5, 130_000, dtype=torch.float64)
    args = REQUIRED.get(name, ())
    y = function(name)(z, *args)
    kink = ELEMENTWISE[name].kink
    orders = [y, *entry(name, z, y, *args)]
    smooth = len(orders) if kink is None else kink + 1
    assert [jumps(values) for values in orders[: smooth + 1]] == (
        [False] * smooth + [True] * (kink is not None)
    )


# ------------------------------------------------------------------------------- in place

IN_PLACE = [n for n, o in ELEMENTWISE.items() if o.inplace is not None]


def calls(name: str) -> Iterator[Callable[[Tensor], Tensor]]:
    """The ways to request an activation in place."""
    f = function(name)
    required = REQUIRED.get(name, ())
    yield lambda z: f(z, *required, inplace=True)
    every = {
        "leaky_relu": (0.2,), "elu": (1.0,), "celu": (1.0,), "hardtanh": (-1.0, 1.0),
        "threshold": required,
    }  # fmt: skip
    yield lambda z: f(z, *every.get(name, ()), True)


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("how", [0, 1], ids=["keyword", "position"])
def test_in_place_activations_change_what_they_read(name: str, how: int) -> None:
    # A tape keeps the numbers that an activation reads; the name must mean the new ones.
    act = list(calls(name))[how]
    x, weight = 0.3 + torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64) * 2
    required = ((0.2,) if name == "leaky_relu" and how else ()) or REQUIRED.get(name, ())
    out_of_place = WRITTEN_OUT.get(name) or function(name)

    def net(x: Tensor) -> Tensor:
        hidden = x @ weight
        act(hidden)
        return (hidden * torch.sin(hidden)).sum(1)

    def written_out(x: Tensor) -> Tensor:
        hidden = out_of_place(x @ weight, *required)
        return (hidden * torch.sin(hidden)).sum(1)

    assert_same_answers(net, written_out, x, ROUNDED.get(name, ROUTES))


def assert_same_answers(traced: Any, trusted: Any, x: Tensor, tolerance: float) -> None:
    """A traced model has the answers of another by double backward."""
    answers = [
        LogDensityField(f, check_smoothness=False, route=route).score_and_curvature(x, x)
        for f, route in ((traced, "traced"), (trusted, "reverse"))
    ]
    for found, wanted in zip(*answers):
        assert_close(found, wanted, tolerance)


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
    act = hardsigmoid if isinstance(module, nn.Hardsigmoid) else module
    assert_same_answers(
        lambda x: torch.sin(module(1.5 * x)).sum(1),
        lambda x: torch.sin(act(1.5 * x)).sum(1),
        x,
        ROUNDED.get(type(module).__name__.lower(), ROUTES),
    )


# --------------------------------------------------------------------- all other operations

ELSEWHERE = {
    "other devices": "cuda pin_memory share_memory_",
    "only where autograd records": "retain_grad",
    "half precision, in test_real_code": "half bfloat16",
    "deprecated, torch warns": "upsample triangular_solve",
    "arrive as add, sub, mul, div, matmul": "__add__ __radd__ __iadd__ __sub__ __isub__ __mul__ "
    "__rmul__ __imul__ __truediv__ __div__ __itruediv__ __matmul__",
    "torch has no derivative of them": "native_channel_shuffle",
}
"""Declared names that no way can meet, by reason."""


@pytest.fixture(scope="module")
def met() -> set[str]:
    """Names of the operations whose rules the ways apply."""
    names: set[str] = set()
    for way in WAYS:
        x = way.points().requires_grad_()
        field = LogDensityField(way.density(Bank()))
        try:
            tape, _ = field.model.trace(x, None, partial(Tape, len(x)))
        except (Untraceable, RuntimeError):  # test_tracing tells which ways must be traced
            continue
        names |= {name for name, _ in tape.met}
    return names


def test_every_declared_operation_is_met_by_some_way(met: set[str]) -> None:
    declared = {
        o.name for o in OPERATIONS.values() if o.kind in ("linear", "structural", "composed")
    }
    exempt = {name for names in ELSEWHERE.values() for name in names.split()}
    assert sorted(declared - met - exempt) == []
    assert sorted(exempt & met) == []


def test_nested_forward_mode_is_for_operations_without_a_rule() -> None:
    # A rule is tried first, so a listed operation that has one would never use the list.
    assert [str(f) for f in nested.TRUSTED if f in OPERATIONS] == []


def test_a_function_of_the_same_name_is_not_torchs() -> None:
    def exp(z: Tensor) -> Tensor:
        return torch.sin(z)

    assert find(exp) is None
    spelled = (torch.exp, Tensor.exp, torch.ops.aten.exp.default, torch.Tensor.exp_)
    assert {find(f).name for f in spelled} == {"exp"}  # type: ignore[union-attr]
    assert [find(f).writes for f in spelled] == [False, False, False, True]  # type: ignore[union-attr]
