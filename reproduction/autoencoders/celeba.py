"""Variational and Wasserstein auto-encoders on CelebA by four methods (the paper's Table 3).

Samples are evaluated by their Frechet distance to held-out images, in features of the Inception
network of 2015. The paper's distances are in features of another network (that of torchvision) and
to other images of a data set seven times as large: rows can be compared with each other, and their
order with the paper's, but not the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reproduction.autoencoders.celeba_networks import make_implicit_vae, make_vae, make_wae
from reproduction.autoencoders.training import (
    DATA,
    EVALUATION,
    RECONSTRUCTIONS,
    SAMPLES,
    STAGES,
    WEIGHTS,
    Settings,
    needs_network,
    progress_of,
    reached,
    sample_figures,
    train_model,
)
from reproduction.experiment import Experiment, Job, Metrics, Run
from reproduction.files import read_json
from reproduction.images import split_images
from reproduction.pictures import save_pairs, save_sheet
from reproduction.workers import timed_convolutions
from scorematching import datasets
from scorematching.evaluation import frechet_distance, inception, kernel_distance
from scorematching.models import VAE, WAE, ImplicitVAE

PICTURES = 4  # another random stream

PHOTOGRAPHS = "photographs"
"""Folder of pictures that show images of the data set; reports do not copy them."""

MARKS = (10_000, 40_000, 70_000, 100_000)
"""Iterations at which the paper reports distances."""


@dataclass(frozen=True)
class Config(Settings):
    """Settings. Defaults are those of Section 6.2 and Appendix C.3, or the released program's."""

    dataset: str = "celeba"
    latent_dim: int = 32  # release; C.3 says 8 or 32
    lr: float = 1e-4  # C.3
    num_samples: int = 20  # 6.2
    size: int = 64  # 6.2
    width: int = 64  # release; m of C.3
    log_std: float = -0.602  # release; of the errors of pixels
    as_released: bool = False  # True leaves out two ReLUs of C.3, as the release does
    fid_from: int = 10_000  # 6.2; first distance
    fid_every: int = 30_000  # 6.2; iterations between distances
    fid_samples: int = 10_000  # release
    reference_images: int | None = None  # to compare samples with; None is all of the 20 %
    fid_batch: int = 250  # images at a time (ours)
    features: str = "inception"  # or "pixels", means of coarse cells, for smoke tests
    precision: str = "bf16"  # of products (ours: theirs are float32); weights are float32
    channels_last: bool = True  # order of pixels in memory, which GPUs prefer (ours)
    synthetic_images: int = 200  # of the smoke test's data


ROWS: dict[str, dict[str, Any]] = {
    name: {"method": name} for name in ("ELBO", "SSM", "Stein", "Spectral")
}

VARIANTS: dict[str, dict[str, Any]] = {
    f"{model}/{name}": {"model": model, **row}
    for model in ("VAE", "WAE")
    for name, row in ROWS.items()
    if not (model == "WAE" and name == "ELBO")
}
VARIANTS |= {
    f"VAE/{name} tf32": {**VARIANTS[f"VAE/{name}"], "precision": "float32"}
    for name in ("ELBO", "SSM")
}  # whether bf16 changes the order of the rows

SMOKE = {
    "dataset": "synthetic",
    "size": 16,
    "width": 2,
    "latent_dim": 3,
    "iterations": 4,
    "stage": 2,
    "batch_size": 16,
    "num_samples": 4,
    "fid_from": 2,
    "fid_every": 2,
    "fid_samples": 32,
    "features": "pixels",
}


