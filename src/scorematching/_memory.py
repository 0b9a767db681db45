"""Values of many points within a budget of memory, which is measured.

`Allocations` counts the memory of tensors. `Budget` does so for a whole computation: parts of it
that take points by themselves are evaluated in chunks that fill what is left (`Chunks`,
`in_chunks`), and any other operation that would exceed the budget is refused before it allocates.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

from scorematching._checks import check_count

_WORKSPACE = {
    "_euclidean_dist": (0, 2),
    "_linalg_svd": (1, 0),
    "_unique2": (1, 0),
    "kthvalue": (2, 0),
    "linalg_inv_ex": (1, 0),
    "logsumexp": (1, 0),
    "median": (1, 0),
    "sort": (1, 0),
    "unique_dim": (1, 0),
}
"""Memory of operations while they run: copies of their first argument and of their result."""

_SLACK = 1.1
"""Share of a budget at which operations are refused; chunks stay below the budget itself."""


class Allocations(TorchDispatchMode):
    """Counts the memory of tensors that are made inside the block.

    Memory that an operation uses while it runs is seen for the operations of linear algebra only.

    Attributes:
        peak: most bytes that were in use at one time.
        live: bytes that are in use now.

    Example:
        >>> with Allocations() as used:
        ...     x = torch.zeros(1000, dtype=torch.float64) + 1
        >>> used.peak, used.live
        (16000, 8000)
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.live = 0
        self._known = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            self._see(tensor, new=False)
        result = func(*args, **(kwargs or {}))
        before = self.live
        for tensor in tree_leaves(result):
            self._see(tensor, new=True)
        self.peak = max(self.peak, self.live + _workspace(func, args, self.live - before))
        return result

    def _see(self, tensor: Any, new: bool) -> None:
        """Count the memory of a tensor until it is freed; what was there before counts nothing."""
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if new else 0
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class Budget(Allocations):
    """Memory that a computation may take, beside what was there before.

    Inside the block, an operation whose result does not fit is refused before it allocates.

    Args:
        max_memory: bytes.
        advice: what to do if that is not enough.

    Raises:
        ValueError: by that operation.

    Example:
        >>> with Budget(10_000, "take fewer points") as budget:
        ...     x = torch.zeros(1000)
        ...     budget.left
        6000
    """

    def __init__(self, max_memory: int, advice: str) -> None:
        super().__init__()
        self.max_memory, self.advice = max_memory, advice
        self._sizes, self._refusal = dict[Any, int](), ""

    @property
    def left(self) -> int:
        """Bytes that are not in use."""
        return self.max_memory - self.live

    def require(self, size: int, what: str) -> None:
        """Refuse something that takes more than is left.

        Raises:
            ValueError: says how much it takes and what to do.
        """
        if self.live + size > _SLACK * self.max_memory and not self._refusal:
            self._refusal = (
                f"max_memory must be at least {self.live + size} bytes, which {what}, got "
                f"{self.max_memory}; use a larger limit, or {self.advice}"
            )
        if self._refusal:
            raise ValueError(self._refusal)

    def __exit__(self, *error: Any) -> None:
        """End the block; a refusal that was caught inside, to go on without, is raised again."""
        super().__exit__(*error)
        if self._refusal and str(error[1]) != self._refusal:
            raise ValueError(self._refusal) from error[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        size = self._new_bytes(func, args, kwargs or {})
        size += _workspace(func, args, size)
        self.require(size, f"{func.overloadpacket.__name__} needs at this point")
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _new_bytes(self, func: Any, args: Any, kwargs: Any) -> int:
        """Bytes of the results of an operation, by its arguments; 0 where they are unknown."""
        key = (func, *map(_signature, tree_leaves((args, kwargs))))
        try:
            if key not in self._sizes:
                self._sizes[key] = _meta_bytes(func, args, kwargs)
        except Exception:  # its result depends on values, or it has no rule for shapes
            self._sizes[key] = 0
        return self._sizes[key]


def limited(
    max_memory: int | None, advice: str
) -> contextlib.AbstractContextManager[Budget | None]:
    """A block in a budget; without one, for None.

    Example:
        >>> with limited(None, "take fewer points") as budget:
        ...     print(budget)
        None
    """
    if max_memory is None:
        return contextlib.nullcontext()
    _check_limit(max_memory)
    return Budget(max_memory, advice)


def current_budget() -> Budget | None:
    """The budget of the innermost block that this code runs in, if any.

    Example:
        >>> with Budget(10_000, "take fewer points") as budget:
        ...     current_budget() is budget
        True
        >>> print(current_budget())
        None
    """
    active = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Budget)]
    return active[-1] if active else None


