"""``scorematching fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scorematching._files import writing
from scorematching.cli.app import DataDir
from scorematching.cli.evaluate import describe
from scorematching.cli.options import (
    Device,
    Seed,
    bytes_of,
    check_device,
    check_minutes,
    command_of,
    names_of,
    own_folder,
    say,
)
from scorematching.cli.progress import FitProgress, candidates
from scorematching.cli.tune import tune_fit
from scorematching.estimators.density.threads import threads_for
from scorematching.report import write_report
from scorematching.runs import FitOptions, Fitted, fit_table, new_folder, open_run, write_run
from scorematching.runs.families import fit_family, table_of
from scorematching.runs.folder import PAGE
from scorematching.runs.new_folder import check_new
from scorematching.runs.split import split_table
from scorematching.runs.write import write_family_run
from scorematching.tables import Prepared, prepare, read
from scorematching.tables.prepare import MIN_ROWS
from scorematching.tables.size import in_words, rows_within, size_of

Model = Literal["auto", "mlp", "dkef", "nice", "score"]
Family = Literal[
    "gaussian", "truncated", "square-root", "gamma", "ppi", "von-mises-fisher", "bingham"
]
Objective = Literal["ssm-vr", "ssm", "sm", "mle"]

Data = Annotated[str, typer.Argument(metavar="DATA", help="csv, tsv, parquet, npy, or a data set.")]
Out = Annotated[Path, typer.Option(help="Folder to write.")]
ModelOption = Annotated[Model, typer.Option(help="auto stacks estimates; score has no density.")]
FamilyOption = Annotated[
    Family | None, typer.Option(help="A parametric model, with standard errors.")
]
ObjectiveOption = Annotated[Objective, typer.Option(help="The loss; mle for nice.")]
Columns = Annotated[str | None, typer.Option(help='Names, as in a,"b, c"; default: all numbers.')]
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")
]
Noise = Annotated[Literal["auto", "none"], typer.Option(help="Noise for rounded columns.")]
Minutes = Annotated[float | None, typer.Option(help="Stop the search after so many.")]
MaxRows = Annotated[int | None, typer.Option(min=MIN_ROWS, help="Draw so many at random.")]
MaxMemory = Annotated[str | None, typer.Option(help="Draw rows that fit into 2GB, say.")]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        help="Fit with each of several values, as model=mlp,dkef. Exit status 3: some failed."
    ),
]
Executor = Annotated[
    Literal["local", "ray"], typer.Option(help="Of --tune: one after the other, or a Ray cluster.")
]
Gpus = Annotated[float, typer.Option(min=0, help="GPUs of each fit with --executor ray.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")]


def fit(
    context: typer.Context,
    data: Data,
    out: Out,
    model: ModelOption = "auto",
    objective: ObjectiveOption = "ssm-vr",
    family: FamilyOption = None,
    columns: Columns = None,
    drop_missing: DropMissing = False,
    dequantise: Noise = "auto",
    seed: Seed = 0,
    device: Device = "cpu",
    max_minutes: Minutes = None,
    max_rows: MaxRows = None,
    max_memory: MaxMemory = None,
    overwrite: Overwrite = False,
    data_dir: DataDir = None,
    tune: Tune = None,
    executor: Executor = "local",
    gpus: Gpus = 0.0,
) -> None:
    """Fit a density to a table; write a model, numbers and a report to a folder.

    A fifth of the rows is held out, to compare the model with a Gaussian, a kernel estimate and a
    mixture.
    """
    if tune:
        tune_fit(context, out, tune, executor, gpus)
        return
    _check_executor(executor, gpus)
    check_minutes(max_minutes)
    check_device(device)
    _check_family(family, model, objective)
    out = own_folder(context, out)
    check_new(out, overwrite)
    rows = _rows(data, max_rows, max_memory)
    chosen = names_of(columns)
    choices = {
        "path": str(file.resolve()) if (file := Path(data).expanduser()).is_file() else data,
        "columns": chosen,
        "drop_missing": drop_missing,
        "dequantise": "none" if family else dequantise,
        "max_rows": rows,
        "sample_seed": seed,
    }
    loaded = read(data, data_dir, rows, seed)
    table = prepare(loaded, chosen, drop_missing, str(choices["dequantise"]))
    if family is not None:
        _fit_family(table, family, choices, command_of(context), out, overwrite)
        return
    table, _ = split_table(table, seed)
    options = FitOptions(model, objective, seed, device, max_minutes)
    say(table.summary, "")
    with new_folder(out, overwrite) as folder, threads_for(table.frame.size):
        fitted, lines = _fit(table, options)
        with writing(out, "free space, or choose another place for --out, and fit again"):
            write_run(folder, table, fitted, options, choices, command_of(context), lines)
        trouble = _report(folder, table)
    say(*describe(fitted.held_out, warnings=fitted.warnings), "", f"wrote {out}")
    _finish(out, trouble, "first the figure of gains over the baselines")


def _check_executor(executor: str, gpus: float) -> None:
    """Refuse options of a sweep without one."""
    if executor != "local" or gpus:
        raise ValueError(
            f"--executor and --gpus must be with --tune, got --executor {executor} and --gpus "
            f"{gpus:g}; --device cuda fits on a GPU of this machine"
        )


def _check_family(family: str | None, model: str, objective: str) -> None:
    """Refuse options of other models beside a family."""
    if family is not None and (model, objective) != ("auto", "ssm-vr"):
        raise ValueError(
            f"--family must be without --model and --objective, got --family {family}, --model "
            f"{model} and --objective {objective}; families are fitted by exact score matching"
        )


def _rows(data: str, max_rows: int | None, max_memory: str | None) -> int | None:
    """How many rows to draw from a file; None for all."""
    limit, path = bytes_of(max_memory, "--max-memory"), Path(data).expanduser()
    fits = rows_within(path, limit) if limit is not None and path.is_file() else None
    if fits is not None and fits < MIN_ROWS:
        raise ValueError(
            f"--max-memory must have room for {MIN_ROWS} rows of {data}, got {max_memory}, enough "
            f"for {fits}; the whole table takes {in_words(size_of(path).need)}"
        )
    return min((rows for rows in (max_rows, fits) if rows is not None), default=None)


def _fit_family(
    table: Prepared,
    family: str,
    choices: dict[str, Any],
    command: list[str],
    out: Path,
    overwrite: bool,
) -> None:
    """Fit a family to all rows, and print its table."""
    table = table_of(table, family)
    say(table.summary, "")
    with new_folder(out, overwrite) as folder:
        fitted = fit_family(table, family)
        write_family_run(folder, table, fitted, {**choices, "family": family}, command)
        trouble = _report(folder, table)
    say(fitted.summary, "", f"wrote {out}")
    _finish(out, trouble, "the table of estimates")


def _fit(table: Prepared, options: FitOptions) -> tuple[Fitted, Any]:
    total = candidates(options.model, len(table.frame))
    with FitProgress(total) as progress:
        return fit_table(table, options, progress), progress.lines


def _report(folder: Path, table: Prepared) -> Exception | None:
    """Write the report; an error does not cost the fit, which may have taken hours."""
    try:
        write_report(open_run(folder, family=True), table)
    except Exception as error:
        return error
    return None


def _finish(out: Path, trouble: Exception | None, look_at: str) -> None:
    """Say where the report is, or why there is none."""
    if trouble is None:
        say(f"open {out / PAGE} in a browser: {look_at}")
    elif isinstance(trouble, ImportError):
        say(f"no report: {trouble}")
    else:
        raise RuntimeError(
            f"{out} was written without a report: {type(trouble).__name__}: {trouble}; "
            f"`scorematching report {out}` tries again"
        ) from trouble
