"""Rows that repeat: copies count once, rows of rounded values that meet by chance all count."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from scorematching.tables import read
from scorematching.tables.copies import are_copies, without_copies


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
    assert are_copies(torch.tensor(read("redwine").frame.to_numpy()))


def test_only_copies_are_left_out() -> None:
    frame = pd.DataFrame(answers(2, 0.0).numpy(), columns=["a", "b"])
    assert len(without_copies(frame, ["a", "b"])) == 1000
    wine = read("redwine").frame
    assert len(without_copies(wine, list(wine))) == 1359
