"""The command line: ``scorematching COMMAND --help`` explains each command with an example."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scorematching import datasets
from scorematching.bench import run as bench_run
from scorematching.experiments import EXPERIMENTS, Experiment, Request, Run, process, report
from scorematching.experiments import run as experiment_run

app = typer.Typer(
    name="scorematching",
    help="Learn a density, or its score, from samples alone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataDir = Annotated[
    str | None, typer.Option(help="Folder with data files; default: SCOREMATCHING_DATA.")
]

Device = Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU where there is one.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Learn a density, or its score, from samples alone."""


@app.command(
    "bench",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench(context: typer.Context) -> None:
    """Time score-matching losses against each other: see ``scorematching bench --help``."""
    bench_run.main(context.args, prog="scorematching bench")


@app.command(
    "reproduce",
    epilog="Example: scorematching reproduce figure-dkef --only 'redwine/*' --seeds 0-4",
)
def reproduce(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}.")],
    seeds: Annotated[str, typer.Option(help="Such as 0-4 or 0,3.")] = "0",
    only: Annotated[
        list[str] | None, typer.Option(help="Variants to run, such as 'redwine/*'; repeatable.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, name=value; repeatable.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Short for --set epochs=N.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Rehearse in seconds, no data.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    workers: Annotated[int, typer.Option(help="Runs side by side.", min=1)] = 1,
    threads: Annotated[int | None, typer.Option(help="CPU threads of torch.")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Reproduce a table or figure of the paper; give the command again to go on after a break."""
    experiment = _experiment(name)
    request = Request(
        seeds=_seeds(seeds),
        only=tuple(only or ()),
        overrides=_settings(settings or [], epochs),
        smoke=smoke,
        out=out,
        device=device,
        data_dir=data_dir,
        workers=workers,
        progress=True,
    )
    process.prepare(threads)
    runs = experiment_run.reproduce(experiment, request, typer.echo)
    folder = out / (f"{name}-smoke" if smoke else name)
    _show_report(name, runs, folder)


@app.command("report", epilog="Example: scorematching report runs/table-nice")
def report_of(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or their results.json; newest last.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: beside the first.")
    ] = None,
) -> None:
    """Write one report of all runs in some folders: table, pictures, commands."""
    runs = [run for folder in folders for run in experiment_run.read_all(folder)]
    if not runs:
        raise ValueError(
            f"folders must hold finished runs, got none in {', '.join(map(str, folders))}; "
            "make some with scorematching reproduce"
        )
    target = out or (folders[0] if folders[0].is_dir() else folders[0].parent)
    for folder in folders:
        report.copy_pictures(folder, target)
    experiment = _experiment(runs[0].experiment)
    _show_report(experiment.name, report.in_order(experiment, runs), target)


@app.command("datasets", epilog="Example: scorematching datasets --data-dir ~/data")
def list_datasets(data_dir: DataDir = None) -> None:
    """List the data sets, and which of them are at hand."""
    for name in datasets.names():
        state = "ready" if datasets.is_at_hand(name, data_dir) else "not found"
        typer.echo(f"{name:<12} {state}")


def _experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(
            f"name must be one of {', '.join(EXPERIMENTS)}, got {name!r}; "
            "see scorematching reproduce --help"
        )
    return EXPERIMENTS[name]


def _show_report(name: str, runs: Sequence[Run], folder: Path) -> None:
    experiment = _experiment(name)
    files = report.write_report(experiment, runs, folder)
    typer.echo(report.table(experiment, runs))
    for line in experiment.notes(runs) if experiment.notes else []:
        typer.echo(f"- {line}")
    typer.echo("written: " + ", ".join(map(str, files)))


def _seeds(text: str) -> list[int]:
    """``0-2,7`` as 0, 1, 2, 7."""
    try:
        ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
        return [seed for ends in ranges for seed in range(ends[0], ends[-1] + 1)]
    except ValueError:
        raise ValueError(f"seeds must look like 0-4 or 0,3, got {text!r}; try --seeds 0") from None


def _settings(pairs: list[str], epochs: int | None) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set must be followed by name=value, got {pair!r}; try --set lr=1")
        found[name.strip()] = value.strip()
    return found | ({} if epochs is None else {"epochs": str(epochs)})


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; an error is one line on standard error and a non-zero exit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app(args=arguments, standalone_mode=False)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if "--debug" in arguments:
            raise
        message = error.format_message() if hasattr(error, "format_message") else error
        print(f"scorematching: {message}", file=sys.stderr)
        return 2 if hasattr(error, "format_message") else 1
    return 0
