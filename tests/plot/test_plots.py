"""Pictures: what is drawn is what was computed, and nothing is blank, covered or offset."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy import stats

import scorematching as sm
from scorematching.inference import fit, models
from scorematching.plot.asking import log_density_at, score_at
from scorematching.plot.calibration import band, rank_curve
from scorematching.plot.palette import FAMILIES, style
from scorematching.plot.plane import Plane
from scorematching.training import Record, TrainResult


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def normal(x: torch.Tensor) -> torch.Tensor:
    return -0.5 * x.square().sum(-1)


def points(n: int, dim: int) -> np.ndarray:
    return np.random.default_rng(n + dim).normal(size=(n, dim))


def axes() -> Any:
    return Figure(figsize=(5, 4), layout="constrained").subplots()


# The plane.


@pytest.mark.parametrize("dim", [2, 5])
def test_arrows_are_derivatives_along_the_plane(dim: int) -> None:
    """Central differences of the log-density along both axes, in standard deviations."""
    x = points(200, dim) * np.arange(1, dim + 1)
    plane = Plane.of(x, [str(i) for i in range(dim)])
    w = plane.coordinates(x[:5])
    units = plane.scale if dim == 2 else np.ones(2)
    arrows = plane.arrows(-(plane.points(w) ** 3)) / units

    def height(w: np.ndarray) -> np.ndarray:
        return -0.25 * (plane.points(w) ** 4).sum(1)

    for i in range(2):
        step = 1e-5 * np.eye(2)[i] * units
        difference = (height(w + step) - height(w - step)) / 2e-5
        np.testing.assert_allclose(arrows[:, i], difference, rtol=1e-6, atol=1e-6)


def test_plane_does_not_depend_on_units() -> None:
    x, names = points(100, 4), list("abcd")
    units = np.array([1.0, 100.0, 1e-3, 7.0])
    plane, other = Plane.of(x, names), Plane.of(x * units, names)
    np.testing.assert_allclose(plane.coordinates(x), other.coordinates(x * units))
    np.testing.assert_allclose(plane.arrows(-x), other.arrows(-x / units))


@pytest.mark.parametrize("value", [0.1, 0.3, 1e5 + 0.1])
def test_plane_leaves_out_constant_columns(value: float) -> None:
    """The mean of equal numbers is rounded, so that their standard deviation is not quite zero."""
    x = points(1001, 4)
    x[:, 3] = value
    plane = Plane.of(x, list("abcd"))
    assert plane.scale[3] == 1.0
    assert np.abs(plane.axes[:, 3]).max() < 1e-6


def test_plane_of_many_points_needs_little_memory() -> None:
    x = np.random.default_rng(0).normal(size=(200_000, 3))  # the square would be 300 GB
    plane = Plane.of(x, list("abc"))
    np.testing.assert_allclose(plane.axes @ plane.axes.T, np.eye(2), atol=1e-12)


def test_points_on_the_plane_are_drawn_where_they_are() -> None:
    plane = Plane.of(points(50, 6), list("abcdef"))
    w = points(7, 2)
    np.testing.assert_allclose(plane.coordinates(plane.points(w)), w)


# One picture after the other.


def test_density_of_one_column_is_normalised() -> None:
    ax = sm.plot.density(normal, np.linspace(-6, 6, 50), ax=axes())
    grid, heights = ax.lines[0].get_data()
    np.testing.assert_allclose(heights, stats.norm.pdf(grid), rtol=1e-4)


def test_contours_are_heights_below_the_maximum() -> None:
    x = points(300, 2)
    ax = sm.plot.density(normal, x, ax=axes(), colorbar=False, depth=3.0)
    levels = ax.collections[0]
    assert levels.levels[[0, -1]].tolist() == [-3.0, 0.0]
    (middle,) = [p for p, level in zip(levels.get_paths()[1:], levels.levels) if level == -0.5]
    radii = np.linalg.norm(middle.vertices, axis=1)
    assert radii.max() == pytest.approx(1.0, abs=0.05)  # 0.5 r^2 = 0.5


KINDS = {
    "function": lambda x: normal,
    "module": lambda x: sm.models.MLPDensity(2, hidden=(4,)),
    "closure": lambda x: (lambda net: lambda z: net(z))(sm.models.MLPDensity(2, hidden=(4,))),
    "field": lambda x: sm.LogDensityField(normal),
    "estimator": lambda x: sm.DensityEstimator("none", base="gaussian").fit(x),
    "fit": lambda x: sm.inference.fit(sm.inference.models.Gaussian(2), torch.as_tensor(x)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_drawn(kind: str) -> None:
    x = points(80, 2)
    model = KINDS[kind](x)
    data = torch.as_tensor(x).float() if kind == "closure" else x
    assert sm.plot.density(model, data, ax=axes()).collections
    assert sm.plot.score_field(model, data, ax=axes()).collections


def test_estimators_of_data_frames_get_data_frames() -> None:
    """scikit-learn warns, here an error, where names of columns are missing."""
    frame = pd.DataFrame(points(60, 3), columns=list("abc"))
    estimator = sm.DensityEstimator("none", base="gaussian").fit(frame)
    sm.plot.density(estimator, frame, ax=axes())
    sm.plot.score_field(estimator, frame, ax=axes())
    sm.plot.calibration(estimator, frame, axes(), num_samples=50)


def test_results_of_fits_match_columns_by_name() -> None:
    """Log-densities of columns in another order were those of other points."""
    frame = pd.DataFrame(points(60, 2) * [1.0, 10.0] + [5.0, 0.0], columns=list("ab"))
    result, other = fit(models.Gaussian(2), frame), frame[["b", "a"]]
    x = other.to_numpy()
    np.testing.assert_allclose(log_density_at(result, x, other), result.predict(other), rtol=1e-12)
    scores = score_at(result, x, other)[:, ::-1]
    np.testing.assert_allclose(scores, result.predict(other, "score"), rtol=1e-12)
    box = sm.domains.Box((-torch.inf, -5.0), torch.inf)
    bounded = fit(models.Gaussian(2), frame[frame.b > -5], domain=box)
    found = log_density_at(bounded, x, other)
    np.testing.assert_array_equal(np.isfinite(found), frame.b > -5)
    with pytest.raises(ValueError, match="X must have the columns of the fit"):
        sm.plot.density(result, frame.rename(columns={"a": "c"}))


def test_score_network_has_arrows_and_no_density() -> None:
    field, x = sm.VectorField(lambda x: -x), points(60, 3)
    ax = sm.plot.score_field(field, x, ax=axes(), reach=None)
    quiver = ax.collections[-1]
    assert quiver.N == 19**2
    inward = -(quiver.X * quiver.U + quiver.Y * quiver.V)
    assert (inward >= 0).all()
    with pytest.raises(TypeError, match="score alone"):
        sm.plot.density(field, x, ax=axes())


def test_arrows_stay_near_the_data() -> None:
    x = np.concatenate([points(40, 2) * 0.1, points(40, 2) * 0.1 + 5.0])
    quiver = sm.plot.score_field(normal, x, ax=axes()).collections[-1]
    far = np.abs(np.stack([quiver.X, quiver.Y])).sum(0)
    assert 0 < quiver.N < 19**2 and not ((far > 4) & (far < 6)).any()


RECORDS = [
    Record(10 * i, 1.0 / i, 1e-3, 0.1 * i, *((2.0 / i, 0.1 * i) if i % 2 else ()))
    for i in range(1, 8)
]


def test_training_curves_are_the_records(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    events = [{"event": "start", "step": 0}, *({"event": "record", **asdict(r)} for r in RECORDS)]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    result = TrainResult(RECORDS, 70)
    sliced, density = sm.SlicedScoreEstimator(), sm.DensityEstimator()
    sliced.result_, density.history_ = result, RECORDS
    for run in (result, RECORDS, events, log, tmp_path, str(log), sliced, density):
        ax = sm.plot.training(run, axes())
        assert ax.lines[0].get_ydata().tolist() == [r.loss for r in RECORDS]
        assert ax.lines[1].get_xdata().tolist() == [10, 30, 50, 70]
        assert ax.lines[-1].get_xdata().tolist() == [70]  # the best
        bars = [segment[:, 1] for segment in ax.collections[0].get_segments()]
        np.testing.assert_allclose([high - low for low, high in bars], [0.2, 0.6, 1.0, 1.4])


def test_first_losses_do_not_flatten_the_rest() -> None:
    high = [Record(1, 1e6, 1e-3, 0.1), *RECORDS]
    assert sm.plot.training(high, axes()).get_ylim()[1] < 10


def test_pairs_draw_both_sets_and_skip_the_upper_half() -> None:
    frame = pd.DataFrame(points(30, 3), columns=list("abc"))
    grid = sm.plot.pairs(frame, points(40, 3))
    assert grid.shape == (3, 3) and not grid[0, 1].axison
    offsets = [len(c.get_offsets()) for c in grid[2, 0].collections]
    assert sorted(offsets) == [30, 40]
    assert grid[2, 1].get_xlabel() == "b" and grid[2, 0].get_ylabel() == "c"
    given = Figure().subplots(2, 2)
    assert sm.plot.pairs(frame, axes=given, columns=[2, 0])[1, 0] is given[1, 0]
    assert sm.plot.pairs(frame, columns=["c", "a"])[1, 0].get_xlabel() == "c"


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_pairs_draw_samples_far_from_all_rows() -> None:
    assert sm.plot.pairs(points(30, 2), 1e6 + points(40, 2)).shape == (2, 2)


def test_rank_curve_is_what_counting_gives() -> None:
    a, b = points(20, 1)[:, 0], points(50, 1)[:, 0]
    ranks, shares = rank_curve(a, b)
    for rank in ranks[1:-1]:
        counted = np.mean([np.mean(b < value) <= rank for value in a])
        assert shares[1:-1][ranks[1:-1] == rank].max() == counted


def test_band_is_the_critical_value_of_the_test() -> None:
    half = band(300, 700, level=0.95)
    assert half == pytest.approx(stats.kstwobign.isf(0.05) / np.sqrt(210), rel=1e-3)
    assert band(300, 700, 0.95, curves=5) > half


@pytest.mark.parametrize(("shift", "inside"), [(0.0, True), (1.0, False)])
def test_calibration_tells_right_from_wrong(shift: float, inside: bool) -> None:
    x, half = points(400, 3) + shift, band(400, 1000, 0.95, 3)
    ax = sm.plot.calibration(normal, x, axes(), samples=points(1000, 3))
    curves = [line.get_data() for line in ax.lines[1:]]
    assert len(curves) == 3
    largest = max(np.abs(np.asarray(r) - s).max() for r, s in curves)
    assert (largest <= half + 1 / 400) == inside


def test_calibration_draws_samples_of_an_estimator() -> None:
    estimator = sm.DensityEstimator("none", base="gaussian").fit(points(100, 1))
    ax = sm.plot.calibration(estimator, points(60, 1), axes(), num_samples=100)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "95% band",
        "log-density",
        "x1",
    ]


@pytest.mark.parametrize("names", [["size (cm)", "size (kg)"], ["log-density", "b"]])
def test_calibration_draws_every_column(names: list[str]) -> None:
    """One column replaced another where their names agreed up to a bracket."""
    x = pd.DataFrame(points(100, 2), columns=names)
    ax = sm.plot.calibration(normal, x[:50], axes(), samples=x[50:])
    assert [line.get_label() for line in ax.lines[1:]] == ["log-density", *names]
    heights = [np.asarray(rank_curve(*x[n].to_numpy().reshape(2, 50))) for n in names]
    for line, expected in zip(ax.lines[2:], heights):
        np.testing.assert_array_equal(line.get_data(), expected)


def test_calibration_names_columns_that_begin_with_an_underscore() -> None:
    """Matplotlib leaves labels that begin with one out of legends."""
    x = pd.DataFrame(points(100, 2), columns=["_a", "b"])
    ax = sm.plot.calibration(None, x[:50], axes(), samples=x[50:])
    assert [t.get_text().strip() for t in ax.get_legend().get_texts()][1:] == ["_a", "b"]


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame])
def test_models_get_copies_of_points(kind: Any) -> None:
    """The memory of an array would be changed, and that of a data frame may be read-only."""
    x = points(20, 2)
    kept = x.copy()
    sm.plot.calibration(lambda x: -x.abs_().sum(1), kind(x), axes(), samples=points(30, 2))
    np.testing.assert_array_equal(x, kept)


# What holds for all pictures.

ONE = np.full((1, 2), 3.0)
PICTURES = {
    "density": lambda ax: sm.plot.density(normal, ONE, ax=ax),
    "density of one column": lambda ax: sm.plot.density(normal, ONE[:, :1], ax=ax),
    "score_field": lambda ax: sm.plot.score_field(normal, ONE, ax=ax),
    "score of one column": lambda ax: sm.plot.score_field(normal, ONE[:, :1], ax=ax),
    "training": lambda ax: sm.plot.training(RECORDS[:1], ax),
    "calibration": lambda ax: sm.plot.calibration(normal, ONE, ax, samples=ONE + 1e9),
    "pairs": lambda ax: sm.plot.pairs(ONE, ONE, ax)[0, 0] if ax is None else ax,
}


@pytest.mark.parametrize("name", PICTURES)
def test_one_point_is_drawn(name: str) -> None:
    """Limits that are no interval, and curves of one point without a marker, would be blank."""
    ax = PICTURES[name](None)
    ax.figure.draw_without_rendering()
    assert ax.get_xlim()[0] < ax.get_xlim()[1] and ax.get_ylim()[0] < ax.get_ylim()[1]
    for line in ax.lines:
        assert len(line.get_xdata()) > 1 or line.get_marker() not in ("", "None", None)


@pytest.mark.parametrize("name", [name for name in PICTURES if name != "pairs"])
def test_axes_have_no_offset_and_the_legend_covers_nothing(name: str) -> None:
    ax = PICTURES[name](axes())
    ax.set(xlim=(1e6, 1e6 + 1), ylim=(1e-4, 1.001e-4))
    ax.figure.draw_without_rendering()
    assert not any(axis.get_offset_text().get_text() for axis in (ax.xaxis, ax.yaxis))
    legend = ax.get_legend()
    if legend is not None:
        frame, window = (a.get_window_extent() for a in (legend, ax))
        assert frame.y1 <= window.y0 and frame.y0 >= 0


def test_each_method_has_its_colour_and_variants_share_it() -> None:
    assert style("Stein, tuned")[:2] == style("stein")[:2] == style("Stein")[:2]
    assert style("Stein, tuned").linestyle != style("Stein").linestyle
    assert style("SSM-VR") != style("SSM") and style("SSM M=100").color == style("SSM").color
    assert style("KEF, nu-method").color != style("KEF, tuned").color == style("KEF").color
    objectives = ("SM", "SSM", "SSM-VR", "DSM", "CP", "approximate BP", "MLE")
    assert len({style(name).color for name in objectives}) == len(objectives)
    assert style("no such method").color not in {colour for _, colour, _ in FAMILIES}


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'scorematching\[plot\]'"):
        sm.plot.density(normal, ONE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sm.plot.density(normal, np.full((3, 2), np.nan)), "3 of 3 rows"),
        (lambda: sm.plot.density(normal, np.zeros((2, 2, 2))), "reshape"),
        (lambda: sm.plot.density(normal, [["a", "b"]]), "no numbers"),
        (lambda: sm.plot.density(3, ONE), "score_samples"),
        (lambda: sm.plot.density(lambda x: x.sum(-1) * torch.nan, ONE), "finite"),
        (lambda: sm.plot.density(normal, ONE, ax=3), "plt.subplots"),
        (lambda: sm.plot.score_field(normal, ONE, reach=-1.0), "reach"),
        (lambda: sm.plot.training([]), "records"),
        (lambda: sm.plot.training(3), "TrainResult"),
        (lambda: sm.plot.training([TrainResult(RECORDS, 70)] * 2), "a list with TrainResult; draw"),
        (lambda: sm.plot.training(["runs/a", "runs/b"]), "a list with str; draw runs one by one"),
        (lambda: sm.plot.training("no/such/run"), "no/such/run"),
        (lambda: sm.plot.pairs(ONE, np.zeros((3, 3))), "2 columns"),
        (lambda: sm.plot.pairs(ONE, columns=[7]), "0 to 1"),
        (lambda: sm.plot.pairs(ONE, columns=["a"]), "columns must be names in a data frame"),
        (
            lambda: sm.plot.pairs(ONE, columns=1),
            "columns must be a sequence of names or .* got int",
        ),
        (lambda: sm.plot.pairs(ONE, columns=[0.5, 1]), "sequence of names or indices, got float"),
        (
            lambda: sm.plot.density(normal, ONE, depth=-1.0),
            "depth must be positive, got -1.0; 12.0",
        ),
        (lambda: sm.plot.style(1), "name must be text, got int; for example"),
        (lambda: sm.plot.pairs(ONE, axes=np.empty((3, 3), object)), r"\(2, 2\)"),
        (lambda: sm.plot.calibration(normal, ONE), "samples="),
        (lambda: sm.plot.calibration(normal, ONE, samples=np.zeros((2, 3))), "2 columns"),
        (lambda: sm.plot.calibration(normal, ONE, samples=ONE, level=2.0), "0.95"),
    ],
)
def test_bad_input_is_explained(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=message):
        call()


def test_a_density_on_a_domain_ends_at_its_boundary() -> None:
    """Two thirds of the area under the curve lay below zero."""
    x = -torch.rand(500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log()
    curve = sm.plot.density(fit(models.TruncatedGaussian(1), x), x).lines[0]
    grid, heights = curve.get_data()
    assert (grid < 0).any() and (heights[grid < 0] == 0).all()
    assert np.trapezoid(heights[grid >= 0], grid[grid >= 0]) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("kind", ["truncated", "gamma"])
def test_graphical_models_of_positive_points_are_drawn_inside(kind: str) -> None:
    """The grid reaches below zero, where the model has no density: the picture was refused."""
    x = abs(points(200, 2)) + 0.01
    model = sm.inference.GraphicalModel(kind=kind).fit(x)
    assert sm.plot.density(model, x, ax=axes()).collections
    around = np.array([[-1.0, 1.0], [0.5, 0.5], [1.0, -1.0]])
    np.testing.assert_array_equal(
        np.isfinite(log_density_at(model, around, x)), [False, True, False]
    )
    quiver = sm.plot.score_field(model, x, ax=axes(), reach=None).collections[-1]
    assert (quiver.X > 0).all() and (quiver.Y > 0).all() and np.isfinite(quiver.U).all()


def test_scores_outside_a_domain_are_not_drawn() -> None:
    """Arrows where there is no density, and with NaN among them all lengths were wrong."""
    x = abs(points(200, 2)) + 0.01
    for model in (models.TruncatedGaussian(2), models.PairwiseInteraction.gamma(2)):
        quiver = sm.plot.score_field(fit(model, x), x, ax=axes(), reach=None).collections[-1]
        assert (quiver.X > 0).all() and (quiver.Y > 0).all()
        cell = np.diff(np.unique(quiver.X)).min()
        assert 0.5 * cell < np.hypot(quiver.U, quiver.V).max() / quiver.scale < 3 * cell
    with pytest.raises(ValueError, match="a finite score somewhere near the data"):
        sm.plot.score_field(sm.VectorField(lambda x: x * torch.nan), x, ax=axes())


def test_rows_in_reverse_order_are_drawn() -> None:
    """Torch has no negative strides."""
    x = points(40, 2)[::-1]
    sm.plot.calibration(normal, x, axes(), samples=points(50, 2))


def test_columns_of_samples_are_matched_by_name() -> None:
    x = np.random.default_rng(0).normal((0, 100), size=(50, 2))
    data = pd.DataFrame(x, columns=["a", "b"])
    for axes in (sm.plot.pairs(data, data[["b", "a"]]), sm.plot.pairs(data, data)):
        dots = [found.get_offsets() for found in axes[1, 0].collections]
        np.testing.assert_array_equal(dots[0], dots[1])
    for draw in (sm.plot.pairs, lambda x, y: sm.plot.calibration(None, x, samples=y)):
        with pytest.raises(ValueError, match="samples must have the columns of data"):
            draw(data, data.rename(columns={"a": "c"}))


def test_samples_out_of_range_are_missing_from_histograms() -> None:
    """One sample in ten within the range has a tenth of the area."""
    x = np.random.default_rng(0).normal(size=(1000, 1))
    lost = np.where(np.arange(1000)[:, None] < 100, x, 1e6)
    samples, data = (p.get_xy()[:, 1].sum() for p in sm.plot.pairs(x, lost)[0, 0].patches)
    assert samples / data == pytest.approx(0.1, rel=0.1)


def test_names_are_shown_as_they_are() -> None:
    data = pd.DataFrame(np.eye(3), columns=["a $ for $", "b", "c"])
    assert sm.plot.pairs(data)[2, 0].get_xlabel() == r"a \$ for \$"
    with pytest.raises(ValueError, match="names must hold one name for each of the 3 columns"):
        sm.plot.pairs(data, names=["a"])


@pytest.mark.parametrize("dim", [1, 2])
def test_models_with_a_second_axis_are_refused(dim: int) -> None:
    """Of ``(N, 1)`` numbers one picture was of all pairs, and a score was drawn as its slope."""
    x = np.random.default_rng(0).normal(size=(50, dim))
    column = lambda z: -0.5 * z.square().sum(-1, keepdim=True)  # noqa: E731
    for draw, model in (
        (sm.plot.density, column),
        (sm.plot.score_field, column),
        (sm.plot.score_field, torch.neg),
    ):
        with pytest.raises(ValueError, match=r"one log-density per point, .* with \.squeeze\(-1\)"):
            draw(model, x)
        with pytest.raises(ValueError, match=r"one log-density per point, .* with \.squeeze\(-1\)"):
            draw(sm.LogDensityField(model), x)
