"""The benchmark page, from the committed numbers: `python -m benchmarks.pages.objectives`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.objectives.noise import REFERENCE
from benchmarks.pages import objectives_figures as figures

Row = dict[str, Any]

NUMS = (1, 4, 16)
METHODS = {
    "DSM": ("bare", "DSM", "1 + 1", lambda num: 2),
    "SSM-VR, double backward, x tiled": ("bare", "SSM-VR", "4 M", lambda num: 4 * num),
    "SSM-VR, double backward, first gradient shared": (
        "ebmkit",
        "SSM-VR",
        "1 + 1 + 2 M",
        lambda num: 2 + 2 * num,
    ),
    "SSM-VR, pairing": ("ours", "SSM-VR", "1 + M + 1", lambda num: 2 + num),
}
"""Who does it, passes that the graph of the loss holds, in letters and in numbers."""

WHY = """\
# Benchmarks

`benchmarks/` times this library against torchebm 0.8.9,
ebmkit 0.16.0 and nested `torch.autograd.grad` written by
hand. First why it is faster, then by how much.

## Why pairing is cheaper

![A chain of operations, tangents above it and adjoints below](img/pairing.png)

Sliced score matching needs `v'Hv`, the second derivative of a log-density f along a direction v.
Usually one differentiates twice in reverse, on a batch repeated M times. Here is another way.

**The identity.** Let f be a chain of operations, `z_0 = x`, `z_i = phi_i(z_{i-1})`, `f = z_n`.
Move x along v, `x + e v`, and differentiate every `z_i` in e, once and twice:

    u_i = phi_i' u_{i-1}                                 u_0 = v      (the tangents)
    a_i = phi_i' a_{i-1} + phi_i''[u_{i-1}, u_{i-1}]     a_0 = 0      and a_n = v'Hv

The second line is linear in a, with something added at every operation. Whatever is added to
`a_i` reaches the end multiplied by all later derivatives, and that product has a name: it is the
adjoint `lambda_i = df/dz_i`, which one reverse pass computes anyway, because it ends in the score
`s = df/dx`. Summing what is added:

    v'Hv = sum_i <lambda_i, phi_i''[u_{i-1}, u_{i-1}]>

A linear operation has `phi'' = 0` and adds nothing. A softplus adds `lambda sigma''(z) u^2`, a
product of two values `2 lambda u_a u_b`. No derivative is ever differentiated. Only the tangents
know the direction, so for M directions the *same* adjoint is paired with `mean_j u_j^2`. With the
D basis vectors for directions the sum is the exact trace.

**Counting matrix products.** Nearly all the time goes into products with the weights of the
layers. Take as a unit one pass, N points through every layer once, whether forward or backward.

- *DSM* builds a forward pass and a reverse pass (the score): 2.
- *Double backward* builds those two, then differentiates `v.s` in x. That leads back through the
  reverse pass (one more) and through the forward pass (one more): 4 for each direction, on x
  tiled M times. If the first two are shared between directions, 2 + 2 M.
- *Pairing* builds a forward pass, M tangents and a reverse pass: 2 + M.

To train, every product `Y = X W'` in the graph costs two more, one for the gradient in X and one
for that in W, whoever built it. So the ratios of what is built are the ratios of whole steps:
"""

LIMITS = """\
The column by size knows what is not needed: a gradient in v, which spares every tangent one of its
three products with the first layer, and for pairing a gradient in x. Writing P for the size of
all weights and F for that of the first layer's, a step costs 6 P multiplications per point by
hand-written DSM, 6 P - F + M (3 P - F) by pairing, 6 P + M (6 P - F) by shared and M (12 P - F)
by tiled double backward; a test counts them.

Of the M (3 P - F) of pairing, 2 M F are the first layer's, and directions can be drawn so that 2 F
are left. The loss reads the directions of a point only through the mean of `v_j v_j'`. Let them
share out one vector of signs, each with its own M-th part of the coordinates, times sqrt(M), and
zeros elsewhere: that mean has expectation I as before, its variance is never above that of
independent signs (`(D - M) / (D - 1)` times it where M divides D), and every direction meets its
own columns of the first layer alone. `SplitRademacher`, the default, draws such directions.

