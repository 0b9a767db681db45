"""Progress of a run: a bar, lines, and a file of JSON lines."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor

import scorematching as sm
from scorematching.training import Record, TrainConfig, progress, read_log, train
from tests.training.problems import density, points, run_everything, seeded

RECORD = Record(step=5, loss=-1.25, lr=1e-3, seconds=0.5, validation=-1.0)


def shown(terminal: bool, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120)
    with progress.display(True, total=10, console=console, **options) as display:
        display.advance(5)
        display.show(RECORD, rate=12800.0)
    return out.getvalue()


def test_bar_on_a_terminal() -> None:
    text = shown(terminal=True)
    assert "5/10" in text and "loss -1.25  validation -1  12,800 points/s" in text
    assert "\x1b[" in text and "-:--:--" in text  # colours, and the time left


def test_lines_elsewhere() -> None:
    text = shown(terminal=False)
    assert text.startswith("step 5/10  loss -1.25  validation -1  12,800 points/s")
    assert "s left" in text and text.count("\n") == 1 and "\x1b[" not in text


def test_lines_are_few_and_include_the_last() -> None:
    out = io.StringIO()
    display = progress.Lines(total=10, done=0, console=Console(file=out, width=120))
    for step in range(1, 11):
        display.show(Record(step, 0.0, 1e-3, 0.1), rate=1.0)
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/10", "10/10"]


def test_train_shows_progress_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(steps=4, batch_size=8, log_every=2)
    train(density(), sm.ScoreMatching(), points(), config)
    assert capsys.readouterr() == ("", "")
    train(density(), sm.ScoreMatching(), points(), config, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "step 2/4  loss" in err and "step 4/4  loss" in err


def test_log_is_one_json_object_per_line(tmp_path: Path) -> None:
    result = run_everything(tmp_path)[1]

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    events = [json.loads(line, parse_constant=refuse) for line in lines]
    assert events == read_log(tmp_path / "log.jsonl")
    assert events[0]["event"] == "start" and events[0]["config"]["lr"] == 0.02
    assert events[-1]["event"] == "end" and events[-1]["step"] == 37
    records = [e for e in events if e["event"] == "record"]
    assert [Record(**{k: v for k, v in r.items() if k != "event"}) for r in records] == (
        result.history
    )
    saved = [e["step"] for e in events if e["event"] == "checkpoint"]
    assert saved == [5, 10, 15, 20, 25, 30, 35, 37]


def test_log_holds_no_nan_and_says_what_went_wrong(tmp_path: Path) -> None:
    factors = [1.0, 1.0, math.nan]

    def objective(model: Any, x: Tensor, generator: Any) -> Tensor:
        return sm.ScoreMatching()(model, x) * factors.pop(0)

    config = TrainConfig(steps=9, batch_size=8, validate_every=2)
    with pytest.raises(sm.DivergedError):
        train(
            density(),
            objective,
            points(),
            config,
            validation=lambda model: math.nan,
            generator=seeded(0),
            folder=tmp_path,
        )
    events = read_log(tmp_path / "log.jsonl")
    assert [e["event"] for e in events] == ["start", "record", "diverged"]
    assert events[1]["validation"] is None and events[2]["step"] == 3


def test_log_forgets_what_will_be_said_again(tmp_path: Path) -> None:
    """Later steps and a line that was cut short."""
    path = tmp_path / "log.jsonl"
    log = progress.Log(path)
    for step in (1, 2, 3):
        log.write("record", step)
    with path.open("a") as file:
        file.write('{"event": "rec')
    assert len(read_log(path)) == 3
    progress.Log(path, step=2).write("resume", 2)
    assert [(e["event"], e["step"]) for e in read_log(path)] == [
        ("record", 1),
        ("record", 2),
        ("resume", 2),
    ]
