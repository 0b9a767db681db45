"""The example of a posterior with two modes: its truth, its distances, and what it learns."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.examples import load_example

pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    return load_example("implicit_posterior")


def test_truth_has_two_modes(demo: ModuleType) -> None:
    """Mirror images, with a valley between; given x = 0 there is no valley."""
    one, two = (demo.posterior(x) for x in demo.OBSERVED)
    for p in (one, two):
        assert p.sum().item() == pytest.approx(1)
        assert torch.allclose(p, p.flip(0), rtol=0, atol=1e-12)
        assert p[[0, -1]].sum() + p[:, [0, -1]].sum() < 1e-3  # the grid is wide enough
    middle = slice(demo.CELLS // 2 - 1, demo.CELLS // 2 + 1)
    assert two[middle].max() < two.max() / 3 and one[middle].max() > one.max() * 0.99


def test_truth_is_bayes_rule(demo: ModuleType) -> None:
    """Draws of z and x from the model with x near the observation fall as the truth says."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(4_000_000, 2, generator=g)
    x = demo.Fold()(z) + torch.randn(len(z), 1, generator=g)
    for observed in demo.OBSERVED:
        near = z[(x[:, 0] - observed).abs() < 0.1]
        p = demo.posterior(observed)
        # The expected distance of N draws: 0.5 sum sqrt(2 p (1 - p) / (pi N)).
        chance = 0.5 * (2 * p * (1 - p) / (torch.pi * len(near))).sqrt().sum().item()
        assert len(near) > 20_000
        assert demo.total_variation(demo.histogram(near), p) < 1.15 * chance


def test_total_variation(demo: ModuleType) -> None:
    p = demo.posterior(0.0)
    assert demo.total_variation(p, p) == 0
    outside = demo.histogram(torch.full((10, 2), 2 * demo.EDGE))
    assert outside.sum() == 0 and demo.total_variation(outside, p) == pytest.approx(1)
    corner = demo.histogram(torch.full((10, 2), -demo.EDGE + 0.01))
    assert corner[0, 0] == 1 and demo.total_variation(corner, p) == pytest.approx(1, abs=1e-6)
    assert demo.total_variation(0.5 * (p + corner), p) == pytest.approx(0.5, abs=1e-6)


LEARNED, MISSED = 0.4, 0.48
"""Distances that implicit encoders stay below after 500 steps, and a normal one above."""


def test_what_is_learned(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = torch.get_rng_state()
    demo.main(["--output", str(tmp_path / "new"), "--steps", "500", "--seed", "3"])
    assert torch.equal(torch.get_rng_state(), state)  # every draw came from the seed
    assert (tmp_path / "new" / "posteriors.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "new" / "results.json").read_text())["distances"]
    assert list(found) == ["exact draws", "normal", "SSM", "Stein", "Spectral"]
    assert found["exact draws"]["tv_3.5"] < 0.1  # the truth passes, and by far
    for name in ("SSM", "Stein", "Spectral"):
        assert found[name]["tv_0"] < 0.2 and found[name]["tv_3.5"] < LEARNED
        assert 0.2 < found[name]["right"] < 0.8  # both modes
    assert found["normal"]["tv_3.5"] > MISSED
    assert "Spectral" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_learned_in_the_end(demo: ModuleType) -> None:
    found = demo.distances(demo.compare(demo.fit_all(1000, 5, seed=3), seed=3))
    bounds = {"exact draws": 0.1, "SSM": 0.16, "Stein": 0.2, "Spectral": 0.33}
    for name, bound in bounds.items():
        assert found[name]["tv_3.5"] < bound and found[name]["tv_0"] < 0.1
        assert 0.4 < found[name]["right"] < 0.6
    assert found["normal"]["tv_3.5"] > MISSED
