"""The part of docs/benchmarks.md on training steps of the paper's flow on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with
from benchmarks.train_step import APART

Row = dict[str, Any]

WEIGHTS = 4 * (2 * 392 * 1000 + 4 * 1000**2)
"""Of the flow: four couplings of five hidden layers of 1000 units, for 784 pixels."""

BATCH = 128

TARGETS = {
    ("SSM-VR, M=1", "high"): 1.6,
    ("SSM-VR, M=16", "high"): 2.8,
    ("SSM-VR, M=1", "medium"): 1.1,
    ("SSM-VR, M=16", "medium"): 1.8,
}
"""Milliseconds of a step that were hoped for."""

ABOUT = """\
Steps of `train` with Adam, batches of 128, products in tf32 or bfloat16, by each executor; *bare*
is the same step without the loop around it, and *first* the time until the first steps are done,
with compilation (8 to 14 s where the compiler finds its kernels in its cache, 30 to 45 s where it
does not). "auto" is what `train` takes by default. *Products apart* leaves out the rewriting
of matrix products: on a GPU compiled steps multiply values and tangents by a weight at once, and
compute the gradients of equal layers by one batched product.
"""

ACCOUNT = """\
Where the time of a bare step goes (a profile of ten steps; kernels per step in brackets). *Between
kernels* is what is left of the step's time: the GPU waits for one kernel to end before it starts
the next.
"""

REASONS = """\
A step does about (6 + 3 M) multiplications for each of 19.1 million weights and each point (see the
counts above); the last row is twice that number over the time of the matrix products. With M = 1 a
product has 128 or 256 rows. It takes some 8 us in tf32 and 5 us in bfloat16, during which a GPU of
this kind could do several times as much: with M = 16 the same number of products does six times the
work in twice the time. What would help is fewer products, and those of one flow depend on each
other. With M = 16 the tangents of a hidden layer are 8.2 MB. They are read and written between
products, by kernels whose time does not fall with bfloat16: it rounds the factors of products only,
and all other numbers stay in float32.
"""


def read(results: Path) -> list[str]:
    """The section from a folder of numbers; nothing where there are none."""
    path = results / "train_step.json"
    return list(section(json.loads(path.read_text()))) if path.exists() else []


def section(document: dict[str, Any]) -> Iterable[str]:
    """Times by executor, and the accounts of compiled and captured steps."""
    yield "## Training steps on a GPU\n"
    yield ABOUT
    head = ["objective", "products", "executor", "ms per step", "bare, ms", "first, s"]
    yield markdown_table(head, [_cells(row) for row in document["rows"]])
    yield ACCOUNT
    compiled = [row for row in document["rows"] if row["executor"] in (APART, "auto")]
    yield markdown_table(["", *map(_title, compiled)], list(_accounts(compiled)))
    yield REASONS
    yield from _missed(compiled)
    commands = "; ".join(f"`{line}`" for line in document["command"].splitlines())
    yield f"{document['device']}; {made_with(document)}. {commands}\n"


PRODUCTS = {"high": "tf32", "medium": "bfloat16"}


def _cells(row: Row) -> list[str]:
    name = row["executor"]
    name = f"auto: {row['ran']}" if name == "auto" else name
    times = [f"{row['ms_per_step']:.2f}", f"{row['bare_ms']:.2f}", f"{row['first_seconds']:.0f}"]
    return [row["objective"], PRODUCTS[row["products"]], name, *times]


def _title(row: Row) -> str:
    apart = ", products apart" if row["executor"] == APART else ""
    return f"{row['objective']}, {PRODUCTS[row['products']]}{apart}"


def _accounts(rows: list[Row]) -> Iterable[list[str]]:
    for kind in rows[0]["kernels"] if rows else ():
        yield [kind, *(_cell(row["kernels"][kind]) for row in rows)]
    yield ["between kernels", *(f"{max(0.0, row['bare_ms'] - _busy(row)):.2f}" for row in rows)]
    yield ["together", *(f"{row['bare_ms']:.2f}" for row in rows)]
    yield ["TFLOP/s of products", *map(_rate, rows)]


def _rate(row: Row) -> str:
    """Twice the multiplications of a step over the time of its products, in 10^12 per second."""
    _, sliced, num = row["objective"].rpartition("=")
    if not sliced:
        return ""
    work = 2 * (6 + 3 * int(num)) * WEIGHTS * BATCH
    return f"{work / (1e9 * row['kernels']['matrix products']['ms']):.0f}"


def _missed(rows: list[Row]) -> Iterable[str]:
    """Targets that the steps of `train` do not reach."""
    late = [
        f"{_title(row)} {row['ms_per_step']:.2f} for {target}"
        for row in rows
        for target in [TARGETS.get((row["objective"], row["products"]))]
        if row["executor"] != APART and target and row["ms_per_step"] > 1.005 * target
    ]
    if late:
        yield f"Milliseconds that were hoped for and are not reached: {'; '.join(late)}.\n"


def _cell(part: dict[str, float]) -> str:
    return f"{part['ms']:.2f} ({part['kernels']:.0f})" if part["kernels"] else ""


def _busy(row: Row) -> float:
    return float(sum(part["ms"] for part in row["kernels"].values()))
