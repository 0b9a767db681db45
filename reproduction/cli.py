"""The command line: ``python -m reproduction COMMAND --help`` explains each command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from reproduction import EXPERIMENTS, report, workers
from reproduction import run as experiment_run
from reproduction.experiment import Experiment, Run
from reproduction.run import Request
from scorematching.cli import DataDir, run_app

app = typer.Typer(
    name="python -m reproduction",
    help="The experiments of Song, Garg, Shi and Ermon (2019).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Device = Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU where there is one.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """The experiments of Song, Garg, Shi and Ermon (2019)."""


def _command(experiment: Experiment) -> Callable[..., None]:
    """The command of one experiment; all take the same options."""

    def reproduce(
        seeds: Annotated[str, typer.Option(help="Such as 0-4 or 0,3.")] = "0",
        only: Annotated[
            list[str] | None, typer.Option(help="Variants to run, such as 'redwine/*'; repeatable.")
        ] = None,
        settings: Annotated[
            list[str] | None, typer.Option("--set", help="A setting, name=value; repeatable.")
        ] = None,
        epochs: Annotated[int | None, typer.Option(help="Short for --set epochs=N.")] = None,
        smoke: Annotated[
            bool, typer.Option("--smoke", help="Rehearse in seconds, no data.")
        ] = False,
        out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
        workers_: Annotated[int, typer.Option("--workers", help="Runs side by side.", min=1)] = 1,
        threads: Annotated[int | None, typer.Option(help="CPU threads of torch.")] = None,
        device: Device = "auto",
        data_dir: DataDir = None,
    ) -> None:
        request = Request(
            seeds=_seeds(seeds),
            only=tuple(only or ()),
            overrides=_settings(settings or [], epochs),
            smoke=smoke,
            out=out,
            device=device,
            data_dir=data_dir,
            workers=workers_,
            progress=True,
        )
        workers.prepare(threads)
        runs = experiment_run.reproduce(experiment, request, typer.echo)
        folder = out / (f"{experiment.name}-smoke" if smoke else experiment.name)
        _show_report(experiment, runs, folder)

    return reproduce


for _name, _experiment in EXPERIMENTS.items():
    app.command(
        _name,
        help=_experiment.summary,
        epilog=f"Example: python -m reproduction {_name} --smoke",
    )(_command(_experiment))


@app.command("report", epilog="Example: python -m reproduction report runs/table-nice")
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
            "make some with python -m reproduction table-nice"
        )
    target = out or (folders[0] if folders[0].is_dir() else folders[0].parent)
    for folder in folders:
        report.copy_pictures(folder, target)
    experiment = EXPERIMENTS[runs[0].experiment]
    _show_report(experiment, report.in_order(experiment, runs), target)


def _show_report(experiment: Experiment, runs: Sequence[Run], folder: Path) -> None:
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
    return run_app(app, arguments)
