"""Operations that torch cannot differentiate three times, written out in operations that it can.

Torch's own double backward through `layer_norm` and `instance_norm` gives a wrong third
derivative, hence a wrong parameter gradient of any loss with a Hessian in it, with no error
(the value of the loss is right). Fused attention and weighted bags of embeddings have no double
backward at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from scorematching._tracing import saved_tensors_hooks
from scorematching.derivatives.engine.trace import NoRule, plain
from scorematching.derivatives.ops.masked import logaddexp, logsumexp, softmax
from scorematching.derivatives.ops.registry import find, structural
from scorematching.derivatives.ops.running import sums_of_pairs


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """`torch.nn.functional.layer_norm`, term by term."""
    axes = tuple(range(-len(normalized_shape), 0))
    return _affine(_standardise(input, axes, eps), weight, bias)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.instance_norm`, term by term."""
    if use_input_stats or running_mean is None or running_var is None:
        if running_mean is not None and running_var is not None:
            _follow(input, running_mean, running_var, momentum)
        standard = _standardise(input, tuple(range(2, input.ndim)), eps)
    else:
        column = (-1,) + (1,) * (input.ndim - 2)
        scale = (running_var + eps).rsqrt().reshape(column)
        standard = (input - running_mean.reshape(column)) * scale
    return _per_channel(standard, weight, bias)


@torch.no_grad()
def _follow(input: Tensor, mean: Tensor, variance: Tensor, momentum: float) -> None:
    """Move running statistics towards those of the points, as `instance_norm` of torch does."""
    x, axes = plain(input).detach(), tuple(range(2, input.ndim))
    mean.lerp_(x.mean((0, *axes)).to(mean), momentum)
    variance.lerp_(x.var(axes).mean(0).to(variance), momentum)


