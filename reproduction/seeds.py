"""Seeds of runs, read from the command line and checked before anything runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

MAX_SEED = 2**32 - 1
"""The largest seed that every generator takes; scikit-learn's have 32 bits."""

MAX_COUNT = 10_000
"""More seeds than that are taken for a slip of the keyboard."""


def read_seeds(text: str) -> list[int]:
    """Seeds from text: ``0-2,7`` is 0, 1, 2, 7.

    Raises:
        ValueError: if the text cannot be read, or names no seeds, too many, or one twice.

    Example:
        >>> read_seeds("0-2,7")
        [0, 1, 2, 7]
    """
    ranges = [_read_range(part, text) for part in text.split(",")]
    count = sum(part.stop - part.start for part in ranges)
    if count > MAX_COUNT:
        raise ValueError(
            f"seeds must be at most {MAX_COUNT}, got {count} in {text!r}; give a shorter range"
        )
    seeds = [seed for part in ranges for seed in part]
    check_seeds(seeds)
    return seeds


def write_seeds(seeds: Sequence[int]) -> str:
    """Seeds as text that `read_seeds` reads, in order and each once.

    Example:
        >>> write_seeds([7, 0, 2, 1, 1])
        '0-2,7'
    """
    ranges: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse no seeds, a seed twice, and seeds that some generator does not take.

    Raises:
        ValueError: says which.
    """
    if not seeds:
        raise ValueError("seeds must be one or more, got none; try 0")
    seed, times = Counter(seeds).most_common(1)[0]
    if times > 1:
        raise ValueError(
            f"seeds must differ, or their runs are not independent, got seed {seed} "
            f"({times} times); give each seed once"
        )
    outside = [seed for seed in seeds if not 0 <= seed <= MAX_SEED]
    if outside:
        raise ValueError(
            f"seeds must be from 0 to {MAX_SEED}, got {outside[0]}; take a smaller one"
        )


def _read_range(part: str, text: str) -> range:
    """One seed, or two with a dash between them."""
    found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
    if found is None:
        raise ValueError(f"seeds must look like 0-4 or 0,3, got {text!r}; try --seeds 0")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise ValueError(f"seeds must go up in a range, got {part.strip()!r}; write {last}-{first}")
    return range(first, last + 1)
