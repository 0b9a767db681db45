"""Rows that repeat: copies count once, rows of rounded values that meet by chance all count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scorematching import datasets
from scorematching.estimators import DensityEstimator
from scorematching.estimators.density.copies import are_copies


def answers(columns: int, correlation: float) -> torch.Tensor:
    """Answers from 1 to 5 to several questions, of 1000 people."""
    g = torch.Generator().manual_seed(0)
    common, own = torch.randn(1000, 1, generator=g), torch.randn(1000, columns, generator=g)
    z = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
    return (1.2 * z + 3).round().clamp(1, 5)


@pytest.mark.parametrize("correlation", [0.0, 0.6])
@pytest.mark.parametrize("columns", [1, 2, 3, 6])
def test_answers_repeat_by_chance(columns: int, correlation: float) -> None:
    x = answers(columns, correlation)
    assert not are_copies(x)


@pytest.mark.parametrize("digits", [2, 8])
def test_rows_that_are_there_twice_are_copies(digits: int) -> None:
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert are_copies(torch.cat([x, x[:250]]).round(decimals=digits))
    assert are_copies(torch.cat([x, x])[:, :1])
    assert are_copies(datasets.load("redwine").x)


def test_zeros_and_grids_in_one_column_are_no_copies() -> None:
    x = torch.randn(300, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not are_copies(torch.cat([x, torch.zeros(200, 1)]))
    assert not are_copies((100 * x).round())
    assert not are_copies((x > 0).double())


def test_held_out_likelihood_of_rounded_values_is_that_of_new_rows() -> None:
    """Held out with all rows of its value, a row would fall into a gap of the kernel estimate."""
    rng = np.random.default_rng(0)
    x, new = (rng.normal(45, 6, (count, 1)).round() for count in (400, 2000))
    density = DensityEstimator("none", base="kde", dequantise=True, random_state=0).fit(x)
    found = density.score_samples(new + rng.uniform(-0.5, 0.5, new.shape))
    assert abs(density.held_out_log_likelihood_ - found.mean()) < 4 * found.std() / 400**0.5