class Chunks:
    """Evaluates functions of points, some of them at a time.

    With a budget the first chunks have 1, 2, 4, ... points, and the memory that each takes is
    measured, until one of twice the size would exceed it; the others have the size that fills it.
    The size is remembered, for functions of the same memory.

    Args:
        batch_size: most points at a time.
        max_memory: bytes that one call may take, beside its arguments and what is left of it
            afterwards; or a `Budget`, of which it may take what is left; None is without limit.
        reserve: bytes of that which are kept for something else.

    Raises:
        ValueError: if one point takes more.

    Example:
        >>> chunks = Chunks(batch_size=2)
        >>> sum(chunks(torch.sum, torch.ones(5))).item()
        5.0
    """

    def __init__(
        self, batch_size: int, max_memory: int | Budget | None = None, reserve: int = 0
    ) -> None:
        self.batch_size, self.budget, self.reserve = batch_size, max_memory, reserve
        self.growing = max_memory is not None
        self.size = 1 if self.growing else batch_size
        self._before, self._each = (0, 0), 0.0
        if max_memory is not None and not isinstance(max_memory, Budget):
            _check_limit(max_memory)

    def __call__(self, function: Callable[..., Any], *rows: Tensor) -> Iterator[Any]:
        """The results for parts of the points, one after the other.

        Args:
            function: of as many tensors as there are in rows.
            rows: tensors with the points along their first axis.
        """
        done = 0
        if isinstance(self.budget, Budget) and not self.growing and self._each:
            size, peak = self._before
            fits = size + int((self._left() - peak) / self._each)
            self.size = max(1, min(self.batch_size, fits))
        while done < len(rows[0]):
            part = [row[done : done + self.size] for row in rows]
            done += self.size
            measured = self.growing and len(part[0]) == self.size
            yield self._measure(function, part) if measured else function(*part)

    def _measure(self, function: Callable[..., Any], part: Sequence[Tensor]) -> Any:
        """A result, after which the next size is known."""
        size, budget = self.size, self.budget
        used = budget if isinstance(budget, Budget) else Allocations()
        left = self._left()
        highest, before = used.peak, used.live
        used.peak = used.live
        with contextlib.nullcontext() if used is budget else used:
            result = function(*part)
        peak = used.peak - before
        used.peak = max(highest, used.peak)
        if size == 1 and peak > left:
            _refuse(peak + self.reserve, budget)
        self._each = _per_point(self._before, (size, peak))
        fits = size + int((left - peak) / self._each) if self._each else 2 * size
        wanted = max(1, min(2 * size, fits))
        self._before, self.growing = (size, peak), wanted == 2 * size
        self.size = min(self.batch_size, wanted)
        self.growing = self.growing and self.size > size
        return result

    def _left(self) -> int:
        found = self.budget.left if isinstance(self.budget, Budget) else int(self.budget or 0)
        return found - self.reserve


def in_chunks(
    function: Callable[..., Tensor],
    rows: Sequence[Tensor],
    batch_size: int,
    max_memory: int | Budget | None = None,
) -> Tensor:
    """A function of points, some of them at a time: ``(N, ...) -> (N, ...)``.

    Args:
        function: of as many tensors as there are in rows.
        rows: tensors with the points along their first axis.
        batch_size: most points at a time.
        max_memory: as for `Chunks`, beside the result.

    Raises:
        ValueError: if one point takes more.

    Example:
        >>> in_chunks(torch.exp, [torch.zeros(3)], batch_size=2)
        tensor([1., 1., 1.])
    """
    return joined(Chunks(batch_size, max_memory), function, rows)


def joined(chunks: Chunks, function: Callable[..., Tensor], rows: Sequence[Tensor]) -> Tensor:
    """The results of chunks as one tensor, without a second copy where there is a budget."""
    parts = chunks(function, *rows)
    if chunks.budget is None:
        return torch.cat(list(parts))
    first = next(parts)
    if first.requires_grad or len(first) == len(rows[0]):
        return torch.cat([first, *parts])
    found, done = first.new_empty(len(rows[0]), *first.shape[1:]), len(first)
    found[:done] = first
    del first
    for part in parts:
        found[done : done + len(part)] = part
        done += len(part)
    return found


def sum_of_chunks(chunks: Chunks, function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """The sum of the results of chunks.

    Example:
        >>> sum_of_chunks(Chunks(batch_size=2), torch.sum, torch.ones(5)).item()
        5.0
    """
    return functools.reduce(operator.add, chunks(function, *rows))


def _per_point(before: tuple[int, int], now: tuple[int, int]) -> float:
    """Bytes for each further point, from two numbers of points and their peaks."""
    (few, low), (size, peak) = before, now
    return max((peak - low) / (size - few), 0.25 * peak / size)


def _refuse(need: int, budget: int | Budget | None) -> None:
    if isinstance(budget, Budget):
        budget.require(need, "one point takes")
        return
    raise ValueError(
        f"max_memory must be at least {need} bytes, which one point takes, got {budget}; use a "
        "larger budget or a smaller model"
    )


def _check_limit(max_memory: Any) -> None:
    check_count(max_memory, "max_memory", "it is a number of bytes, such as 2**30")


def _workspace(func: Any, args: Any, result: int) -> int:
    """Bytes that an operation uses while it runs, beside those of its result."""
    name = func.overloadpacket.__name__
    if name == "cholesky_solve":
        return int(args[1].numel()) * int(args[1].element_size())
    if name == "_linalg_eigh":  # LAPACK's own formula, one matrix after the other
        n = int(args[0].shape[-1])
        return (2 * n * n + 11 * n + 4) * int(args[0].element_size())
    of_first, of_result = _WORKSPACE.get(name, (0, 0))
    if not of_first:
        return of_result * result
    return of_first * int(args[0].numel()) * int(args[0].element_size()) + of_result * result


def _signature(value: Any) -> Any:
    """What the size of a result may depend on."""
    if isinstance(value, Tensor):
        return (value.shape, value.stride(), value.dtype)
    return value if isinstance(value, int | float | str | bool | type(None)) else str(value)


def _meta_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Bytes of the results that are no views of the arguments."""

    def without_storage(x: Tensor) -> Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")

    args, kwargs = tree_map_only(Tensor, without_storage, (args, kwargs))
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if "device" in kwargs or not tensors:
        kwargs = {**kwargs, "device": "meta"}
    given = {tensor.untyped_storage()._cdata for tensor in tensors}
    found = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
    new = {leaf.untyped_storage()._cdata: leaf.untyped_storage().nbytes() for leaf in found}
    return sum(size for key, size in new.items() if key not in given)
