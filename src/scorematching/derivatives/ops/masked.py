"""Rows all of whose entries are minus infinity, as masks make them.

Their logsumexp is minus infinity and their softmax NaN, which a model drops afterwards. They are
constants, whose derivatives are zero. Formulas would give ``-inf + inf`` there, and what has been
dropped would come back as zero times NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching._tracing import is_batched, is_recording, is_tracing


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
