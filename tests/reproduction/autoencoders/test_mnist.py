"""The experiment with auto-encoders on MNIST: its data, its rows, and an interrupted run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reproduction.autoencoders import mnist as autoencoders_mnist
from reproduction.autoencoders.mnist import EXPERIMENT, SMOKE, Config, binarise, run
from reproduction.experiment import Job
from reproduction.report import paper_rows, table
from reproduction.run import Request, reproduce
from scorematching import datasets
from tests.statistics import assert_mean

SMALL = replace(Config(), **SMOKE)  # type: ignore[arg-type]


def job(folder: Path, variant: str = "VAE 8/SSM") -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    return Job(variant, 0, torch.device("cpu"), folder)


def test_the_published_recipe_is_the_default() -> None:
    config = EXPERIMENT.settings("VAE 8/SSM", {})
    assert config == Config()
    assert (config.iterations, config.batch_size, config.lr) == (100_000, 128, 1e-3)
    assert (config.ais_images, config.ais_steps, config.ais_chains) == (10_000, 1000, 16)
    assert EXPERIMENT.settings("WAE 32/SSM M=100", {}).projections == 100


def test_the_precision_of_forces_is_a_setting() -> None:
    assert Config().force_precision == "bf16"
    assert EXPERIMENT.settings("VAE 8/SSM", {"ais_force": "float32"}).force_precision is None
    with pytest.raises(ValueError, match="ais_force must be float32 or bf16, got 'half'"):
        EXPERIMENT.settings("VAE 8/SSM", {"ais_force": "half"})


def test_the_paper_s_rows_are_rows() -> None:
    paper = paper_rows("table-mnist")
    assert len(paper) == 15 and set(paper) < set(EXPERIMENT.variants)
    ours = (" lr=1e-4", " cosine", " seventh")
    rows = [name for name in EXPERIMENT.variants if not name.endswith(ours)]
    assert len(rows) == 22 and "WAE 8/ELBO" not in rows
    assert EXPERIMENT.settings("VAE 8/SSM cosine", {}) == replace(Config(), schedule="cosine")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run of each family."""
    out = tmp_path_factory.mktemp("runs")
    only = ("VAE 8/ELBO", "VAE 32/SSM*", "VAE 8/S[tp]e*", "WAE 8/SSM", "WAE 32/Spectral")
    return reproduce(EXPERIMENT, Request(only=only, smoke=True, out=out, device="cpu")), out


def test_a_rehearsal_measures_everything(rehearsal: Any) -> None:
    runs, _ = rehearsal
    assert len(runs) == 8
    for each in runs:
        metrics = each.metrics
        assert metrics["iterations"] == 8 and metrics["ais_images"] == 8
        assert 0 < metrics["nll"] < 20 and metrics["nll_se"] > 0 and 1 <= metrics["ess"] <= 4
        assert abs(metrics["rounding"]) < 1e-3 and abs(metrics["bracket_gap"]) < 1
        assert list(metrics["stages"]) == ["4", "8"]
        assert (metrics["valid_bound"] is None) == (not each.variant.endswith("ELBO"))
    assert len({each.metrics["nll"] for each in runs}) > 5  # rows do not repeat each other


def test_paper_s_numbers_stand_beside_ours(rehearsal: Any) -> None:
    lines = table(EXPERIMENT, rehearsal[0]).splitlines()
    assert lines[0].startswith("|  | seeds | NLL | paper |")
    found = {line.split(" | ")[0][2:]: line.split(" | ")[3] for line in lines[2:]}
    assert found["VAE 32/SSM M=100"] == "88.29" and found["VAE 8/ELBO"] == "96.87"
    assert found["VAE 32/SSM exact"] == "-" and found["WAE 32/Spectral"] == "92.55"


def test_sheets_are_drawn(rehearsal: Any) -> None:
    runs, out = rehearsal
    folder = out / "table-mnist-smoke"
    for each in runs:
        place = folder / each.variant.replace(" ", "-") / "seed-0"
        for name in ("samples.png", "reconstructions.png"):
            with Image.open(place / name) as picture:
                assert picture.size == (10 * 6 + 2, 10 * 6 + 2)  # images of 4 x 4, and gaps of 2
    assert EXPERIMENT.plot is not None and EXPERIMENT.notes is not None
    pictures = EXPERIMENT.plot(runs, folder)
    assert [path.name.removeprefix("table-mnist-") for path in pictures] == [
        "vae-samples.png",
        "wae-samples.png",
        "curves.png",
    ]
    assert all(path.stat().st_size > 0 for path in pictures)
    assert "simulated images" in EXPERIMENT.notes(runs)[0]


