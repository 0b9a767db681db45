"""The benchmark of control functionals: its truths, its sums, and a small run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from benchmarks import control_variates
from scorematching.evaluation import control_variate


def test_truths_are_integrals() -> None:
    """In one dimension; the sum of D coordinates is normal with variance D."""
    square, _ = scipy.integrate.quad(lambda t: t**2 * scipy.stats.norm.pdf(t), -12, 12)
    assert control_variates.QUESTIONS["squared length"].truth(5) == pytest.approx(5 * square)
    for dim in control_variates.DIMENSIONS:
        cosine = scipy.integrate.quad(
            lambda t, dim=dim: np.cos(t) * scipy.stats.norm.pdf(t, scale=dim**0.5), -30, 30
        )
        truth = control_variates.QUESTIONS["cosine of the sum"].truth(dim)
        assert truth == pytest.approx(cosine[0], abs=1e-9)


def test_documentation_has_the_numbers() -> None:
    """Of the committed results, for the squared length."""
    home = Path(control_variates.__file__).parent
    rows = json.loads((home / "results" / "control_variates.json").read_text())["rows"]
    text = " ".join((control_variate.__doc__ or "").split())
    for dim in control_variates.DIMENSIONS:
        own = [r for r in rows if (r["question"], r["dim"]) == ("squared length", dim)]
        low, *_, high = sorted(f"{100 * row['coverage']:.0f} %" for row in own)
        assert f"{low} to {high} ({dim}" in text


def test_data_sets_differ_and_repeat() -> None:
    alone = control_variates.estimates(0, 0, 3)
    assert alone == control_variates.estimates(0, 0, 2) + control_variates.estimates(0, 2, 1)
    assert len({row[1] for row in alone}) == 3


def test_summary() -> None:
    """Errors 1, -1, 3 with standard errors of one: two of three are within 1.96 of them."""
    found = [[5.0, 1.0, 1.0, 2.0, 1.5], [7.0, -1.0, 1.0, 2.0, 1.5], [6.0, 3.0, 1.0, 6.0, 1.5]]
    row = control_variates.summary(("squared length", 1, 100), found)
    assert row["coverage"] == row["plain_coverage"] == pytest.approx(2 / 3)
    assert row["variance_ratio"] == pytest.approx(11 / 44)
    assert row["error_over_sd"] == pytest.approx((3 / 11) ** 0.5)
    assert row["effective_count"] == 6.0


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_variates, "POINTS", (20,))
    page = control_variates.measure(2, 1, tmp_path / "out.json", tmp_path)
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["command"] == "python -m benchmarks.control_variates --datasets 2"
    assert len(document["rows"]) == 8
    assert "cosine of the sum" in page.read_text()
