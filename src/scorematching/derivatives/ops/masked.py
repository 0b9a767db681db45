"""Rows all of whose entries are minus infinity, as masks make them.

Their logsumexp is minus infinity and their softmax NaN, which a model drops afterwards. They are
constants, whose derivatives are zero. Formulas would give ``-inf + inf`` there, and what has been
dropped would come back as zero times NaN. Rules use the rows, double backward the compositions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scorematching._tracing import is_batched, is_recording, is_tracing
from scorematching.derivatives.engine.trace import NoRule


def masked_rows(x: Tensor, dims: list[int]) -> Tensor:
    """Which rows consist of minus infinity, with axes of length one in place of dims.

    Without dims every number is a row.
    """
    x = x.detach()
    return (x.amax(dims, keepdim=True) if dims else x) == -torch.inf


def masked_rows_if_any(x: Tensor, dims: list[int]) -> Tensor | None:
    """The same, or None where it is known that there are none."""
    if not x.numel() or x.is_complex():
        return None
    rows = masked_rows(x, dims)
    return rows if not _can_read(x) or bool(rows.any()) else None


def masked_rows_of_softmax(x: Tensor, y: Tensor, dim: int) -> Tensor | None:
    """The same for ``y = softmax(x)`` or its logarithm, of which one entry in each row tells.

    On a GPU None: filling all scores of an attention twice takes time, and curvatures of NaN are
    found by the checks, which take double backward.
    """
    if not y.numel() or (y.is_cuda and not is_tracing()):
        return None
    if _can_read(y) and not bool(y.detach().narrow(dim, 0, 1).isnan().any()):
        return None
    return masked_rows_if_any(x, [dim])


def _can_read(x: Tensor) -> bool:
    """Whether values are known now, without waiting for a GPU."""
    return x.is_cpu and not is_recording(x) and not is_batched(x)


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """`torch.logsumexp`, which has no second derivative beside rows of minus infinity alone."""
    if not input.is_floating_point() or not input.numel():
        raise NoRule
    dims = [dim] if isinstance(dim, int) else list(dim)
    rows = masked_rows_if_any(input, dims)
    if rows is None:
        return torch.logsumexp(input, dims, keepdim=keepdim)
    y = torch.logsumexp(torch.masked_fill(input, rows, 0.0), dims, keepdim=True)
    y = torch.masked_fill(y, rows, -torch.inf)
    return y if keepdim else torch.squeeze(y, tuple(dims))


def softmax(
    function: Callable[..., Tensor],
    input: Tensor,
    dim: Any = None,
    *args: Any,
    dtype: Any = None,
    **kwargs: Any,
) -> Tensor:
    """`torch.softmax` or its logarithm, whose derivatives are NaN in rows of minus infinity."""
    if dim is None or input.ndim == 0:
        raise NoRule
    dtype = next((a for a in args if isinstance(a, torch.dtype)), dtype)
    y = function(input, dim, dtype=dtype)
    rows = masked_rows_of_softmax(input, y, dim)
    if rows is None:
        return y
    y = function(torch.masked_fill(input, rows, 0.0), dim, dtype=dtype)
    return torch.masked_fill(y, rows, torch.nan)


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """`torch.logaddexp`, whose second derivative is NaN where a term is minus infinity."""
    terms = torch.stack(torch.broadcast_tensors(input, other))
    if masked_rows_if_any(terms, []) is None:  # no term is
        return torch.logaddexp(input, other)
    return logsumexp(terms, 0)
