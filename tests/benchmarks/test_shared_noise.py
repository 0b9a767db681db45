"""The benchmark of shared noise runs from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import shared_noise


@pytest.mark.usefixtures("same_threads")
def test_smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared_noise.main(dim=4, smoke=True, output=tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert [row["processes"] for row in found["rows"]] == [1, 2, 8, 64]
    for row in found["rows"]:
        assert row["share"] == pytest.approx(row["draw_ms"] / found["step_ms"])
    assert capsys.readouterr().out.count("\n") == 5
