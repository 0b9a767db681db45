"""The benchmark page docs/benchmarks.md, from the numbers of `benchmarks.objectives`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.objectives.noise import REFERENCE
from benchmarks.pages import checks, pairing
from benchmarks.pages import objectives_figures as figures
from benchmarks.pages.parts import made_with
from benchmarks.pages.train_step import WEIGHTS

Row = dict[str, Any]

DIM, WIDTH, STEPS = 784, 1000, 421
"""Of the flow: pixels, units of a hidden layer, and training steps of an epoch on MNIST."""

STEP = """\
One step is: gradients to zero, mean loss, backward. In each round every loss takes two steps, and
the second is timed: in training, too, the step before was the same one. Ratios below 1 mean faster
than what the column names; "DSM" is hand-written DSM and "tiled" hand-written double backward on
the same model.
*Signs* are independent Rademacher directions, as in torchebm; *balanced* is this library's
default, signs that are orthogonal across the batch and split among the directions
of their point; ebmkit has *normal* directions only. torchebm has plain SSM only, which costs the
same as SSM-VR. Neither of these libraries takes score networks.
"""

NOISE = """\
At a fixed budget of time, the variance of an average is proportional to the time of one estimate
times its variance. Variances are due to the directions alone, at fixed points. Gains are in time
times variance, relative to torchebm's default ({reference}): larger is better. The Gaussian has
one Hessian for all points, the best case for balanced directions; its steps are so small that
most of their time is Python's.
"""

AGAIN = """\
All losses of a model run in one process, in turn, in an order shuffled anew in every round. On a
CPU, medians and quartiles are over the half of the rounds in which other processes used it least.
Memory is the peak of what a step allocates. `--quick` runs everything at tiny sizes; a library that
is not installed is left out.
"""


def write(
    cpu: dict[str, Any],
    gpu: dict[str, Any] | None,
    checked: dict[str, Any],
    docs: Path,
    more: Iterable[str] = (),
) -> Path:
    """Write the page and its pictures; returns the path of the page.

    Args:
        cpu: numbers of a CPU.
        gpu: numbers of a GPU.
        checked: numbers of `benchmarks.checks`.
        docs: folder of the page.
        more: sections of other benchmarks.
    """
    figures.schematic(docs / "img" / "pairing.png")
    figures.against_num(cpu, docs / "img" / "benchmarks.png")
    page = docs / "benchmarks.md"
    page.write_text(render(cpu, gpu, checked, more))
    return page


def render(
    cpu: dict[str, Any],
    gpu: dict[str, Any] | None,
    checked: dict[str, Any],
    more: Iterable[str] = (),
) -> str:
    """The whole page; arguments are those of `write`."""
    parts = [
        *pairing.explanation(cpu),
        "## Time on a CPU\n",
        provenance(cpu),
        "![Time of a step against M](img/benchmarks.png)\n",
        *times(cpu),
        *exact(cpu),
        *compiled(cpu),
        *noise(cpu),
        *targets(cpu),
        *checks.section(checked),
        *on_gpu(gpu),
        *more,
        *commands(cpu, gpu),
    ]
    return "\n".join(parts)


def times(cpu: dict[str, Any]) -> Iterable[str]:
    """One table for every model."""
    yield STEP
    rows = [r for r in cpu["rows"] if r["suite"] == "objectives" and r["objective"] != "SM"]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        yield f"### {mine[0]['about']}, batch {mine[0]['batch']}\n"
        head = ["loss", "M", "ms (quartiles)", "x DSM", "x torchebm", "x ebmkit", "x tiled", "MB"]
        yield markdown_table(head, [_cells(row) for row in sorted(mine, key=_by_num)])


def exact(cpu: dict[str, Any]) -> Iterable[str]:
    """Exact score matching."""
    rows = [r for r in cpu["rows"] if r["suite"] == "objectives" and r["objective"] == "SM"]
    if not rows:
        return
    yield "### Exact score matching\n"
    yield "The exact trace, with parameter gradients; the same batch for all.\n"
    head = ["model", "batch", "loss", "s (quartiles)", "x ours", "MB"]
    units = {r["model"]: r["seconds"]["median"] for r in rows if r["library"] == "ours"}
    yield markdown_table(
        head,
        [
            [
                row["about"],
                str(row["batch"]),
                _name(row),
                _spread(row["seconds"], 1),
                f"{row['seconds']['median'] / units[row['model']]:.1f}",
                _megabytes(row),
            ]
            for row in rows
        ],
    )


def compiled(cpu: dict[str, Any]) -> Iterable[str]:
    """Compiled steps on a CPU."""
    rows = [r for r in cpu["rows"] if r["suite"] == "steps"]
    if not rows:
        return
    yield "### Compiled steps\n"
    yield (
        "`scorematching.capture.compile_step` flattens the whole step and compiles it; these\n"
        "steps include an optimiser (SGD).\n"
    )
    yield markdown_table(
        ["model", "loss", "mode", "ms (quartiles)", "compilation, s"], _step_rows(rows)
    )


def noise(cpu: dict[str, Any]) -> Iterable[str]:
    """Time times variance."""
    if not cpu["variance"]:
        return
    yield "## Time times variance\n"
    yield NOISE.format(reference=REFERENCE.removeprefix("torchebm "))
    for problem in dict.fromkeys(row["problem"] for row in cpu["variance"]):
        rows = [row for row in cpu["variance"] if row["problem"] == problem]
        yield f"### {rows[0]['about']} ({rows[0]['repeats']} repeats)\n"
        head = ["loss", "ms", "std of the loss", "gain", "std of the gradient", "gain"]
        yield markdown_table(head, [_noise_cells(row) for row in rows])


def targets(cpu: dict[str, Any]) -> Iterable[str]:
    """Targets, met or missed."""
    rows = [row for row in cpu["verdict"] if row["met"] is not None]
    if not rows:
        return
    names = {row["model"]: row["about"] for row in cpu["rows"]}
    yield "## Targets\n"
    yield "Set before the run above.\n"
    yield markdown_table(
        ["model", "quantity", "target", "measured", ""],
        [
            [
                names.get(row["model"], row["model"]),
                row["target"],
                f"{'at most' if row['sign'] == '<=' else 'at least'} {row['bound']:g}",
                f"{row['value']:.2f}",
                "met" if row["met"] else "**missed**",
            ]
            for row in rows
        ],
    )
    yield pairing.floors()


def on_gpu(gpu: dict[str, Any] | None) -> Iterable[str]:
    """The paper's flow on a GPU."""
    if gpu is None:
        return
    yield "## Time on a GPU\n"
    yield provenance(gpu)
    yield (
        f"{gpu['rows'][0]['about']}; whole training steps with fused Adam, tf32 products.\n"
        "Eagerly, launching the operations takes longer than running them; captured as one CUDA\n"
        "graph (`CapturedStep`) the counts above show again. Compiled (`compile_step`) there are\n"
        "fewer operations to launch; *both* is `compile_step(..., captured=True)`.\n"
    )
    units = {
        row["mode"]: row["seconds"]["median"]
        for row in gpu["rows"]
        if row["objective"] == "DSM" and row["seconds"]
    }
    rows = []
    for row in gpu["rows"]:
        unit = units.get(row["mode"])
        ratio = f"{row['seconds']['median'] / unit:.2f}" if row["seconds"] and unit else ""
        cells = [_name(row), row["mode"], str(row["batch"]), _spread(row["seconds"]), ratio]
        rows.append([*cells, _megabytes(row)])
    head = ["step", "mode", "batch", "ms (quartiles)", "x DSM, same mode", "MB"]
    yield markdown_table(head, rows)
    yield from _exact({row["objective"]: row for row in gpu["rows"]})
    yield from _remarks(gpu)


