"""The benchmark of the checks runs, and its chain by hand is the loss of the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import scorematching as sm
from benchmarks import checks


@pytest.mark.usefixtures("same_threads")
def test_it_runs_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NETWORKS", {"small": (2, (4,))})
    checks.measure(steps=16, output=tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    (row,) = found["rows"]
    assert row["network"] == "small" and row["first_s"] > row["step_ms"] / 1e3
    assert found["tracing"]["traced_us"] > found["tracing"]["by_hand_us"] > 0


def test_by_hand_is_the_same_loss() -> None:
    x = torch.tensor([[0.3], [1.2]], dtype=torch.float64)

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(checks.OPERATIONS):
            x = torch.sin(x)
        return x.squeeze(-1)

    assert_close(checks.by_hand(x), sm.ScoreMatching()(chain, x))
