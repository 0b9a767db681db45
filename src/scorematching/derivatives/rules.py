"""A table of derivatives: what the engine knows about torch's operations, by their names.

The engine (`tracing`, `pairing`) applies these entries; nothing here knows how. An operation that
is in no table is differentiated locally, by nested forward mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Derivatives = Callable[..., tuple[Any, Any]]
"""``(z, y, *arguments) -> (f'(z), f''(z))`` of ``y = f(z)``; None for a second derivative of 0.

A second derivative that is not always needed may be a function, which multiplies by it.
"""


def _softplus(z: Tensor, y: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Any:
    s = torch.sigmoid(z if beta == 1 else beta * z)
    if threshold < 20:  # beyond it torch takes the identity, whose s is one
        s = torch.where(beta * z > threshold, 1.0, s)
    bend = torch.ops.aten.sigmoid_backward  # q s (1 - s), in one go
    return s, lambda q: bend(q, s) if beta == 1 else beta * bend(q, s)


def _silu(z: Tensor, y: Tensor, inplace: bool = False) -> Any:
    s = torch.sigmoid(z)
    ds = s * (1 - s)
    return s + z * ds, ds * (2 + z * (1 - 2 * s))


def _gelu(z: Tensor, y: Tensor, approximate: str = "none") -> Any:
    if approximate == "none":
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return 0.5 * torch.erfc(-z / math.sqrt(2)) + z * density, (2 - z * z) * density
    a, b = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(a * (z + b * z**3))
    slope, bend = a * (1 + 3 * b * z * z), 6 * a * b * z
    d = 1 - t * t
    return 0.5 * (1 + t) + 0.5 * z * d * slope, d * (slope + 0.5 * z * (bend - 2 * t * slope**2))


def _mish(z: Tensor, y: Tensor, inplace: bool = False) -> Any:
    t, s = torch.tanh(torch.nn.functional.softplus(z)), torch.sigmoid(z)
    d = 1 - t * t
    return t + z * d * s, d * s * (2 + z * (1 - s - 2 * t * s))


def _elu(z: Tensor, y: Tensor, alpha: float = 1.0, inplace: bool = False) -> Any:
    tail = alpha * torch.exp(z.clamp(max=0.0))
    return torch.where(z > 0, torch.ones_like(z), tail), torch.where(z > 0, 0 * tail, tail)


def _celu(z: Tensor, y: Tensor, alpha: float = 1.0, inplace: bool = False) -> Any:
    tail = torch.exp(z.clamp(max=0.0) / alpha)
    return torch.where(z > 0, torch.ones_like(z), tail), torch.where(z > 0, 0 * tail, tail / alpha)


def _selu(z: Tensor, y: Tensor, inplace: bool = False) -> Any:
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    tail = scale * alpha * torch.exp(z.clamp(max=0.0))
    return torch.where(z > 0, torch.full_like(z, scale), tail), torch.where(z > 0, 0 * tail, tail)


def _hardswish(z: Tensor, y: Tensor, inplace: bool = False) -> Any:
    inside = ((z > -3) & (z < 3)).to(z.dtype)
    return torch.where(z >= 3, torch.ones_like(z), inside * (2 * z + 3) / 6), inside / 3


def _power(z: Tensor, y: Tensor, k: Any) -> Any:
    if not isinstance(k, Tensor) and k in (0, 1, 2):  # no negative powers of a z that may be zero
        return (0.0, None) if k == 0 else (1.0, None) if k == 1 else (2 * z, torch.full_like(z, 2))
    return k * z ** (k - 1), k * (k - 1) * z ** (k - 2)


def _mask(condition: Tensor, z: Tensor) -> Any:
    return condition.to(z.dtype), None


def _clamp(z: Tensor, y: Tensor, min: Any = None, max: Any = None) -> Any:
    return _mask(y == z, z)


ELEMENTWISE: dict[str, Derivatives] = {
    # smooth
    "exp": lambda z, y: (y, y),
    "exp2": lambda z, y: (math.log(2) * y, math.log(2) ** 2 * y),
    "expm1": lambda z, y: (y + 1, y + 1),
    "log": lambda z, y: (1 / z, -1 / z**2),
    "log2": lambda z, y: (1 / (math.log(2) * z), -1 / (math.log(2) * z**2)),
    "log10": lambda z, y: (1 / (math.log(10) * z), -1 / (math.log(10) * z**2)),
    "log1p": lambda z, y: (1 / (1 + z), -1 / (1 + z) ** 2),
    "sin": lambda z, y: (torch.cos(z), -y),
    "cos": lambda z, y: (-torch.sin(z), -y),
    "tan": lambda z, y: (1 + y * y, 2 * y * (1 + y * y)),
    "asin": lambda z, y: ((1 - z * z) ** -0.5, z * (1 - z * z) ** -1.5),
    "acos": lambda z, y: (-((1 - z * z) ** -0.5), -z * (1 - z * z) ** -1.5),
    "atan": lambda z, y: (1 / (1 + z * z), -2 * z / (1 + z * z) ** 2),
    "sinh": lambda z, y: (torch.cosh(z), y),
    "cosh": lambda z, y: (torch.sinh(z), y),
    "tanh": lambda z, y: (d := 1 - y * y, lambda q: -2 * y * d * q),
    "asinh": lambda z, y: ((1 + z * z) ** -0.5, -z * (1 + z * z) ** -1.5),
    "acosh": lambda z, y: ((z * z - 1) ** -0.5, -z * (z * z - 1) ** -1.5),
    "atanh": lambda z, y: (1 / (1 - z * z), 2 * z / (1 - z * z) ** 2),
    "erf": lambda z, y: (c := 2 / math.sqrt(math.pi) * torch.exp(-z * z), -2 * z * c),
    "erfc": lambda z, y: (c := -2 / math.sqrt(math.pi) * torch.exp(-z * z), -2 * z * c),
    "lgamma": lambda z, y: (torch.digamma(z), torch.polygamma(1, z)),
    "sigmoid": lambda z, y: (d := y * (1 - y), lambda q: d * (1 - 2 * y) * q),
    "logsigmoid": lambda z, y: (s := torch.sigmoid(-z), -s * (1 - s)),
    "logit": lambda z, y, eps=None: (1 / (z * (1 - z)), (2 * z - 1) / (z * (1 - z)) ** 2),
    "softplus": _softplus,
    "silu": _silu,
    "gelu": _gelu,
    "mish": _mish,
    "tanhshrink": lambda z, y: ((z - y) ** 2, 2 * (z - y) * (1 - (z - y) ** 2)),
    "square": lambda z, y: (2 * z, torch.full_like(z, 2.0)),
    "sqrt": lambda z, y: (0.5 / y, -0.25 / (z * y)),
    "rsqrt": lambda z, y: (-0.5 * y**3, 0.75 * y**5),
    "reciprocal": lambda z, y: (-y * y, 2 * y**3),
    "pow": _power,
    "neg": lambda z, y: (-1.0, None),
    "positive": lambda z, y: (1.0, None),
    "deg2rad": lambda z, y: (math.pi / 180, None),
    # with kinks: see smoothness.py
    "relu": lambda z, y, inplace=False: _mask(z > 0, z),
    "relu6": lambda z, y, inplace=False: _mask((z > 0) & (z < 6), z),
    "leaky_relu": lambda z, y, negative_slope=0.01, inplace=False: (
        torch.where(z > 0, torch.ones_like(z), torch.full_like(z, negative_slope)),
        None,
    ),
    "hardtanh": lambda z, y, min_val=-1.0, max_val=1.0, inplace=False: _mask(
        (z > min_val) & (z < max_val), z
    ),
    "hardsigmoid": lambda z, y, inplace=False: (((z > -3) & (z < 3)).to(z.dtype) / 6, None),
    "hardswish": _hardswish,
    "elu": _elu,
    "celu": _celu,
    "selu": _selu,
    "softsign": lambda z, y: (
        d := (1 + z.abs()) ** -2,
        -2 * z.sign() * d / (1 + z.abs()),
    ),
    "softshrink": lambda z, y, lambd=0.5: _mask(z.abs() > lambd, z),
    "abs": lambda z, y: (z.sign(), None),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda z, y, min: _mask(y == z, z),
    "clamp_max": lambda z, y, max: _mask(y == z, z),
    "threshold": lambda z, y, threshold, value, inplace=False: _mask(z > threshold, z),
}

ONE_TANGENT: dict[str, Callable[..., Tensor]] = {
    "softplus": lambda y, u, w, beta=1.0, threshold=20.0: (
        w * (u - w) if beta == 1 else beta * (w * (u - w))
    ),
    "tanh": lambda y, u, w: -2 * (y * u * w),
    "sigmoid": lambda y, u, w: (1 - 2 * y) * u * w,
    "exp": lambda y, u, w: u * w,
}
"""``f''(z) u^2`` from u and ``w = f'(z) u``, cheaper than by f'' where there is one tangent."""

FROM_INPUT = frozenset("softplus silu gelu mish".split())
"""Those of `ELEMENTWISE` whose derivatives are written in z alone, and cost enough to share."""

RESHAPES = frozenset(
    "reshape view flatten unflatten squeeze unsqueeze ravel contiguous clone view_as "
    "reshape_as to double float type_as".split()
)
"""Linear: the same numbers in the same order."""

PERMUTES = frozenset("permute transpose swapaxes swapdims movedim moveaxis t adjoint".split())
"""Linear: the same numbers, axes in another order."""

BATCHED = frozenset(
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "interpolate upsample pad pixel_shuffle pixel_unshuffle channel_shuffle fold".split()
)
"""Linear in the first argument, each row of the batch by itself."""

SELECTIONS = frozenset("pad pixel_shuffle pixel_unshuffle channel_shuffle".split())
"""Those of `BATCHED` whose coefficients are zeros and ones."""

LINEAR = frozenset(
    "flip fliplr flipud roll rot90 narrow select index_select gather take_along_dim expand "
    "expand_as broadcast_to repeat tile repeat_interleave cumsum diagonal diag_embed diag "
    "tril triu split chunk unbind tensor_split split_with_sizes unfold masked_fill im2col "
    "masked_select nan_to_num unsafe_chunk unsafe_split trace real".split()
)
"""Linear in the first argument, and nothing else to know."""

ALONG: dict[str, tuple[int, int | None]] = {
    "flip": (0, None), "roll": (1, None), "narrow": (0, None), "select": (0, None),
    "index_select": (0, None), "gather": (0, None), "take_along_dim": (1, None),
    "cumsum": (0, None), "unfold": (0, None), "split": (1, 0), "chunk": (1, 0),
    "tensor_split": (1, 0), "split_with_sizes": (1, 0), "unbind": (0, 0),
}  # fmt: skip
"""Those of `LINEAR` that act along an axis, which must not be the batch's: the position of that
argument after the first, and its default."""

UNSURE = frozenset("diag_embed diagonal diag trace".split())
"""Those of `LINEAR` after which the batch axis is not followed."""

CONSTANT = frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones "
    "new_full new_empty new_tensor gt ge lt le eq ne greater greater_equal less less_equal "
    "equal not_equal isnan isinf isfinite isclose allclose sign sgn floor ceil round trunc "
    "argmax argmin argsort searchsorted bucketize any all count_nonzero is_floating_point "
    "is_complex is_tensor detach signbit heaviside item tolist numpy size dim numel nelement "
    "stride is_contiguous get_device element_size data_ptr is_pinned storage_offset "
    "result_type nonzero logical_not".split()
)
"""Piecewise constant, or about the tensor rather than its numbers: no derivative to carry."""

