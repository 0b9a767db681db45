"""The benchmark of training steps runs from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import train_step


@pytest.mark.usefixtures("same_threads")
def test_smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precision = torch.get_float32_matmul_precision()
    try:
        train_step.main(smoke=True, output=tmp_path / "out.json")
    finally:
        torch.set_float32_matmul_precision(precision)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    keys = [(row["num"], row["executor"], row["ran"]) for row in rows]
    assert keys == [(m, e, "eager") for m in (1, 16) for e in ("eager", "auto")]
    for row in rows:
        assert row["ms_per_step"] > 0 and row["bare_ms"] > 0
        assert row["loop_ms"] == pytest.approx(row["ms_per_step"] - row["bare_ms"])
    assert capsys.readouterr().out.count("\n") == 5
