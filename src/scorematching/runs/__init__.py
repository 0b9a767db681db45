"""Runs: a table, a model fitted to most of its rows, and what the other rows say about it."""

from scorematching.runs.fitting import FitOptions, Fitted, fit_table
from scorematching.runs.folder import Run, RunError, open_run
from scorematching.runs.held_out import HeldOut, MethodScore, hold_out_scores
from scorematching.runs.new_folder import new_folder
from scorematching.runs.write import write_run

__all__ = [
    "FitOptions",
    "Fitted",
    "HeldOut",
    "MethodScore",
    "Run",
    "RunError",
    "fit_table",
    "hold_out_scores",
    "new_folder",
    "open_run",
    "write_run",
]
