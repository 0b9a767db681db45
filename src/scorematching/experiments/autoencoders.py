"""What the experiments with auto-encoders share: ways to train them, and training in stages.

A run is trained in stages, each of which goes on from the checkpoint of the one before, to the same
digits as without a break. After each stage it is looked at, and what was seen is written down: so
numbers of earlier iterations are kept, an interrupted run need not look again, and a run may stop
where its time is up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scorematching.errors import DivergedError
from scorematching.experiments.base import Job, Metrics, Run
from scorematching.experiments.eigen import eigenpairs
from scorematching.experiments.sheets import combine
from scorematching.kernels import fit_spectral, fit_stein
from scorematching.models import WAE
from scorematching.objectives import ScoreMatching, SlicedScoreMatchingVR
from scorematching.projections import Gaussian
from scorematching.training import TrainConfig, load_weights, score_first, train
from scorematching.training.alternating import Loss
from scorematching.training.checkpoint import write_atomically

METHODS = ("ELBO", "SSM", "SSM exact", "Stein", "Spectral")
"""How the entropy of the encoder is treated."""

DATA, EVALUATION, WEIGHTS, TRAINING = range(4)  # streams of randomness

SAMPLES, RECONSTRUCTIONS, STAGES = "samples.png", "reconstructions.png", "stages.json"


@dataclass(frozen=True)
class Settings:
    """Settings of both experiments; where the paper is silent, the values are the release's."""

    dataset: str = "mnist"
    model: str = "VAE"  # or "WAE"; 6.2
    method: str = "SSM"  # one of METHODS; 6.2
    latent_dim: int = 8  # 6.2: 8 and 32
    iterations: int = 100_000  # C.3
    batch_size: int = 128  # C.3
    lr: float = 1e-3  # C.3; of RMSprop
    score_lr: float | None = None  # of the score network; None is lr, as in C.3
    projections: int = 1  # 6.2; Gaussian directions, with variance reduction, as released
    num_samples: int = 100  # 6.2; latents of a point from which kernels estimate a score
    lam: float = 10.0  # release; weight of the divergence of WAE
    eta: float = 1e-3  # release; ridge of Stein
    mass: float = 0.99  # release; share of the eigenvalues that Spectral stays below
    include_diagonal: bool = True  # release; zero distances count in the median bandwidth
    average_mass: bool = True  # release; one number of eigenpairs for a whole batch
    stage: int = 10_000  # iterations between looks and checkpoints (release)
    max_seconds: float | None = None  # of training: stop after the stage that still fits
    precision: str = "float32"  # or "bf16"
    capture: bool | None = None  # steps as CUDA graphs; None where that is possible


# Ways to train.


def loss_for(config: Settings) -> Loss:
    """What to minimise, by the method's name.

    Raises:
        ValueError: if the method is unknown, or a WAE is asked for the evidence bound.
    """
    if config.method not in METHODS or (config.method == "ELBO" and config.model == "WAE"):
        raise ValueError(
            f"method must be one of {', '.join(METHODS)} (WAE has no ELBO), got {config.method!r} "
            f"for {config.model}; try SSM"
        )
    if config.method == "SSM":
        return score_first(SlicedScoreMatchingVR(Gaussian(), config.projections))
    if config.method == "SSM exact":
        return score_first(ScoreMatching())
    if config.method == "ELBO":
        return _loss
    return _kernel_loss(config, stein if config.method == "Stein" else spectral)


def needs_network(config: Settings) -> bool:
    """Whether the method learns a score network."""
    return config.method.startswith("SSM")


def _loss(model: Any, batch: Tensor, generator: torch.Generator | None = None) -> Tensor:
    losses: Tensor = model.loss(batch, generator=generator)
    return losses


