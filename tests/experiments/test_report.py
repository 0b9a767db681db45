"""Reports show means with their errors, beside the paper's numbers."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from scorematching.experiments import EXPERIMENTS
from scorematching.experiments.report import (
    as_markdown,
    mean_and_error,
    paper_rows,
    summary,
    table,
    write_report,
)
from scorematching.experiments.run import Request, read_all, reproduce
from tests.experiments.toy import TOY


@pytest.fixture
def runs(tmp_path: Path) -> list:
    return reproduce(TOY, Request((0, 1, 2), ("low",), out=tmp_path, device="cpu"))


def test_the_error_is_that_of_the_mean() -> None:
    numbers = [1.0, 4.0, 7.5, -2.0]
    mean, error = mean_and_error(numbers)
    assert mean == statistics.fmean(numbers)
    assert error == pytest.approx(statistics.stdev(numbers) / 2)
    assert mean_and_error([3.0]) == (3.0, None)


def test_a_single_run_shows_its_own_error(runs: list) -> None:
    assert summary(runs[:1], "mean").endswith("± 0.25")


def test_missing_numbers_are_counted(runs: list) -> None:
    lost = [replace(runs[0], metrics={"mean": None}), *runs[1:]]
    assert summary(lost, "mean").endswith("(1 missing)")
    assert summary([replace(runs[0], metrics={"mean": "refused"})], "mean") == "refused"
    assert summary([replace(runs[0], metrics={})], "mean") == "-"


def test_digits_follow_the_error(runs: list) -> None:
    exact = [replace(run, metrics={"mean": 100 + seed}) for seed, run in enumerate(runs)]
    assert summary(exact, "mean") == "101.00 ± 0.58"
    huge = [replace(run, metrics={"mean": 1e9 * (1 + seed)}) for seed, run in enumerate(runs)]
    assert summary(huge, "mean") == "2.00e+09 ± 6e+08"


def test_the_report_is_whole(runs: list, tmp_path: Path) -> None:
    files = write_report(TOY, runs, tmp_path / "report")
    text = files[0].read_text()
    for part in ("# toy", "over seeds; seeds 0, 1, 2", "- 3 runs in all.", "![toy](toy.png)"):
        assert part in text
    assert text.count("scorematching reproduce toy") == 3
    assert read_all(files[1]) == runs


def test_rehearsals_are_marked(runs: list) -> None:
    assert "mean nothing" not in as_markdown(TOY, runs, [])
    assert "mean nothing" in as_markdown(TOY, [replace(runs[0], smoke=True)], [])


def test_the_papers_numbers_stand_beside_ours() -> None:
    nice = EXPERIMENTS["table-nice"]
    rows = paper_rows("table-nice")
    assert rows["SSM-VR"] == {"test_sm": -8054.0, "test_ll": -3355.0}
    assert set(rows) <= {variant.split("/")[-1] for variant in nice.variants}
    assert table(nice, []).splitlines()[0].count("paper") == 2
