"""Multi-head attention, written out so that the axis of points is kept."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scorematching.derivatives.engine.trace import Call, NoRule, Traced
from scorematching.derivatives.ops.compositions import scaled_dot_product_attention
from scorematching.derivatives.ops.registry import structural

RARE = (
    "bias_k bias_v key_padding_mask q_proj_weight k_proj_weight v_proj_weight static_k static_v "
    "add_zero_attn use_separate_proj_weight need_weights is_causal"
).split()
"""Arguments that are left to torch's decomposition, unless they are None or False."""

_SIGNATURE = signature(F.multi_head_attention_forward)


@structural("multi_head_attention_forward", kind="composed")
def multi_head_attention(call: Call, *args: Any, **kwargs: Any) -> Any:
    """``(L, N, E)`` queries, keys and values to ``(L, N, E)``; the weights are not returned."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    inputs = given.query, given.key, given.value
    batched = all(x.ndim == 3 for x in inputs)
    if not batched or not _is_common(given) or not _is_added(given.attn_mask):
        raise NoRule
    q, k, v = (
        part.unflatten(-1, (given.num_heads, -1)).permute(1, 2, 0, 3)
        for part in _projected(*inputs, given.in_proj_weight, given.in_proj_bias)
    )
    dropout = given.dropout_p if given.training else 0.0
    y = scaled_dot_product_attention(q, k, v, given.attn_mask, dropout)
    y = y.permute(2, 0, 1, 3).flatten(2)
    return F.linear(y, given.out_proj_weight, given.out_proj_bias), None


def _is_common(given: SimpleNamespace) -> bool:
    """Whether no rare argument is given."""
    values = (getattr(given, name) for name in RARE)
    return all(value is None or value is False for value in values)


def _is_added(mask: Any) -> bool:
    """Whether a mask is one of numbers that are added to all scores ``(L, S)``, or none."""
    return mask is None or (
        not isinstance(mask, Traced) and mask.ndim == 2 and mask.is_floating_point()
    )


def _projected(query: Any, key: Any, value: Any, weight: Tensor, bias: Any) -> Any:
    """Queries, keys and values, by one product where they are the same."""
    if query is key and key is value:
        return torch.chunk(F.linear(query, weight, bias), 3, -1)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return [F.linear(x, *wb) for x, *wb in zip((query, key, value), weight.chunk(3), biases)]