def _exact(rows: dict[str, Row]) -> Iterable[str]:
    """What exact score matching of the flow computes in the time that it takes."""
    if not {"SM, evaluation", "SM, training"} <= set(rows):
        return
    evaluation, training = rows["SM, evaluation"], rows["SM, training"]
    products = 2 * DIM * WEIGHTS  # of one point
    seconds = [row["seconds"]["median"] for row in (evaluation, training)]
    rates = [
        passes * products * row["batch"] / (1e12 * time)
        for passes, row, time in zip((1, 3), (evaluation, training), seconds)
    ]
    tangents = 4 * DIM * WIDTH * evaluation["batch"] / 1e9
    text = (
        f"Exact score matching multiplies {DIM} tangents of each point by {WEIGHTS / 1e6:.1f} "
        "million weights, and in training twice more on the way back. In the time of the table "
        f"that is {rates[0]:.0f} TFLOP/s for the {evaluation['batch']} points of an evaluation, "
        f"and {rates[1]:.0f} for the {training['batch']} of a training step. Tangents of one "
        f"hidden layer are {tangents:.1f} GB in the first, which kernels between the products "
        f"read and write. Hoped for were 120 ms, and 30 s for the {STEPS} steps of an epoch, "
        f"which take {STEPS * seconds[1]:.0f} s. Compiled and captured in bf16, one takes less "
        "than 30 s even beside other runs: row short/SM of "
        "[table-nice](reproduction/table-nice/report.md)."
    )
    yield fill(text, 100) + "\n"


