"""The command line: ``python -m reproduction COMMAND --help`` explains each command."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.outputs import check_writable
from reproduction import EXPERIMENTS, page, queue, report, run, workers
from reproduction.experiment import Experiment, Run
from reproduction.seeds import read_seeds
from scorematching._files import write_atomically
from scorematching.cli import DataDir, make_app, run_app
from scorematching.cluster import Resources

DOCS = Path(__file__).parents[1] / "docs" / "reproduction"

app = make_app("python -m reproduction", "The experiments of Song, Garg, Shi and Ermon (2019).")

Seeds = Annotated[str, typer.Option(help="Such as 0-4 or 0,3.")]
Only = Annotated[
    list[str] | None, typer.Option(help="Variants to run, such as 'redwine/*'; repeatable.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, name=value; repeatable.")
]
Epochs = Annotated[int | None, typer.Option(help="Short for --set epochs=N.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Smoke test: seconds, no data files.")]
Out = Annotated[Path, typer.Option(help="Folder of all runs.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Runs done at the same time.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of torch.")]
Executor = Annotated[
    str, typer.Option(help="local, or ray: the cluster at RAY_ADDRESS, or a new one here.")
]
Gpus = Annotated[
    float, typer.Option(min=0, help="GPUs of each run with --executor ray, such as 0.25.")
]
Retries = Annotated[
    int, typer.Option(min=0, help="Repetitions of a run whose process died, with --executor ray.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU if there is one.")]
Folders = Annotated[
    list[Path], typer.Argument(help="Folders of runs, or their results.json; newest last.")
]
Unfinished = Annotated[
    bool, typer.Option("--unfinished", help="With runs that were cut, at the stage they reached.")
]
ReportOut = Annotated[Path | None, typer.Option(help="Where to write; default: beside the first.")]


def _command(experiment: Experiment) -> Callable[..., None]:
    """The command of one experiment; all take the same options."""

    def reproduce(
        seeds: Seeds = "0",
        only: Only = None,
        settings: Settings = None,
        epochs: Epochs = None,
        smoke: Smoke = False,
        out: Out = Path("runs"),
        num_workers: Workers = 1,
        threads: Threads = None,
        device: Device = "auto",
        data_dir: DataDir = None,
        executor: Executor = "local",
        gpus: Gpus = 0.0,
        retries: Retries = 3,
    ) -> None:
        request = run.Request(
            seeds=read_seeds(seeds),
            only=tuple(only or ()),
            overrides=_read_settings(settings or [], epochs),
            smoke=smoke,
            out=out,
            device=device,
            data_dir=data_dir,
            workers=num_workers,
            progress=True,
            executor=executor,
            resources=Resources(gpus=gpus, retries=retries),
        )
        workers.prepare(threads)
        runs = run.reproduce(experiment, request, typer.echo)
        _show_report(experiment, runs, request.folder(experiment))

    return reproduce


for _name, _experiment in EXPERIMENTS.items():
    _example = f"Example: python -m reproduction {_name} --smoke"
    app.command(_name, help=_experiment.summary, epilog=_example)(_command(_experiment))


@app.command("report", epilog="Example: python -m reproduction report runs/table-nice")
def report_of(folders: Folders, out: ReportOut = None, unfinished: Unfinished = False) -> None:
    """Write one report of all runs in some folders: table, pictures, commands."""
    runs = []
    for folder in folders:
        found = run.read_unfinished(EXPERIMENTS, folder) if unfinished else []
        found += run.read_all(folder)
        if not found:
            raise ValueError(
                f"folders must hold finished runs, got none in {folder}; make some with "
                "python -m reproduction table-nice, or name the file results.json of a report"
            )
        runs += found
    if runs[0].experiment not in EXPERIMENTS:
        raise ValueError(
            f"runs must be of one of {', '.join(EXPERIMENTS)}, got {runs[0].experiment!r}; "
            "give folders that python -m reproduction wrote"
        )
    target = out or (folders[0] if folders[0].is_dir() else folders[0].parent)
    experiment = EXPERIMENTS[runs[0].experiment]
    ordered = report.in_order(experiment, runs)  # refuses before anything is written
    for folder in folders:
        report.copy_pictures(folder, target, unfinished)
    _show_report(experiment, ordered, target)


Limit = Annotated[
    float | None,
    typer.Option(min=0, help="Time after which runs are interrupted; default: no limit."),
]
Known = Annotated[
    Path | None,
    typer.Option(help="Leave out the runs of these reports, such as docs/reproduction."),
]


@app.command("queue", epilog="Example: python -m reproduction queue tonight.toml --seconds 3600")
def queue_of(
    file: Annotated[Path, typer.Argument(help="A list of runs; see reproduction/queue.py.")],
    seconds: Limit = None,
    known: Known = None,
    smoke: Smoke = False,
    out: Out = Path("runs"),
    num_workers: Workers = 1,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Do runs of several experiments in order, and write a report of each at the end."""
    end = math.inf if seconds is None else time.time() + seconds
    request = run.Request(smoke=smoke, out=out, device=device, data_dir=data_dir)
    entries = queue.read_queue(file)
    items = queue.plan_queue(entries, EXPERIMENTS, request, end)
    items = items if known is None else queue.without_known(items, known)
    check_writable(out, "--out", folder=True)
    typer.echo(f"{len(items)} runs to do")
    folders = {e.experiment: request.folder(EXPERIMENTS[e.experiment]) for e in entries}
    try:
        complete = queue.run_queue(items, num_workers, end, typer.echo)
    except RuntimeError:  # some runs failed, such as those for a GPU where there is none
        _show_reports(folders)
        raise
    if complete:
        _show_reports(folders)


@app.command("all", epilog="Example: python -m reproduction all --data-dir ~/data")
def all_of(
    seconds: Limit = None,
    known: Known = None,
    smoke: Smoke = False,
    out: Out = Path("runs"),
    num_workers: Workers = 1,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Do all runs of the paper's tables and figures with their seeds, and write the reports."""
    queue_of(queue.ALL, seconds, known, smoke, out, num_workers, device, data_dir)


@app.command("page", epilog="Example: python -m reproduction page")
def page_of(docs: Annotated[Path, typer.Option(help="Folder of all reports.")] = DOCS) -> None:
    """Write the page about all experiments from the committed results of each."""
    check_writable(docs / "README.md", "--docs")
    write_atomically(docs / "README.md", page.make_page(EXPERIMENTS, docs).encode())
    typer.echo(f"written: {docs / 'README.md'}")


def _show_report(experiment: Experiment, runs: Sequence[Run], folder: Path) -> None:
    files = report.write_report(experiment, runs, folder)
    typer.echo(report.table(experiment, runs))
    for line in experiment.notes(runs) if experiment.notes else []:
        typer.echo(f"- {line}")
    typer.echo("written: " + ", ".join(map(str, files)))


def _show_reports(folders: Mapping[str, Path]) -> None:
    for name, folder in folders.items():
        if runs := run.read_all(folder):
            _show_report(EXPERIMENTS[name], runs, folder)


def _read_settings(pairs: list[str], epochs: int | None) -> dict[str, str]:
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
