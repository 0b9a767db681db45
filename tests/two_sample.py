"""Whether two samples have one law: the energy distance, with an exact permutation test."""

from __future__ import annotations

import torch
from torch import Tensor


def energy_distance(x: Tensor, y: Tensor) -> float:
    """``2 E|X - Y| - E|X - X'| - E|Y - Y'|`` of two samples ``(n, D)``, ``(m, D)``.

    Zero for equal laws only (Szekely and Rizzo, 2013): it sees any difference, given the points.
    """
    between, within = torch.cdist(x, y).mean(), torch.cdist(x, x).mean() + torch.cdist(y, y).mean()
    return float(2 * between - within)


def permutation_p_value(
    x: Tensor, y: Tensor, num_permutations: int, generator: torch.Generator
) -> float:
    """``(1 + number of permuted distances >= the observed one) / (1 + number of permutations)``.

    Where both samples have one law every division of the points is as likely as the one that was
    seen, so the p-value is at most a with probability at most a: no asymptotics.
    """
    points = torch.cat([x, y])
    n, total = len(x), len(points)
    distances = torch.cdist(points, points)
    weights = points.new_full((num_permutations + 1, total), -1 / (total - n))
    weights[0, :n] = 1 / n
    for row in weights[1:]:
        row[torch.randperm(total, generator=generator)[:n]] = 1 / n
    # With weight 1/n on the one and -1/m on the other, the distance is minus a quadratic form.
    values = -((weights @ distances) * weights).sum(1)
    return float((values >= values[0] * (1 - 1e-12)).double().mean())


def assert_same_law(
    x: Tensor, y: Tensor, generator: torch.Generator, error_rate: float = 1e-3
) -> None:
    """Assert that two samples have one law; a false alarm has probability ``error_rate``."""
    p = permutation_p_value(x, y, round(2 / error_rate) - 1, generator)
    assert p > error_rate, (
        f"two samples of {len(x)} and {len(y)} points have an energy distance of "
        f"{energy_distance(x, y):.3g}, which one law shows with probability {p:.2g} at most"
    )
