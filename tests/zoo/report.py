"""Tables, counts, JSON files and the page about supported models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from tests.zoo.outcome import FOLLOWED, OUTCOMES, SKIPPED, UNSURE, Result

PAGE = """# Supported models

Models of other libraries, each trained on with sliced score matching and compared with finite
differences: score, curvature, divergence, loss and parameter gradient. This page is written by
`make zoo`, which installs the libraries and runs `python -m tests.zoo --page {path}`.

{counts}

*Followed*: the engine traces the model and its answers are right. *Slow route, stated*: the
answers are right by double backward, and a warning says why. *Refused rightly*: the model has a
kink, or its points depend on each other; an error says where. *Opaque* models are smooth, but torch
cannot differentiate their backward pass, and *borderline* ones have a kink so slight that gradients
are off by less than 1%: for both, a right answer and a refusal are right.

Versions: {versions}.

{tables}
"""


def row(result: Result) -> tuple[str, ...]:
    """The cells of one result: library, model, truth, outcome, error, seconds, note."""
    seconds, note = f"{result.seconds:.1f}", result.note or result.explained
    names = (result.library, result.name, result.verdict, result.outcome)
    return (*names, _error(result), seconds, note)


def _error(result: Result) -> str:
    return f"{max(result.errors.values()):.0e}" if result.errors else ""


def line(result: Result) -> str:
    """One result, in aligned columns."""
    widths = (16, 34, 7, 22, 6, 5, 90)
    return "  ".join(c[:w].ljust(w) for c, w in zip(row(result), widths)).rstrip()


def counts(results: Sequence[Result]) -> str:
    """How many models had each outcome, and the share of smooth ones that were followed."""
    found = Counter(r.outcome for r in results)
    lines = [f"{found[outcome]:4d}  {outcome}" for outcome in OUTCOMES if found[outcome]]
    smooth = smooth_models(results)
    followed = sum(r.outcome == FOLLOWED for r in smooth)
    share = f"{followed} of {len(smooth)} smooth models followed"
    return "\n".join([f"{len(results):4d}  models", *lines, share])


def smooth_models(results: Sequence[Result]) -> list[Result]:
    """Those that are stated to be smooth and were run."""
    return [r for r in results if r.verdict == "smooth" and r.outcome not in (SKIPPED, UNSURE)]


def save(results: Sequence[Result], path: Path) -> None:
    """Write results as JSON."""
    path.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Result]:
    """Results that `save` wrote."""
    return [Result(**r) for r in json.loads(path.read_text(encoding="utf-8"))]


def page(results: Sequence[Result], path: Path, packages: Sequence[str]) -> str:
    """The page about supported models."""
    names = sorted({r.library for r in results})
    tables = "\n\n".join(_table(name, [r for r in results if r.library == name]) for name in names)
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in packages)
    listed = "\n".join(f"- {c.strip()}" for c in counts(results).splitlines())
    return PAGE.format(path=path, counts=listed, versions=versions, tables=tables)


def _table(name: str, results: Sequence[Result]) -> str:
    lines = ["| model | kind | truth | outcome | largest error |", "|---|---|---|---|---|"]
    for r in sorted(results, key=lambda r: r.name):
        truth = f"{r.verdict}: {r.why}" if r.why else r.verdict
        lines.append(f"| {r.name} | {r.kind} | {truth} | {r.outcome} | {_error(r)} |")
    return "\n".join([f"## {name}", "", *lines])
