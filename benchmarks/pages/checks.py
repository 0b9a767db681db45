"""The part of docs/benchmarks.md on the cost of checks and of tracing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with

ABOUT = """\
Whether a model is smooth and whether its derivatives are right is measured on the user's own model
and points: at the first use, and in part again at the 2nd, 4th, 8th ... Share of the checks in
{steps} training steps (SSM-VR, M = 1, batch 128, Adam, 1 thread):
"""

TRACING = """\
A traced value is a subclass of `torch.Tensor`, and every operation on it is looked up in Python. On
a chain of sines of a single number, where arithmetic takes no time, a loss takes
{traced_us:.0f} us per operation by the engine, with its graph for the parameters' gradient, and
{by_hand_us:.0f} us with tangents and adjoints written by hand, without a graph. A layer of a
network has two operations; compiled or captured steps trace once.
"""


def section(checks: dict[str, Any]) -> Iterable[str]:
    """What the checks and the tracing cost."""
    yield "## What the checks cost\n"
    yield ABOUT.format(steps=checks["steps"])
    yield markdown_table(
        ["network", "ms per step", "first step, s", "share of the run"],
        [
            [
                row["network"],
                f"{row['step_ms']:.2f}",
                f"{row['first_s']:.2f}",
                f"{row['share']:.1%}",
            ]
            for row in checks["rows"]
        ],
    )
    yield TRACING.format(**checks["tracing"])
    yield f"{checks['device']}; {made_with(checks)}. `{checks['command']}`\n"
