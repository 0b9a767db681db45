"""Pictures of the benchmark page: how pairing works, and time against M."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.pages.parts import pyplot, save
from scorematching.plot.canvas import shared_legend
from scorematching.plot.palette import INK, style

FORWARD, BACKWARD, PAIR = "#d1601c", "#1f6fb2", "#2e8b57"
LABELS = {
    ("ours", "SSM-VR", "balanced"): "scorematching SSM-VR",
    ("bare", "SSM-VR", "signs"): "double backward, x tiled",
    ("torchebm", "SSM", "signs"): "torchebm SSM",
    ("ebmkit", "SSM-VR", "normal"): "ebmkit SSM-VR",
}
"""Label of each curve, which decides its colour."""


def schematic(path: Path) -> None:
    """A chain of operations with tangents forward, adjoints backward, and their products."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(10, 4.3))
    axes.set(xlim=(-0.1, 12.3), ylim=(-3.55, 2.55))
    axes.axis("off")
    names = ["$W_1$", r"$\sigma$", "$W_2$", r"$\sigma$", "$w_3$"]
    centres = [1.9 + 2.1 * i for i in range(len(names))]
    for name, x in zip(names, centres):
        _box(axes, name, x, curved=name == r"$\sigma$")
    _row(axes, centres, 1.45, FORWARD, "$v$", _indexed("u"), "", 1)
    _row(axes, centres, 0.0, INK, "$x$", _indexed("z"), "$f$", 1)
    _row(axes, centres, -1.45, BACKWARD, "$s$", _indexed(r"\lambda"), "$1$", -1)
    axes.text(0.0, 2.15, "M tangents, forward", color=FORWARD, fontsize=11)
    axes.text(12.2, -2.05, "one adjoint, backward", color=BACKWARD, fontsize=11, ha="right")
    for i, x in ((1, centres[1]), (2, centres[3])):
        _meeting(axes, x, 2 * i)
    axes.text(
        (centres[1] + centres[3]) / 2,
        -3.3,
        r"their sum is $v^\top H\,v$; linear operations add nothing",
        ha="center",
        color=PAIR,
        fontsize=12.5,
    )
    save(figure, path, dpi=160)


def against_num(document: dict[str, Any], path: Path) -> None:
    """Seconds of one step against M, for every model and contender; DSM as a line."""
    plt = pyplot()
    rows = [r for r in document["rows"] if r["suite"] == "objectives" and r["objective"] != "SM"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    columns = min(3, len(models))
    lines = -(-len(models) // columns)
    shape = (3.5 * columns, 2.9 * lines + 0.4)
    figure, grid = plt.subplots(lines, columns, figsize=shape, squeeze=False, layout="constrained")
    for axes in grid.flat[len(models) :]:
        axes.axis("off")
    for axes, model in zip(grid.flat, models):
        _panel(axes, [row for row in rows if row["model"] == model])
    shared_legend(figure, size=8.5)
    save(figure, path, dpi=160)


def _panel(axes: Any, rows: list[dict[str, Any]]) -> None:
    nums = sorted({row["num"] for row in rows if row["num"]})
    for key, label in LABELS.items():
        look = style(label)
        mine = [r for r in rows if (r["library"], r["objective"], r["law"]) == key]
        mine.sort(key=lambda row: row["num"])
        if not mine:
            continue
        x = [row["num"] for row in mine]
        y, low, high = ([1e3 * r["seconds"][k] for r in mine] for k in ("median", "q25", "q75"))
        axes.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)
        axes.plot(x, y, label=label, **look.line())
    unit = [r for r in rows if (r["library"], r["objective"]) == ("bare", "DSM")]
    if unit:
        height = 1e3 * unit[0]["seconds"]["median"]
        axes.axhline(height, color=INK, linestyle=":", linewidth=1, label="DSM, the unit")
    axes.set(xscale="log", yscale="log", xticks=nums, xlabel="M, directions per point")
    axes.set_xticklabels([str(num) for num in nums])
    axes.minorticks_off()
    ticks = [digit * 10.0**power for power in range(-1, 4) for digit in (1, 2, 5)]
    low, high = axes.get_ylim()
    axes.set_yticks([t for t in ticks if low <= t <= high])
    axes.set_yticklabels([f"{t:g}" for t in ticks if low <= t <= high])
    axes.set_ylabel("ms per step")
    axes.set_title(rows[0]["about"].split(" (the")[0], fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.5)


def _indexed(letter: str) -> list[str]:
    return [f"${letter}_{{{i}}}$" for i in range(1, 5)]


def _box(axes: Any, name: str, x: float, curved: bool) -> None:
    """One operation."""
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (x - 0.42, -0.42),
            0.84,
            0.84,
            boxstyle="round,pad=0.02,rounding_size=0.12",
            facecolor="#e6f2ea" if curved else "#f2f2f2",
            edgecolor=PAIR if curved else "#999999",
            linewidth=1.6 if curved else 1.0,
            zorder=3,
        )
    )
    axes.text(x, 0, name, ha="center", va="center", fontsize=14, zorder=4, color=INK)


def _row(
    axes: Any,
    centres: list[float],
    y: float,
    colour: str,
    first: str,
    between: list[str],
    last: str,
    sense: int,
) -> None:
    """A row of arrows with a name on each: from left to right, or back."""
    stops = [centres[0] - 1.9, *centres, centres[-1] + 1.9]
    labels = [first, *between, last]
    for a, b, label in zip(stops, stops[1:], labels):
        if not label:
            continue
        start, end = (a + 0.5, b - 0.5) if sense > 0 else (b - 0.5, a + 0.5)
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.5, "shrinkA": 0}
        axes.annotate("", (end, y), (start, y), arrowprops={**style, "shrinkB": 0})
        axes.text((a + b) / 2, y + 0.2, label, ha="center", color=colour, fontsize=12)


def _meeting(axes: Any, x: float, index: int) -> None:
    """Where a tangent, a second derivative and an adjoint are multiplied."""
    for y, colour in ((1.45, FORWARD), (-1.45, BACKWARD)):
        axes.plot([x, x], [0.45 if y > 0 else -0.45, y], ":", color=PAIR, linewidth=1.4, zorder=1)
        axes.plot([x], [y], "o", color=colour, markersize=6, zorder=5)
    axes.annotate(
        "",
        (x, -2.25),
        (x, -1.45),
        arrowprops={"arrowstyle": "-|>", "color": PAIR, "linewidth": 1.4},
    )
    axes.text(
        x,
        -2.6,
        rf"$\lambda_{{{index}}}\,\sigma''(z_{{{index - 1}}})\,u_{{{index - 1}}}^2$",
        ha="center",
        color=PAIR,
        fontsize=12,
    )