@timed_convolutions()
def run(config: Config, job: Job) -> Metrics:
    """Train one row, and take the distance of its samples on the way.

    Args:
        config: the settings.
        job: the circumstances.

    Returns:
        Frechet distances as ``fid_<iterations>``, kernel distances with errors, the error on
        held-out images on the way, and times.
    """
    parts = load(config, job)
    model = make_model(config, job)
    judge = SampleDistances(config, job, parts.test[: config.reference_images])

    def evaluate(iterations: int) -> Metrics:
        found = {"reconstruction": reconstruction(model, parts.valid, job)}
        since = iterations - config.fid_from
        due = since >= 0 and since % config.fid_every == 0
        return found | (judge(model) if due or iterations == config.iterations else {})

    seen = train_model(model, parts.train, transform_of(config), config, job, evaluate)
    last = seen["stages"].get(str(seen["iterations"]), {})
    if "fid" not in last:  # the run ended before its time
        last |= judge(model)
    _draw_sheets(model, parts.test, job)
    return {
        **metrics_of(seen),
        **{name: last[name] for name in ("fid", "kid", "kid_se")},
        "fid_images": len(judge.images),
        "valid_reconstruction": reconstruction(model, parts.valid, job),
    }


def metrics_of(seen: Metrics) -> Metrics:
    """What the stages of a run have measured, whether it is finished or not."""
    measured = {mark: stage for mark, stage in seen["stages"].items() if "fid" in stage}
    return {
        **{f"fid_{mark}": stage["fid"] for mark, stage in measured.items()},
        **{f"kid_{mark}": stage["kid"] for mark, stage in measured.items()},
        **{f"kid_{mark}_se": stage["kid_se"] for mark, stage in measured.items()},
        **progress_of(seen),
        "stages": seen["stages"],
    }


def unfinished(folder: Path) -> Metrics | None:
    """Metrics of a run that was cut; None before its first stage."""
    path = folder / STAGES
    seen = read_json(path) if path.exists() else {"stages": {}}
    if not seen["stages"]:
        return None
    last = [stage for stage in seen["stages"].values() if "fid" in stage][-1:]
    return {**metrics_of(seen), **(last[0] if last else {})}


def load(config: Config, job: Job) -> datasets.Split:
    """Images as bytes on the device: 70 % for training, 10 % held out, 20 % for distances."""
    if config.dataset == "synthetic":
        shape = (config.synthetic_images, 3, config.size, config.size)
        coarse = torch.rand(*shape[:2], 4, 4, generator=job.generator(DATA), device=job.device)
        faces = F.interpolate(coarse, shape[2:])
    else:
        faces = datasets.load(config.dataset, job.data_dir, dtype=torch.float32).x
    parts = split_images(faces.to(job.device), (0.7, 0.1, 0.2))
    return datasets.Split(*map(as_bytes, parts))


def as_bytes(images: Tensor) -> Tensor:
    """Images with values in 0..1 as bytes, rounded."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def scale(pixels: Tensor) -> Tensor:
    """Bytes as numbers in -1..1."""
    return pixels.float() / 127.5 - 1


def dequantise(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Bytes as numbers in -1..1, plus uniform noise of one grey level."""
    u = torch.rand(pixels.shape, generator=generator, device=pixels.device)
    return scale(pixels) + (2 * u - 1) / 256


def transform_of(config: Config) -> Callable[[Tensor, torch.Generator], Tensor]:
    """`dequantise`, in the order in memory that the networks have."""
    if not config.channels_last:
        return dequantise

    def prepare(pixels: Tensor, generator: torch.Generator) -> Tensor:
        return dequantise(pixels, generator).contiguous(memory_format=torch.channels_last)

    return prepare


def make_model(config: Config, job: Job) -> VAE | ImplicitVAE | WAE:
    """The model of a row, with initial weights drawn from the seed."""
    sizes = {"latent_dim": config.latent_dim, "size": config.size, "width": config.width}
    shared: dict[str, Any] = {
        **sizes,
        "log_std": config.log_std,
        "as_released": config.as_released,
        "generator": job.generator(WEIGHTS, "cpu"),
    }
    network = needs_network(config)
    model: VAE | ImplicitVAE | WAE
    if config.method == "ELBO":
        model = make_vae(**shared)
    elif config.model == "VAE":
        model = make_implicit_vae(with_score_network=network, **shared)
    else:
        model = make_wae(with_score_network=network, lam=config.lam, **shared)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.to(job.device)


