"""``scorematching report``."""

from __future__ import annotations

from scorematching.cli.app import DataDir
from scorematching.cli.options import RunFolder, Table, say
from scorematching.report import write_report
from scorematching.runs import open_run


def report(run: RunFolder, data: Table = None, data_dir: DataDir = None) -> None:
    """Write report.html of a run again, which needs the table that it was fitted to."""
    found = open_run(run, family=True)
    table = found.prepared(found.read_table(data, data_dir))
    say(f"wrote {write_report(found, table)}")
