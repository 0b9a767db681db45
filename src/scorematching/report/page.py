"""The page of a report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from scorematching._extras import import_extra
from scorematching._files import utf8, write_atomically, writing
from scorematching.report.contents import Contents
from scorematching.report.figures import draw_figures
from scorematching.runs.folder import PAGE, Run
from scorematching.runs.held_out import short
from scorematching.tables import Prepared

_MANY = 14
_MODELS = {
    "auto": "stacked estimates",
    "mlp": "network tilt",
    "dkef": "deep kernel tilt",
    "nice": "NICE flow",
    "score": "score network",
}


def write_report(run: Run, table: Prepared) -> Path:
    """Write the report of a run to its folder.

    Args:
        run: from `open_run`.
        table: that it was fitted to; `Run.prepared` makes it.

    Returns:
        The path of the page.

    Raises:
        ImportError: if jinja2 or matplotlib is not installed.

    Example:
        >>> write_report(run, run.prepared(run.read_table()))  # doctest: +SKIP
        PosixPath('runs/wine/report.html')
    """
    page = render_family(run) if run.kind == "family" else render(Contents(run, table))
    path = run.folder / PAGE
    with writing(path, "free space, and write the report again"):
        write_atomically(path, utf8(page))
    return path


def template(name: str) -> Any:
    """A template of this folder."""
    jinja2 = import_extra("jinja2", "report")
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    undefined = jinja2.StrictUndefined
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=undefined)
    environment.filters["short"] = lambda estimate: plus_minus(short(estimate))
    environment.filters["plus_minus"] = plus_minus
    return environment.get_template(name)


def render_family(run: Run) -> str:
    """The page of a parametric fit."""
    estimates = run.about["estimates"]
    page: str = template("family.html.jinja").render(
        about=run.about,
        summary=run.summary,
        estimates=estimates,
        markup=import_extra("markupsafe", "report").Markup(estimates["html"]),
        command=shlex.join(run.about["command"]),
        many=_MANY,
    )
    return page


def render(contents: Contents) -> str:
    """The page as text."""
    headings, rows = contents.unusual()
    page: str = template("report.html.jinja").render(
        run=contents.run,
        about=contents.run.about,
        summary=contents.run.summary,
        held_out=contents.held_out,
        facts=_facts(contents),
        parts=_parts(contents.run.about["model"].get("weights", {})),
        figures={figure.name: figure for figure in draw_figures(contents)},
        unusual={"headings": headings, "rows": rows},
        goodness=contents.goodness(),
        drawn=contents.drawn,
        directions=contents.directions,
        command=contents.command(),
        many=_MANY,
    )
    return page


def plus_minus(text: str) -> str:
    """A text with the sign for plus and minus."""
    return text.replace("+-", "\u00b1")


def _facts(contents: Contents) -> list[tuple[str, str]]:
    """Pairs of a word and a number, for the top of the page."""
    run, summary = contents.run, contents.run.summary
    model = _MODELS[run.about["options"]["model"]]
    return [
        ("rows", f"{summary.rows_used:,}"),
        ("modelled columns", str(len(summary.modelled))),
        ("held-out rows", str(run.held_out.rows)),
        ("model", model),
        ("time to fit", f"{run.about['seconds']['fit']:.0f} s"),
        ("seed", str(contents.seed)),
    ]


def _parts(weights: dict[str, float]) -> list[tuple[str, str]]:
    """Parts of a stack by weight."""
    ordered = sorted(weights.items(), key=lambda item: -item[1])
    return [(name, f"{100 * weight:.0f}%") for name, weight in ordered]
