"""Some rows of a large table, for what need not see all of them."""

import math

import torch
from torch import Tensor

_GOLDEN = (math.sqrt(5) - 1) / 2


def some_rows(x: Tensor, most: int, dim: int = 0) -> Tensor:
    """x, or if it has more rows, as many of them as are allowed, in their order.

    They are ``i m mod N`` for i = 0, 1, 2 ... with m prime to N and about N divided by the golden
    ratio: evenly from the whole table, and neither the first ones nor every k-th. In a sorted
    table the first rows are of one kind, and every second row is where two kinds take turns.

    Args:
        x: points ``(*, N, *)``.
        most: rows to take.
        dim: axis of the rows.

    Example:
        >>> some_rows(torch.arange(13), 5).tolist()
        [0, 3, 6, 8, 11]
    """
    count = x.shape[dim]
    if count <= most:
        return x
    step = round(_GOLDEN * count)
    while math.gcd(step, count) > 1:
        step += 1
    rows = torch.arange(most, device=x.device) * step % count
    return x.index_select(dim, rows.sort().values)
