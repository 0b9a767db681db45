"""A list of runs is done in order, and cut runs go on where they were."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from reproduction import EXPERIMENTS, cli, queue
from reproduction.queue import (
    ALL,
    Entry,
    pack,
    plan_queue,
    read_queue,
    run_queue,
    without_known,
)
from reproduction.run import Request, do, read_all
from scorematching.training import read_log
from tests.reproduction.toy import TOY, Config

REPOSITORY = Path(__file__).parents[2]

LIST = """
[[runs]]
experiment = "toy"
only = ["high/*"]
seeds = "1"
set = {num = 2, limit = "none"}

[[runs]]
experiment = "toy"
only = ["low", "high/*"]
seeds = "0-1"
seconds = 5
set = {num = 2}
"""

BROKEN = """
[[runs]]
experiment = "toy"
only = ["broken"]
"""


def planned(path: Path, seconds: float, text: str = LIST) -> list:
    file = path / "list.toml"
    file.write_text(text)
    request = Request(out=path, device="cpu")
    return plan_queue(read_queue(file), {"toy": TOY}, request, time.time() + seconds)


def test_the_order_is_that_of_entries_then_seeds(tmp_path: Path) -> None:
    found = planned(tmp_path, 100)
    names = [item.task.name for item in found]
    assert names == ["high/more seed 1", "low seed 0", "high/more seed 0", "low seed 1"]
    assert found[0].task.config.num == 2 and found[1].task.config.num == 2
    assert found[0].latest - found[1].latest == pytest.approx(5, abs=0.1)


def test_runs_are_done_once_and_in_time(tmp_path: Path) -> None:
    """A run that fails stops no other. The last entry asks for more time than is left."""
    text = BROKEN + LIST.replace("seconds = 5", "seconds = 1000")
    lines: list[str] = []
    with pytest.raises(RuntimeError, match=r"1 of 5 runs failed.*toy broken seed 0: KeyError"):
        run_queue(planned(tmp_path, 100, text), 1, time.time() + 100, lines.append)
    assert [(run.variant, run.seed) for run in read_all(tmp_path)] == [("high/more", 1)]
    assert sum("not begun" in line for line in lines) == 3
    assert len(planned(tmp_path, 100, text)) == 4  # all but the one that is done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_an_interruption_is_no_end_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """After Ctrl-C the command said that the time was up, and ended as if all was well."""

    def signalled(*_: Any) -> Iterator[Any]:
        signal.raise_signal(number)
        yield from ()

    monkeypatch.setattr(queue, "in_processes", signalled)
    lines: list[str] = []
    expected = pytest.raises(KeyboardInterrupt) if number == signal.SIGINT else nullcontext()
    # Tests that run in the background of a shell ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with expected:
            assert not run_queue(planned(tmp_path, 100), 1, time.time() + 100, lines.append)
    finally:
        signal.signal(signal.SIGINT, before)
    said = "interrupted: 4 runs" if number == signal.SIGINT else "time is up; 4 runs"
    assert [line[: len(said)] for line in lines] == [said]


def test_one_list_has_every_run_of_the_reports(tmp_path: Path) -> None:
    items = plan_queue(read_queue(ALL), EXPERIMENTS, Request(out=tmp_path, device="cpu"), math.inf)
    planned = {(i.task.experiment.name, i.task.job.variant, i.task.job.seed) for i in items}
    reports = sorted((REPOSITORY / "docs" / "reproduction").glob("*/results.json"))
    found = {(r.experiment, r.variant, r.seed) for path in reports for r in read_all(path)}
    assert reports and not found - planned


@dataclass(frozen=True)
class Trained(Config):
    iterations: int = 3


@pytest.mark.parametrize(
    ("metrics", "known"),
    [
        ({"iterations": 3}, True),
        ({"iterations": 2}, False),  # cut
        ({"iterations": 2, "diverged_at_step": None}, False),
        ({"iterations": 2, "diverged_at_step": 17}, True),
        ({"iterations": 2, "diverged_at": 17}, True),  # of autoencoders
        ({"mean": 0.5}, True),
    ],
)
def test_runs_that_reports_have_are_left_out(
    metrics: dict[str, Any], known: bool, tmp_path: Path
) -> None:
    """Known is what ran as long as its own settings say, which may be less than in the paper."""
    first = planned(tmp_path, 100)[0].task
    report = tmp_path / "reports" / "toy" / "results.json"
    report.parent.mkdir(parents=True)
    report.write_text(json.dumps({"runs": [asdict(replace(do(first), metrics=metrics))]}))
    experiment = replace(TOY, config=Trained, reached=lambda run: "3 of 100 iterations")
    elsewhere = Request(out=tmp_path / "elsewhere", device="cpu")
    items = plan_queue(read_queue(tmp_path / "list.toml"), {"toy": experiment}, elsewhere, math.inf)
    left = [item.task.name for item in without_known(items, report.parents[1])]
    assert (first.name in left) != known and len(left) == len(items) - known
    with pytest.raises(ValueError, match="--known must be a folder of reports"):
        without_known(items, tmp_path / "elsewhere")


def test_reports_are_written_also_if_runs_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second entry needs a GPU."""
    file = tmp_path / "list.toml"
    file.write_text(
        '[[runs]]\nexperiment = "theory-nce"\nonly = ["shift 1.0"]\n'
        '[[runs]]\nexperiment = "figure-scaling"\nonly = ["cuda"]\n'
    )
    arguments = ["queue", str(file), "--smoke", "--out", str(tmp_path), "--device", "cpu"]
    status = cli.main(arguments)
    said = capsys.readouterr()
    assert (status == 0) == torch.cuda.is_available()
    assert "theory-nce shift 1.0 seed 0" in said.out and "1 in the list\n" in said.out
    assert (tmp_path / "theory-nce-smoke" / "report.md").exists()