class SampleDistances:
    """Distances of a model's samples to held-out images.

    Samples are means of pixels, without noise, rounded to bytes like the images.

    Args:
        config: the settings.
        job: seed, device and data folder.
        images: bytes ``(N, 3, S, S)``.
    """

    def __init__(self, config: Config, job: Job, images: Tensor) -> None:
        """Load the network; features of the images are computed when they are first needed."""
        self.config, self.job, self.images = config, job, images
        self.network: Callable[[Tensor], Tensor] = coarse_pixels
        if config.features == "inception":
            self.network = inception(value_range="0..1", data_dir=job.data_dir).to(job.device)
        self.reference: Tensor | None = None

    @torch.no_grad()
    def __call__(self, model: Any) -> Metrics:
        """The Frechet and the kernel distance of fresh samples."""
        if self.reference is None:
            self.reference = self._features(self.images.split(self.config.fid_batch))
        generator = self.job.generator(EVALUATION)
        counts = torch.arange(self.config.fid_samples).split(self.config.fid_batch)
        samples = (as_bytes((model.sample(len(n), generator) + 1) / 2) for n in counts)
        features = self._features(samples)
        block = min(1000, len(features) // 2, len(self.reference) // 2)
        kernel = kernel_distance(features, self.reference, block)
        fid = frechet_distance(features, self.reference)
        return {"fid": fid, "kid": kernel.mean, "kid_se": kernel.standard_error}

    def _features(self, batches: Iterable[Tensor]) -> Tensor:
        return torch.cat([self.network(batch.float() / 255) for batch in batches])


def coarse_pixels(images: Tensor) -> Tensor:
    """Features without a network: means over a grid of 4 x 4, ``(N, 3, S, S) -> (N, 48)``."""
    return F.adaptive_avg_pool2d(images, 4).flatten(1)


@torch.no_grad()
def reconstruction(model: Any, images: Tensor, job: Job) -> float:
    """Mean squared error per held-out image, with values in -1..1."""
    generator = job.generator(EVALUATION)
    errors = []
    for batch in images.split(500):
        x = scale(batch)
        z = model.encode(x, generator)
        errors.append((x - model.decode(z)).square().flatten(1).sum(1))
    return torch.cat(errors).double().mean().item()


@torch.no_grad()
def _draw_sheets(model: Any, images: Tensor, job: Job) -> None:
    """Write samples and reconstructions as PNG into the folder of the run."""
    generator, x = job.generator(PICTURES), scale(images[:32])
    save_sheet(job.folder / SAMPLES, (model.sample(64, generator) + 1) / 2, columns=8)
    copies = model.decode(model.encode(x, generator))
    beside = job.folder / PHOTOGRAPHS / RECONSTRUCTIONS
    beside.parent.mkdir(exist_ok=True)
    save_pairs(beside, (x + 1) / 2, (copies + 1) / 2, columns=8)


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw the samples of all rows."""
    return sample_figures(runs, folder, _place)


def _place(run: Run) -> tuple[str, str]:
    """All in one row, since runs may have ended after different numbers of iterations."""
    return "", f"{run.config['method']}, {run.metrics['iterations']} iterations"


def notes(runs: Sequence[Run]) -> list[str]:
    """Sentences about the distances."""
    found = [
        "Distances are in features of the Inception network of 2015; the paper's are in features "
        "of another network, that of torchvision, and cannot be compared number by number.",
    ]
    images = {run.metrics["fid_images"] for run in runs if "fid_images" in run.metrics}
    if images:
        found.append(
            f"Samples are compared with {', '.join(map(str, sorted(images)))} held-out images; the "
            "paper has 10,100 of a larger data set."
        )
    return found


EXPERIMENT = Experiment(
    name="table-celeba",
    summary="Auto-encoders on CelebA: Frechet distance (FID) of samples against iterations.",
    config=Config,
    variants=VARIANTS,
    smoke=SMOKE,
    run=run,
    columns={
        **{f"fid_{mark}": f"FID at {mark // 1000}k" for mark in MARKS},
        **{f"kid_{mark}": f"KID at {mark // 1000}k" for mark in MARKS},
        "valid_reconstruction": "held-out error",
        "iterations": "iterations",
        "ms_per_iteration": "ms per iteration",
    },
    plot=plot,
    notes=notes,
    reached=reached,
    unfinished=unfinished,
)
