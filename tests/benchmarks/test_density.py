"""The benchmark of density estimators: losses in closed form, margins, and the page."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KernelDensity

from benchmarks import density as benchmark
from benchmarks.pages import density as density_page
from tests import oracles

F64 = torch.float64


def test_kernel_losses_are_those_of_scikit_learns_estimate(generator):
    centres = torch.randn(20, 3, generator=generator, dtype=F64)
    x = torch.randn(6, 3, generator=generator, dtype=F64)

    def log_density(x):
        return (-0.5 * (x[:, None] - centres).square().sum(-1) / 0.6**2).logsumexp(-1)

    expected = oracles.score_matching(log_density, x)
    torch.testing.assert_close(benchmark.kernel_losses(centres, 0.6, x), expected)
    constant = 20 * (2 * math.pi * 0.6**2) ** 1.5
    theirs = KernelDensity(bandwidth=0.6).fit(centres.numpy()).score_samples(x.numpy())
    np.testing.assert_allclose(log_density(x).numpy() - math.log(constant), theirs)


def test_margins_and_verdicts():
    """Better by 1 in both, the same at every point, but for a constant known to 0.3."""
    x = torch.arange(4.0)
    mine, other = benchmark.Held(x, x, 0.3, {}), benchmark.Held(x + 1, x - 1, 0.0, {})
    margins = {"over other": benchmark.margin(mine, other)}
    assert margins["over other"] == pytest.approx(
        {"loss": 1.0, "loss_error": 0.0, "log_density": 1.0, "log_density_error": 0.3}
    )
    cells = [{"problem": "p", "margins": margins}] * 4
    loss, gain = benchmark.verdicts(cells)
    assert loss["won"] and gain["won"] and gain["error_over_points"] == pytest.approx(0.15)
    worse = [{"problem": "p", "margins": {"over other": benchmark.margin(other, mine)}}]
    assert not any(row["won"] for row in benchmark.verdicts(worse))


def test_gains_at_copied_and_new_rows():
    mine = benchmark.Held(torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, 5.0]), 0.0, {})
    other = benchmark.Held(torch.zeros(4), torch.zeros(4), 0.0, {})
    found = benchmark.copies(mine, other, torch.tensor([True, True, False, False]))
    expected = {"share": 0.5, "copied": 1.5, "new": 4.0, "new_error": 1.0}
    assert found == pytest.approx(expected)


def test_only_distinct_rows_have_no_copies():
    assert benchmark.wines(1000, distinct=True).copied is None
    assert 0.1 < benchmark.wines(1000, distinct=False).copied.double().mean() < 0.4


@pytest.mark.parametrize("name", benchmark.PROBLEMS)
def test_problems_are_whitened_and_hold_points_out(name):
    problem, other = benchmark.PROBLEMS[name](1000), benchmark.PROBLEMS[name](1001)
    assert problem.train.mean(0).abs().max() < 0.02
    assert (problem.train.T.cov() - torch.eye(problem.train.shape[1])).abs().max() < 0.02
    assert not torch.equal(problem.test, other.test)
    assert torch.cdist(problem.test, problem.train).min() > 1e-6


def test_the_page_is_written(tmp_path):
    numbers = {"loss": -3.0, "log_density": -9.0, "cpu_seconds": 2.0}
    margins = {f"over {o}": {k: 0.5 for k in MARGIN} for o in ("KDE", "Gaussian")}
    one = {"problem": "p", "methods": {"DKEF": numbers}, "margins": margins}
    one["copies"] = {"share": 0.25, "copied": -4.0, "new": 1.0, "new_error": 0.2}
    cells = [{**one, "seed": seed} for seed in (0, 1)]
    document = {**benchmark.describe("python -m benchmarks.density --smoke"), "cells": cells}
    document["verdicts"] = benchmark.verdicts(cells)
    page = density_page.write(document, tmp_path).read_text()
    assert "python -m benchmarks.density --smoke" in page and "-9.00 (0.00)" in page
    assert "25 % of the test rows" in page and "+1.00 (error 0.14)" in page
    assert (tmp_path / "img" / "density-margins.png").stat().st_size > 5000


MARGIN = ("loss", "loss_error", "log_density", "log_density_error")
