"""What the other commands do with a run, compared with the model itself."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import scorematching as sm
from scorematching.cli import main
from scorematching.cli.rows import columns_of
from scorematching.runs import open_run
from scorematching.tables import Loaded

QUICK = ["--model", "mlp", "--max-minutes", "1e-7"]


@pytest.fixture(scope="module")
def other_run(small_table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the same seed and another model, the Gaussian alone."""
    out = tmp_path_factory.mktemp("other") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
        assert main(["fit", str(small_table), "--out", str(out), "--seed", "1", *QUICK]) == 0
    return out


def test_evaluate_repeats_the_numbers_of_the_fit(
    small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(small_run)]) == 0
    assert open_run(small_run).held_out.table() in capsys.readouterr().out


def test_evaluate_new_rows(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.csv"
    pd.read_csv(small_table).head(40).to_csv(new, index=False)
    assert main(["evaluate", str(small_run), str(new)]) == 0
    assert capsys.readouterr().out.startswith(f"40 different rows of {new}, mean")
    assert main(["evaluate", str(small_run), str(small_table)]) == 0
    said, held = capsys.readouterr().out, len(open_run(small_run).rows)
    rows = len(pd.read_csv(small_table))
    assert f"fitted to: {rows - held} of its {rows} rows are not new" in said
    pd.read_csv(small_table).rename(columns={"tenths": "tenth"}).to_csv(new, index=False)
    assert main(["evaluate", str(small_run), str(new)]) == 1
    assert "'tenths'; is it 'tenth' there?" in capsys.readouterr().err


def test_rows_that_a_fit_did_not_draw_are_new(
    small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of a table of which the fit took a small sample, most rows were said not to be new."""
    monkeypatch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
    run = tmp_path / "run"
    assert main(["fit", str(small_table), "--out", str(run), *QUICK, "--max-rows", "40"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), str(small_table)]) == 0
    assert f"32 of its {len(pd.read_csv(small_table))} rows are not new" in capsys.readouterr().out


def test_a_column_is_not_confused_with_another_one_of_the_model() -> None:
    names = ["height", "weight"]
    run: Any = SimpleNamespace(columns=names, summary=SimpleNamespace(modelled=names), folder="run")
    with pytest.raises(ValueError, match=r"got none named 'weight'$"):
        columns_of(run, Loaded(pd.DataFrame({"height": [1.0]}), "new.csv", "0"))


def test_score_adds_what_the_model_says(small_run: Path, small_table: Path, tmp_path: Path) -> None:
    table = pd.read_csv(small_table).drop(columns="unit")  # constant, so it may be left out
    table.loc[3, "a"] = np.nan
    table.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "scored.csv"
    assert main(["score", str(small_run), str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    scored = pd.read_csv(out)
    assert list(scored)[: table.shape[1]] == list(table) and len(scored) == len(table)
    assert scored.loc[3, ["log_density", "grad_b", "unusual_rank"]].isna().all()
    model, good = sm.load(small_run / "model"), scored.drop(index=3)
    rows = good.assign(unit=7.0)[["a", "b", "unit", "tenths"]]
    np.testing.assert_allclose(good["log_density"], model.score_samples(rows), rtol=1e-12)
    gradient = good[[f"grad_{name}" for name in rows]]
    np.testing.assert_allclose(gradient, model.grad_log_density(rows), rtol=1e-9)
    assert sorted(good["unusual_rank"]) == list(range(1, len(good) + 1))
    assert (good.sort_values("unusual_rank")["log_density"].diff().dropna() >= 0).all()
    assert set(good["unusual_column"]) <= {"a", "b", "tenths"}
    assert main(["score", str(small_run), str(out), "--out", str(tmp_path / "x.csv")]) == 1


def test_score_keeps_names_of_rows(small_run: Path, small_table: Path, tmp_path: Path) -> None:
    """Leading zeros of identifiers were lost, and the index of a parquet file with them."""
    table = pd.read_csv(small_table)
    table.insert(0, "patient", [f"{i:05d}" for i in range(len(table))])
    table.to_csv(tmp_path / "new.csv", index=False)
    table.set_index("patient").to_parquet(tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        new, out = tmp_path / name, tmp_path / f"scored-{name}.csv"
        assert main(["score", str(small_run), str(new), "--out", str(out)]) == 0
        assert pd.read_csv(out, dtype=str)["patient"].tolist() == table["patient"].tolist()


@pytest.mark.parametrize("command", ["score", "evaluate"])
def test_rows_that_are_no_numbers_are_named(
    command: str,
    small_run: Path,
    small_table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Text was called missing, and 1e200 evaluated to a table of NaN."""
    new = tmp_path / "new.csv"
    arguments = [command, str(small_run), str(new)]
    arguments += ["--out", str(tmp_path / "out.csv"), "--overwrite"] if command == "score" else []
    for value, code, message in (
        ("oops", int(command == "evaluate"), "1 of 9 rows with missing values, text or infinity, "),
        ("1e200", 1, "standard deviations of the rows of the fit, got 1e+200 in row 3, column 'b'"),
    ):
        table = pd.read_csv(small_table).head(9).astype({"b": object})
        table.loc[2, "b"] = value
        table.to_csv(new, index=False)
        assert main(arguments) == code
        shown = capsys.readouterr()
        assert message in shown.out + shown.err and "row 3, column 'b'" in shown.out + shown.err


def test_sample_writes_all_columns(
    small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "samples.parquet"
    assert main(["sample", str(small_run), "30", "--out", str(out)]) == 0
    assert "with noise over the rounding, as in the fit: tenths;" in capsys.readouterr().out
    drawn = pd.read_parquet(out)
    assert drawn.shape == (30, 4) and (drawn["unit"] == 7).all()
    assert main(["sample", str(small_run), "30", "--out", str(out)]) == 1
    assert main(["sample", str(small_run), "30", "--out", str(tmp_path / "s.xlsx")]) == 1
    assert main(["sample", str(small_run), "0"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["samples.parquet"]
    again = tmp_path / "again.parquet"
    assert main(["sample", str(small_run), "30", "--out", str(again)]) == 0
    pd.testing.assert_frame_equal(drawn, pd.read_parquet(again))


def test_sample_by_chains_says_whether_they_agree(
    small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "s.csv"), "--method", "hmc"]
    assert main(["sample", str(small_run), "80", *out]) == 0
    assert re.search(r"R-hat \d\.\d+ .*effective sample size \d+", capsys.readouterr().out)


def test_compare_is_paired_and_antisymmetric(
    small_run: Path, other_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def difference(a: Path, b: Path) -> list[float]:
        assert main(["compare", str(a), str(b)]) == 0
        return [float(m) for m in re.findall(r"A - B: (-?[\d.]+) ", capsys.readouterr().out)]

    forward, back = difference(small_run, other_run), difference(other_run, small_run)
    assert forward[0] == -back[0]
    a, b = open_run(small_run), open_run(other_run)
    rows = a.parts(a.prepared(a.read_table())).test
    direct = a.model.score_samples(rows) - b.model.score_samples(rows)
    assert forward[0] == pytest.approx(direct.mean(), abs=0.06)
    assert forward[1] == pytest.approx(-back[1], rel=0.2)  # each in the units of its first run


def test_compare_takes_runs_of_which_one_set_columns_aside(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
    other, new = tmp_path / "other", tmp_path / "new.csv"
    fit = ["fit", str(small_table), "--out", str(other), *QUICK]
    assert main([*fit, "--columns", "a,b,tenths"]) == 0
    pd.read_csv(small_table).head(40).to_csv(new, index=False)
    for runs in ((small_run, other), (other, small_run)):
        for data in ([], ["--data", str(new)]):
            assert main(["compare", *map(str, runs), *data]) == 0
            assert "log-likelihood A - B:" in capsys.readouterr().out


def test_compare_refuses_what_cannot_be_compared(
    small_run: Path, tmp_path: Path, small_table: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
    other = tmp_path / "other"
    fit = ["fit", str(small_table), "--out", str(other), *QUICK]
    assert main([*fit, "--columns", "a,b"]) == 0
    assert main(["compare", str(small_run), str(other)]) == 1
    assert "must model the same columns" in capsys.readouterr().err
    changed = tmp_path / "changed.csv"
    pd.read_csv(small_table).head(90).to_csv(changed, index=False)
    assert main(["fit", str(changed), "--out", str(other), *QUICK, "--overwrite"]) == 0
    assert main(["compare", str(small_run), str(other)]) == 1
    assert "different tables" in capsys.readouterr().err
    assert main(["compare", str(small_run), str(other), "--data", str(changed)]) == 0


def test_other_units_are_said(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers at rows in other units are far out, and nothing else would say why."""
    new, out = tmp_path / "new.csv", tmp_path / "scored.csv"
    table = pd.read_csv(small_table)
    table.assign(a=1000 * table["a"] + 500).to_csv(new, index=False)
    for command in (
        ["score", str(small_run), str(new), "--out", str(out)],
        ["evaluate", str(small_run), str(new)],
        ["compare", str(small_run), str(small_run), "--data", str(new)],
    ):
        assert main(command) == 0
        said = capsys.readouterr().out
        assert "column 'a' is far from the rows of the fit: its median is" in said
        assert "column 'b' is far" not in said
    table.sample(20, random_state=0).to_csv(new, index=False)
    assert main(["score", str(small_run), str(new), "--out", str(out), "--overwrite"]) == 0
    assert "is far from" not in capsys.readouterr().out


def test_codes_of_missing_values_are_said(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mean log-likelihood of -2608738 had no explanation."""
    new, out, table = tmp_path / "new.csv", tmp_path / "scored.csv", pd.read_csv(small_table)
    for rows, is_said in ((3, True), (1, False)):
        changed = table.head(60).copy()
        changed.loc[5 : 4 + rows, "b"] = -999.0
        changed.loc[9:20, "a"] = [999.0] * 3 + [float(n) for n in range(1000, 1009)]  # a long tail
        changed.to_csv(new, index=False)
        for command in (
            ["score", str(small_run), str(new), "--out", str(out), "--overwrite"],
            ["evaluate", str(small_run), str(new)],
            ["compare", str(small_run), str(small_run), "--data", str(new)],
        ):
            assert main(command) == 0
            said = capsys.readouterr().out
            assert ("column 'b' is -999 in 3 rows, far from the rows of" in said) == is_said
            assert "column 'a' is" not in said


def test_advice_on_codes_is_that_of_the_command(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`evaluate` asked for empty fields, and then refused them."""
    new, out, table = tmp_path / "new.csv", tmp_path / "scored.csv", pd.read_csv(small_table)
    for code, status in ((-999.0, 0), (1e200, 1)):
        for command, advice, missing in (
            (["score", str(small_run), str(new), "--out", str(out)], "leave the field empty", 0),
            (["evaluate", str(small_run), str(new)], "leave such rows out of the file", 1),
            (["compare", str(small_run), str(small_run), "--data", str(new)], "such rows out", 1),
        ):
            changed = table.head(60).copy()
            changed.loc[5:8, "b"] = code
            changed.to_csv(new, index=False)
            out.unlink(missing_ok=True)
            assert main(command) == status
            said = "".join(capsys.readouterr())
            assert f"{advice}" in said and "if it means missing" in said
            changed.assign(b=changed["b"].where(changed["b"] != code)).to_csv(new, index=False)
            out.unlink(missing_ok=True)
            assert main(command) == missing  # empty fields
            capsys.readouterr()
            changed[changed["b"] != code].to_csv(new, index=False)
            out.unlink(missing_ok=True)
            assert main(command) == 0  # without these rows
            assert "if it means missing" not in capsys.readouterr().out


def test_columns_set_aside_that_differ_are_said(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model takes no notice of them, so that another group would look like the one fitted."""
    new, out = tmp_path / "new.csv", tmp_path / "scored.csv"
    table = pd.read_csv(small_table)
    for unit, is_said in ((8.0, True), (7.0, False)):
        table.head(40).assign(unit=unit).to_csv(new, index=False)
        for command in (
            ["score", str(small_run), str(new), "--out", str(out), "--overwrite"],
            ["evaluate", str(small_run), str(new)],
            ["compare", str(small_run), str(small_run), "--data", str(new)],
        ):
            assert main(command) == 0
            said = "X differs in 40 rows from the values of column 'unit'"
            assert (said in capsys.readouterr().out) == is_said


def test_compare_looks_at_columns_of_both_runs(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A constant that B alone was given was another one in new rows, without a word."""
    monkeypatch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
    other, new, table = tmp_path / "other", tmp_path / "new.csv", pd.read_csv(small_table)
    wide = tmp_path / "wide.csv"
    table.assign(a=table["a"] + 5e4, year=2020).to_csv(wide, index=False)
    assert main(["fit", str(wide), "--out", str(other), *QUICK]) == 0
    capsys.readouterr()
    table.head(40).assign(unit=8, year=2023).to_csv(new, index=False)
    for runs, name, one in (((small_run, other), "B", "A"), ((other, small_run), "A", "B")):
        assert main(["compare", *map(str, runs), "--data", str(new)]) == 0
        said = capsys.readouterr().out
        assert f"{name}: X differs in 40 rows from the values of columns 'unit', 'year'" in said
        assert f"{one}: X differs in 40 rows from the values of column 'unit'" in said
        assert f"{name}: column 'a' is far from" in said and f"{one}: column 'a'" not in said
    assert main(["compare", str(small_run), str(small_run), "--data", str(new)]) == 0
    assert said.count("X differs") == 2 and "\nX differs" in f"\n{capsys.readouterr().out}"


def test_one_row_has_no_standard_error(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.csv"
    pd.concat([pd.read_csv(small_table).head(1)] * 3).to_csv(new, index=False)
    for command in (
        ["evaluate", str(small_run), str(new)],
        ["compare", str(small_run), str(small_run), "--data", str(new)],
    ):
        assert main(command) == 1
        assert "needs two different rows or more" in capsys.readouterr().err


def test_arguments_that_contradict_each_other(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.csv"
    shutil.copy(small_table, new)
    assert main(["evaluate", str(small_run), str(new), "--data", str(small_table)]) == 1
    assert "--data must be left out beside DATA" in capsys.readouterr().err
    assert main(["score", str(small_run), str(new), "--out", str(new), "--overwrite"]) == 1
    assert "--out must be another file than DATA" in capsys.readouterr().err
    assert new.read_bytes() == small_table.read_bytes()
    pd.read_csv(new).rename(columns={"a": "A"}).to_csv(new, index=False)
    assert main(["evaluate", str(small_run), str(new)]) == 1
    assert "none named 'a'; is it 'A' there?" in capsys.readouterr().err


def test_new_rows_without_names_are_said_to_have_none(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.csv"
    pd.read_csv(small_table).head(9)[["a", "b"]].to_csv(new, index=False, header=False)
    assert main(["evaluate", str(small_run), str(new)]) == 1
    assert "none named 'a'; no line of names: columns are numbered" in capsys.readouterr().err


def test_shells_leave_the_home_folder_to_the_program(
    small_run: Path, small_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --out=~/run a folder of the name ~ was made, which no other command found."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir(), here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    monkeypatch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
    shutil.copy(small_table, home / "t.csv")
    shutil.copytree(small_run, home / "old")
    assert main(["fit", "~/t.csv", "--out=~/run", *QUICK]) == 0
    assert open_run("~/run").about["options"]["path"] == str(home / "t.csv")
    assert main(["score", "~/old", "~/t.csv", "--out=~/scored.csv"]) == 0
    assert main(["score", "~/old", "~/t.csv", "--out=~/t.csv", "--overwrite"]) == 1
    assert main(["sample", "~/old", "3", "--out=~/samples.csv"]) == 0
    names = {"t.csv", "old", "run", "scored.csv", "samples.csv"}
    assert {path.name for path in home.iterdir()} == names and not list(here.iterdir())
    assert (home / "t.csv").read_bytes() == small_table.read_bytes()


def test_compare_says_whose_noise_the_rows_have(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of the runs matters then."""
    out = tmp_path / "plain"
    assert main(["fit", str(small_table), "--out", str(out), *QUICK, "--dequantise", "none"]) == 0
    capsys.readouterr()
    assert main(["compare", str(small_run), str(out)]) == 0
    assert "rows have that of A" in capsys.readouterr().out
    assert main(["compare", str(small_run), str(small_run)]) == 0
    assert "rows have that of A" not in capsys.readouterr().out


def test_inspect_shows_runs_and_tables(
    small_run: Path, small_table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(small_run)]) == 0
    shown = capsys.readouterr().out
    assert "command: scorematching fit" in shown and "mixture" in shown
    assert main(["inspect", str(small_table)]) == 0
    assert "column of text (<i>site</i>)" in capsys.readouterr().out


def test_names_with_line_breaks_stay_in_their_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["acid\n(g/l)", "tab\there", "one\x1b[31m"]
    values = np.random.default_rng(0).normal(size=(30, 3))
    path = tmp_path / "table.csv"
    pd.DataFrame(np.column_stack([values[:, :2], np.ones(30)]), columns=names).to_csv(
        path, index=False
    )
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    starts = [line.split("  ")[0] for line in shown.splitlines()[-3:]]
    assert starts == [r"acid\n(g/l)", r"tab\there", r"one\x1b[31m"]
    assert r"constant (one\x1b[31m)" in shown
    assert main(["fit", str(path), "--family", "gaussian", "--out", str(tmp_path / "run")]) == 0
    assert r"precision[acid\n(g/l), tab\there]  " in capsys.readouterr().out


def test_commands_that_need_the_table_say_so(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved, run = tmp_path / "moved.csv", tmp_path / "run"
    shutil.copytree(small_run, run)
    about = json.loads((run / "run.json").read_text())
    about["options"]["path"] = str(tmp_path / "gone.csv")  # which alone may change
    (run / "run.json").write_text(json.dumps(about))
    assert main(["evaluate", str(run)]) == 1
    assert "give its place with --data" in capsys.readouterr().err
    assert main(["compare", str(run), str(small_run)]) == 1  # where --data means other rows
    assert "put it there again, or give rows that are new to both" in capsys.readouterr().err
    shutil.copy(small_table, moved)
    assert main(["evaluate", str(run), "--data", str(moved)]) == 0
    moved.write_text(small_table.read_text() + "1,2,3,x,4\n")
    assert main(["evaluate", str(run), "--data", str(moved)]) == 1
    assert "moved.csv is another table, or has changed since" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"format": 99}'])
def test_damaged_runs_are_refused(
    text: str, small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text(text)
    assert main(["inspect", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def _edit(path: Path, *keys: str, value: object) -> None:
    """Change a number of a JSON file."""
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content))


def _exchange_models(run: Path) -> None:
    shutil.rmtree(run / "model")
    shutil.copytree(run / "baselines" / "Gaussian", run / "model")


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda run: _edit(run / "run.json", "options", "seed", value=5), "run.json has changed"),
    (lambda run: _edit(run / "run.json", "held_out", "rows", value=9), "run.json has changed"),
    (lambda run: _edit(run / "run.json", "width", value=None), "run.json has changed"),
    (lambda run: _edit(run / "split.json", "held_out", value=[0, 1, 2]), "split.json has changed"),
    (lambda run: (run / "split.json").unlink(), "split.json is gone"),
    (lambda run: shutil.rmtree(run / "baselines"), "config.json is gone"),
    (lambda run: shutil.rmtree(run / "model"), "model/config.json is gone"),
    (_exchange_models, "model/config.json has changed"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_changed_runs_are_refused(
    change: Callable[[Path], object],
    message: str,
    small_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rows of the fit would be called held out, or an error would name a key of a dict."""
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    change(run)
    for command in (["evaluate", str(run)], ["sample", str(run), "3"], ["inspect", str(run)]):
        assert main(command) == 1
        assert message in capsys.readouterr().err


def test_runs_of_earlier_versions_have_no_checksums(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    about = json.loads((run / "run.json").read_text())
    del about["checksums"]
    (run / "run.json").write_text(json.dumps(about))
    assert main(["inspect", str(run)]) == 0
