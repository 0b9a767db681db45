"""Files that people bring: each gives a run, or one clear line and nothing else."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from scorematching._files import writing
from scorematching.cli import main
from scorematching.cli.files import write_frame
from scorematching.runs import open_run

QUICK = ["--model", "mlp", "--max-minutes", "1e-7"]
X = np.random.default_rng(0).normal(size=(60, 3))
FRAME = pd.DataFrame(X, columns=list("abc"))


def toy(name: str) -> pd.DataFrame:
    """A table of scikit-learn's, with names of the classes in place of numbers."""
    bunch = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = bunch.frame.sample(min(200, len(bunch.frame)), random_state=0)
    if name == "iris":
        frame["target"] = bunch.target_names[frame["target"]]
    return frame.reset_index(drop=True)


def missing() -> pd.DataFrame:
    return FRAME.mask(np.random.default_rng(1).random(FRAME.shape) < 0.02)


GOOD: dict[str, tuple[Callable[[], pd.DataFrame], dict[str, Any], list[str], str]] = {
    "iris": (lambda: toy("iris"), {}, [], "column of text (target)"),
    "breast cancer": (lambda: toy("breast_cancer"), {}, [], "nearly collinear"),
    "diabetes": (lambda: toy("diabetes"), {}, [], "rounded or discrete"),
    "digits": (lambda: toy("digits"), {}, [], "constant (pixel_0_0"),
    "strings": (lambda: FRAME.assign(s=list("xyz") * 20), {}, [], "column of text (s)"),
    "dates": (
        lambda: FRAME.assign(d=pd.date_range("2024-01-01", periods=60)),
        {},
        [],
        "column of dates (d)",
    ),
    "missing": (missing, {}, ["--drop-missing"], "with missing values"),
    "constant": (lambda: FRAME.assign(k=1), {}, [], "constant (k)"),
    "repeated": (
        lambda: pd.concat([FRAME, FRAME.head(9)]),
        {},
        [],
        "9 rows equal to an earlier one",
    ),
    "integers": (
        lambda: pd.DataFrame(np.random.default_rng(0).integers(0, 50, (90, 2))),
        {},
        [],
        "rounded or discrete",
    ),
    "semicolons": (lambda: FRAME, {"sep": ";", "decimal": ","}, [], "3 of them modelled"),
    "latin-1": (
        lambda: FRAME.rename(columns={"a": "größe"}),
        {"encoding": "latin-1"},
        ["--columns", "größe,b"],
        "2 of them modelled",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_files_that_can_be_fitted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
    make, written, more, said = GOOD[name]
    path, out = tmp_path / "table.csv", tmp_path / "run"
    make().to_csv(path, index=False, **written)
    assert main(["fit", str(path), "--out", str(out), *QUICK, *more]) == 0
    assert said in capsys.readouterr().out
    held_out = json.loads((out / "run.json").read_text())["held_out"]
    numbers = [m["log_likelihood"]["mean"] for m in held_out["methods"]]
    assert all(number is not None and np.isfinite(number) for number in numbers)


@pytest.mark.parametrize("columns", [1, 2])
def test_rows_of_few_values_all_count(
    columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Different rows alone, which were held out as if others were copies, lie too far out."""
    x = np.random.default_rng(0).normal(45, 4, (600, columns)).round()
    path, out = tmp_path / "ages.csv", tmp_path / "run"
    pd.DataFrame(x, columns=["age", "years"][:columns]).to_csv(path, index=False)
    assert main(["fit", str(path), "--out", str(out), *QUICK]) == 0
    held_out = json.loads((out / "run.json").read_text())["held_out"]
    gaussian = held_out["methods"][1]["log_likelihood"]
    truth = -columns * 0.5 * np.log(2 * np.pi * np.e * (4**2 + 1 / 12))
    assert held_out["rows"] == 120
    assert abs(gaussian["mean"] - truth) < 4 * gaussian["standard_error"]
    capsys.readouterr()
    assert main(["evaluate", str(out), str(path)]) == 0
    assert f"600 rows of {path}" in capsys.readouterr().out


def test_all_methods_see_the_same_noise_on_a_value_that_many_rows_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Narrow noise for the mixture alone, on days without rain, made it better by two nats."""
    rng = np.random.default_rng(0)
    rain = np.where(rng.random(400) < 0.6, 0.0, rng.gamma(2.0, 3.0, 400))
    path, out = tmp_path / "rain.csv", tmp_path / "run"
    pd.DataFrame({"rain": rain, "warm": rng.normal(size=400)}).to_csv(path, index=False)
    assert main(["fit", str(path), "--out", str(out), *QUICK]) == 0
    run = open_run(out)
    gaps, parts = run.model._gaps, run.parts(run.prepared(run.read_table()))
    dry = parts.frame.iloc[parts.held]["rain"] == 0
    width = run.about["common"]["rain"]["width"]
    assert width == pytest.approx(gaps.common_width[0].item(), rel=0.25)
    assert 0.8 * width < parts.test["rain"][dry].abs().max() <= width
    assert run.noisy_columns == ["rain"]
    assert (run.noisy(parts.frame)["rain"][rain > 0] == rain[rain > 0]).all()
    capsys.readouterr()
    assert main(["score", str(out), str(path), "--out", str(tmp_path / "scored.csv")]) == 0
    said = f"{(rain == 0).sum()} rows have rain 0, which several rows of the fit share: their ranks"
    assert said in capsys.readouterr().out
    assert "share (rain 0) may be missing" in (out / "report.html").read_text(encoding="utf-8")


BAD = {
    "empty": (b"", "is empty"),
    "header only": (b"a,b\n", "no rows below it"),
    "ragged": (b"a,b\n1,2\n3\n", "line 3: 1 fields where the line of names has 2"),
    "missing": (b"a,b\n" + b"1,2\n,4\n" * 20, "pass --drop-missing"),
    "text alone": (b"a\nx\n" + b"y\n" * 30, "must have a column of numbers"),
    "almost numbers": (b"a\n" + b"1\n2.5\n" * 20 + b"none?\n", "except for 'none?' in row 41"),
    "few rows": (b"a,b\n1,2\n3,4\n", "20 different rows or more, got 2"),
    "one value": (b"a,b\n" + b"1,2\n" * 30, "20 different rows or more, got 1"),
    "binary": (b"\x00\x01\x02" * 99, "not a text file"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_cannot_be_fitted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = BAD[name]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    assert main(["fit", str(path), "--out", str(tmp_path / "run"), *QUICK]) == 1
    shown = capsys.readouterr()
    assert message in shown.err and len(shown.err.splitlines()) == 1 and not shown.out
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(100_000, 6))
    x[:, 1] += x[:, 0] ** 2
    pd.DataFrame(x, columns=list("abcdef")).to_csv(tmp_path / "large.csv", index=False)
    assert main(["fit", str(tmp_path / "large.csv"), "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").exists()


def repeated_names(path: Path) -> None:
    path.write_text("a,b,a\n" + "\n".join(f"{i},{i * i % 7},{-i}" for i in range(40)))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


def nothing(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (repeated_names, "t.csv", "different names, got 'a' 2 times"),
        (pipe, "t.csv", "tables are read from files, not from pipes"),
        (loop, "t.csv", "which is a link to nothing"),
        (nothing, "t.parquet", "must be a parquet file"),
        (nothing, "t.csv", "is empty"),
    ],
)
def test_files_of_a_hostile_user(
    tmp_path: Path,
    make: Callable[[Path], None],
    name: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(tmp_path / name)
    for more in ([], ["--max-rows", "30"]):
        arguments = ["fit", str(tmp_path / name), "--out", str(tmp_path / "run"), *QUICK, *more]
        assert main(arguments) == 1
        assert message in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == [name]


def test_places_and_devices_that_do_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("precious")
    loop(tmp_path / "loop")
    for above in ("file", "loop"):
        assert main(["fit", "banana", "--out", str(tmp_path / above / "run" / "x"), *QUICK]) == 1
        assert f"{above} is no folder; choose another" in capsys.readouterr().err
    out = ["--out", str(tmp_path / "run")]
    assert main(["fit", "banana", *out, *QUICK, "--device", "banana"]) == 1
    assert "--device must be a device of this machine, got 'banana'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


def test_a_full_disk_is_named_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a table there was only "No space left on device"; a fit was to be resumed."""

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(OSError, match=r"samples\.csv could not be written \(No space left"):
        write_frame(FRAME, tmp_path / "samples.csv")
    monkeypatch.undo()
    FRAME.to_csv(tmp_path / "t.csv", index=False)

    def log(*arguments: object, **options: object) -> None:
        with writing(tmp_path / "log.jsonl", "free space and resume"):
            fail()

    monkeypatch.setattr("scorematching.runs.write.write_log", log)
    out = tmp_path / "run"
    assert main(["fit", str(tmp_path / "t.csv"), "--out", str(out), *QUICK]) == 1
    said = capsys.readouterr().err
    assert f"{out} could not be written (No space left on device)" in said
    assert "fit again" in said and "resume" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_values_that_parquet_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "scored.parquet"
    with pytest.raises(ValueError, match=r"scored.parquet must have values that .* write .csv"):
        write_frame(FRAME.assign(number=[10**25] * len(FRAME)), path)
    assert not list(tmp_path.iterdir())
