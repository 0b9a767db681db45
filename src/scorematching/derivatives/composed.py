"""Operations that torch cannot differentiate twice and again, written out in ones that it can.

Torch's own double backward through `layer_norm` and `instance_norm` gives a wrong third
derivative, hence a wrong parameter gradient of any loss with a Hessian in it, with no error
(the value of the loss is right). Fused attention has no double backward at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


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
    """`torch.nn.functional.instance_norm`, term by term; running statistics are left alone."""
    column = (-1,) + (1,) * (input.ndim - 2)
    weight = None if weight is None else weight.reshape(column)
    bias = None if bias is None else bias.reshape(column)
    if use_input_stats or running_mean is None or running_var is None:
        return _affine(_standardise(input, tuple(range(2, input.ndim)), eps), weight, bias)
    centred = input - running_mean.reshape(column)
    return _affine(centred * (running_var + eps).rsqrt().reshape(column), weight, bias)


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


def _any_instance_norm(*args: Any, **kwargs: Any) -> Tensor:
    """`instance_norm` by either of its two signatures, of functional and of torch itself."""
    if len(args) < 9:
        return instance_norm(*args, **kwargs)
    x, weight, bias, running_mean, running_var, *rest = args
    return instance_norm(x, running_mean, running_var, weight, bias, *rest[:3])


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
    column = (-1,) + (1,) * (input.ndim - 2)
    weight = None if weight is None else weight.reshape(column)
    bias = None if bias is None else bias.reshape(column)
    return _affine(_standardise(groups, (2,), eps).reshape(input.shape), weight, bias)


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
        return torch.cdist(x1, x2, p, compute_mode)
    squared = torch.square(x1.unsqueeze(-2) - x2.unsqueeze(-3)).sum(-1)
    meet = squared == 0
    return torch.where(meet, torch.zeros_like(meet, dtype=x1.dtype), _safe_sqrt(squared, meet))


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """`torch.nn.functional.normalize` for p = 2, term by term."""
    if p != 2:
        return F.normalize(input, p, dim, eps)
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
    weights = F.dropout(torch.softmax(scores, -1), dropout_p, training=dropout_p > 0)
    return torch.matmul(weights, value)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, None]:
    """`torch.nn.functional.multi_head_attention_forward`, term by term, without its weights.

    Inputs are ``(L, N, E)``. Key padding and learned key biases are left to torch's own function.
    """
    if any(v is not None for v in (bias_k, bias_v, key_padding_mask, static_k, static_v)):
        raise NotImplementedError("attention with padding or static keys")
    weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight and in_proj_weight is not None:
        weights = in_proj_weight.chunk(3)
    biases: Any = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)

    def heads(x: Tensor, weight: Any, bias: Any) -> Tensor:
        y = F.linear(x, weight, bias)
        return y.reshape(*y.shape[:2], num_heads, -1).permute(1, 2, 0, 3)

    q, k, v = map(heads, (query, key, value), weights, biases)
    p = dropout_p if training else 0.0
    y = scaled_dot_product_attention(q, k, v, attn_mask, p, is_causal and attn_mask is None)
    y = y.permute(2, 0, 1, 3)
    y = y.reshape(y.shape[0], y.shape[1], -1)
    return F.linear(y, out_proj_weight, out_proj_bias), None


BY_NAME: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        layer_norm,
        native_layer_norm,
        group_norm,
        rms_norm,
        glu,
        cdist,
        normalize,
        cosine_similarity,
        scaled_dot_product_attention,
        multi_head_attention_forward,
    )
}
BY_NAME["instance_norm"] = _any_instance_norm
"""Compositions by the name of torch's own operation."""


def coupled_batch() -> ValueError:
    """The error for batch normalisation in training mode."""
    return ValueError(
        "the model must treat every point by itself, got batch normalisation in training mode, "
        "which couples them; call model.eval(), or use LayerNorm or GroupNorm"
    )


class _Composed(TorchFunctionMode):
    """Swaps in compositions wherever a model calls what torch cannot differentiate again."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "batch_norm" and (kwargs.get("training") or (len(args) > 5 and args[5] is True)):
            raise coupled_batch()
        if name in _RECURRENT:
            with torch.backends.cudnn.flags(enabled=False):  # fused cells have no double backward
                return func(*args, **kwargs)
        return (BY_NAME[name] if name in _WRONG else func)(*args, **kwargs)


_WRONG = frozenset("layer_norm native_layer_norm instance_norm group_norm cdist".split())
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """A region in which models evaluate to graphs that can be differentiated again and again."""
    with sdpa_kernel(SDPBackend.MATH), _Composed():
        yield


def _at_least(length: Tensor, eps: float) -> Tensor:
    """A length kept away from zero, for the sake of those that are zero and of no others."""
    floor = torch.full((), eps, dtype=length.dtype, device=length.device)
    return torch.where(length > eps, length, floor)


def _safe_sqrt(squared: Tensor, meet: Tensor) -> Tensor:
    return torch.sqrt(torch.where(meet, torch.ones_like(meet, dtype=squared.dtype), squared))


def _standardise(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    centred = x - torch.mean(x, axes, keepdim=True)
    return centred * torch.rsqrt(torch.square(centred).mean(axes, keepdim=True) + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias
