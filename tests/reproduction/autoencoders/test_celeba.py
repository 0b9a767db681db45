"""The experiment with auto-encoders on CelebA: its data, its rows, and an interrupted run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reproduction.autoencoders import celeba as autoencoders_celeba
from reproduction.autoencoders.celeba import (
    EXPERIMENT,
    SMOKE,
    Config,
    SampleDistances,
    as_bytes,
    coarse_pixels,
    dequantise,
    load,
    run,
    scale,
)
from reproduction.experiment import Job
from reproduction.report import paper_rows, table
from reproduction.run import Request, read_all, read_unfinished, reproduce
from scorematching import datasets
from scorematching.evaluation import frechet_distance
from scorematching.models import VAE, WAE, ImplicitVAE

SMALL = replace(Config(), **SMOKE)  # type: ignore[arg-type]


def job(folder: Path, variant: str = "VAE/SSM") -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    return Job(variant, 0, torch.device("cpu"), folder)


def test_the_published_recipe_is_the_default() -> None:
    config = EXPERIMENT.settings("VAE/SSM", {})
    assert config == Config()
    assert (config.iterations, config.batch_size, config.lr) == (100_000, 128, 1e-4)
    assert (config.num_samples, config.latent_dim, config.fid_samples) == (20, 32, 10_000)


def test_distances_are_taken_where_the_paper_takes_them() -> None:
    config = Config()
    marks = range(config.stage, config.iterations + 1, config.stage)
    due = [
        m for m in marks if m >= config.fid_from and not (m - config.fid_from) % config.fid_every
    ]
    assert due == [10_000, 40_000, 70_000, 100_000]
    paper = paper_rows("table-celeba")
    assert set(paper) == {name for name in EXPERIMENT.variants if not name.endswith(" tf32")}
    assert all(set(row) == {f"fid_{mark}" for mark in due} for row in paper.values())
    assert set(EXPERIMENT.columns) > {f"fid_{mark}" for mark in due}


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run of each family."""
    out = tmp_path_factory.mktemp("runs")
    only = ("VAE/ELBO", "VAE/Stein", "WAE/SSM")
    return reproduce(EXPERIMENT, Request(only=only, smoke=True, out=out, device="cpu")), out


def test_a_rehearsal_measures_everything(rehearsal: Any) -> None:
    runs, out = rehearsal
    assert len(runs) == 3
    for each in runs:
        metrics = each.metrics
        assert metrics["fid"] == metrics["fid_4"] and metrics["fid_2"] > 0
        assert metrics["fid_images"] == 40 and metrics["kid_se"] > 0
        assert metrics["valid_reconstruction"] == metrics["stages"]["4"]["reconstruction"]
        place = out / "table-celeba-smoke" / each.variant / "seed-0"
        for name in ("samples.png", "photographs/reconstructions.png"):
            with Image.open(place / name) as picture:
                assert picture.mode == "RGB" and picture.size == (8 * 18 + 2, 8 * 18 + 2)
    assert EXPERIMENT.plot is not None and EXPERIMENT.notes is not None
    assert len(EXPERIMENT.plot(runs, out / "table-celeba-smoke")) == 2
    assert "another network" in EXPERIMENT.notes(runs)[0]


