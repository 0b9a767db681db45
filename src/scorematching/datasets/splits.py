"""Splits into training, validation and test points."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_generator, check_points, check_type


class Split(NamedTuple):
    """Three disjoint parts of a dataset.

    Attributes:
        train: to fit parameters.
        valid: to choose settings, such as when to stop.
        test: for the final evaluation.

    Example:
        >>> train, valid, test = split(torch.zeros(10, 2), (6, 3, 1))
        >>> len(train), len(valid), len(test)
        (6, 3, 1)
    """

    train: Tensor
    valid: Tensor
    test: Tensor


def split(
    x: Tensor, sizes: Sequence[int] | Sequence[float], generator: torch.Generator | None = None
) -> Split:
    """A random split into copies of the points, by one permutation of the rows.

    Args:
        x: points ``(N, *event)``.
        sizes: of training, validation and test set: three counts that add up to N, or three
            fractions that add up to 1 (rounded down, with the remainder in the training set).
        generator: source of randomness; None is torch's default generator.

    Example:
        >>> parts = split(torch.arange(20.0).reshape(10, 2), (0.8, 0.1, 0.1))
        >>> [len(part) for part in parts], torch.cat(parts).sum().item()
        ([8, 1, 1], 190.0)
    """
    check_points(x)
    check_generator(generator, generator)  # on any device
    advice = "pass three counts or fractions, such as (0.8, 0.1, 0.1)"
    check_type(sizes, Iterable, "sizes must be a sequence", advice)
    counts = _counts(len(x), sizes)
    device = None if generator is None else generator.device
    order = torch.randperm(len(x), generator=generator, device=device).to(x.device)
    return Split(*(x[rows] for rows in order.split(counts)))


def paper_split(x: Tensor, generator: torch.Generator | None = None) -> Split:
    """The split of the UCI experiments of Song et al. (2019).

    Test points: a tenth of all, at most 1000; validation points: a tenth of the rest, at most
    1000. Both are rounded down. Arguments as for `split`.

    Example:
        >>> [len(part) for part in paper_split(torch.zeros(1599, 11))]
        [1296, 144, 159]
    """
    check_points(x)
    test = min(1000, len(x) // 10)
    valid = min(1000, (len(x) - test) // 10)
    return split(x, (len(x) - valid - test, valid, test), generator)


def _counts(n: int, sizes: Sequence[int] | Sequence[float]) -> list[int]:
    """Three counts that add up to n."""
    if len(sizes) != 3 or min(sizes) < 0:
        raise ValueError(
            f"sizes must be three counts or fractions, none negative, got {tuple(sizes)}; "
            "0 leaves a part empty"
        )
    if all(isinstance(size, Integral) for size in sizes) and sum(sizes) == n:
        return [int(size) for size in sizes]
    if abs(sum(sizes) - 1) > 1e-9:
        raise ValueError(
            f"sizes must add up to the {n} points, or as fractions to 1, got {tuple(sizes)}, "
            f"which add up to {sum(sizes)}; change one of them"
        )
    # 0.29 * 100 is slightly less than 29, so round before int.
    valid, test = (int(round(size * n, 6)) for size in sizes[1:])
    return [n - valid - test, valid, test]
