"""The benchmark of the tests of fit: its ranges, its cells, and a small run."""

from __future__ import annotations

import json

import scipy.stats

from benchmarks import ksd


def test_range_is_that_of_the_binomial_distribution():
    for n in (1, 20, 500):
        wanted = scipy.stats.binom.interval(0.99, n, 0.05)
        assert ksd.binomial_range(n) == tuple(int(k) for k in wanted)


def test_draws_make_five_percent_a_p_value():
    for draws in ksd.DRAWS.values():
        assert abs(0.05 * (draws + 1) - round(0.05 * (draws + 1))) < 1e-9


def test_data_sets_differ_and_repeat():
    names = [cell.name for cell in ksd.cells()]
    fixed = names.index("fixed, wild bootstrap")
    assert ksd.p_values(fixed, 0, 3) == ksd.p_values(fixed, 0, 2) + ksd.p_values(fixed, 2, 1)
    assert len(set(ksd.p_values(fixed, 0, 3))) > 1


def test_a_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(ksd, "DRAWS", {"wild": 19, "parametric": 19})
    monkeypatch.setattr(ksd, "POINTS", 30)
    page = ksd.measure(datasets=2, jobs=1, out=tmp_path / "ksd.json", docs=tmp_path)
    document = json.loads((tmp_path / "ksd.json").read_text())
    assert document["command"] == "python -m benchmarks.ksd --datasets 2"
    assert {row["datasets"] for row in document["cells"]} == {2}
    assert "fitted, wild bootstrap (invalid)" in page.read_text()
    assert (tmp_path / "img" / "goodness-of-fit.png").stat().st_size > 5000
