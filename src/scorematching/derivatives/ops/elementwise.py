"""Elementwise functions: first and second derivative of each.

A declaration returns ``f'(z)`` and ``f''(z)``, given ``z`` and ``y = f(z)``. The second may be None
for zero, or a function that multiplies its argument by it, for a product cheaper than the factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, polygamma
from torch.nn import functional as F

from scorematching.derivatives.engine.trace import Call, NoRule, Traced
from scorematching.derivatives.ops import activations
from scorematching.derivatives.ops.registry import Operation, declare


class Elementwise(NamedTuple):
    """What the rule of an elementwise function reads.

    Attributes:
        derivatives: ``(z, y, *arguments) -> (f'(z), f''(z))``.
        from_input: whether they are written in z alone and cost enough to be shared with autograd.
        holomorphic: whether they hold for complex z.
        single: ``(y, u, w) -> f''(z) u^2`` from ``w = f'(z) u``, where that is cheaper than by f''.
        recomputed: by torch's arguments, all derivatives for `activations`, which keeps none.
    """

    derivatives: Callable[..., tuple[Any, Any]]
    from_input: bool = False
    holomorphic: bool = False
    single: Callable[..., Tensor] | None = None
    recomputed: Callable[..., activations.Derivatives] | None = None


def elementwise(
    *names: str, kink: int | None = None, inplace: int | None = None, **facts: Any
) -> Callable[[Any], Any]:
    """Declare an elementwise function by its derivatives, under every name it is called by.

    Further facts are those of `Elementwise`.
    """

    def decorate(derivatives: Any) -> Any:
        known = Elementwise(derivatives, **facts)
        declare(names, Operation(names[0], "elementwise", apply, kink, inplace, facts=known))
        return derivatives

    return decorate


def apply(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The rule of every elementwise function."""
    facts: Elementwise = call.operation.facts
    tape = call.tape
    if not isinstance(x, Traced) or (args and any(isinstance(a, Traced) for a in args)):
        raise NoRule
    z = x.p.clone() if call.operation.writes else x.p  # exp_ would change its argument
    if not tape.differentiates:
        return tape.elementwise(x, call.func(z, *args, **kwargs), None, None)
    again = facts.recomputed if tape.closed_forms else None
    linked = (facts.from_input or again is not None) and tape.recording
    y = call.func(z.detach() if linked else z, *args, **kwargs)
    if y.shape != x.p.shape:  # a bound or exponent that broadcasts
        return apply(call, x.expand(y.shape), *args, **kwargs)
    if y.dtype != x.p.dtype:
        if not _is_wider(y, x.p):
            raise NoRule
        x = x.to(y.dtype)  # autocast computes softplus of bf16, for example, in float32
    if not facts.holomorphic and y.is_complex():
        raise NoRule
    if again is not None:
        return tape.elementwise(x, *activations.apply(again(*args, **kwargs), x.p, y))
    d1, d2 = facts.derivatives(x.p, y, *args, **kwargs)
    y = _Link.apply(x.p, d1, y) if linked else y
    single = facts.single
    shortcut = single and (lambda *values: single(*values, *args, **kwargs))
    return tape.elementwise(x, y, d1, d2, shortcut)


def _is_wider(y: Tensor, z: Tensor) -> bool:
    real = y.is_floating_point() and z.is_floating_point()
    return real and y.element_size() > z.element_size()


class _Link(torch.autograd.Function):
    """``y = f(z)`` whose backward pass multiplies by the ``f'(z)`` that the tangents use too.

    The derivative is then computed, and differentiated again, once instead of twice.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, d1: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(d1)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (d1,) = ctx.saved_tensors
        return grads[0] * d1, None, None


# ------------------------------------------------------------------------------------ smooth


def _softplus_single(
    y: Tensor, u: Tensor, w: Tensor, beta: float = 1.0, threshold: float = 20.0
) -> Tensor:
    return w * (u - w) if beta == 1 else beta * (w * (u - w))


@elementwise("softplus", from_input=True, single=_softplus_single)
def softplus(z: Tensor, y: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """``log(1 + exp(beta z)) / beta``."""
    s = torch.sigmoid(z if beta == 1 else beta * z)
    if threshold < 20:  # beyond it torch returns z, whose derivative is one
        s = torch.where(beta * z > threshold, 1.0, s)
    times_slope = torch.ops.aten.sigmoid_backward.default  # q s (1 - s) in one kernel
    return s, lambda q: times_slope(q, s) if beta == 1 else beta * times_slope(q, s)


@elementwise("silu", inplace=1, recomputed=activations.of_silu)
def silu(z: Tensor, y: Tensor, inplace: bool = False) -> Any:
    """``z sigmoid(z)``."""
    return activations.silu(z, 1), activations.silu(z, 2)


@elementwise("gelu", recomputed=activations.of_gelu)
def gelu(z: Tensor, y: Tensor, approximate: str = "none") -> Any:
    """``z Phi(z)``, exact or by tanh."""
    return activations.gelu(z, 1, approximate), activations.gelu(z, 2, approximate)


@elementwise("mish", inplace=1, from_input=True)
def mish(z: Tensor, y: Tensor, inplace: bool = False) -> Any:
    """``z tanh(softplus(z))``."""
    t, s = torch.tanh(F.softplus(z)), torch.sigmoid(z)
    d = 1 - t * t
    return t + z * d * s, d * s * (2 + z * (1 - s - 2 * t * s))


@elementwise("logit", "special_logit")
def logit(z: Tensor, y: Tensor, eps: float | None = None) -> Any:
    """``log(z / (1 - z))``, constant outside [eps, 1 - eps]."""
    d = 1 / (z * (1 - z))
    inside = torch.ones_like(z) if eps is None else ((z >= eps) & (z <= 1 - eps)).to(z.dtype)
    return inside * d, inside * (2 * z - 1) * d * d


def _power(z: Tensor, y: Tensor, exponent: Any) -> Any:
    k = exponent
    if not isinstance(k, Tensor) and k in (0, 1, 2):  # no negative powers of a z that may be zero
        return (0.0, None) if k == 0 else (1.0, None) if k == 1 else (2 * z, torch.full_like(z, 2))
    c, less = k * (k - 1), k - 2
    if isinstance(k, Tensor) and not k.requires_grad:  # nor where one of several exponents is 1
        less = torch.where(k == 1, 0, less)
    return k * z ** (k - 1), c * z**less


POWER = Operation("pow", "elementwise", apply, facts=Elementwise(_power, holomorphic=True))
"""Powers with a constant exponent; `products.power` decides which powers these are."""

_ERF = 2 / math.sqrt(math.pi)


def _gauss(z: Tensor, scale: float) -> Any:
    """``c exp(-z^2)`` and its derivative."""
    c = scale * torch.exp(-z * z)
    return c, -2 * z * c


def _density(z: Tensor) -> Tensor:
    """The standard normal density."""
    return torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


for _names, _holomorphic, _derivatives in (
    ("exp2 special_exp2", True, lambda z, y: (math.log(2) * y, math.log(2) ** 2 * y)),
    ("expm1 special_expm1", True, lambda z, y: (y + 1, y + 1)),
    ("log", True, lambda z, y: (1 / z, -1 / z**2)),
    ("log2", True, lambda z, y: (1 / (math.log(2) * z), -1 / (math.log(2) * z**2))),
    ("log10", True, lambda z, y: (1 / (math.log(10) * z), -1 / (math.log(10) * z**2))),
    ("log1p special_log1p", True, lambda z, y: (1 / (1 + z), -1 / (1 + z) ** 2)),
    ("sin", True, lambda z, y: (torch.cos(z), -y)),
    ("cos", True, lambda z, y: (-torch.sin(z), -y)),
    ("tan", True, lambda z, y: (1 + y * y, 2 * y * (1 + y * y))),
    ("asin arcsin", True, lambda z, y: ((1 - z * z) ** -0.5, z * (1 - z * z) ** -1.5)),
    ("acos arccos", True, lambda z, y: (-((1 - z * z) ** -0.5), -z * (1 - z * z) ** -1.5)),
    ("atan arctan", True, lambda z, y: (1 / (1 + z * z), -2 * z / (1 + z * z) ** 2)),
    ("sinh", True, lambda z, y: (torch.cosh(z), y)),
    ("cosh", True, lambda z, y: (torch.sinh(z), y)),
    ("asinh arcsinh", True, lambda z, y: ((1 + z * z) ** -0.5, -z * (1 + z * z) ** -1.5)),
    ("acosh arccosh", False, lambda z, y: ((z * z - 1) ** -0.5, -z * (z * z - 1) ** -1.5)),
    ("atanh arctanh", True, lambda z, y: (1 / (1 - z * z), 2 * z / (1 - z * z) ** 2)),
    ("erf special_erf", False, lambda z, y: _gauss(z, _ERF)),
    ("erfc special_erfc", False, lambda z, y: _gauss(z, -_ERF)),
    ("lgamma special_gammaln", False, lambda z, y: (torch.digamma(z), polygamma(1, z))),
    ("digamma special_digamma special_psi", False, lambda z, y: (polygamma(1, z), polygamma(2, z))),
    ("special_ndtr", False, lambda z, y: (d := _density(z), -z * d)),
    ("special_ndtri", False, lambda z, y: (d := 1 / _density(y), y * d * d)),
    ("erfinv special_erfinv", False, lambda z, y: (d := 1 / _gauss(y, _ERF)[0], 2 * y * d * d)),
    ("logsigmoid log_sigmoid", False, lambda z, y: (s := torch.sigmoid(-z), -s * (1 - s))),
    ("tanhshrink", False, lambda z, y: ((z - y) ** 2, 2 * (z - y) * (1 - (z - y) ** 2))),
    ("square", True, lambda z, y: (2 * z, torch.full_like(z, 2.0))),
    ("sqrt", True, lambda z, y: (0.5 / y, -0.25 / (z * y))),
    ("rsqrt", True, lambda z, y: (-0.5 * y**3, 0.75 * y**5)),
    ("reciprocal", True, lambda z, y: (-y * y, 2 * y**3)),
    ("neg negative", True, lambda z, y: (-1.0, None)),
    ("positive __pos__", True, lambda z, y: (1.0, None)),
    ("deg2rad", False, lambda z, y: (math.pi / 180, None)),
    ("rad2deg", False, lambda z, y: (180 / math.pi, None)),
):
    elementwise(*_names.split(), holomorphic=_holomorphic)(_derivatives)

elementwise("exp", holomorphic=True, single=lambda y, u, w: u * w)(lambda z, y: (y, y))
elementwise("tanh", single=lambda y, u, w: -2 * (y * u * w))(
    lambda z, y: (d := 1 - y * y, lambda q: -2 * y * d * q)
)
elementwise("sigmoid", "special_expit", single=lambda y, u, w: (1 - 2 * y) * u * w)(
    lambda z, y: (d := y * (1 - y), lambda q: d * (1 - 2 * y) * q)
)

# ------------------------------------------------------------------------------ with kinks


def _mask(condition: Tensor, z: Tensor) -> Any:
    """A derivative of one where the condition holds and zero elsewhere."""
    return condition.to(z.dtype), None


def _tail(z: Tensor, slope: float, at_zero: float, width: float = 1.0) -> Any:
    """Derivatives of ``slope z`` for positive z, elsewhere of a tail ``exp(z / width)``."""
    tail = at_zero * torch.exp(z.clamp(max=0.0) / width)
    first = torch.where(z > 0, torch.full_like(z, slope), tail)
    return first, torch.where(z > 0, 0 * tail, tail / width)


_SELU, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717

for _names, _kink, _inplace, _kinked in (
    ("relu", 0, 1, lambda z, y, inplace=False: _mask(z > 0, z)),
    ("relu6", 0, 1, lambda z, y, inplace=False: _mask((z > 0) & (z < 6), z)),
    ("hardsigmoid", 0, 1, lambda z, y, inplace=False: (_mask(z.abs() < 3, z)[0] / 6, None)),
    ("elu", 1, 2, lambda z, y, alpha=1.0, inplace=False: _tail(z, 1.0, alpha)),
    ("celu", 1, 2, lambda z, y, alpha=1.0, inplace=False: _tail(z, 1.0, 1.0, alpha)),
    ("selu", 0, 1, lambda z, y, inplace=False: _tail(z, _SELU, _SELU * _SELU_ALPHA)),
    ("softshrink", 0, None, lambda z, y, lambd=0.5: _mask(z.abs() > lambd, z)),
    ("hardshrink", -1, None, lambda z, y, lambd=0.5: _mask(z.abs() > lambd, z)),
    ("softsign", 1, None, lambda z, y: (d := (1 + z.abs()) ** -2, -2 * z.sign() * d**1.5)),
    ("abs absolute __abs__ fabs", 0, None, lambda z, y: (z.sign(), None)),
    ("clamp clip", 0, None, lambda z, y, min=None, max=None: _mask(y == z, z)),
    ("clamp_min", 0, None, lambda z, y, min: _mask(y == z, z)),
    ("clamp_max", 0, None, lambda z, y, max: _mask(y == z, z)),
    ("remainder __mod__ fmod", -1, None, lambda z, y, other: (1.0, None)),
    ("frac", -1, None, lambda z, y: (1.0, None)),
):
    elementwise(*_names.split(), kink=_kink, inplace=_inplace)(_kinked)


@elementwise("leaky_relu", kink=0, inplace=2)
def leaky_relu(z: Tensor, y: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """``z``, or ``negative_slope z`` where that is negative."""
    return torch.where(z > 0, torch.ones_like(z), torch.full_like(z, negative_slope)), None


@elementwise("hardtanh", kink=0, inplace=3)
def hardtanh(
    z: Tensor, y: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Any:
    """``z`` clipped to an interval."""
    return _mask((z > min_val) & (z < max_val), z)


@elementwise("hardswish", kink=0, inplace=1)
def hardswish(z: Tensor, y: Tensor, inplace: bool = False) -> Any:
    """``z hardsigmoid(z)``."""
    inside, _ = _mask(z.abs() < 3, z)
    return torch.where(z >= 3, torch.ones_like(z), inside * (2 * z + 3) / 6), inside / 3


@elementwise("threshold", "_threshold", kink=-1, inplace=3)
def threshold(z: Tensor, y: Tensor, threshold: float, value: float, inplace: bool = False) -> Any:
    """``z``, or a value where z is below a threshold."""
    return _mask(z > threshold, z)
