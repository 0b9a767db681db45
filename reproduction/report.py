"""Reports: our numbers beside the paper's, with standard errors, commands and pictures.

Means are over all seeds that were run. A number without an error comes from one run that has none.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from reproduction.experiment import Experiment, Run
from reproduction.run import RUN
from scorematching._files import write_atomically

PAPER = Path(__file__).with_name("paper.toml")


def write_report(experiment: Experiment, runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``report.md``, ``results.json`` and pictures.

    Args:
        experiment: whose runs these are.
        runs: finished runs, at least one.
        folder: for the files.

    Returns:
        The files, the report first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = experiment.plot(runs, folder) if experiment.plot else []
    results = folder / "results.json"
    document = {"experiment": experiment.name, "runs": [asdict(run) for run in runs]}
    write_atomically(results, json.dumps(document, indent=1).encode())
    report = folder / "report.md"
    write_atomically(report, as_markdown(experiment, runs, pictures).encode())
    return [report, results, *pictures]


def in_order(experiment: Experiment, runs: Sequence[Run]) -> list[Run]:
    """Runs in the order of variants and seeds; of several with the same variant and seed the last.

    Raises:
        ValueError: if some belong to another experiment.
    """
    strangers = {run.experiment for run in runs} - {experiment.name}
    if strangers:
        raise ValueError(
            f"runs must be of one experiment, got {experiment.name} and {', '.join(strangers)}; "
            "report on one at a time"
        )
    variants = {name: place for place, name in enumerate(experiment.variants)}
    found = {(run.variant, run.seed): run for run in runs}
    return sorted(found.values(), key=lambda run: (variants.get(run.variant, 1 << 30), run.seed))


def copy_pictures(source: Path, folder: Path) -> None:
    """Copy the pictures of finished runs to another folder."""
    if not source.is_dir() or source.resolve() == folder.resolve():
        return
    pictures = [path for run in source.rglob(RUN) for path in run.parent.glob("*.png")]
    for picture in pictures:
        target = folder / picture.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, picture.read_bytes())


def as_markdown(experiment: Experiment, runs: Sequence[Run], pictures: Sequence[Path]) -> str:
    """The report as text."""
    parts = [f"# {experiment.name}", experiment.summary]
    if any(run.smoke for run in runs):
        parts.append("**A smoke test on synthetic data: these numbers mean nothing.**")
    parts += [table(experiment, runs), _legend(runs)]
    parts += [f"- {note}" for note in (experiment.notes(runs) if experiment.notes else [])]
    parts += [f"![{picture.stem}]({picture.name})" for picture in pictures]
    parts += ["## Commands", "\n".join(f"    {command}" for command in commands(runs))]
    return "\n\n".join(parts) + "\n"


def table(experiment: Experiment, runs: Sequence[Run]) -> str:
    """One row for each variant that was run, beside the paper's numbers if it has them."""
    paper = paper_rows(experiment.name)
    headings = ["", "runs"]
    for metric, heading in experiment.columns.items():
        headings += [heading] + (["paper"] if _is_in_paper(metric, paper) else [])
    rows = []
    for variant in dict.fromkeys(run.variant for run in runs):
        mine = [run for run in runs if run.variant == variant]
        theirs = paper.get(variant) or paper.get(variant.split("/")[-1], {})
        row = [variant, str(len(mine))]
        for metric in experiment.columns:
            row.append(summary(mine, metric))
            if _is_in_paper(metric, paper):
                row.append(_number(theirs.get(metric)))
        rows.append(row)
    return markdown_table(headings, rows, align_right=False).rstrip()


def summary(runs: Sequence[Run], metric: str) -> str:
    """A metric over runs of one variant, with its standard error.

    For several seeds it is the standard error over seeds; for one run that over test points, which
    the run recorded as ``<metric>_se``.
    """
    values = [run.metrics.get(metric) for run in runs]
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    if not numbers:
        words = {str(v) for v in values if v is not None}
        return ", ".join(sorted(words)) or "-"
    mean, error = mean_and_error(numbers)
    if len(runs) == 1:
        error = runs[0].metrics.get(f"{metric}_se")
    missing = f" ({len(values) - len(numbers)} missing)" if len(numbers) < len(values) else ""
    return _number(mean, error) + missing


def mean_and_error(numbers: Sequence[float]) -> tuple[float, float | None]:
    """The mean of independent numbers and its standard error; None for a single one."""
    n = len(numbers)
    mean = sum(numbers) / n
    if n == 1:
        return mean, None
    return mean, math.sqrt(sum((v - mean) ** 2 for v in numbers) / (n - 1) / n)


def paper_rows(name: str) -> dict[str, dict[str, float]]:
    """The paper's numbers for an experiment, by row and metric; empty if it has none."""
    found = tomllib.loads(PAPER.read_text(encoding="utf-8")).get(name, {})
    return dict(found.get("rows", {}))


def commands(runs: Sequence[Run]) -> list[str]:
    """The distinct commands of all runs."""
    return list(dict.fromkeys(run.command for run in runs))


def _is_in_paper(metric: str, paper: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(metric in row for row in paper.values())


def _legend(runs: Sequence[Run]) -> str:
    single = all(run.seed == runs[0].seed for run in runs)
    over = "over test points" if single else "over seeds"
    devices = ", ".join(sorted({run.device for run in runs}))
    packages = sorted({f"torch {run.versions.get('torch')}" for run in runs})
    commits = sorted({(run.commit or "unknown")[:12] for run in runs})
    return (
        f"Mean and standard error {over}; seeds {_seeds(runs)}; {devices}; "
        f"{', '.join(packages)}; commit {', '.join(commits)}."
    )


def _seeds(runs: Sequence[Run]) -> str:
    return ", ".join(map(str, sorted({run.seed for run in runs})))


def _number(value: float | None, error: float | None = None) -> str:
    """A number with as many digits as its error justifies."""
    if value is None:
        return "-"
    if abs(value) >= 1e6:
        return f"{value:.2e}" if error is None else f"{value:.2e} ± {error:.0e}"
    scale = error if error else abs(value) / 100
    digits = 0 if scale == 0 else max(0, 1 - math.floor(math.log10(scale)))
    text = f"{value:.{min(digits, 8)}f}"
    return text if error is None else f"{text} ± {error:.{min(digits, 8)}f}"
