"""The report of a run: one page of HTML that needs nothing else."""

from scorematching.report.page import write_report

__all__ = ["write_report"]
