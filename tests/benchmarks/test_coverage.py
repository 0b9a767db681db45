"""The benchmarks of inference run from end to end, and their sums are right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import coverage, local_curvature
from benchmarks.pages import coverage as page

FEW = ("SM", "SSM Rademacher M=1", "SSM-VR Gaussian M=4")


@pytest.mark.usefixtures("same_threads")
def test_few_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [pair for pair in coverage.objectives() if pair[0] in FEW]
    monkeypatch.setattr(coverage, "objectives", lambda: iter(few))
    monkeypatch.setattr(coverage, "PREDICTED", 1)
    written = coverage.measure(2, 60, 1, tmp_path / "out.json", tmp_path / "docs")
    document = json.loads((tmp_path / "out.json").read_text())
    assert len(document["rows"]) == 3 * (6 + 2 + 2)
    assert all(0 <= row["coverage"] <= 1 for row in document["rows"])
    exact = [row for row in document["rows"] if row["objective"] == "SM"]
    assert all(row["inflation"] == row["predicted"] == 1 for row in exact)
    # In one dimension a sign is exact score matching.
    half_line = [r for r in document["rows"] if r["model"] == "truncated normal"]
    signs = [r for r in half_line if "Rademacher" in r["objective"]]
    assert signs and all(r["inflation"] == pytest.approx(1.0, abs=1e-9) for r in signs)
    assert "precision[0,1]" in written.read_text()
    assert (tmp_path / "docs" / "img" / "coverage.png").stat().st_size > 0


def test_objectives() -> None:
    names = [name for name, _ in coverage.objectives()]
    assert len(names) == 9 and set(FEW) < set(names)


def test_data_sets_do_not_depend_on_the_number_of_jobs() -> None:
    alone = coverage.dataset("Gaussian precision", 30, 100)
    together = coverage.work(("Gaussian precision", 29, 31, 100))
    assert together[1].keys() == alone.keys()
    for name, numbers in alone.items():  # work takes one thread, which sums in another order
        np.testing.assert_allclose(together[1][name], numbers, rtol=1e-6)


def test_inflation_is_a_ratio_of_variances() -> None:
    g = np.random.default_rng(0)
    exact = g.normal(size=(4000, 1))
    sliced = exact + g.normal(size=(4000, 1))
    ratio, error = coverage.inflation(sliced, exact)
    assert ratio[0] == pytest.approx(sliced.var() / exact.var())
    assert abs(ratio[0] - 2) < 5 * error[0] < 0.5


def test_a_refused_fit_does_not_cover() -> None:
    truth = list(coverage.cases()["truncated normal"].truth.values())
    near = [[[t + 0.01 * k for t in truth], [0.1, 0.1]] for k in range(4)]
    refused = [[float("nan")] * 2] * 2
    found = [{"SM": fitted, "SSM": fitted} for fitted in near]
    found[2]["SSM"] = refused
    found[3]["SM"] = [[t + 1 for t in truth], [0.1, 0.1]]
    rows = {r["objective"]: r for r in coverage.summarise("truncated normal", found)}
    assert rows["SSM"]["failures"] == 1 and rows["SM"]["failures"] == 0
    assert rows["SSM"]["coverage"] == rows["SM"]["coverage"] == 0.75


def test_verdict_counts_what_is_off() -> None:
    rows = [
        {"coverage": c, "failures": 0, "model": "a", "objective": "SM"}
        for c in (0.95, 0.94, 0.96, 0.9)
    ]
    text = page.verdict({"rows": rows, "level": 0.95, "datasets": 2000})
    assert text.startswith("Of 4 intervals 3 are more than two standard errors") and "10.3" in text


@pytest.mark.usefixtures("same_threads")
def test_local_curvature_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_curvature, "SIGMAS", (0.01, 0.1))
    monkeypatch.setattr(local_curvature, "BATCH", 32)
    written = local_curvature.measure(1, True, 1, tmp_path / "out.json", tmp_path)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["sigma"] for row in rows] == 2 * list(local_curvature.SIGMAS)
    first = rows[: len(local_curvature.SIGMAS)]
    # |s|^2 / sigma^2: the variance falls with the square of the radius.
    assert first[0]["over_signs"] > 100 * first[1]["over_signs"] / 4
    assert "after training" in written.read_text()
