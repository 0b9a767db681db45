"""Reports: our numbers beside the paper's, with standard errors, commands and pictures.

A cell is the mean over all seeds that were run, plus or minus its standard error over seeds. Where
there is one seed the error is over test points, and stands in brackets.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from reproduction.experiment import Experiment, Run
from reproduction.run import BEGUN, RUN
from reproduction.seeds import write_seeds
from scorematching._files import write_atomically

PAPER = Path(__file__).with_name("paper.toml")

_SEEDS = re.compile(r"--seeds \d+")


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


def copy_pictures(source: Path, folder: Path, unfinished: bool = False) -> None:
    """Copy the pictures of finished runs to another folder: those of one seed of each variant.

    Args:
        source: folder of runs; a file has no pictures.
        folder: where to.
        unfinished: whether the report shows runs that were cut. They have no pictures yet, and
            those that an earlier run left in the folder are deleted.
    """
    if not source.is_dir() or source.resolve() == folder.resolve():
        return
    for begun in source.rglob(BEGUN) if unfinished else ():
        if not begun.with_name(RUN).exists():
            for picture in (folder / begun.parent.relative_to(source)).glob("*.png"):
                picture.unlink()
    pictures = [path for run in sorted(source.rglob(RUN)) for path in run.parent.glob("*.png")]
    for picture in pictures:
        target = folder / picture.relative_to(source)
        shown = {other.parent for other in target.parent.parent.glob("seed-*/*.png")}
        if shown - {target.parent}:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, picture.read_bytes())


def as_markdown(experiment: Experiment, runs: Sequence[Run], pictures: Sequence[Path]) -> str:
    """The report as text."""
    parts = [f"# {experiment.name}", experiment.summary]
    if any(run.smoke for run in runs):
        parts.append("**A smoke test on synthetic data: these numbers mean nothing.**")
    notes = [*differences(experiment, runs), *(experiment.notes(runs) if experiment.notes else [])]
    parts += [table(experiment, runs), _legend(runs)]
    parts += ["\n".join(f"- {note}" for note in notes)] if notes else []
    parts += [f"![{picture.stem}]({picture.name})" for picture in pictures]
    parts += ["## Commands", "\n".join(f"    {command}" for command in commands(runs))]
    return "\n\n".join(parts) + "\n"


def table(
    experiment: Experiment,
    runs: Sequence[Run],
    variants: str = "*",
    columns: Sequence[str] | None = None,
) -> str:
    """One row for each variant that was run, beside the paper's numbers if it has them.

    Args:
        experiment: whose runs these are.
        runs: finished runs.
        variants: pattern of the rows to show.
        columns: metrics to show; None is all that the paper or one of the runs has.
    """
    paper = paper_rows(experiment.name)
    if columns is None:
        measured = {m for run in runs for m, value in run.metrics.items() if value is not None}
        columns = [m for m in experiment.columns if m in measured or _is_in_paper(m, paper)]
    shown = {m: h for m, h in experiment.columns.items() if m in columns}
    headings = ["", "seeds"]
    for metric, heading in shown.items():
        headings += [heading] + (["paper"] if _is_in_paper(metric, paper) else [])
    rows = []
    for variant, mine in by_variant(runs).items():
        if not fnmatch(variant, variants):
            continue
        row = [variant + _reached(experiment, mine), str(len(mine))]
        for metric in shown:
            row.append(summary(mine, metric))
            if _is_in_paper(metric, paper):
                row.append(_number(_papers(experiment, variant).get(metric)))
        rows.append(row)
    return markdown_table(headings, rows, align_right=False).rstrip()


def by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by the name of their variant, in order of appearance."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.variant, []).append(run)
    return found


def differences(experiment: Experiment, runs: Sequence[Run]) -> list[str]:
    """A sentence for each row of several seeds that is two errors or more from the paper."""
    found = []
    for variant, mine in by_variant(runs).items():
        for metric, heading in experiment.columns.items():
            printed = _papers(experiment, variant).get(metric)
            mean, error = mean_and_error(_numbers(mine, metric) or [math.nan])
            if printed is None or not error or abs(mean - printed) < 2 * error:
                continue
            side = "above" if mean > printed else "below"
            found.append(
                f"{variant}, {heading}: {_number(mean, error)} over {len(mine)} seeds, "
                f"{abs(mean - printed) / error:.1f} errors {side} the paper's {_number(printed)}."
            )
    return found


def summary(runs: Sequence[Run], metric: str) -> str:
    """A metric over runs of one variant, with its standard error.

    For several seeds it is the standard error over seeds; for one run that over test points, which
    the run recorded as ``<metric>_se``, in brackets.
    """
    numbers = _numbers(runs, metric)
    if not numbers:
        words = {str(run.metrics[metric]) for run in runs if run.metrics.get(metric) is not None}
        return ", ".join(sorted(words)) or "-"
    mean, error = mean_and_error(numbers)
    error = error or None  # a number that is the same for all seeds has none
    missing = f" ({len(runs) - len(numbers)} missing)" if len(numbers) < len(runs) else ""
    if len(runs) == 1:
        over_points = runs[0].metrics.get(f"{metric}_se")
        return _number(mean, over_points, "[± {}]") + missing
    return _number(mean, error) + missing


def _numbers(runs: Sequence[Run], metric: str) -> list[float]:
    """The finite values of a metric."""
    values = [run.metrics.get(metric) for run in runs]
    return [float(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v)]


def mean_and_error(numbers: Sequence[float]) -> tuple[float, float | None]:
    """The mean of independent numbers and its standard error; None for a single one."""
    n = len(numbers)
    if n == 1:
        return numbers[0], None
    if min(numbers) == max(numbers):  # without the rounding of the sum below
        return numbers[0], 0.0
    mean = sum(numbers) / n
    return mean, math.sqrt(sum((v - mean) ** 2 for v in numbers) / (n - 1) / n)


def paper_rows(name: str) -> dict[str, dict[str, float]]:
    """The paper's numbers for an experiment, by row and metric; empty if it has none."""
    found = tomllib.loads(PAPER.read_text(encoding="utf-8")).get(name, {})
    return dict(found.get("rows", {}))


