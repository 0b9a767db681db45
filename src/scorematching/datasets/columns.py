"""Columns of a table: noise for those that are rounded, and a choice of correlated ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorematching._checks import (
    check_flag,
    check_points,
    check_positive,
    check_shape,
    check_type,
    is_number,
    torch_numbers,
)
from scorematching._precision import at_least_single
from scorematching._random import uniform

_MIN_REPEATS = 0.02
"""Least share of repeated values in a rounded column."""


@dataclass(frozen=True, eq=False)
class Dequantise:
    """Uniform noise that fills the gaps between rounded values, ``x + U(-width, width)``.

    Rounded data have no density; with this noise they do. It has no inverse, so it is not a
    `Transform`: apply it once, before one.

    Args:
        width: d, half the support of the noise: a number, or one for each coordinate
            ``(*event,)``.
        columns: names of the columns of a data frame that it was fitted to; None if there were
            none.

    Example:
        The second column has no repeated values, and stays as it is.

        >>> x = torch.tensor([[1.0, 10.0], [2.0, 31.0], [2.0, 52.0], [3.0, 57.0]])
        >>> dequantise = Dequantise.fit(x)
        >>> dequantise.width.tolist()
        [0.5, 0.0]
        >>> bool(((dequantise(x) - x).abs() <= dequantise.width).all())
        True
    """

    width: Tensor | float
    columns: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        """Check the width."""
        advice = "half the gap between neighbouring values fills the gaps"
        if not isinstance(self.width, Tensor) and not is_number(self.width):
            raise TypeError(f"width must be a number or a tensor, got {self.width!r}; {advice}")
        width = torch.as_tensor(self.width)
        if not bool(((width >= 0) & width.isfinite()).all()):
            raise ValueError(
                f"width must be finite and not negative, got {width.tolist()}; {advice}"
            )

    @classmethod
    def fit(cls, x: Any, gaps: float = 0.5, every_column: bool = False) -> Dequantise:
        """Noise for the rounded columns of a table.

        Args:
            x: points ``(N, D)``: a tensor, an array or a data frame.
            gaps: the width of the noise to either side, in median gaps between neighbouring
                distinct values of a column. 0.5 fills the gaps exactly; 1.0 is what Wenliang et
                al. (2019) add.
            every_column: also for columns without repeated values, which are not rounded, or not
                visibly so.

        Raises:
            ValueError: a column is constant.
        """
        columns, x = tuple(getattr(x, "columns", ())) or None, _as_tensor(x)
        check_table(x)
        check_varies(x)
        check_positive(gaps, "gaps", "0.5 fills the gaps between rounded values")
        widths = []
        for column in x.unbind(1):
            values = column.unique()
            rounded = every_column or len(values) < (1 - _MIN_REPEATS) * len(column)
            # Unlike Tensor.median, quantile averages the two middle gaps of an even number.
            widths.append(at_least_single(values.diff()).quantile(0.5).item() if rounded else 0.0)
        return cls(gaps * torch.tensor(widths, dtype=x.dtype, device=x.device), columns)

    def __call__(self, x: Any, generator: torch.Generator | None = None) -> Any:
        """Points with noise added, ``(N, *event) -> (N, *event)``.

        Args:
            x: points ``(N, *event)``: a tensor, an array or a data frame.
            generator: source of randomness; None is torch's default generator.

        Returns:
            New points, of the type of x.
        """
        self._check_columns(x)
        points = _as_tensor(x)
        check_points(points)
        check_event(points, torch.as_tensor(self.width))
        noisy = points + self.width * (2 * uniform(points.shape, points, generator) - 1)
        if isinstance(x, Tensor):
            return noisy
        if hasattr(x, "columns"):
            return type(x)(noisy.numpy(), columns=x.columns, index=x.index)
        return noisy.numpy()

    def _check_columns(self, x: Any) -> None:
        """Refuse a data frame with other columns than that of the fit, or in another order."""
        given, known = tuple(getattr(x, "columns", ())), self.columns
        if given and known and given != known:
            raise ValueError(
                f"x must have the columns of the fit in their order, {list(known)[:5]}, got "
                f"{list(given)[:5]}; select them by name"
            )


def _as_tensor(x: Any) -> Tensor:
    """Tensors as they are; arrays and data frames of any numbers in double precision."""
    if isinstance(x, Tensor):
        return x
    return torch.as_tensor(np.asarray(torch_numbers(x, "x"), dtype=np.float64))


def drop_correlated(x: Tensor, threshold: float = 0.98, as_released: bool = False) -> list[int]:
    """Indices of the columns that remain after one of each strongly correlated pair is dropped.

    While some pair of columns has ``|correlation| > threshold``, the first column that belongs to
    such a pair is dropped.

    Args:
        x: points ``(N, D)``.
        threshold: largest absolute correlation to accept.
        as_released: test ``correlation > threshold`` from the second pass on, as the code
            published with the deep kernel exponential family does, which keeps negative pairs.

    Raises:
        ValueError: a column is constant.

    Example:
        >>> a, b = torch.tensor([[1.0, 2.0, 3.0, 5.0], [1.0, -1.0, 0.0, 2.0]])
        >>> drop_correlated(torch.stack([a, b, -2 * a], 1))
        [1, 2]
    """
    check_table(x)
    check_varies(x)
    check_flag(as_released, "as_released", "False is right for new experiments")
    if not is_number(threshold) or not 0 <= threshold <= 1:
        raise ValueError(
            f"threshold must lie between 0 and 1, got {threshold!r}; 0.98 drops near copies"
        )
    d = x.shape[1]
    correlation = torch.corrcoef(x.double().mT).reshape(d, d).fill_diagonal_(0)
    strength = correlation.abs()
    kept = list(range(d))
    while True:
        above = (strength[kept][:, kept] > threshold).any(1)
        if not bool(above.any()):
            return kept
        kept.pop(int(above.int().argmax()))
        strength = correlation if as_released else strength


def check_event(x: Any, fitted: Tensor, name: str = "x", batch_axes: int = 0) -> None:
    """Require that points end in the event ``(*event,)`` of a fit; others would broadcast.

    Of several axes some may have length one, such as those of a mean for each channel.
    """
    check_type(x, Tensor, f"{name} must be a torch.Tensor", "convert it with torch.as_tensor")
    event = [None if n == 1 and fitted.ndim > 1 else n for n in fitted.shape]
    wanted = f"{name} must have shape {{}}, like the points of the fit"
    advice = "give all coordinates, in the same order"
    check_shape(x, [*[None] * max(batch_axes, x.ndim - fitted.ndim), *event], wanted, advice)


def check_table(x: Tensor) -> None:
    """Require a table of points, ``(N, D)``."""
    check_points(x)
    advice = "flatten the events with x.flatten(1)"
    check_shape(x, (None, None), "x must be a table of shape (N, D)", advice)


def check_varies(x: Tensor) -> None:
    """Require that every coordinate varies by more than a few units in the last place."""
    rounding = 8 * torch.finfo(x.dtype).eps * x.abs().amax(0)
    constant = (x.amax(0) - x.amin(0) <= rounding).flatten().nonzero().flatten().tolist()
    if constant:
        raise ValueError(
            f"x must vary in every coordinate, got a constant in {constant[:10]}; drop such "
            "coordinates first"
        )
