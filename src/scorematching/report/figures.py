"""Figures of a report, as PNG images inside the page."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scorematching import plot
from scorematching._extras import import_extra
from scorematching.report.contents import Contents
from scorematching.runs.held_out import MethodScore, short
from scorematching.runs.write import history_of

_DPI, _SCALE, _COLOURS, _MAX_PAIRS = 180, 112, 128, 4


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        name: of the section it belongs to.
        alt: what can be seen, for those who cannot see it.
        caption: below it.
        source: the image, a data URL.
        width: in pixels of the page.
        height: likewise.
    """

    name: str
    alt: str
    caption: str
    source: str
    width: int
    height: int


def draw_figures(contents: Contents) -> Iterator[Figure]:
    """Draw all figures that a run has data for."""
    makers: list[Callable[[Contents], Figure | None]] = [
        _baselines,
        _training,
        _pairs,
        _score_field,
        _calibration,
    ]
    for make in makers:
        found = make(contents)
        if found is not None:
            yield found


def _canvas(width: float, height: float) -> Any:
    """A figure that belongs to no window."""
    figure = import_extra("matplotlib.figure", "report").Figure
    return figure(figsize=(width, height), layout="constrained")


def _finished(figure: Any, name: str, alt: str, caption: str) -> Figure:
    """The image of a figure, with a palette, which is a third of the size."""
    from PIL import Image

    raw, small = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks
        figure.savefig(raw, format="png", dpi=_DPI)
    image = Image.open(raw).convert("RGB")
    image.quantize(_COLOURS).save(small, format="png", optimize=True)
    source = "data:image/png;base64," + base64.b64encode(small.getvalue()).decode()
    width, height = (round(_SCALE * size) for size in figure.get_size_inches())
    return Figure(name, alt, caption, source, width, height)


def _baselines(contents: Contents) -> Figure | None:
    methods = [m for m in contents.held_out.methods[1:] if (m.gain or m.loss_gain) is not None]
    if not methods:
        return None
    figure = _canvas(5.0, 0.9 + 0.42 * len(methods))
    axes = figure.subplots()
    for place, method in enumerate(reversed(methods)):
        gain = _gain(method)
        look = plot.style(method.name)
        error = {"xerr": 2 * gain.standard_error, "capsize": 4, "elinewidth": 2}
        axes.errorbar(gain.mean, place, fmt=look.marker, color=look.color, markersize=8, **error)
    axes.axvline(0, color="0.3", linewidth=1)
    axes.set_yticks(range(len(methods)), [m.name for m in reversed(methods)])
    axes.set_ylim(-0.6, len(methods) - 0.4)
    what = "log-likelihood" if methods[0].gain is not None else "score-matching loss"
    axes.set_xlabel(f"gain in {what} per held-out row")
    axes.spines[["top", "right"]].set_visible(False)
    listed = "; ".join(f"over {m.name} {short(_gain(m))}" for m in methods)
    return _finished(
        figure,
        "fit",
        f"Gain of this model in {what} per held-out row, with bars of two standard errors: "
        f"{listed}.",
        "Right of zero this model is better. Bars are two standard errors of the mean difference "
        "at the same rows to either side.",
    )


def _gain(method: MethodScore) -> Any:
    return method.gain if method.gain is not None else method.loss_gain


def _training(contents: Contents) -> Figure | None:
    history = history_of(contents.model)
    if not history:
        return None
    figure = _canvas(5.0, 3.6)
    plot.training(history, figure.subplots())
    validated = [record for record in history if record.validation is not None]
    best = min(validated, key=lambda record: record.validation) if validated else history[-1]
    return _finished(
        figure,
        "training",
        f"Losses of training and validation over {history[-1].step} steps; the least validation "
        f"loss is that of step {best.step}.",
        "Validation rows are part of the training rows; the weights of the least validation loss "
        "are kept. The level of a score-matching loss means nothing by itself.",
    )


def _pairs(contents: Contents) -> Figure | None:
    if contents.samples is None:
        return None
    count = min(_MAX_PAIRS, len(contents.space.columns))
    size = 1.35 * count + 0.5
    figure = _canvas(size, size)
    axes = figure.subplots(count, count, squeeze=False)
    names = [axis_name(name) for name in contents.space.columns]
    plot.pairs(contents.test, contents.samples, axes, columns=range(count), names=names)
    shown = ", ".join(contents.space.columns[:count])
    rest = len(contents.space.columns) - count
    more = f" The first {count} of {count + rest} columns are shown." if rest else ""
    return _finished(
        figure,
        "samples",
        f"Histograms and pair plots of held-out rows and samples of the model, for {shown}.",
        f"Held-out rows in grey, samples of the model in green.{more}",
    )


def axis_name(name: str) -> str:
    """A name short enough for an axis; pictures themselves take care of dollars.

    Example:
        >>> print(axis_name("cost in $ per year and head"))
        cost in $ per ye...
    """
    return name if len(name) <= 18 else name[:16] + "..."


def _score_field(contents: Contents) -> Figure | None:
    figure = _canvas(5.0, 4.2)
    rows = contents.train.rename(columns=axis_name)
    plot.score_field(contents.modelled, rows, ax=figure.subplots())
    return _finished(
        figure,
        "score",
        "Arrows of the score, the gradient of the log-density, over training rows in the plane of "
        "their first two principal directions.",
        "The score on the plane through the mean: arrows point to where rows are more likely. "
        "Lengths grow with the square root of the score.",
    )


def _calibration(contents: Contents) -> Figure | None:
    if contents.samples is None or len(contents.test) < 10:
        return None
    figure = _canvas(5.0, 4.4)
    density = contents.modelled if hasattr(contents.modelled, "score_samples") else None
    rows = contents.test.rename(columns=axis_name)
    plot.calibration(density, rows, figure.subplots(), samples=contents.samples)
    return _finished(
        figure,
        "goodness",
        "Shares of held-out rows by their rank among samples of the model, for the log-density and "
        "two principal directions, with a band that holds all curves if the model is right.",
        "Curves inside the band: held-out rows look like samples. A curve of the log-density above "
        "the diagonal: the rows lie further out than samples do.",
    )