def commands(runs: Sequence[Run]) -> list[str]:
    """The commands of all runs; those that differ in the seed alone are one."""
    seeds: dict[str, list[int]] = {}
    for run in runs:
        seeds.setdefault(_SEEDS.sub("--seeds {}", run.command), []).append(run.seed)
    return [command.replace("{}", write_seeds(found)) for command, found in seeds.items()]


def _is_in_paper(metric: str, paper: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(metric in row for row in paper.values())


def _papers(experiment: Experiment, variant: str) -> dict[str, float]:
    """The paper's numbers for a variant; recipes are left out of its name."""
    if any(fnmatch(variant, pattern) for pattern in experiment.without_paper):
        return {}
    paper = paper_rows(experiment.name)
    return paper.get(variant) or paper.get(variant.split("/")[-1], {})


def _reached(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Where runs ended that ended early, such as ``", 40000 of 100000 iterations"``."""
    if experiment.reached is None:
        return ""
    ends = dict.fromkeys(end for end in map(experiment.reached, runs) if end)
    return "".join(f", {end}" for end in ends)


def _legend(runs: Sequence[Run]) -> str:
    seeds = {len(mine) for mine in by_variant(runs).values()}
    meanings = []
    if max(seeds) > 1:
        meanings.append("± the standard error over seeds")
    if min(seeds) == 1:
        meanings.append("[±] the standard error over test points, of one seed")
    devices = ", ".join(sorted({run.device for run in runs}))
    packages = sorted({f"torch {run.versions.get('torch')}" for run in runs})
    commits = sorted({(run.commit or "unknown")[:12] for run in runs})
    return (
        f"Means, {', '.join(meanings)}. Seeds {write_seeds([run.seed for run in runs])}; "
        f"{devices}; {', '.join(packages)}; commit {', '.join(commits)}."
    )


def _number(value: float | None, error: float | None = None, form: str = "± {}") -> str:
    """A number with as many digits as its error justifies."""
    if value is None:
        return "-"
    scale = error if error else abs(value) / 100
    digits = 0 if scale == 0 else max(0, 1 - math.floor(math.log10(scale)))
    style, error_style = f".{min(digits, 8)}f", f".{min(digits, 8)}f"
    if abs(value) >= 1e6:
        style, error_style = ".2e", ".0e"
    elif error is None and value == round(value):
        style = ".0f"
    text = format(value, style)
    return text if error is None else f"{text} {form.format(format(error, error_style))}"
