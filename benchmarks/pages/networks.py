"""The part of the benchmark page about networks of diffusers and transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.networks.models import ABOUT
from benchmarks.pages.parts import made_with

Row = dict[str, Any]
Document = dict[str, Any]

INTRODUCTION = """\
A U-Net and a diffusion transformer of diffusers are scores, at one time; a vision transformer and a
ResNet of transformers are log-densities, with a linear function of their features for output. The
ResNet has SiLU in place of ReLU and average in place of maximal pooling, since both have kinks.
*Double backward* is nested `torch.autograd.grad` on the batch repeated M times, with attention by
matrix products: fused attention cannot be differentiated twice. A step is: gradients to zero, mean
loss, backward. Cells are time (quartiles) and peak memory of our step, in brackets both relative to
double backward: below 1 is faster, or smaller.
"""

COUNTS = """\
By matrix products alone (see the counts above), a log-density is to take 0.75 of the time of double
backward at M = 1 and 1 / 2.7 at M = 4. A score network needs no reverse pass for its score: the
network and M tangents are built, against 2 M passes of tiled double backward. That is the same at M
= 1, and 5 / 8 at M = 4: 1.6 times faster, not 1.8. What is gained beyond the counts is elementwise:
activations and norms compute their derivatives again in the backward pass, where autograd keeps
every term of them. At M = 1 an eager step on a GPU takes the time of Python and of its launches; as
a CUDA graph it takes that of its arithmetic, as the two tables of the ResNet show.
"""

CAPTURED = """\
Whole steps with fused Adam, replayed as CUDA graphs (`CapturedStep`), without the time that Python
and launching take; times relative to double backward captured in the same way.
"""


def read(results: Path) -> list[str]:
    """The section from a folder of numbers; those of a GPU may be missing, or in several files."""
    names = ("networks-cpu", "networks-gpu-captured", "networks-gpu", "networks-gpu-more")
    paths = [results / f"{name}.json" for name in names]
    cpu, captured, *gpu = [json.loads(p.read_text()) if p.exists() else None for p in paths]
    return list(section(cpu, [document for document in gpu if document is not None], captured))


def section(cpu: Document | None, gpu: list[Document], captured: Document | None) -> Iterable[str]:
    """The parts of the section; none without numbers of a CPU."""
    if cpu is None:
        return
    rows = [row for document in gpu for row in document["rows"]]
    yield "## Networks people use\n"
    yield INTRODUCTION
    yield from right(cpu)
    yield "### On a CPU\n"
    yield from _times(cpu, "eager", cpu["rows"])
    if gpu:
        yield "### On a GPU\n"
    for document in gpu:
        yield from _times(document, "eager", rows)
    if captured is not None:
        yield CAPTURED
        yield from _times(captured, "captured", captured["rows"])
    yield COUNTS
    yield from missed([cpu, *gpu])
    found = [cpu, *gpu, *([] if captured is None else [captured])]
    yield "```bash\n" + "\n".join(document["command"] for document in found) + "\n```\n"


def right(document: Document) -> Iterable[str]:
    """Whether the gradients are right."""
    rows = [
        [
            ABOUT[row["network"]],
            *(f"{row[key]:.0e}" for key in ("loss", "gradients", "ours", "bare")),
        ]
        for row in document["agreement"]
    ]
    if not rows:
        return
    yield (
        "First whether it is right, in float64 on tiny sizes: relative differences of the two "
        "losses and of the\ntwo gradients, and the errors of either gradient against central "
        "differences of the loss, along the\ngradient and, where the two differ, along their "
        "difference. Torch's own third derivative of layer\nnormalisation is wrong, so double "
        "backward trains a vision transformer with a wrong gradient.\n"
    )
    head = ["network", "losses", "gradients", "error of ours", "error of double backward"]
    yield markdown_table(head, rows)


def _times(document: Document, mode: str, measured: list[Row]) -> Iterable[str]:
    """One row for every network and size of a document.

    What it leaves out is named, unless it is among the rows measured on this kind of device.
    """
    threads = f", {document['threads']} thread" + "s" * (document["threads"] > 1)
    on = document["device"] + (threads if document["kind"] == "cpu" else ", tf32 products")
    yield f"{on}; {made_with(document)}.\n"
    if document.get("clock") == "processor":
        yield (
            f"Other processes were running (load average {document['load_average']:.0f}); times "
            "are those of the processor,\nwithout theirs.\n"
        )
    for name, reason in document["skipped"].items():
        network, _, size = name.partition(", ")
        if any(row["network"] == network and size in ("", row["size"]) for row in measured):
            continue
        what = f"{ABOUT[network]} of the {size} size" if size else ABOUT[network]
        yield f"The {what} was left out: {reason}.\n"
    rows = [row for row in document["rows"] if row["mode"] == mode]
    cells = []
    for about in dict.fromkeys(row["about"] for row in rows):
        mine = [row for row in rows if row["about"] == about]
        ours = {row["num"]: row for row in mine if row["library"] == "ours"}
        (dsm,) = (row for row in mine if row["objective"] == "DSM")
        cells.append([about, _cell(dsm, False), *(_cell(ours[num], True) for num in sorted(ours))])
    yield markdown_table(["network", "DSM, by hand", "SSM-VR, M = 1", "SSM-VR, M = 4"], cells)


def _cell(row: Row, relative: bool) -> str:
    median, low, high = (_short(1e3 * row["seconds"][key]) for key in ("median", "q25", "q75"))
    time = f"{median} ms ({low}-{high})" + (f" [{row['ratio']:.2f}]" if relative else "")
    if row["peak_bytes"] is None:
        return time
    memory = f"{_short(row['peak_bytes'] / 1e6)} MB"
    return f"{time}, {memory}" + (f" [{row['memory_ratio']:.2f}]" if relative else "")


def missed(documents: list[Document]) -> Iterable[str]:
    """Where double backward is faster or smaller at M = 1, or the gain at M = 4 is below 1.8."""
    lines = []
    for document in documents:
        for row in document["rows"]:
            if row["library"] == "ours" and row["mode"] == "eager":
                lines += [f"- {row['about']} ({document['kind']}): {m}\n" for m in _misses(row)]
    yield (
        "Targets were: never slower and never more memory than double backward at M = 1, and 1.8\n"
        "times faster at M = 4. " + ("Missed by:\n" if lines else "All of them are met.\n")
    )
    yield "".join(lines)


def _misses(row: Row) -> Iterable[str]:
    if row["num"] == 1 and row["ratio"] > 1.005:  # what is not 1.00 when printed
        yield f"M = 1 takes {row['ratio']:.2f} of the time"
    if row["num"] == 1 and (row["memory_ratio"] or 0) > 1:
        yield f"M = 1 takes {row['memory_ratio']:.2f} of the memory"
    if row["num"] == 4 and row["ratio"] > 1 / 1.8:
        yield f"M = 4 is {1 / row['ratio']:.2f} times faster"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
