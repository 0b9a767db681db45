"""Options of several commands, by themselves."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scorematching.cli import main
from scorematching.cli.options import names_of


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a, b c,d", ["a", "b c", "d"]),
        ('a,"b, c"', ["a", "b, c"]),
        ('say "hi",b', ['say "hi"', "b"]),
        ("", [""]),
    ],
)
def test_names_of_columns(text: str, names: list[str]) -> None:
    assert names_of(text) == names
    assert names_of(None) is None


def test_a_column_with_a_comma_in_its_name(
    small_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
    table = tmp_path / "t.csv"
    pd.read_csv(small_table).rename(columns={"a": "length, cm"}).to_csv(table, index=False)
    words = ["fit", str(table), "--out", str(tmp_path / "run"), "--columns", 'b,"length, cm"']
    assert main([*words, "--model", "mlp", "--max-minutes", "1e-7"]) == 0