def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.native_layer_norm`, term by term."""
    axes = tuple(range(-len(normalized_shape), 0))
    mean = torch.mean(input, axes, keepdim=True)
    scale = torch.rsqrt(torch.square(input - mean).mean(axes, keepdim=True) + eps)
    return _affine((input - mean) * scale, weight, bias), mean, scale


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """`torch.nn.functional.group_norm`, term by term."""
    groups = input.reshape(input.shape[0], num_groups, -1)
    return _per_channel(_standardise(groups, (2,), eps).reshape(input.shape), weight, bias)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """`torch.nn.functional.rms_norm`, term by term."""
    axes = tuple(range(-len(normalized_shape), 0))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    scale = torch.rsqrt(torch.square(input).mean(axes, keepdim=True) + eps)
    return _affine(input * scale, weight, None)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """`torch.nn.functional.glu`, term by term."""
    a, b = torch.chunk(input, 2, dim)
    return a * torch.sigmoid(b)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    """`torch.cdist` for p = 2, from differences; its gradient where points meet is zero."""
    if p != 2:
        raise NoRule
    squared = torch.square(x1.unsqueeze(-2) - x2.unsqueeze(-3)).sum(-1)
    meet = squared == 0
    zeros, ones = (make(meet, dtype=x1.dtype) for make in (torch.zeros_like, torch.ones_like))
    return torch.where(meet, zeros, torch.sqrt(torch.where(meet, ones, squared)))


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """`torch.nn.functional.normalize` for p = 2, term by term."""
    if p != 2:
        raise NoRule
    return input / _at_least(torch.sqrt(torch.square(input).sum(dim, keepdim=True)), eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """`torch.nn.functional.cosine_similarity`, term by term."""
    a, b = (_at_least(torch.sqrt(torch.square(x).sum(dim)), eps) for x in (x1, x2))
    return (x1 * x2).sum(dim) / (a * b)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, term by term."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (torch.repeat_interleave(t, repeats, dim=-3) for t in (key, value))
    scores = torch.matmul(query * (query.shape[-1] ** -0.5 if scale is None else scale), key.mT)
    if is_causal:
        shape = (query.shape[-2], key.shape[-2])
        attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.masked_fill(scores, ~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    # As torch, which returns zero for queries of which the mask leaves no key.
    to_weights = torch.softmax if attn_mask is None or is_causal else torch._safe_softmax
    weights = F.dropout(to_weights(scores, -1), dropout_p, training=dropout_p > 0)
    return torch.matmul(weights, value)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.batch_norm` with fixed statistics, term by term."""
    if training:
        raise ValueError(
            "the model must treat every point by itself, got batch normalisation in training "
            "mode, which couples them; call model.eval(), or use LayerNorm or GroupNorm"
        )
    return instance_norm(input, running_mean, running_var, weight, bias, False, eps=eps)


def _any_signature(norm: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """`instance_norm` or `batch_norm` by the signature of functional, or that of torch itself."""
    if len(args) < 9:
        return norm(*args, **kwargs)
    x, weight, bias, running_mean, running_var, *rest = args
    return norm(x, running_mean, running_var, weight, bias, *rest[:3])


def log_ndtr(input: Tensor) -> Tensor:
    """`torch.special.log_ndtr`, far to the left by its asymptotic series.

    Torch takes the derivatives from a difference of large exponents, of z^2 / 2: in single
    precision the second one is off by 5% at -30, and is 466 in place of -1 at -315.
    """
    # Further left, powers of the distribution function underflow in the derivatives.
    far = -18.0 if input.dtype == torch.float64 else -6.0
    beyond = input < far
    t = torch.where(beyond, -input, -far)
    series: Any = 1.0
    for k in range(19, 0, -2):  # 1 - 1 / t^2 + 1 3 / t^4 - 1 3 5 / t^6 + ...
        series = 1 - k * series / (t * t)
    tail = torch.log(series) - torch.log(t) - 0.5 * t * t - 0.5 * math.log(2 * math.pi)
    near = torch.where(beyond, far, input)
    return torch.where(beyond, tail, torch.log(0.5 * torch.erfc(near * -math.sqrt(0.5))))


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *others: Any,
    reduction: Any = "mean",
    pos_weight: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """The function of `torch.nn.functional`, from `logsigmoid`.

    Torch's decomposition has the modulus of logits, which bends at zero. `softplus` is linear above
    20, where its derivative jumps by 2e-9.
    """
    if others or not isinstance(reduction, str) or any(v is not None for v in kwargs.values()):
        raise NoRule  # torch.binary_cross_entropy_with_logits has another signature
    positive = 1 if pos_weight is None else 1 + (pos_weight - 1) * target
    loss = (1 - target) * input - positive * F.logsigmoid(input)
    loss = loss if weight is None else loss * weight
    return loss if reduction == "none" else getattr(loss, reduction)()


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """`torch.nn.functional.pairwise_distance` for p = 2, term by term."""
    if p != 2:
        raise NoRule
    return torch.sqrt(torch.square(x1 - x2 + eps).sum(-1, keepdim=keepdim))


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """`torch.nn.functional.embedding_bag` with weights of its own for every row, term by term."""
    if input.is_floating_point() or per_sample_weights is None or mode != "sum":
        raise NoRule  # the first: torch.embedding_bag has another signature
    rows = F.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq)
    rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is not None:
        rows = rows * (input != padding_idx).unsqueeze(-1).to(weight.dtype)
    if offsets is None:
        return torch.sum(rows, 1)
    bags = len(offsets) - include_last_offset
    bag = torch.bucketize(torch.arange(len(input), device=input.device), offsets, right=True) - 1
    return weight.new_zeros(bags, weight.shape[1]).index_add(0, bag, rows)


COMPOSITIONS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("layer_norm", layer_norm),
    ("native_layer_norm", native_layer_norm),
    ("group_norm", group_norm),
    ("rms_norm", rms_norm),
    ("instance_norm", partial(_any_signature, instance_norm)),
    ("batch_norm", partial(_any_signature, batch_norm)),
    ("glu", glu),
    ("cdist", cdist),
    ("normalize", normalize),
    ("cosine_similarity", cosine_similarity),
    ("pairwise_distance", pairwise_distance),
    ("binary_cross_entropy_with_logits", binary_cross_entropy_with_logits),
    ("softmax", partial(softmax, torch.softmax)),
    ("log_softmax", partial(softmax, torch.log_softmax)),
    ("logsumexp", logsumexp),
    ("logaddexp", logaddexp),
    ("logcumsumexp", sums_of_pairs),
    ("special_log_ndtr", log_ndtr),
    ("embedding_bag", embedding_bag),
    ("scaled_dot_product_attention", scaled_dot_product_attention),
)
"""Compositions by the name of torch's own operation."""

