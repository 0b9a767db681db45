"""Every command of every program, with generated options, in this process.

Work is replaced by something quick where a command would take long: what is tested is that command
lines are understood or refused, and that nothing is left behind where they are refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import pkgutil
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from hypothesis import strategies as st

import benchmarks
from benchmarks.harness import command as harness
from reproduction import cli as experiments
from reproduction import queue, run, workers
from scorematching.cli import app as main_app
from scorematching.cli import run_app
from tests.reliability.counts import Count
from tests.reliability.generated import run_examples
from tests.reliability.readers import fitted_run, write_runs

STATUSES = {0, 1, 2, 130}


@dataclass(frozen=True)
class Command:
    """A command of a program.

    Attributes:
        program: what a user types before it.
        name: of the command; empty for a program with a single one.
        options: what it takes, by name; those without a value are flags.
        arguments: number of its positional arguments.
        call: runs the program on a command line, and returns its exit status.
    """

    program: str
    name: str
    options: dict[str, bool]
    arguments: int
    call: Callable[[list[str]], int]


def commands() -> list[Command]:
    """All of them."""
    return [
        *_of_app("scorematching", main_app),
        *_of_app("python -m reproduction", experiments.app),
        *_of_benchmarks(),
    ]


def _of_app(program: str, app: typer.Typer) -> Iterator[Command]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        yield _command(program, name, command, lambda words: run_app(app, words))


def _of_benchmarks() -> Iterator[Command]:
    """Programs that hand a function to ``run_command``; it is replaced by one that does nothing."""
    for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        spec = importlib.util.find_spec(found.name)
        source = Path(spec.origin).read_text() if spec and spec.origin else ""
        called = re.search(r"^ *run_command\((\w+), ", source, re.MULTILINE)
        if called is None or found.name.endswith(".command"):
            continue
        function = getattr(importlib.import_module(found.name), called[1])
        app = typer.Typer(name=found.name, add_completion=False, pretty_exceptions_enable=False)
        app.command()(harness.checked(_stub(function)))
        yield _command(
            f"python -m {found.name.removesuffix('.__main__')}",
            "",
            typer.main.get_command(app),
            lambda words, app=app: run_app(app, words),
        )


def _stub(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the same options that only writes its results."""

    def measured(**options: Any) -> None:
        if options.get("output") is not None:
            options["output"].parent.mkdir(parents=True, exist_ok=True)
            options["output"].write_text("{}")

    measured.__annotations__ = inspect.get_annotations(function, eval_str=True)
    signature = inspect.signature(function, eval_str=True)
    measured.__signature__ = signature  # type: ignore[attr-defined]
    return measured


def _command(
    program: str, name: str, command: click.Command, call: Callable[[list[str]], int]
) -> Command:
    options, arguments = {}, 0
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            arguments += 1
        else:
            takes_value = not getattr(parameter, "is_flag", False)
            options.update(dict.fromkeys([*parameter.opts, *parameter.secondary_opts], takes_value))
    return Command(program, name, options, arguments, call)


# Command lines.

KNOWN = """
0 1 2 -1 0.5 1e-3 nan inf 0-2 0,1 3-1 0,0 4294967296 0-999999999 auto cpu cuda tpu redwine/*
paper/MLE lr=1 mlp score gaussian a,b a hmc exact langevin lr= =1 epochs=1
nonsense=1 width=-3 true none -- - * ? [
"""
PLACES = """
{file} {folder} {runs} {run} {run} {run} {folder}/new/deep {file}/below /proc/x {folder}/new.json
{folder}/new.csv {table} {table} {damaged} ~ .. {folder}/é
"""
WORDS = st.one_of(
    st.sampled_from(KNOWN.split()),
    st.sampled_from(PLACES.split()),
    st.sampled_from(["", " "]),
    st.text(max_size=8),
    st.text("-=0123456789abc/.", max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)
"""Values: those that commands know, paths of all kinds, and anything else."""


def lines(command: Command) -> st.SearchStrategy[list[str]]:
    """Command lines of a command: its options with values, positional arguments, other words."""
    named = st.sampled_from(sorted(command.options) or ["--help"]).flatmap(
        lambda option: (
            WORDS.map(lambda value: [option, value])
            if command.options.get(option)
            else st.just([option])
        )
    )
    stray = st.one_of(WORDS, st.sampled_from(["--help", "--nonsense", "-x"])).map(lambda w: [w])
    number = command.arguments
    likely = st.sampled_from(["{run}", "{run}", "{table}", "{runs}", "5"])
    given_ = st.one_of(
        st.lists(WORDS, min_size=min(1, number), max_size=number + 1),
        st.lists(likely, min_size=number, max_size=number),
    )
    parts = st.tuples(given_, st.lists(st.one_of(named, named, named, stray), max_size=5))
    return parts.map(lambda found: [*found[0], *(word for part in found[1] for word in part)])


# Places.


@contextlib.contextmanager
def surroundings(folder: Path) -> Iterator[dict[str, str]]:
    """A working folder with files of several kinds, and quick work instead of long."""
    here = folder / "here"
    (here / "folder").mkdir(parents=True)
    (here / "file").write_text("text")
    shutil.copytree(fitted_run().parent, here, dirs_exist_ok=True)
    (here / "damaged.csv").write_text("a,b\n1,x\n3\n")
    (here / "runs").mkdir()
    write_runs(here / "runs")
    names = {name: str(here / name) for name in ("file", "folder", "runs", "run")}
    names |= {name: str(here / f"{name}.csv") for name in ("table", "damaged")}
    before = os.getcwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_do", _not_done)
        patch.setattr("scorematching.cli.fit.fit_table", _not_done)
        patch.setattr("scorematching.cli.fit.fit_family", _not_done)
        for module in (run, queue):
            patch.setattr(module, "in_processes", _in_this_process)
        patch.setattr(workers, "prepare", lambda threads: None)
        patch.setenv("HOME", str(folder))
        os.chdir(here)
        try:
            yield names
        finally:
            os.chdir(before)


def _in_this_process(
    act: Callable[[Any], Any], tasks: Sequence[Any], count: int
) -> Iterator[tuple[Any, Any]]:
    return ((task, workers.attempt(act, task)) for task in tasks)


def _not_done(*given_: Any, **options: Any) -> Any:
    raise RuntimeError("not done in this test")


def try_command(command: Command, folder: Path, number: int, seed: int) -> Count:
    """Generated command lines for one command."""
    name = f"{command.program} {command.name}".strip()
    count = Count(
        f"command: {name}", "exit with 0, 1 or 2; one line for an error; no rest of files"
    )
    with surroundings(folder) as names:
        here = Path(names["file"]).parent
        before = listing(here)

        def act(words: list[str]) -> None:
            given_ = [word.format(**names) if _is_place(word) else word for word in words]
            full = [command.name, *given_] if command.name else given_
            output, errors = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                status = command.call(full)
            assert status in STATUSES, f"exit status {status}"
            assert "Traceback" not in output.getvalue() + errors.getvalue()
            assert status == 0 or errors.getvalue().strip(), "an error without a message"
            new = listing(here) - before
            assert not [path for path in new if path.endswith((".tmp", ".lock"))], new
            if status:
                files = [path for path in new if (here / path).is_file()]
                assert not files, f"exit {status}, but {files} are there"
            for path in sorted(new, reverse=True):
                shutil.rmtree(here / path) if (here / path).is_dir() else (here / path).unlink()

        run_examples(count, lines(command), act, number, seed)
    shutil.rmtree(folder)
    return count


def _is_place(word: str) -> bool:
    return word.startswith("{") and "}" in word


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