def test_reports_do_without_the_sheets(rehearsal: Any, tmp_path: Path) -> None:
    """Results that were copied from elsewhere come without their folders."""
    assert EXPERIMENT.plot is not None
    assert [path.name for path in EXPERIMENT.plot(rehearsal[0], tmp_path)] == [
        "table-mnist-curves.png"
    ]


@pytest.mark.parametrize("variant", ["VAE 8/SSM", "WAE 8/Stein"])
def test_an_interrupted_run_goes_on_to_the_same_digits(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EXPERIMENT.settings(variant, {}, smoke=True)
    whole = run(config, job(tmp_path / "whole", variant))
    real, calls = autoencoders_mnist.held_out, []

    def break_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(autoencoders_mnist, "held_out", break_once)
    with pytest.raises(KeyboardInterrupt):
        run(config, job(tmp_path / "broken", variant))
    resumed = run(config, job(tmp_path / "broken", variant))
    for name in ("nll", "bracket_gap", "valid_reconstruction"):
        assert resumed[name] == whole[name]


def test_a_run_that_ends_early_says_so(tmp_path: Path) -> None:
    request = Request(
        only=("VAE 8/SSM",), overrides={"max_seconds": 1e-9}, smoke=True, out=tmp_path, device="cpu"
    )
    runs = reproduce(EXPERIMENT, request)
    assert runs[0].metrics["iterations"] == 4
    real = [replace(run, smoke=False) for run in runs]
    assert "| VAE 8/SSM, 4 of 100000 iterations | 1 |" in table(EXPERIMENT, real)


def test_likelihoods_by_modes_and_by_annealing_agree(tmp_path: Path) -> None:
    """Of the same weights; pictures leave out rows with other rates, notes name both ways."""
    more = {"ais_steps": 200, "ais_chains": 20, "modes_samples": 500}
    runs = []
    for kind in ("annealing", "modes"):
        request = Request(
            only=("VAE 8/SSM cosine",),
            overrides={**more, "likelihood": kind},
            smoke=True,
            out=tmp_path / kind,
            device="cpu",
        )
        runs += reproduce(EXPERIMENT, request)
    annealed, modes = (each.metrics for each in runs)
    assert annealed["valid_reconstruction"] == modes["valid_reconstruction"]
    assert modes["acceptance"] is None and modes["ess"] > 100
    assert modes["nll"] == pytest.approx(annealed["nll"], abs=0.05)  # errors: 0.01 per image
    assert EXPERIMENT.plot is not None and EXPERIMENT.notes is not None
    assert [path.name for path in EXPERIMENT.plot(runs, tmp_path / "modes")] == [
        "table-mnist-curves.png"
    ]
    text = " ".join(EXPERIMENT.notes(runs))
    assert "by annealing at least" in text and "of 20 in the mean" in text
    assert "by modes at least" in text and "of 500 in the mean" in text


# Data.


def test_digits_are_binarised_anew_by_their_intensity() -> None:
    noise = torch.Generator().manual_seed(0)
    x = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64).expand(20_000, 4)
    drawn = binarise(x, noise)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert_mean(drawn, x[0], detect=0.03)
    assert not torch.equal(drawn, binarise(x, noise))


def test_rows_see_the_same_points(tmp_path: Path) -> None:
    first, second = (autoencoders_mnist.load(SMALL, job(tmp_path, name)) for name in ("a", "b"))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.data
def test_fewer_images_are_the_first_of_all(tmp_path: Path) -> None:
    few = autoencoders_mnist.load(SMALL, job(tmp_path))
    every = autoencoders_mnist.load(replace(SMALL, train_images=None), job(tmp_path))
    assert len(few.train) == 100 and len(every.train) == 128
    assert torch.equal(few.train, every.train[:100]) and torch.equal(few.valid, every.valid)


def test_a_number_of_images_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train_images must be at least batch_size = 16"):
        replace(SMALL, train_images=15)
    with pytest.raises(ValueError, match=r"train_images must be at most 128, .* got 129"):
        autoencoders_mnist.load(replace(SMALL, train_images=129), job(tmp_path))


def test_mnist_is_split_as_published(tmp_path: Path) -> None:
    if not datasets.is_at_hand("mnist") or not datasets.is_at_hand("mnist-test"):
        pytest.skip("MNIST is not at hand; set SCOREMATCHING_DATA")
    parts = autoencoders_mnist.load(Config(), job(tmp_path))
    assert [len(part) for part in parts] == [48_000, 12_000, 10_000]
    assert all(part.min() >= 0 and part.max() <= 1 for part in parts)