SHAPE_OF = frozenset("expand_as view_as reshape_as type_as".split())
"""Those that take no more than a shape from their second argument."""

ALIASES = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "subtract": "sub",
    "__isub__": "sub", "__rsub__": "rsub", "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul",
    "multiply": "mul", "__truediv__": "div", "__div__": "div", "__itruediv__": "div",
    "__rtruediv__": "rdiv", "__rdiv__": "rdiv", "true_divide": "div", "divide": "div",
    "__pow__": "pow", "__rpow__": "rpow", "float_power": "pow", "__neg__": "neg",
    "negative": "neg", "__pos__": "positive", "__matmul__": "matmul", "__rmatmul__": "rmatmul",
    "mm": "matmul", "bmm": "matmul", "mv": "matmul", "linalg_matmul": "matmul", "__abs__": "abs",
    "__mod__": "remainder",
    "absolute": "abs", "arctan": "atan", "arcsin": "asin", "arccos": "acos", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "special_erf": "erf", "special_erfc": "erfc",
    "special_expm1": "expm1", "special_log1p": "log1p", "special_exp2": "exp2",
    "special_gammaln": "lgamma", "special_logit": "logit", "special_expit": "sigmoid",
    "special_logsumexp": "logsumexp", "special_softmax": "softmax",
    "special_log_softmax": "log_softmax", "log_sigmoid": "logsigmoid", "concat": "cat",
    "concatenate": "cat", "__gt__": "gt", "__ge__": "ge", "__lt__": "lt", "__le__": "le",
    "__eq__": "eq", "__ne__": "ne", "fix": "trunc",
    "_threshold": "threshold", "_softmax": "softmax", "dropout1d": "dropout",
}  # fmt: skip
"""Other names for operations of the tables."""