def _remarks(gpu: dict[str, Any]) -> Iterable[str]:
    """What else is to be known about a run on a GPU."""
    if gpu["load_average"] > 4:
        yield (
            f"Other programs ran on the processor meanwhile (load average "
            f"{gpu['load_average']:.0f}), which lengthens\neager and compiled steps; captured ones "
            "are launched at once.\n"
        )
    for name, reason in gpu["skipped"].items():
        if "on request" not in reason:
            yield f"Left out: {name}; {reason}.\n"


def commands(cpu: dict[str, Any], gpu: dict[str, Any] | None) -> Iterable[str]:
    """How to rerun the benchmark."""
    lines = ['pip install -e ".[bench]"', cpu["command"]]
    lines += [gpu["command"]] if gpu else []
    yield "## How to rerun\n"
    yield "```bash\n" + "\n".join([*lines, "python -m benchmarks.pages"]) + "\n```\n"
    yield AGAIN


def provenance(document: dict[str, Any]) -> str:
    """Where and with what the numbers were made."""
    threads = f", {document['threads']} thread" + "s" * (document["threads"] > 1)
    on = document["device"] + (threads if document["kind"] == "cpu" else "")
    return f"{on}; {made_with(document)}.\n"


def _cells(row: Row) -> list[str]:
    ratios = [_ratio(row[f"ratio_{name}"]) for name in ("dsm", "torchebm", "ebmkit", "bare")]
    num = str(row["num"]) if row["num"] else ""
    return [_name(row), num, _spread(row["seconds"]), *ratios, _megabytes(row)]


def _step_rows(rows: list[Row]) -> list[list[str]]:
    return [
        [
            row["about"],
            _name(row),
            row["mode"],
            _spread(row["seconds"]) if row["seconds"] else row["error"],
            f"{row['compile_seconds']:.0f}" if "compile_seconds" in row else "",
        ]
        for row in rows
    ]


def _noise_cells(row: Row) -> list[str]:
    cells = [f"{_name(row)}, M={row['num']}", f"{1e3 * row['seconds']['median']:.2f}"]
    for what in ("loss", "gradient"):
        gain = row[f"{what}_gain"]
        cells += [f"{row[f'{what}_variance'] ** 0.5:.3g}", "" if gain is None else f"{gain:.3g}"]
    return cells


def _name(row: Row) -> str:
    library = {"ours": "**scorematching**", "bare": "by hand"}.get(row["library"], row["library"])
    law = f", {row['law']}" if row.get("law") else ""
    num = f", M={row['num']}" if row.get("suite") == "steps" and row["num"] else ""
    return f"{library} {row['objective']}{law}{num}"


def _by_num(row: Row) -> tuple[int, float]:
    return row["num"], row["seconds"]["median"]


def _spread(seconds: dict[str, float] | None, scale: float = 1e3) -> str:
    if seconds is None:
        return ""
    median, low, high = (_short(scale * seconds[key]) for key in ("median", "q25", "q75"))
    return f"{median} ({low}-{high})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _megabytes(row: Row) -> str:
    return "" if row["peak_bytes"] is None else _short(row["peak_bytes"] / 1e6)
