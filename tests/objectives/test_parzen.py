"""The noise of denoising score matching by a Parzen window."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scorematching import parzen_sigma
from tests.models_zoo import normal


def likelihood(train: Tensor, valid: Tensor, log_sigmas: Tensor) -> Tensor:
    """Mean held-out log-likelihood of the window, its constants and all, one sigma at a time."""
    squared = (valid.flatten(1)[:, None] - train.flatten(1)).square().sum(-1)
    d = train[0].numel()
    values = []
    for log_sigma in log_sigmas:
        log_window = -0.5 * squared / log_sigma.exp() ** 2 - d * (
            log_sigma + math.log(2 * math.pi) / 2
        )
        values.append(log_window.exp().mean(1).log().mean())
    return torch.stack(values)


def grid_sigma(train: Tensor, valid: Tensor, low: float, high: float) -> float:
    """The best sigma of a grid, then of a grid a thousand times finer about it."""
    for _ in range(2):
        grid = torch.linspace(math.log(low), math.log(high), 2001, dtype=torch.float64)
        best = grid[likelihood(train, valid, grid).argmax()].exp().item()
        ratio = (high / low) ** (1 / 1000)
        low, high = best / ratio, best * ratio
    return best


def split(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Training and held-out halves of normal points."""
    x = normal(*shape, generator=torch.Generator().manual_seed(seed))
    return x.chunk(2)


@pytest.mark.parametrize("shape", [(40, 1), (60, 3), (120, 2), (40, 1, 2, 2)])
def test_against_a_grid(shape: tuple[int, ...]) -> None:
    train, valid = split(*shape)
    expected = grid_sigma(train, valid, low=0.05, high=5.0)
    assert parzen_sigma(train, valid) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("d", [1, 4])
def test_one_centre_is_the_likelihood_of_a_gaussian(d: int) -> None:
    # sigma^2 = mean |y - x|^2 / D
    train = torch.full((1, d), 2.0, dtype=torch.float64)
    valid = normal(50, d, generator=torch.Generator().manual_seed(0))
    expected = (valid - train).square().mean().sqrt().item()
    assert parzen_sigma(train, valid, tolerance=1e-9) == pytest.approx(expected, rel=1e-6)


def test_one_centre_and_one_point() -> None:
    train, valid = torch.zeros(1, 4, dtype=torch.float64), torch.ones(1, 4, dtype=torch.float64)
    assert parzen_sigma(train, valid) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-4, 0.3, 1e5])
def test_sigma_has_the_units_of_x(scale: float) -> None:
    train, valid = split(60, 3)
    scaled = parzen_sigma(scale * train, scale * valid)
    assert scaled == pytest.approx(scale * parzen_sigma(train, valid), rel=1e-5)


@pytest.mark.parametrize("shift", [-3.0, 1e3, 1e6])
def test_sigma_ignores_where_the_points_are(shift: float) -> None:
    # More than 25 points, where torch.cdist turns to |x|^2 + |y|^2 - 2 x.y; twins are held out too.
    train, _ = split(200, 3)
    valid = train + 1e-3 * normal(100, 3, generator=torch.Generator().manual_seed(1))
    moved = parzen_sigma(train + shift, valid + shift)
    assert moved == pytest.approx(parzen_sigma(train, valid), rel=1e-4)


def test_sigma_ignores_the_order_of_the_points() -> None:
    train, valid = split(60, 3)
    assert parzen_sigma(train.flip(0), valid.flip(0)) == pytest.approx(
        parzen_sigma(train, valid), rel=1e-5
    )


def test_float32() -> None:
    train, valid = split(60, 3)
    single = parzen_sigma(train.float(), valid.float())
    assert single == pytest.approx(parzen_sigma(train, valid), rel=1e-5)


def two_humps(centres: int) -> tuple[Tensor, Tensor]:
    """One held-out point at distance 1 of a centre and at distance 10 of all others, on a line."""
    train = torch.full((centres, 1), 10.0, dtype=torch.float64)
    train[0] = -1.0
    return train, torch.zeros(1, 1, dtype=torch.float64)


@pytest.mark.parametrize("centres, expected", [(4, "narrow"), (300, "wide")])
def test_the_higher_of_two_humps_wins(centres: int, expected: str) -> None:
    train, valid = two_humps(centres)
    grid = torch.linspace(math.log(0.3), math.log(30.0), 3001, dtype=torch.float64)
    values = likelihood(train, valid, grid)
    inner = values[1:-1]
    humps = grid[1:-1][(inner > values[:-2]) & (inner > values[2:])].exp()
    assert len(humps) == 2, "the case must be bimodal to show anything"
    best = grid[values.argmax()].exp().item()
    assert (best < 3) == (expected == "narrow")
    assert parzen_sigma(train, valid) == pytest.approx(best, rel=2e-3)


def test_some_copies_do_not_matter() -> None:
    # A held-out point that is a centre pulls sigma down, but not to zero.
    train, valid = split(40, 2)
    valid = torch.cat([valid, train[:5]])
    expected = grid_sigma(train, valid, low=0.01, high=5.0)
    assert parzen_sigma(train, valid) == pytest.approx(expected, rel=2e-5)