def steps(folder: Path, event: str) -> list[int]:
    """Steps of all events of a kind in the logs below a folder."""
    logs = [read_log(path) for path in folder.rglob("log.jsonl")]
    return [line["step"] for log in logs for line in log if line["event"] == event]


def end_after(folder: Path, step: int) -> None:
    """Let the time be up once a run has gone beyond a step."""
    while max(steps(folder, "record"), default=0) <= step:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGALRM)


@pytest.mark.slow
def test_a_cut_run_goes_on(tmp_path: Path) -> None:
    """Interrupted while it trains, it has a checkpoint; the same list goes on from there."""
    settings = {"epochs": 100_000, "validate_every": 100_000}
    entry = Entry("table-nice", ("stable/SSM-VR",), settings=settings)
    request = Request(out=tmp_path, device="cpu", smoke=True)
    last = 0
    for _ in range(2):
        end = time.time() + 300
        items = plan_queue([entry], EXPERIMENTS, request, end)
        watch = threading.Thread(target=end_after, args=(tmp_path, last), daemon=True)
        watch.start()
        assert not run_queue(items, 1, end, lambda line: None)
        saved = steps(tmp_path, "checkpoint")
        assert saved[-1] > last and time.time() < end
        last = saved[-1]
    assert len(steps(tmp_path, "resume")) == 1 and not read_all(tmp_path)


def test_what_is_packed_goes_on(tmp_path: Path) -> None:
    """Results and pictures of finished runs, checkpoints of others unless they are too large."""
    sizes = {
        "a/seed-0/run.json": 5,
        "a/seed-0/samples.png": 5,
        "a/seed-0/training/checkpoint.pt": 5,
        "a/seed-0/training/log.jsonl": 5,
        "a/sigma/sigma-1.json": 5,
        "b/seed-0/training/log.jsonl": 5,
        "b/seed-0/training/checkpoint.pt": 50,
        "c/seed-1/stages.json": 5,
        "c/seed-1/training/checkpoint.pt": 500,
        "c/seed-1/training/checkpoint.json": 5,
    }
    for name, size in sizes.items():
        path = tmp_path / "runs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    left_out = pack(tmp_path / "runs", tmp_path / "runs.zip", largest=100)
    assert [path.parent.parent.name for path in left_out] == ["seed-1", "seed-1"]
    with ZipFile(tmp_path / "runs.zip") as archive:
        packed = set(archive.namelist())
    without = {"a/seed-0/training/checkpoint.pt"} | {n for n in sizes if "c/seed-1/t" in n}
    assert packed == set(sizes) - without


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold entries"),
        ("runs = 3", "must hold entries"),
        ("[[runs]]\nseeds = '0'", "'experiment'"),
        ("[[runs]]\nexperiment = 'toy'\nsteps = 3", "unknown: steps"),
        ("[[runs]]\nexperiment = 'table-x'", "experiment must be one of toy, got 'table-x'"),
        ("[[runs]]\nexperiment = 'toy'\nseeds = 'x'", "seeds must look like"),
        ("[[runs]]\nexperiment = 'toy'\nonly = ['x']", "--only must match a variant of toy"),
    ],
)
def test_bad_lists_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, 100, text)