def _kernel_loss(config: Settings, estimator: Callable[[Settings, Tensor], Tensor]) -> Loss:
    score = partial(estimator, config)

    def loss(model: Any, batch: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if isinstance(model, WAE):  # the batch itself is the sample
            return model.loss(batch, score, generator)
        losses: Tensor = model.loss(batch, score, config.num_samples, generator)
        return losses

    return loss


def stein(config: Settings, z: Tensor) -> Tensor:
    """Stein's estimate at the samples themselves, ``(B, M, D) -> (B, M, D)``.

    In double precision: its inverse magnifies what tf32, or float32, leaves out.
    """
    fitted = fit_stein(z.double(), eta=config.eta, include_diagonal=config.include_diagonal)
    return fitted.at_samples().to(z)


def spectral(config: Settings, z: Tensor) -> Tensor:
    """The spectral estimate at the samples themselves, ``(B, M, D) -> (B, M, D)``.

    In double precision too, but for the eigenpairs, which a GPU finds side by side.
    """
    fitted = fit_spectral(
        z.double(),
        mass=config.mass,
        include_diagonal=config.include_diagonal,
        average_mass=config.average_mass,
        solver=eigenpairs,
    )
    return fitted.at_samples().to(z)


# Training.


class TwoRates(torch.optim.RMSprop):
    """RMSprop whose second group of parameters has a learning rate of its own.

    A schedule that sets one rate for all then moves both, at a constant ratio.

    Args:
        parameters: those of both groups.
        lr: of the first group.
        others: those of the second.
        ratio: rate of the second over that of the first.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float, others: set[int], ratio: float
    ) -> None:
        """Divide the parameters."""
        groups = [
            {"params": [p for p in parameters if id(p) not in others], "ratio": 1.0},
            {"params": [p for p in parameters if id(p) in others], "ratio": ratio},
        ]
        super().__init__([group for group in groups if group["params"]], lr=lr)

    def step(self, closure: Any = None) -> Any:
        """One step, with every rate multiplied by its ratio for as long as it takes."""
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = group["lr"] * group["ratio"]
        try:
            return super().step(closure)
        finally:
            for group, rate in zip(self.param_groups, rates):
                group["lr"] = rate


def optimizer_for(config: Settings, model: Any) -> Callable[..., torch.optim.Optimizer]:
    """RMSprop, with a second learning rate where one is set."""
    if config.score_lr is None or not needs_network(config):
        return torch.optim.RMSprop
    others = {id(p) for p in model.score_network.parameters()}
    return partial(TwoRates, others=others, ratio=config.score_lr / config.lr)


def train_in_stages(
    model: nn.Module,
    data: Tensor,
    transform: Callable[[Tensor, torch.Generator], Tensor],
    config: Settings,
    job: Job,
    look: Callable[[int], Metrics],
) -> Metrics:
    """Train a model in place, and look at it after every stage.

    Args:
        model: what to train.
        data: on the device, ``(N, *event)`` before the transform.
        transform: makes points of a batch of data.
        config: the settings.
        job: the circumstances.
        look: called with the number of iterations after each stage; what it finds is kept.

    Returns:
        What was seen, by iteration; where training ended, and how long it took.
    """
    folder, seen = job.folder / "training", _read(job.folder / STAGES)
    objective, optimizer = loss_for(config), optimizer_for(config, model)
    for mark in _marks(config):
        if str(mark) in seen["stages"] or _is_over(seen, mark, config.max_seconds):
            continue
        try:
            result = train(
                model,
                objective,
                data,
                _train_config(config, mark),
                transform=transform,
                optimizer=optimizer,
                generator=job.generator(TRAINING),
                folder=folder,
                resume=True,
                progress=job.progress,
            )
        except DivergedError as error:
            seen["diverged_at"] = error.step
        else:
            seen["seconds"], seen["iterations"] = result.seconds, mark
            loss = result.history[-1].loss
            seen["stages"][str(mark)] = {"seconds": result.seconds, "loss": loss, **look(mark)}
        write_atomically(job.folder / STAGES, json.dumps(seen, indent=1).encode())
    if (folder / "checkpoint.json").exists():
        load_weights(model, folder, which="last")
    return seen


def _read(path: Path) -> Metrics:
    """What was seen of a run so far."""
    if path.exists():
        found: Metrics = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {"iterations": 0, "seconds": 0.0, "diverged_at": None, "stages": {}}


def _marks(config: Settings) -> list[int]:
    """Iterations at which stages end."""
    return [*range(config.stage, config.iterations, config.stage), config.iterations]


def _is_over(seen: Metrics, mark: int, max_seconds: float | None) -> bool:
    """Whether training ended before a mark, or would go on for too long at the pace so far."""
    if seen["diverged_at"] is not None:
        return True
    if max_seconds is None or seen["iterations"] == 0:
        return False
    return bool(seen["seconds"] * mark / seen["iterations"] > max_seconds)


def _train_config(config: Settings, steps: int) -> TrainConfig:
    return TrainConfig(
        steps=steps,
        batch_size=config.batch_size,
        lr=config.lr,
        checkpoint_every=config.stage,
        log_every=min(1000, config.stage),
        precision=config.precision,
        capture=config.capture,
    )


def progress_of(seen: Metrics) -> Metrics:
    """Where training ended and how long it took, as metrics."""
    done = max(1, seen["iterations"])
    return {
        "iterations": seen["iterations"],
        "train_seconds": round(seen["seconds"], 2),
        "ms_per_iteration": round(1000 * seen["seconds"] / done, 4),
        "diverged_at": seen["diverged_at"],
    }


# Reports.


def sample_figures(runs: Sequence[Run], folder: Path, column: Callable[[Run], str]) -> list[Path]:
    """Figures of the runs' sample sheets, in the form of the paper's Appendix A.

    One figure for each kind of model; its rows are methods. Of several seeds the first is shown.

    Args:
        runs: finished runs.
        folder: where their folders are, and where figures go.
        column: name of the column of a run.
    """
    written = []
    for kind in ("VAE", "WAE"):
        cells: dict[tuple[str, str], Path] = {}
        for run in runs:
            sheet = folder / run.variant.replace(" ", "-") / f"seed-{run.seed}" / SAMPLES
            if run.config["model"] == kind and sheet.exists():
                cells.setdefault((run.variant.split("/")[-1], column(run)), sheet)
        if cells:
            name = f"{runs[0].experiment}-{kind.lower()}-samples.png"
            written.append(combine(cells, folder / name, f"{kind} samples"))
    return written
