"""The benchmark of training steps runs from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import scorematching as sm
from benchmarks import train_step
from benchmarks.harness.kernels import KINDS
from benchmarks.harness.provenance import stamp
from benchmarks.pages import train_step as page


@pytest.mark.usefixtures("same_threads")
def test_smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precision = torch.get_float32_matmul_precision()
    try:
        train_step.main(smoke=True, output=tmp_path / "out.json")
    finally:
        torch.set_float32_matmul_precision(precision)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    keys = [(row["objective"], row["executor"], row["ran"]) for row in rows]
    assert keys == [(o, e, "eager") for o in train_step.OBJECTIVES for e in ("eager", "auto")]
    for row in rows:
        assert row["ms_per_step"] > 0 and row["bare_ms"] > 0
        assert row["loop_ms"] == pytest.approx(row["ms_per_step"] - row["bare_ms"])
    assert capsys.readouterr().out.count("\n") == 7


def test_page() -> None:
    kernels = {kind: {"ms": 0.2, "kernels": 3.0} for kind in KINDS}
    row = {
        "objective": "SSM-VR, M=1",
        "executor": "auto",
        "products": "medium",
        "ran": "captured",
        "ms_per_step": 1.75,
        "bare_ms": 1.7,
        "first_seconds": 20.0,
        "kernels": kernels,
    }
    apart = {**row, "executor": train_step.APART, "ran": "compiled+captured", "bare_ms": 1.0}
    text = "\n".join(page.section({**stamp("command"), "rows": [apart, row]}))
    assert "| SSM-VR, M=1 | bfloat16 | auto: captured | 1.75 | 1.70 | 20 |" in text
    assert "| matrix products | 0.20 (3) | 0.20 (3) |" in text
    assert "| between kernels | 0.00 | 0.30 |" in text
    assert "not reached: SSM-VR, M=1, bfloat16 1.75 for 1.1." in text  # with products apart it is


def test_rates_of_products() -> None:
    """Of a flow whose weights are counted, and of exact score matching, whose work is another."""
    flow = sm.models.NICE(784, hidden=(1000,) * 5)
    assert sum(p.numel() for p in flow.shifts.parameters() if p.ndim == 2) == page.WEIGHTS
    kernels = {"matrix products": {"ms": 2.0, "kernels": 1.0}}
    row = {"objective": "SSM-VR, M=16", "kernels": kernels}
    assert page._rate(row) == f"{2 * 54 * page.WEIGHTS * 128 / 2e-3 / 1e12:.0f}"
    assert page._rate({**row, "objective": "SM"}) == ""


@pytest.mark.parametrize("name", ["executors", "objectives"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be among .*, got 'fast'"):
        train_step.main(**{name: ["fast"]})
