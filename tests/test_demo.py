"""The demo program, end to end with few steps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from scorematching.distributions import GaussianMixture
from tests.examples import load_example

pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    return load_example("redwine")


def test_runs_and_reports(
    demo: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "BANDWIDTHS", [0.5, 0.7])
    out = tmp_path / "new" / "folder"
    state = torch.get_rng_state()
    demo.main(["--output", str(out), "--steps", "60", "--seed", "1"])
    assert torch.equal(torch.get_rng_state(), state)  # every draw came from the seed

    for name in ("training.png", "density.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert results["points"] == {"train": 953, "valid": 135, "test": 271}
    assert [losses["step"] for losses in results["history"]] == [50, 60]
    assert set(results["test_loss"]) == {"network", "Gaussian", "kernel density"}
    estimates = [*results["test_loss"].values(), *results["network_minus_baseline"].values()]
    assert all(estimate["count"] == 271 for estimate in estimates)
    numbers = [value for estimate in estimates for value in estimate.values()]
    assert len(numbers) == 15 and all(map(math.isfinite, numbers))

    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if "kernel density" in line)
    assert f"{results['test_loss']['kernel density']['mean']:.0f}" in row and "+-" in row
    assert str(out.name) in printed


def test_differences_in_the_table_are_of_the_means(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "BANDWIDTHS", [0.5])
    demo.main(["--output", str(tmp_path), "--steps", "2"])
    results = json.loads((tmp_path / "results.json").read_text())
    loss = {name: estimate["mean"] for name, estimate in results["test_loss"].items()}
    for name, difference in results["network_minus_baseline"].items():
        assert difference["mean"] == pytest.approx(loss["network"] - loss[name])


def test_no_wine_is_in_two_parts(demo: ModuleType, generator: torch.Generator) -> None:
    rows, prepare = demo.wines("cpu", generator)
    together = torch.cat(rows)
    assert len(together.unique(dim=0)) == len(together) == 1359
    x = prepare(rows.train, generator)
    assert not torch.equal(x, prepare(rows.train, generator))  # noise is drawn afresh
    covariance = x.double().T.cov()
    torch.testing.assert_close(covariance, torch.eye(11).double(), atol=0.1, rtol=0)


def test_kernel_density_is_a_mixture(demo: ModuleType, generator: torch.Generator) -> None:
    x = torch.randn(20, 3, dtype=torch.float64, generator=generator)
    weights = torch.full((15,), 1 / 15, dtype=torch.float64)
    mixture = GaussianMixture(weights, x[:15], covariances=0.6**2)
    constant = demo.kernel_density(x[:15], 0.6)(x) - mixture(x)
    torch.testing.assert_close(constant, constant[:1].expand(20))


def test_bandwidth_is_the_best_on_validation_points(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setattr(demo, "BANDWIDTHS", [0.01, 0.4, 40.0])
    x = torch.randn(300, 1, dtype=torch.float64, generator=generator)
    assert demo.best_bandwidth(x[:200], x[200:]) == 0.4