Two things are in no column. Elementwise work (softplus and its derivatives) is not free. And
tracing a model in Python takes its time, whatever the size of its layers: for networks of a few
units, on a CPU, double backward is faster.

For score networks there is no reverse pass in x: pairing builds 1 + M passes and tiled double
backward 2 M, against 1 for DSM.
"""


STEP = """\
One step is: gradients to zero, mean loss, backward. All losses take turns of two steps, of which
the second is timed: in training, too, the step before was the same one. Ratios below 1 mean faster
than what the column names; "DSM" is hand-written DSM and "tiled" hand-written double backward on
the same model.
*Signs* are independent Rademacher directions, the law of torchebm; *balanced* is this library's
default, Rademacher directions that are orthogonal across the batch and share out the coordinates
of their point; ebmkit has *normal* directions only. torchebm has plain SSM only, which costs the
same as SSM-VR. Neither peer takes score networks.
"""

NOISE = """\
At a fixed budget of time, the variance of an average is proportional to the time of one estimate
times its variance. Variances are due to the directions alone, at fixed points. Gains are in time
times variance, relative to torchebm's default ({reference}): larger is better. The Gaussian has
one Hessian for all points, the best case for balanced directions; its steps are so small that
their time is the interpreter's.
"""

FLOORS = """\
What the matrix products alone allow, by the formulas above, for D = 100 and D = 784: M = 1 at
{one[0]:.2f} and {one[1]:.2f} of torchebm's time, M = 5 at {five[0]:.2f} and {five[1]:.2f} times
its speed. Elementwise work and the interpreter come on top; compiled steps do without most of
that.
"""

AGAIN = """\
All contenders of a model run in one process, in turn, in an order shuffled anew in every round. On
a CPU, medians and quartiles are over the half of the rounds in which other processes used it least.
Memory is the peak of what a step allocates. `--quick` runs everything at tiny sizes; a peer that is
not installed is left out.
"""


def main(arguments: list[str] | None = None) -> Path:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pages.objectives", description=__doc__
    )
    results = Path("benchmarks/results")
    parser.add_argument("--cpu", type=Path, default=results / "cpu.json", help="numbers of a CPU")
    parser.add_argument("--gpu", type=Path, default=results / "gpu.json", help="numbers of a GPU")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the page")
    options = parser.parse_args(arguments)
    cpu = json.loads(options.cpu.read_text())
    gpu = json.loads(options.gpu.read_text()) if options.gpu.exists() else None
    figures.schematic(options.docs / "img" / "pairing.png")
    figures.against_num(cpu, options.docs / "img" / "benchmarks.png")
    page = options.docs / "benchmarks.md"
    page.write_text(render(cpu, gpu))
    print(f"written to {page}")
    return page


def render(cpu: dict[str, Any], gpu: dict[str, Any] | None) -> str:
    """The whole page."""
    parts = [
        WHY,
        counting(cpu),
        LIMITS,
        "## Time on a CPU\n",
        provenance(cpu),
        "![Time of a step against M](img/benchmarks.png)\n",
        *times(cpu),
        *exact(cpu),
        *compiled(cpu),
        *noise(cpu),
        *targets(cpu),
        *on_gpu(gpu),
        *commands(cpu, gpu),
    ]
    return "\n".join(parts)


def counting(cpu: dict[str, Any]) -> str:
    """Counted and measured ratios to DSM, side by side."""
    model = "mlp784"
    unit = multiplications(model, "DSM", 1)
    rows = []
    for method, (library, objective, formula, built) in METHODS.items():
        found = [
            _find(cpu, model, library, objective, 0 if objective == "DSM" else num) for num in NUMS
        ]
        passes = [f"{built(num) / 2:g}" for num in NUMS]
        sizes = [f"{multiplications(model, method, num) / unit:.2g}" for num in NUMS]
        cells = [passes, sizes, map(_ratio_of, found)]
        rows.append([method, formula, *[" / ".join(cell) for cell in cells]])
    return (
        table(
            [
                "step, M = 1 / 4 / 16",
                "passes built",
                "passes, x DSM",
                "by size of the layers, x DSM",
                "measured, x DSM",
            ],
            rows,
        )
        + f"\nMeasured on {_about(cpu, model)}; by size, too, for 784 inputs and 3 layers of 256.\n"
    )


def multiplications(model: str, method: str, num: int) -> int:
    """Multiplications per point in the matrix products of one step of a network."""
    widths = [100 if model == "mlp100" else 784, 256, 256, 256, 1]
    sizes = [a * b for a, b in pairwise(widths)]
    total, first = sum(sizes), sizes[0]
    direction = {"tiled": 12, "shared": 6, "pairing": 3}
    if method == "DSM":
        return 6 * total
    kind = next(kind for kind in direction if kind in method)
    shared = {"tiled": 0, "shared": 6 * total, "pairing": 6 * total - first}[kind]
    each = direction[kind] * total - first
    if kind == "pairing" and num > 1:  # directions that share the coordinates out between them
        return shared + num * (each - 2 * first) + 2 * first
    return shared + num * each


def times(cpu: dict[str, Any]) -> Iterable[str]:
    """One table for every model."""
    yield STEP
    rows = [r for r in cpu["rows"] if r["suite"] == "objectives" and r["objective"] != "SM"]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        yield f"### {mine[0]['about']}, batch {mine[0]['batch']}\n"
        head = ["loss", "M", "ms (quartiles)", "x DSM", "x torchebm", "x ebmkit", "x tiled", "MB"]
        yield table(head, [_cells(row) for row in sorted(mine, key=_by_num)])


def exact(cpu: dict[str, Any]) -> Iterable[str]:
    """Exact score matching."""
    rows = [r for r in cpu["rows"] if r["suite"] == "objectives" and r["objective"] == "SM"]
    if not rows:
        return
    yield "### Exact score matching\n"
    yield "The whole trace, with parameter gradients; the same batch for everyone.\n"
    head = ["model", "batch", "loss", "s (quartiles)", "x ours", "MB"]
    units = {r["model"]: r["seconds"]["median"] for r in rows if r["library"] == "ours"}
    yield table(
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
    yield table(["model", "loss", "mode", "ms (quartiles)", "compilation, s"], _step_rows(rows))


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
        yield table(head, [_noise_cells(row) for row in rows])


def targets(cpu: dict[str, Any]) -> Iterable[str]:
    """What was aimed at, met or not."""
    rows = [row for row in cpu["verdict"] if row["met"] is not None]
    if not rows:
        return
    names = {row["model"]: row["about"] for row in cpu["rows"]}
    yield "## Targets\n"
    yield "Set beforehand, judged by the run above.\n"
    yield table(
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
    tiled, pairing = "x tiled", "pairing"
    networks = ("mlp100", "mlp784")
    yield FLOORS.format(
        one=[multiplications(n, pairing, 1) / multiplications(n, tiled, 1) for n in networks],
        five=[multiplications(n, tiled, 5) / multiplications(n, pairing, 5) for n in networks],
    )


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
    yield table(head, rows)


def commands(cpu: dict[str, Any], gpu: dict[str, Any] | None) -> Iterable[str]:
    """How to do it again."""
    lines = ['pip install -e ".[bench]"', cpu["command"]]
    lines += [gpu["command"]] if gpu else []
    yield "## Do it again\n"
    yield "```bash\n" + "\n".join([*lines, "python -m benchmarks.pages.objectives"]) + "\n```\n"
    yield AGAIN


def provenance(document: dict[str, Any]) -> str:
    """Where and with what the numbers were made."""
    names = ", ".join(f"{name} {v}" for name, v in document["versions"].items() if v)
    at = f", commit {document['commit'][:10]}" if document["commit"] else ""
    threads = f", {document['threads']} thread" + "s" * (document["threads"] > 1)
    on = document["device"] + (threads if document["kind"] == "cpu" else "")
    return f"{on}; Python {document['python']}, {names}; {document['date'][:10]}{at}.\n"


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in [head, rule, *rows])


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


def _about(document: dict[str, Any], model: str) -> str:
    return next((r["about"] for r in document["rows"] if r["model"] == model), model)


def _find(document: dict[str, Any], model: str, library: str, objective: str, num: int) -> Any:
    for row in document["rows"]:
        key = (row["suite"], row["model"], row["library"], row["objective"], row["num"])
        if key == ("objectives", model, library, objective, num):
            return row
    return None


def _ratio_of(row: Row | None) -> str:
    return "-" if row is None else f"{row['ratio_dsm']:.2g}"


if __name__ == "__main__":
    main()
