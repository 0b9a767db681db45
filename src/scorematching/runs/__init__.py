"""Runs: a table, a model fitted to most of its rows, and what the other rows say about it."""

from scorematching.runs.fitting import FitOptions, Fitted, fit_table

from scorematching.runs.held_out import HeldOut, MethodScore, hold_out_scores

__all__ = [
    "FitOptions",
    "Fitted",
    "HeldOut",
    "MethodScore",
    "Run",
    "fit_table",
    "hold_out_scores",
    "open_run",
    "write_run",
]
