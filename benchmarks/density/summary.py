"""Means over seeds, and how DensityEstimator compares with the best of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

OURS = ("ours", "ours, no flows")
RIVALS = {"ours": ("KDE", "mixture", "NSF", "MAF"), "ours, no flows": ("KDE", "mixture")}

Row = dict[str, Any]


def summarise(cells: Sequence[Row]) -> list[Row]:
    """One row for each table and kind of estimator: the margin over the best rival.

    The best rival is that of the largest mean log-likelihood. The margin is the mean over seeds of
    paired differences. Its error is the larger of two: that over test rows, and that over seeds.
    """
    found = []
    for table in dict.fromkeys(cell["table"] for cell in cells):
        mine = [cell for cell in cells if cell["table"] == table]
        for method in OURS:
            rivals = [r for r in RIVALS[method] if all(_has(cell, r) for cell in mine)]
            if rivals and all(_has(cell, method) for cell in mine):
                found.append({"table": table, "method": method} | _margin(mine, method, rivals))
    return found


def _has(cell: Row, method: str) -> bool:
    return "log_density" in cell["methods"].get(method, {})


def _mean(cells: Sequence[Row], method: str, key: str) -> float:
    return float(np.mean([cell["methods"][method][key] for cell in cells]))


def _margin(cells: Sequence[Row], method: str, rivals: Sequence[str]) -> Row:
    best = max(rivals, key=lambda rival: _mean(cells, rival, "log_density"))
    gaps = [_gaps(cell, method, best) for cell in cells]
    means = [float(gap.mean()) for gap in gaps]
    over_points = sum(gap.var(ddof=1) / len(gap) for gap in gaps) ** 0.5 / len(gaps)
    over_seeds = np.std(means, ddof=1) / len(means) ** 0.5 if len(means) > 1 else 0.0
    error, margin = max(float(over_points), float(over_seeds)), float(np.mean(means))
    auc = max(0.5, min(_mean(cells, rival, "auc") for rival in rivals))
    return {
        "best": best,
        "margin": margin,
        "error": error,
        "verdict": "better" if margin > error else "worse" if margin < -error else "equal",
        "auc": _mean(cells, method, "auc"),
        "best_auc": auc,
        "seconds": _mean(cells, method, "seconds"),
    }


def _gaps(cell: Row, method: str, rival: str) -> Any:
    """Differences of log-density at the test rows of a cell."""
    mine, theirs = (np.array(cell["methods"][m]["at_points"]) for m in (method, rival))
    return mine - theirs
