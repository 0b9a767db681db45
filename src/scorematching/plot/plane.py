"""The plane in which points of many dimensions are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scorematching.plot.asking import Array
from scorematching.plot.canvas import padded


@dataclass(frozen=True, eq=False)
class Plane:
    """The plane of the first two principal directions of standardised columns, through the mean.

    Points are ``x = centre + scale * (w @ axes)`` with coordinates w on the plane. For two columns
    the plane is theirs, and coordinates are drawn in the units of the columns.

    Attributes:
        centre: means of the columns, ``(D,)``.
        scale: their standard deviations, ``(D,)``; one for a constant column.
        axes: the two directions, ``(2, D)``, orthonormal.
        labels: of the two axes.
    """

    centre: Array
    scale: Array
    axes: Array
    labels: tuple[str, str]

    @classmethod
    def of(cls, x: Array, names: list[str]) -> Plane:
        """The plane of points ``(N, D)``, D >= 2, with columns of those names."""
        # The range, since the standard deviation of equal numbers may be a rounding error.
        centre, scale = x.mean(0), np.where(np.ptp(x, axis=0) > 0, x.std(0), 1.0)
        if x.shape[1] == 2:
            return cls(centre, scale, np.eye(2), (names[0], names[1]))
        full = len(x) < x.shape[1]  # otherwise the square of the number of points is allocated
        _, values, axes = np.linalg.svd((x - centre) / scale, full_matrices=full)
        axes = axes[:2] * np.sign(axes[:2, np.abs(axes[:2]).argmax(1)].diagonal())[:, None]
        shares = np.zeros(2)
        shares[: len(values)] = (values**2 / max((values**2).sum(), 1e-300))[:2]
        words = [f"principal direction {i + 1} ({100 * shares[i]:.0f}%)" for i in range(2)]
        return cls(centre, scale, axes, (words[0], words[1]))

    @property
    def flat(self) -> bool:
        """Whether the points have two columns, which are drawn in their own units."""
        return self.axes.shape[1] == 2

    def coordinates(self, x: Array) -> Array:
        """Where points are drawn, ``(N, D) -> (N, 2)``."""
        return x if self.flat else (x - self.centre) / self.scale @ self.axes.T

    def points(self, w: Array) -> Array:
        """Points on the plane that are drawn at coordinates, ``(N, 2) -> (N, D)``."""
        return w if self.flat else self.centre + self.scale * (w @ self.axes)

    def arrows(self, score: Array) -> Array:
        """Scores as arrows, ``(N, D) -> (N, 2)``.

        Their directions and relative lengths do not depend on the units of the columns.
        """
        steps = score * self.scale
        return steps * self.scale if self.flat else steps @ self.axes.T

    def lengths(self, arrows: Array) -> Array:
        """Lengths of arrows in standard deviations, ``(N, 2) -> (N,)``."""
        return np.linalg.norm(arrows / self.scale if self.flat else arrows, axis=1)

    def limits(self, x: Array) -> tuple[tuple[float, float], tuple[float, float]]:
        """Limits of the two axes that hold 99 points in 100 and a margin."""
        low, high = np.quantile(self.coordinates(x), [0.005, 0.995], axis=0)
        first, second = (padded(a, b, 0.12) for a, b in zip(low, high))
        return first, second

    def grid(self, x: Array, num: int) -> tuple[Array, Array, Array]:
        """Coordinates along both axes, ``(num,)`` each, and all pairs of them ``(num^2, 2)``."""
        a, b = (np.linspace(*limits, num) for limits in self.limits(x))
        pairs = np.stack(np.meshgrid(a, b), axis=-1).reshape(-1, 2)
        return a, b, pairs
