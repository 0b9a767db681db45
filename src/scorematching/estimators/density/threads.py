"""How many threads a fit uses."""

from __future__ import annotations

from contextlib import AbstractContextManager

_SMALL_ENTRIES = 200_000


def threads_for(entries: int) -> AbstractContextManager[object]:
    """One thread for tables of few entries (rows times columns), in torch, BLAS and OpenMP.

    The arrays of small tables are too small to be shared: threads that wait for each other made
    mixtures up to five times slower, and more where other programs use the cores. The number of
    threads is restored afterwards.

    Example:
        >>> import torch
        >>> with threads_for(1000):
        ...     torch.get_num_threads()
        1
    """
    from threadpoolctl import threadpool_limits

    found: AbstractContextManager[object] = threadpool_limits(
        1 if entries <= _SMALL_ENTRIES else None
    )
    return found
