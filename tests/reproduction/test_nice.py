"""The NICE experiment: its data, its rows, and a run that is interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduction import nice as nice_mnist
from reproduction import nice_report
from reproduction.experiment import Job
from reproduction.nice import EXPERIMENT, SMOKE, Config, dequantise, run
from reproduction.report import table
from reproduction.run import Request, read_unfinished, reproduce
from scorematching import datasets

SMALL = replace(Config(), **SMOKE)


def job(folder: Path, variant: str = "paper/SSM-VR") -> Job:
    return Job(variant, 0, torch.device("cpu"), folder)


def test_the_published_recipe_is_the_default() -> None:
    config = EXPERIMENT.settings("paper/SSM-VR", {})
    assert config == Config()
    assert (config.lr, config.num_hidden, config.epochs, config.batch_size) == (1e-3, 5, 100, 128)


def test_every_row_is_there_by_every_recipe() -> None:
    for recipe in ("paper", "stable", "released"):
        rows = {name.split("/")[1] for name in EXPERIMENT.variants if name.startswith(recipe)}
        assert rows >= set(nice_mnist.ROWS)


def test_dequantisation_is_that_of_the_datasets() -> None:
    x = torch.rand(5, 4, dtype=torch.float64)
    noise = [torch.Generator().manual_seed(0) for _ in range(2)]
    plain = datasets.Logit()(datasets.Dequantise(1 / 512)(x.float(), noise[0]))
    assert torch.allclose(dequantise(x.float(), noise[1]), plain)


def test_the_likelihood_of_grey_levels_is_that_of_the_change_of_variables() -> None:
    """By autograd: the density of levels is that of logits times the derivative of the logit."""
    pixels = torch.randint(0, 256, (6, 3), generator=torch.Generator().manual_seed(0)) / 255
    noise = [torch.Generator().manual_seed(1) for _ in range(2)]
    x = nice_mnist.dequantise_levels(pixels, noise[0])
    levels = (255 * pixels).round() + torch.rand(pixels.shape, generator=noise[1])
    levels = levels.double().requires_grad_()
    again = (1e-6 + (1 - 2e-6) * levels / 256).logit()
    assert torch.allclose(again.float(), x, atol=1e-3)
    (slope,) = torch.autograd.grad(again.sum(), levels)
    flow = nice_mnist.NICE(3, hidden=(4,), generator=torch.Generator().manual_seed(2))
    expected = -(flow(x).double() + slope.log().sum(1)).mean().item()
    assert nice_mnist._pixel_nll(flow, x) == pytest.approx(expected, rel=1e-4)


def test_a_row_of_dequantised_pixels(tmp_path: Path) -> None:
    found = run(replace(SMALL, pixels="dequantised"), job(tmp_path))
    assert found["test_nll"] > 0 and found["test_sm"] < 1e6
    with pytest.raises(ValueError, match="pixels must be"):
        run(replace(SMALL, pixels="sharp"), job(tmp_path))


def test_a_run_that_was_cut_has_the_losses_of_its_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a report beside a finished run; what it has no test losses for is left out."""
    assert EXPERIMENT.unfinished is not None and EXPERIMENT.unfinished(tmp_path) is None
    real, calls = nice_mnist.exact_losses, []

    def break_once(model: Any, x: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(model, x)

    request = Request((0, 1), ("stable/SM",), {"epochs": 5, "validate_every": 1}, True, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(nice_mnist, "exact_losses", break_once)
        with pytest.raises(KeyboardInterrupt):
            reproduce(EXPERIMENT, request)
    (cut,) = read_unfinished({"table-nice": EXPERIMENT}, tmp_path)
    whole, other = reproduce(EXPERIMENT, replace(request, out=tmp_path / "whole"))
    assert cut.metrics["epochs"] < whole.metrics["epochs"] == 5
    done = cut.metrics["valid_sm_by_epoch"]
    assert done and done == whole.metrics["valid_sm_by_epoch"][: len(done)]
    lines = table(EXPERIMENT, [replace(cut, seed=2), whole, other]).splitlines()
    assert "stable/SM" in lines[2] and "±" in lines[2]
    text = " ".join(nice_report.notes([cut, whole]))
    assert "Seconds per epoch of stable/SM" in text and "by seed" not in text
    assert "by seed" in " ".join(nice_report.notes([whole, other]))


def test_an_interrupted_run_goes_on_to_the_same_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, epochs=22, validate_every=1)
    whole = run(config, job(tmp_path / "whole"))
    real, calls = nice_mnist.exact_losses, []

    def break_once(model: Any, x: Any) -> Any:
        calls.append(1)
        if len(calls) == 21:
            raise KeyboardInterrupt
        return real(model, x)

    monkeypatch.setattr(nice_mnist, "exact_losses", break_once)
    with pytest.raises(KeyboardInterrupt):
        run(config, job(tmp_path / "broken"))
    resumed = run(config, job(tmp_path / "broken"))
    assert (
        len(calls) == 21 + 2 + 2
    )  # two epochs after the checkpoint of the twentieth, and the final losses
    for name in ("test_sm", "test_ll", "valid_sm", "valid_sm_by_epoch"):
        assert resumed[name] == whole[name]


def test_the_identity_is_the_same_for_all_seeds(tmp_path: Path) -> None:
    x = torch.randn(5, 6)
    for seed in (0, 1):
        at = replace(job(tmp_path), seed=seed)
        z, _ = nice_mnist.make_flow(replace(SMALL, start="identity"), 6, at).transform(x)
        assert torch.equal(z.sort(1).values, x.sort(1).values)
        z, _ = nice_mnist.make_flow(SMALL, 6, at).transform(x)
        assert not torch.allclose(z.sort(1).values, x.sort(1).values)
    with pytest.raises(ValueError, match="start must be"):
        nice_mnist.make_flow(replace(SMALL, start="zero"), 6, job(tmp_path))


def test_divergence_is_a_result(tmp_path: Path) -> None:
    metrics = run(replace(SMALL, lr=1e30, epochs=4), job(tmp_path))
    assert 1 < metrics["diverged_at_step"] < 5
    assert metrics["test_points"] == 32 and metrics["test_sm"] < 100  # weights of before


def test_rows_see_the_same_points(tmp_path: Path) -> None:
    """What differs between rows of one seed is the objective alone."""
    first, second = (nice_mnist.load(SMALL, job(tmp_path, name)) for name in ("a", "b"))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.data
def test_mnist_is_split_as_published() -> None:
    if not datasets.is_at_hand("mnist") or not datasets.is_at_hand("mnist-test"):
        pytest.skip("MNIST is not at hand; set SCOREMATCHING_DATA")
    parts = nice_mnist.load(Config(), job(Path()))
    assert [len(part) for part in parts] == [54_000, 6_000, 10_000]
    assert all(part.min() >= 0 and part.max() <= 1 for part in parts)


@pytest.mark.data
def test_three_in_five_coordinates_lie_on_the_bound() -> None:
    """A dark pixel is clipped with probability (1 + 0.512) / 2; the page about it says so."""
    dark = dequantise(torch.zeros(100_000, 1), torch.Generator().manual_seed(0))
    share = (dark == dark.min()).double().mean().item()
    assert abs(share - 0.756) < 4 * (0.756 * 0.244 / 100_000) ** 0.5
    if not datasets.is_at_hand("mnist"):
        pytest.skip("MNIST is not at hand; set SCOREMATCHING_DATA")
    images = datasets.load("mnist", dtype=torch.float32).x[:2000].flatten(1)
    points = dequantise(images, torch.Generator().manual_seed(0))
    bound = torch.tensor(1e-3).logit()
    assert 0.59 < torch.isclose(points, bound, rtol=0, atol=1e-5).double().mean().item() < 0.63


def test_the_time_of_compilation_is_told_apart(tmp_path: Path) -> None:
    """30 s until the first validation, then 2 s for each of four epochs."""
    (finished,) = reproduce(
        EXPERIMENT, Request(only=("stable/SSM-VR",), smoke=True, out=tmp_path, device="cpu")
    )
    metrics = {
        **finished.metrics,
        "valid_sm_by_epoch": [[2.0, 0.5], [4.0, 0.1], [6.0, 0.0]],
        "valid_sm_by_second": [[30.0, 0.5], [34.0, 0.1], [38.0, 0.0]],
    }
    said = nice_report.notes([replace(finished, metrics=metrics)])
    assert (
        "Seconds of stable/SSM-VR (seed 0) to the end of epoch 2, and of each epoch after it: "
        "30 and 2.00." in said
    )
    first = {name: metrics[name][:1] for name in ("valid_sm_by_epoch", "valid_sm_by_second")}
    said = nice_report.notes([replace(finished, metrics={**metrics, **first})])
    assert not any("each epoch after it" in line for line in said)  # there is none to time