def test_paper_s_numbers_stand_beside_ours(rehearsal: Any) -> None:
    lines = table(EXPERIMENT, rehearsal[0]).splitlines()
    assert lines[0].startswith("|  | seeds | FID at 10k | paper | FID at 40k | paper |")
    assert lines[2].split(" | ")[3:10:2] == ["96.20", "73.70", "69.42", "66.32"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Distances, the second of which is interrupted; grows with every one."""
    real, calls = SampleDistances.__call__, list[int]()

    def break_once(self: SampleDistances, model: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, model)

    monkeypatch.setattr(SampleDistances, "__call__", break_once)
    return calls


def test_an_interrupted_run_goes_on_to_the_same_digits(tmp_path: Path, calls: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(SMALL, job(tmp_path / "broken"))
    resumed = run(SMALL, job(tmp_path / "broken"))
    assert len(calls) == 3  # what was seen before the break is not looked at again
    whole = run(SMALL, job(tmp_path / "whole"))
    for name in ("fid_2", "fid_4", "kid", "valid_reconstruction"):
        assert resumed[name] == whole[name]


def test_algorithms_of_convolutions_are_timed_in_a_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def note(*arguments: Any) -> None:
        seen.append(torch.backends.cudnn.benchmark)
        raise KeyboardInterrupt

    monkeypatch.setattr(autoencoders_celeba, "train_model", note)
    with pytest.raises(KeyboardInterrupt):
        run(SMALL, job(tmp_path))
    assert seen == [True] and not torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("calls")
def test_a_cut_run_is_reported_at_its_stage(tmp_path: Path) -> None:
    """Cut in its second stage, it has the distances of the first; finished, it has its own."""
    request = Request(only=("WAE/SSM",), smoke=True, out=tmp_path, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        reproduce(EXPERIMENT, request)
    experiments = {EXPERIMENT.name: EXPERIMENT}
    (cut,) = read_unfinished(experiments, tmp_path)
    assert cut.metrics["iterations"] == 2 and cut.metrics["fid"] == cut.metrics["fid_2"]
    assert "fid_4" not in cut.metrics and read_all(tmp_path) == []
    (whole,) = reproduce(EXPERIMENT, request)
    assert whole.metrics["fid_2"] == cut.metrics["fid_2"]
    assert read_unfinished(experiments, tmp_path) == []


@pytest.mark.parametrize("variant", ["VAE/ELBO", "VAE/SSM", "WAE/SSM"])
def test_the_order_of_pixels_in_memory_changes_nothing(variant: str, tmp_path: Path) -> None:
    """In float32, but for the order of sums; and weights stay in float32 with bf16."""
    losses = {}
    for last in (True, False):
        settings = {"channels_last": last, "precision": "float32"}
        config = EXPERIMENT.settings(variant, settings, smoke=True)
        found = run(config, job(tmp_path / str(last), variant))
        losses[last] = [stage["loss"] for stage in found["stages"].values()]
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
    model = autoencoders_celeba.make_model(
        EXPERIMENT.settings(variant, {}, smoke=True), job(tmp_path)
    )
    convolutions = [p for p in model.parameters() if p.ndim == 4 and p.shape[1] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in convolutions)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_latents_have_full_precision(tmp_path: Path) -> None:
    """Half of the latents would be equal in bf16, which kernel estimators refuse."""
    model: Any = autoencoders_celeba.make_model(
        EXPERIMENT.settings("VAE/Stein", {}, smoke=True), job(tmp_path)
    )
    x, generator = torch.zeros(4, 3, 16, 16), torch.Generator().manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        z = model.encode(x, generator)
    assert z.dtype == torch.float32
    assert not torch.equal(z, z.bfloat16().float())


def test_a_run_that_ends_early_has_a_distance(tmp_path: Path) -> None:
    config = replace(SMALL, max_seconds=1e-9, fid_from=4)
    metrics = run(config, job(tmp_path))
    assert metrics["iterations"] == 2 and metrics["fid"] == metrics["fid_2"]


def test_rows_have_their_models(tmp_path: Path) -> None:
    kinds = {"VAE/ELBO": VAE, "VAE/Stein": ImplicitVAE, "WAE/SSM": WAE}
    for variant, kind in kinds.items():
        config = EXPERIMENT.settings(variant, {}, smoke=True)
        model: Any = autoencoders_celeba.make_model(config, job(tmp_path, variant))
        assert isinstance(model, kind)
        network = getattr(model, "score_network", None)
        assert (network is not None) == variant.endswith("SSM")


# Data and distances.


def test_bytes_become_numbers_with_the_noise_of_rounding() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(50, 1, 16, 16)
    assert torch.equal(as_bytes((scale(pixels) + 1) / 2), pixels)
    assert scale(pixels).min() == -1 and scale(pixels).max() == 1
    noise = dequantise(pixels, torch.Generator().manual_seed(0)) - scale(pixels)
    assert noise.abs().max() <= 1 / 256 + 1e-7 and noise.abs().max() > 0.99 / 256


def test_distances_compare_rounded_samples_with_held_out_images(tmp_path: Path) -> None:
    images = load(SMALL, job(tmp_path)).test
    config = replace(SMALL, fid_samples=len(images), fid_batch=16)
    distances = SampleDistances(config, job(tmp_path), images)

    class Echo:
        """A model whose samples are the images, a little off."""

        place = 0

        def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
            self.place += n
            return scale(images[self.place - n : self.place]) + 0.4 / 127.5

    found = distances(Echo())
    assert found["fid"] < 1e-9 and found["kid"] < 0  # equal sets; its estimate is unbiased
    other = torch.zeros_like(images)
    truth = frechet_distance(coarse_pixels(other.float()), coarse_pixels(images.float() / 255))
    Echo.sample = lambda self, n, generator: scale(other[:n])  # type: ignore[method-assign]
    assert distances(Echo())["fid"] == pytest.approx(truth, rel=1e-6)


def test_a_seed_has_the_same_images_held_out(tmp_path: Path) -> None:
    parts = load(SMALL, job(tmp_path))
    assert [len(part) for part in parts] == [140, 20, 40]
    again = load(SMALL, job(tmp_path, "WAE/SSM"))
    assert all(torch.equal(a, b) for a, b in zip(parts, again))


@pytest.mark.data
@pytest.mark.slow
def test_celeba_is_split_as_published(tmp_path: Path) -> None:
    if not datasets.is_at_hand("celeba"):
        pytest.skip("CelebA is not at hand; set SCOREMATCHING_DATA")
    parts = load(Config(), job(tmp_path))
    assert [len(part) for part in parts] == [20_339, 2905, 5811]
    assert all(part.dtype == torch.uint8 and part.shape[1:] == (3, 64, 64) for part in parts)
