"""Reports show means with their errors, beside the paper's numbers."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from reproduction import EXPERIMENTS
from reproduction.report import (
    as_markdown,
    copy_pictures,
    in_order,
    mean_and_error,
    paper_rows,
    summary,
    table,
    write_report,
)
from reproduction.run import Request, read_all, reproduce
from tests.reproduction.toy import TOY


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
    assert text.count("python -m reproduction toy") == 3
    assert read_all(files[1]) == runs


def test_runs_of_several_folders_become_one_report(runs: list) -> None:
    last = max(TOY.variants, key=list(TOY.variants).index)
    again, later = replace(runs[1], seconds=9.0), replace(runs[0], variant=last)
    assert in_order(TOY, [later, *runs, again]) == [runs[0], again, runs[2], later]
    with pytest.raises(ValueError, match="runs must be of one experiment, got toy and other"):
        in_order(TOY, [runs[0], replace(runs[1], experiment="other")])


def test_pictures_of_runs_are_taken_along(tmp_path: Path) -> None:
    source, target = tmp_path / "runs", tmp_path / "docs"
    sheet = Path("VAE-8/SSM/seed-0/samples.png")
    (source / sheet).parent.mkdir(parents=True)
    (source / sheet).write_bytes(b"picture")
    copy_pictures(source, target)
    assert not target.exists()  # the run is not finished
    (source / sheet).with_name("run.json").write_text("{}")
    copy_pictures(source, source)
    copy_pictures(source / "results.json", target)
    assert not target.exists()
    copy_pictures(source, target)
    assert (target / sheet).read_bytes() == b"picture"


def test_rehearsals_are_marked(runs: list) -> None:
    assert "mean nothing" not in as_markdown(TOY, runs, [])
    assert "mean nothing" in as_markdown(TOY, [replace(runs[0], smoke=True)], [])


def test_the_papers_numbers_stand_beside_ours() -> None:
    nice = EXPERIMENTS["table-nice"]
    rows = paper_rows("table-nice")
    assert rows["SSM-VR"] == {"test_sm": -8054.0, "test_ll": -3355.0}
    assert set(rows) <= {variant.split("/")[-1] for variant in nice.variants}
    assert table(nice, []).splitlines()[0].count("paper") == 2
