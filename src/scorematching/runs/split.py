"""Which rows are held out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_SHARE, _MAX = 0.2, 5000


def held_out_rows(x: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """A fifth of the rows at random, at most 5,000; copies of a row stay together.

    Args:
        x: rows ``(N, D)``.
        seed: of the choice.

    Returns:
        Their numbers, in order.

    Example:
        >>> rows = held_out_rows(np.arange(40.0).reshape(20, 2), seed=0)
        >>> len(rows), bool((np.diff(rows) > 0).all())
        (4, True)
    """
    _, group = torch.tensor(x).unique(dim=0, return_inverse=True)
    count = int(group.max()) + 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[order[: min(max(2, round(_SHARE * count)), _MAX)]] = True
    return chosen[group].nonzero().flatten().numpy()
