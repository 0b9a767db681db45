"""Reports show means with their errors, beside the paper's numbers."""

from __future__ import annotations

import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from reproduction import EXPERIMENTS
from reproduction.experiment import Run
from reproduction.report import (
    as_markdown,
    copy_pictures,
    differences,
    in_order,
    mean_and_error,
    paper_rows,
    summary,
    table,
    write_report,
)
from reproduction.run import Request, read_all, reproduce
from tests.reproduction.toy import TOY

DOCS = Path(__file__).parents[2] / "docs" / "reproduction"


@pytest.fixture
def runs(tmp_path: Path) -> list:
    return reproduce(TOY, Request((0, 1, 2), ("low",), out=tmp_path, device="cpu"))


def test_the_error_is_that_of_the_mean() -> None:
    numbers = [1.0, 4.0, 7.5, -2.0]
    mean, error = mean_and_error(numbers)
    assert mean == statistics.fmean(numbers)
    assert error == pytest.approx(statistics.stdev(numbers) / 2)
    assert mean_and_error([3.0]) == (3.0, None)


def test_equal_numbers_have_no_error() -> None:
    """The sum of fifteen times 0.1 is not 1.5 in floating point."""
    assert mean_and_error([0.1] * 15) == (0.1, 0.0)


def test_a_single_run_shows_its_own_error(runs: list) -> None:
    """In brackets, since it is over test points and not over seeds."""
    assert summary(runs[:1], "mean").endswith(" [± 0.25]")
    assert "[" not in summary(runs, "mean")


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
    for part in (
        "# toy",
        "standard error over seeds. Seeds 0-2;",
        "- 3 runs in all.",
        "![toy](toy.png)",
    ):
        assert part in text
    assert "python -m reproduction toy --only 'low' --seeds 0-2 --device cpu" in text
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


def test_a_cut_run_has_no_picture_of_an_earlier_one(tmp_path: Path) -> None:
    source, target = tmp_path / "runs", tmp_path / "docs"
    for name in ("SSM", "ELBO"):
        for folder in (source, target):
            (folder / f"VAE/{name}/seed-0").mkdir(parents=True)
        (source / f"VAE/{name}/seed-0/begun.json").write_text("{}")
        (target / f"VAE/{name}/seed-0/samples.png").write_bytes(b"earlier")
    (source / "VAE/ELBO/seed-0/run.json").write_text("{}")
    copy_pictures(source, target)
    assert len(list(target.rglob("*.png"))) == 2  # the report shows finished runs alone
    copy_pictures(source, target, unfinished=True)
    assert [path.parent.parent.name for path in target.rglob("*.png")] == ["ELBO"]


def test_pictures_of_one_seed_are_enough(tmp_path: Path) -> None:
    source, target = tmp_path / "runs", tmp_path / "docs"
    for seed in (0, 1):
        folder = source / f"VAE/SSM/seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "samples.png").write_bytes(b"picture")
        (folder / "run.json").write_text("{}")
    copy_pictures(source, target)
    copy_pictures(source, target)
    assert [path.parent.name for path in target.rglob("*.png")] == ["seed-0"]


def test_runs_that_ended_early_say_where(runs: list) -> None:
    cut = replace(TOY, reached=lambda run: "3 of 9 steps" if run.seed == 1 else "")
    assert "| low, 3 of 9 steps | 3 |" in table(cut, runs)
    assert "| low | 1 |" in table(cut, runs[:1])


def test_what_differs_from_the_paper_is_said() -> None:
    nice, several = EXPERIMENTS["table-nice"], []
    for seed, loss in enumerate((-8000.0, -8100.0, -8300.0)):
        metrics = {"test_sm": loss, "test_ll": -3355.0 + seed - 1}
        several.append(Run("table-nice", "stable/SSM-VR", seed, {}, metrics, 1, "", {}, "", "", ""))
    assert differences(nice, several) == []  # the mean is 1 error away
    lower = [replace(run, metrics={"test_sm": run.metrics["test_sm"] - 300}) for run in several]
    (sentence,) = differences(nice, lower)
    assert sentence.startswith("stable/SSM-VR, SM loss: -8433 ± 88 over 3 seeds, 4.3 errors below")
    assert differences(nice, lower[:1]) == []  # one seed has no error over seeds


def test_the_papers_numbers_are_not_shown_beside_other_data_or_short_runs() -> None:
    nice, runs = EXPERIMENTS["table-nice"], []
    for seed, loss in enumerate((-2900.0, -2901.0, -2902.0)):
        metrics, settings = {"test_sm": loss, "epochs": 1}, {"epochs": 1}
        runs.append(
            Run("table-nice", "stable/SSM-VR", seed, settings, metrics, 1, "", {}, "", "", "")
        )
    smooth = [replace(run, variant="smooth/SSM-VR") for run in runs]
    assert table(nice, runs, "*", ["test_sm"]).endswith("| -8054 |")
    assert table(nice, smooth, "*", ["test_sm"]).endswith("| - |")
    assert len(differences(nice, runs)) == 1 and not differences(nice, smooth)
    short = [replace(run, variant="short/SSM-VR") for run in runs]
    assert table(nice, short, "*", ["test_sm"]).endswith("| - |")


def test_rows_and_columns_can_be_chosen(runs: list) -> None:
    nice = EXPERIMENTS["table-nice"]
    found = read_all(DOCS / "table-nice" / "results.json")
    lines = table(nice, found, "stable/*", ["test_sm"]).splitlines()
    assert lines[0] == "|  | seeds | SM loss | paper |"
    assert all(line.startswith("| stable/") for line in lines[2:])


@pytest.mark.parametrize("name", sorted(path.parent.name for path in DOCS.glob("*/results.json")))
def test_committed_reports_are_made_of_committed_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte; pictures depend on the version of matplotlib and are only named."""
    folder = tmp_path / name
    shutil.copytree(DOCS / name, folder)
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: None)
    runs = in_order(EXPERIMENTS[name], read_all(folder / "results.json"))
    for file in write_report(EXPERIMENTS[name], runs, folder):
        assert file.read_bytes() == (DOCS / name / file.name).read_bytes(), file.name


def test_rehearsals_are_marked(runs: list) -> None:
    assert "mean nothing" not in as_markdown(TOY, runs, [])
    assert "mean nothing" in as_markdown(TOY, [replace(runs[0], smoke=True)], [])


def test_the_papers_numbers_stand_beside_ours() -> None:
    nice = EXPERIMENTS["table-nice"]
    rows = paper_rows("table-nice")
    assert rows["SSM-VR"] == {"test_sm": -8054.0, "test_ll": -3355.0}
    assert set(rows) <= {variant.split("/")[-1] for variant in nice.variants}
    assert table(nice, []).splitlines()[0].count("paper") == 2
