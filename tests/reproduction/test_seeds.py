"""Seeds are read, and mistakes refused, before anything runs."""

from __future__ import annotations

import pytest

from reproduction.run import Request
from reproduction.seeds import MAX_COUNT, MAX_SEED, read_seeds, write_seeds


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", [0]), ("0-2,7", [0, 1, 2, 7]), (" 3 , 1 - 2", [3, 1, 2]), (f"{MAX_SEED}", [MAX_SEED])],
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert read_seeds(text) == seeds
    assert read_seeds(f"1-{MAX_COUNT}") == list(range(1, MAX_COUNT + 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,0,0", r"seeds must differ, .* got seed 0 \(3 times\)"),
        ("0-3,2", r"got seed 2 \(2 times\)"),
        ("4294967296", "seeds must be from 0 to 4294967295, got 4294967296"),
        ("3-1", "seeds must go up in a range, got '3-1'; write 1-3"),
        ("0-999999999", "seeds must be at most 10000, got 1000000000"),
        ("0-99999999999999999999", "seeds must be at most 10000"),
        *[
            (text, "seeds must look like 0-4 or 0,3")
            for text in ("x", "1-2-3", "-1", "", "1,", "1.5")
        ],
    ],
)
def test_mistakes_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_seeds(text)


@pytest.mark.parametrize("seeds", [(), (1, 1), (-1,), (MAX_SEED + 1,)])
def test_requests_refuse_them_too(seeds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="seeds must"):
        Request(seeds=seeds)


@pytest.mark.parametrize("seeds", [[0], [3, 1, 2], [0, 2, 4], [5, 6, 9, 10, 11, 20]])
def test_written_seeds_are_read_again(seeds: list[int]) -> None:
    assert read_seeds(write_seeds(seeds)) == sorted(seeds)
