"""Some rows stand for all of a table, whatever the order of its rows."""

from __future__ import annotations

import pytest
import torch

from scorematching._rows import some_rows


@pytest.mark.parametrize("count", [101, 150, 1000, 12_000, 100_003])
@pytest.mark.parametrize("most", [64, 100])
def test_as_many_rows_as_asked_in_their_order(count: int, most: int) -> None:
    rows = some_rows(torch.arange(count), most)
    assert len(rows) == most and bool((rows.diff() > 0).all()) and rows[-1] < count


@pytest.mark.parametrize("period", [2, 3, 7, 12, 24])
def test_kinds_that_take_turns_have_equal_shares(period: int) -> None:
    """Of every second row of a table in which two kinds take turns, all were of one kind."""
    kinds = some_rows(torch.arange(24_000), 1000) % period
    shares = kinds.bincount(minlength=period) / 1000
    assert shares.tolist() == pytest.approx([1 / period] * period, rel=0.05)


def test_sorted_tables_have_rows_from_everywhere() -> None:
    tenths = some_rows(torch.arange(24_000), 1000) // 2400
    assert tenths.bincount().tolist() == pytest.approx([100] * 10, abs=2)


def test_few_rows_are_all_taken() -> None:
    x = torch.randn(5, 2)
    assert some_rows(x, 5) is x
    assert torch.equal(some_rows(x.mT, 3, dim=1).mT, some_rows(x, 3))
