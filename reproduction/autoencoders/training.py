"""What the experiments with auto-encoders share: losses, optimisers and training in stages.

After each stage of training the model is evaluated and the results are written to a file. So
results of earlier iterations are kept, an interrupted run does not evaluate again, and a run may
stop after a stage when its time is up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reproduction.autoencoders.eigen import eigenpairs
from reproduction.experiment import Job, Metrics, Run
from reproduction.files import read_json
from reproduction.pictures import combine
from scorematching._files import write_atomically
from scorematching.errors import DivergedError
from scorematching.kernels import fit_spectral, fit_stein
from scorematching.models import WAE
from scorematching.objectives import ScoreMatching, SlicedScoreMatchingVR
from scorematching.projections import Gaussian
from scorematching.training import (
    Callback,
    DrawnLoss,
    ModelLoss,
    TrainConfig,
    TrainState,
    load_weights,
    score_first,
    train,
)
from scorematching.training.alternating import Loss

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
    schedule: str = "constant"  # or "cosine", which falls to zero (ours)
    score_lr: float | None = None  # of the score network; None is lr, as in C.3
    projections: int = 1  # 6.2; Gaussian directions, with variance reduction, as released
    num_samples: int = 100  # 6.2; latents of a point from which kernels estimate a score
    lam: float = 10.0  # release; weight of the divergence of WAE
    eta: float = 1e-3  # release; ridge of Stein
    mass: float = 0.99  # release; share of the eigenvalues that Spectral stays below
    include_diagonal: bool = True  # release; zero distances count in the median bandwidth
    average_mass: bool = True  # release; one number of eigenpairs for a whole batch
    stage: int = 10_000  # iterations between evaluations and checkpoints (release)
    max_seconds: float | None = None  # of training: stop after the stage that still fits
    precision: str = "float32"  # or "bf16"
    capture: bool | None = None  # steps as CUDA graphs; None compiles them too, where possible


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
        return ModelLoss()
    # Settings of the estimator only: a run is resumed with the loss it began with.
    shared: dict[str, Any] = {"include_diagonal": config.include_diagonal}
    score = partial(stein, eta=config.eta, **shared)
    if config.method == "Spectral":
        score = partial(spectral, mass=config.mass, average_mass=config.average_mass, **shared)
    return KernelLoss(score, config.num_samples)


def needs_network(config: Settings) -> bool:
    """Whether the method learns a score network."""
    return config.method.startswith("SSM")


@dataclass(frozen=True)
class KernelLoss(DrawnLoss):
    """The loss of a model whose scores a kernel estimator gives.

    Args:
        score: the estimate at samples, ``(*B, M, D) -> (*B, M, D)``.
        num_samples: M of a VAE, latents of a point. For a WAE the batch itself is the sample.
    """

    score: Callable[[Tensor], Tensor]
    num_samples: int

    def draw(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Any:
        """The noise of the encoder."""
        many = () if isinstance(model, WAE) else (self.num_samples,)
        return model.draw_noise(batch, generator, *many)

    def loss(self, model: Any, batch: Any, noise: Any) -> Tensor:
        """The loss of every point, ``(N,)``, for this noise."""
        many = () if isinstance(model, WAE) else (self.num_samples,)
        losses: Tensor = model.loss(batch, self.score, *many, noise=noise)
        return losses


def stein(z: Tensor, eta: float, include_diagonal: bool) -> Tensor:
    """Stein's estimate at the samples themselves, ``(B, M, D) -> (B, M, D)``.

    In double precision: its inverse magnifies what tf32, or float32, leaves out.
    """
    fitted = fit_stein(z.double(), eta=eta, include_diagonal=include_diagonal)
    return fitted.at_samples().to(z)


def spectral(z: Tensor, mass: float, average_mass: bool, include_diagonal: bool) -> Tensor:
    """The spectral estimate at the samples themselves, ``(B, M, D) -> (B, M, D)``.

    In double precision too, but for the eigenpairs, which a GPU finds side by side.
    """
    fitted = fit_spectral(
        z.double(),
        mass=mass,
        include_diagonal=include_diagonal,
        average_mass=average_mass,
        solver=eigenpairs,
    )
    return fitted.at_samples().to(z)


# Training.


def optimizer_for(config: Settings, model: Any) -> Callable[..., torch.optim.Optimizer]:
    """RMSprop, with a second learning rate for the score network where one is set."""
    if config.score_lr is None or not needs_network(config):
        return torch.optim.RMSprop
    network = list(model.score_network.parameters())
    others = {id(p) for p in network}

    def make(parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        rest = [p for p in parameters if id(p) not in others]
        groups: list[dict[str, Any]] = [
            {"params": rest},
            {"params": network, "lr": config.score_lr},
        ]
        return torch.optim.RMSprop(groups, lr=lr)

    return make


def _nothing() -> Metrics:
    """Results before the first stage."""
    return {"iterations": 0, "seconds": 0.0, "diverged_at": None, "executor": None, "stages": {}}


class Stages(Callback):
    """Evaluates the model after every stage, and stops the run when its time is up.

    Args:
        path: file of the results. Stages whose results it has are not evaluated again.
        config: the settings.
        evaluate: from the number of iterations to results.

    Attributes:
        found: the results by iteration, iterations and seconds of training, the step at which the
            run diverged (None if it did not), and the executor of its steps.
    """

    def __init__(self, path: Path, config: Settings, evaluate: Callable[[int], Metrics]) -> None:
        """Read the results of earlier stages."""
        self.path, self.config, self.evaluate = path, config, evaluate
        self.found = read_json(path) if path.exists() else _nothing()

    def on_start(self, state: TrainState) -> None:
        """A run may have been interrupted between a checkpoint and its evaluation.

        Results without a checkpoint are of an earlier run, whose weights are lost.
        """
        if state.step == 0:
            self.found = _nothing()
        self.on_step(state)

    def on_step(self, state: TrainState) -> None:
        """Evaluate at the end of a stage."""
        done = state.step
        if done == 0 or not state.is_due(self.config.stage):
            return
        if str(done) not in self.found["stages"]:
            results = {"seconds": state.seconds, "loss": state.history[-1].loss}
            with state.pause():
                results |= self.evaluate(done)
            self.found |= {"iterations": done, "seconds": results["seconds"]}
            self.found["stages"][str(done)] = results
            self.write()
        if self._exceeds_time(min(done + self.config.stage, state.total)):
            state.stop()

    def write(self) -> None:
        """Write the results to the file."""
        write_atomically(self.path, json.dumps(self.found, indent=1).encode())

    def _exceeds_time(self, iterations: int) -> bool:
        """Whether so many iterations would take too long at the pace so far."""
        limit, done = self.config.max_seconds, self.found["iterations"]
        return limit is not None and self.found["seconds"] * iterations / done > limit


def train_model(
    model: nn.Module,
    data: Tensor,
    transform: Callable[[Tensor, torch.Generator], Tensor],
    config: Settings,
    job: Job,
    evaluate: Callable[[int], Metrics],
) -> Metrics:
    """Train a model in place, and evaluate it after every stage.

    Args:
        model: what to train.
        data: on the device, ``(N, *event)`` before the transform.
        transform: makes points of a batch of data.
        config: the settings.
        job: the circumstances.
        evaluate: from the number of iterations to results, which are kept.

    Returns:
        Results by iteration, where training ended, and how long it took.
    """
    folder = job.folder / "training"
    stages = Stages(job.folder / STAGES, config, evaluate)
    if stages.found["diverged_at"] is None:
        try:
            result = train(
                model,
                loss_for(config),
                data,
                _train_config(config),
                transform=transform,
                optimizer=optimizer_for(config, model),
                executor={None: "auto", True: "captured", False: "eager"}[config.capture],
                callbacks=[stages],
                generator=job.generator(TRAINING),
                folder=folder,
                resume=True,
                progress=job.progress,
            )
            # A run that is trained already has taken no step now.
            stages.found["executor"] = stages.found.get("executor") or result.executor
        except DivergedError as error:
            stages.found["diverged_at"] = error.step
        stages.write()
    if (folder / "checkpoint.json").exists():
        load_weights(model, folder, which="last")
    return stages.found


def _train_config(config: Settings) -> TrainConfig:
    return TrainConfig(
        steps=config.iterations,
        batch_size=config.batch_size,
        lr=config.lr,
        schedule=config.schedule,
        checkpoint_every=config.stage,
        log_every=config.stage if config.stage <= 1000 else math.gcd(1000, config.stage),
        precision=config.precision,
    )


def progress_of(seen: Metrics) -> Metrics:
    """Where training ended and how long it took, as metrics."""
    done = max(1, seen["iterations"])
    return {
        "iterations": seen["iterations"],
        "train_seconds": round(seen["seconds"], 2),
        "ms_per_iteration": round(1000 * seen["seconds"] / done, 4),
        "diverged_at": seen["diverged_at"],
        "executor": seen.get("executor"),  # runs of earlier versions do not say
    }


# Reports.


def reached(run: Run) -> str:
    """Where a run ended before the iterations of the paper."""
    done, usual = run.metrics["iterations"], Settings.iterations
    return f"{done} of {usual} iterations" if done < usual and not run.smoke else ""


def sample_figures(
    runs: Sequence[Run], folder: Path, place: Callable[[Run], tuple[str, str]]
) -> list[Path]:
    """Figures of the runs' sample sheets, in the form of the paper's Appendix A.

    One figure for each kind of model. Of several seeds the first is shown.

    Args:
        runs: finished runs.
        folder: where their folders are, and where figures go.
        place: names of the row and the column of a run.
    """
    written = []
    for kind in ("VAE", "WAE"):
        cells: dict[tuple[str, str], Path] = {}
        for run in runs:
            sheet = folder / run.variant.replace(" ", "-") / f"seed-{run.seed}" / SAMPLES
            if run.config["model"] == kind and sheet.exists():
                cells.setdefault(place(run), sheet)
        if cells:
            name = f"{runs[0].experiment}-{kind.lower()}-samples.png"
            written.append(combine(cells, folder / name, f"{kind} samples"))
    return written