_CLOSED = ("layer_norm group_norm softmax log_softmax logsumexp logaddexp logcumsumexp").split()
"""Those that traces have closed forms of, in `norms`, `reductions` and `running`."""

for _name, _composition in COMPOSITIONS:
    if _name not in _CLOSED:
        structural(_name, kind="composed")(lambda call, *args, f=_composition, **kw: f(*args, **kw))


class _Composed(TorchFunctionMode):
    """Replaces what torch cannot differentiate twice more by compositions."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        _repeat_in_checkpoint()
        operation = find(func)
        if operation is not None and operation.name in _WRONG:
            with suppress(NoRule):
                return _WRONG[operation.name](*args, **kwargs or {})
        fused = getattr(func, "__name__", "") in _RECURRENT  # cells without a double backward
        with torch.backends.cudnn.flags(enabled=False) if fused else nullcontext():
            return func(*args, **kwargs or {})


def _repeat_in_checkpoint() -> None:
    """Let the `torch.utils.checkpoint` around a call run again inside the mode.

    It does so in a backward pass, of the user's loss at last, and would find other operations than
    those of its first run. Torch offers no other way to what it will run.
    """
    hooks = saved_tensors_hooks()
    for cell in (getattr(hooks[0], "__closure__", None) or ()) if hooks else ():
        with suppress(ValueError):  # an empty cell
            frame = cell.cell_contents
            if isinstance(frame, _FRAME) and not isinstance(frame.recompute_fn, _Again):
                frame.recompute_fn = _Again(frame.recompute_fn)


# Not public in torch, and replaced where its version does not have them.
_FRAME = getattr(checkpoint, "_CheckpointFrame", ())
_modes = getattr(torch.overrides, "_get_current_function_mode_stack", list)


class _Again:
    """A function that is called inside the mode, unless that is so already."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        active = any(isinstance(mode, _Composed) for mode in _modes())
        with nullcontext() if active else twice_differentiable():
            return self.function(*args)


_WRONG_NAMES = (
    "layer_norm native_layer_norm instance_norm group_norm batch_norm cdist softmax "
    "log_softmax logsumexp logaddexp logcumsumexp embedding_bag special_log_ndtr"
).split()
_WRONG = {name: composition for name, composition in COMPOSITIONS if name in _WRONG_NAMES}
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """A region in which outputs of models have graphs that can be differentiated three times."""
    with sdpa_kernel(SDPBackend.MATH), _Composed():
        yield


def _at_least(length: Tensor, eps: float) -> Tensor:
    """Lengths, with those below eps replaced by eps to avoid division by zero."""
    floor = torch.full((), eps, dtype=length.dtype, device=length.device)
    return torch.where(length > eps, length, floor)


def _standardise(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Mean zero and variance one over the axes, up to eps."""
    centred = x - torch.mean(x, axes, keepdim=True)
    return centred * torch.rsqrt(torch.square(centred).mean(axes, keepdim=True) + eps)


def _per_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`_affine` with one weight and bias for each channel, the second axis of x."""
    column = (-1,) + (1,) * (x.ndim - 2)
    weight, bias = (None if w is None else w.reshape(column) for w in (weight, bias))
    return _affine(x, weight, bias)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``x * weight + bias``, either of which may be missing."""
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias
