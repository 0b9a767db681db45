"""Axes: new ones, legends beside the curves, numbers without offsets."""

from __future__ import annotations

from typing import Any


def pyplot() -> Any:
    """matplotlib.pyplot.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "scorematching.plot needs matplotlib, which is not installed; install it with "
            "pip install 'scorematching[plot]'"
        ) from error
    return pyplot


def axes_or_new(ax: Any, size: tuple[float, float] = (6.0, 4.2)) -> Any:
    """The axes given, or new ones of that size in inches."""
    if ax is None:
        ax = pyplot().subplots(figsize=size, layout="constrained")[1]
    if not hasattr(ax, "plot") or not hasattr(ax, "figure"):
        raise TypeError(
            f"ax must be axes of matplotlib, got {type(ax).__name__}; pass plt.subplots()[1], or "
            "leave it out"
        )
    return ax


def tidy(ax: Any) -> None:
    """Numbers in full on linear axes, and no frame above and on the right."""
    for axis in (ax.xaxis, ax.yaxis):
        formatter = axis.get_major_formatter()
        if hasattr(formatter, "set_useOffset"):
            formatter.set_useOffset(False)
            formatter.set_powerlimits((-6, 9))
    ax.spines[["top", "right"]].set_visible(False)


def legend_below(ax: Any, columns: int = 3) -> None:
    """A legend below the label of the horizontal axis, where it covers no curve."""
    from matplotlib.transforms import ScaledTranslation

    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    down = ScaledTranslation(0, -38 / 72, ax.figure.dpi_scale_trans)
    ax.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=ax.transAxes + down,
        ncols=min(columns, len(handles)),
        frameon=False,
        fontsize="small",
        borderaxespad=0.0,
    )


def padded(low: float, high: float, share: float = 0.08) -> tuple[float, float]:
    """Limits around an interval; half its size around a single value."""
    alone = max(1e-6, 0.5 * abs(low)) if low else 1.0
    margin = share * (high - low) if high > low else alone
    return low - margin, high + margin
