"""What a fit leaves in its folder."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scorematching.runs.families import FamilyFit
from scorematching.runs.fitting import FitOptions, Fitted
from scorematching.runs.folder import FORMAT, LOG, MODEL, SPLIT, write_about, write_json
from scorematching.saving import save
from scorematching.saving.card import versions
from scorematching.tables import Prepared
from scorematching.training.progress import Log

_FACTS = (
    "weights_",
    "tilt_size_",
    "n_steps_",
    "validation_loss_",
    "log_z_",
    "log_z_standard_error_",
)


def write_run(
    folder: Path,
    table: Prepared,
    fitted: Fitted,
    options: FitOptions,
    choices: dict[str, Any],
    command: Sequence[str],
    lines: Sequence[tuple[float, str]] = (),
) -> None:
    """Write a fit to a folder that exists.

    Args:
        folder: to write to; see `new_folder`.
        table: that was fitted.
        fitted: the results.
        options: of the fit.
        choices: how the table was read and prepared: path, columns, drop_missing, dequantise.
        command: that was given.
        lines: of progress, with the seconds at which they came.
    """
    words = f"Fitted by `{' '.join(command)}`.\n\n{table.summary}\n\n{fitted.held_out.table()}"
    save(fitted.model, folder / MODEL, notes=words)
    for name, baseline in fitted.baselines.items():
        save(baseline, folder / "baselines" / name)
    rows = table.rows[fitted.held_out_rows].tolist()
    write_json(folder / SPLIT, {"seed": options.seed, "held_out": rows})
    write_about(folder, about(table, fitted, options, choices, command))
    write_log(folder / LOG, fitted.model, lines)


def about(
    table: Prepared,
    fitted: Fitted,
    options: FitOptions,
    choices: dict[str, Any],
    command: Sequence[str],
) -> dict[str, Any]:
    """The content of ``run.json``."""
    model = fitted.model
    facts = {name.strip("_"): getattr(model, name) for name in _FACTS if hasattr(model, name)}
    kind = "density" if hasattr(model, "density_") else "score"
    return {
        **_header(kind, {**choices, **asdict(options)}, command),
        "data": table.summary.as_dict(),
        **fitted.noise,
        "model": {"class": type(model).__name__, **facts},
        "held_out": fitted.held_out.as_dict(),
        "seconds": {name: round(value, 2) for name, value in fitted.seconds.items()},
        "warnings": fitted.warnings,
    }


def write_family_run(
    folder: Path,
    table: Prepared,
    fitted: FamilyFit,
    choices: dict[str, Any],
    command: Sequence[str],
) -> None:
    """Write the fit of a family to a folder that exists; arguments as for `write_run`."""
    values = {**_header("family", choices, command), "data": table.summary.as_dict()}
    write_about(folder, {**values, "estimates": fitted.as_dict()})


def _header(kind: str, options: dict[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """What every ``run.json`` begins with."""
    return {
        "format": FORMAT,
        "kind": kind,
        "command": list(command),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "options": options,
        "versions": versions(),
    }


def write_log(path: Path, model: Any, lines: Sequence[tuple[float, str]]) -> None:
    """Progress lines, then the losses of training."""
    log = Log(path)
    for seconds, line in lines:
        log.write("progress", 0, {"seconds": round(seconds, 3), "line": line})
    for record in history_of(model):
        log.write("record", record.step, asdict(record))


def history_of(model: Any) -> list[Any]:
    """Losses of the training of a fitted estimator."""
    result = getattr(model, "result_", None)
    return list(getattr(model, "history_", []) if result is None else result.history)
