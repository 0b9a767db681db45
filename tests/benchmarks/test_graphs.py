"""The benchmark of graphs: its sampler, its baseline, and a small run."""

from __future__ import annotations

import json
import math

import numpy as np
import torch

from benchmarks import graphs
from tests.statistics import assert_mean


def test_truncated_points_have_the_moments_of_the_density():
    """Two coordinates with mutual exclusion, by a sum over a fine grid."""
    K = torch.tensor([[1.0, 1.5], [1.5, 1.0]], dtype=torch.float64)
    grid = torch.linspace(0, 8, 2001, dtype=torch.float64)
    x, y = torch.meshgrid(grid, grid, indexing="ij")
    density = torch.exp(-0.5 * (x**2 + y**2) - 1.5 * x * y)
    density[0] /= 2  # the trapezoidal rule
    density[:, 0] /= 2
    moments = [(density * f).sum() / density.sum() for f in (x, y, x * y, x**2)]
    found = graphs.gibbs(K, 20_000, 50, torch.Generator().manual_seed(0))
    a, b = found.T
    rows = torch.stack([a, b, a * b, a**2], dim=1)
    assert_mean(rows, np.array([float(m) for m in moments]), detect=0.06)


def test_deep_tails_are_finite():
    K = torch.tensor([[1.0, 60.0], [60.0, 1.0]], dtype=torch.float64)
    found = graphs.gibbs(K, 200, 5, torch.Generator().manual_seed(0))
    assert bool((found > 0).all()) and bool(found.isfinite().all())


def test_gaussian_points_have_their_precision():
    X, K = graphs.gaussian(4, 100_000, np.random.default_rng(0))
    assert math.isclose(np.linalg.eigvalsh(K)[0], 0.5, rel_tol=1e-9)
    assert np.abs(np.linalg.inv(np.cov(X.T)) - K).max() < 0.1


def test_baseline_ranks_a_strong_edge_first():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    X[:, 1] += 2 * X[:, 0]
    ranks, precisions = graphs.lasso_path(X)
    np.fill_diagonal(ranks, 0)
    assert np.unravel_index(ranks.argmax(), ranks.shape) == (0, 1)
    assert len(precisions) == graphs.PENALTIES


def test_a_small_run(tmp_path):
    page = graphs.measure(1, 1, True, tmp_path / "graphs.json", tmp_path)
    document = json.loads((tmp_path / "graphs.json").read_text())
    assert document["command"] == "python -m benchmarks.graphs --repeats 1 --smoke"
    assert {row["kind"] for row in document["rows"]} == {"gaussian", "truncated"}
    assert all(0.5 < row["auc"] <= 1 for row in document["rows"])
    assert "What a graphical lasso cannot do" in page.read_text()
    assert (tmp_path / "img" / "graphical-models.png").stat().st_size > 5000
