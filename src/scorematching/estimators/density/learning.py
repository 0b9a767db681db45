"""Training of the models of `DensityEstimator` on whitened points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_count, check_flag, check_positive, is_number
from scorematching.estimators.deep_kernel import DeepKernelConfig, choose_ridge, fit_dkef
from scorematching.estimators.density.calibration import DiagonalBase, calibrate, widest_base
from scorematching.estimators.density.sampling import KernelProposal
from scorematching.models import DKEF, NICE
from scorematching.objectives import MaximumLikelihood, Objective, ScoreMatching
from scorematching.objectives.names import NAMES
from scorematching.objectives.sliced import Sliced
from scorematching.training import TrainConfig, train

OBJECTIVES = {name.lower(): NAMES[name] for name in ("SSM-VR", "SSM", "SM", "MLE")}

_RATES = {"dkef": 1e-2, "nice": 2e-3}
_VALIDATE_EVERY = 10
_NOISY_COPIES = 8
_CALIBRATION_SAMPLES = 50_000
_MAX_CENTRES = 2000


@dataclass(frozen=True)
class Settings:
    """The arguments of `DensityEstimator` for training, under the same names."""

    model: str
    num_inducing: int
    hidden: Sequence[int]
    noise: float
    max_steps: int
    batch_size: int
    learning_rate: float | None
    patience: int
    calibrate: bool
    num_importance: int
    progress: bool

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.model not in _RATES:
            raise ValueError(f'model must be "dkef" or "nice", got {self.model!r}; try "dkef"')
        if not is_number(self.noise) or not 0 <= self.noise < float("inf"):
            raise ValueError(f"noise must be zero or a positive number, got {self.noise!r}; try 0")
        check_flag(self.calibrate, "calibrate", "True is the default")
        for name in ("num_inducing", "max_steps", "batch_size", "patience", "num_importance"):
            check_count(getattr(self, name), name, "it counts points or steps")
        if self.batch_size < 2:
            raise ValueError(
                "batch_size must be at least 2, got 1; DKEF solves on one half and learns on the "
                "other"
            )
        if self.learning_rate is not None:
            check_positive(self.learning_rate, "learning_rate", "None is the model's default")

    @property
    def rate(self) -> float:
        """The learning rate, by default that of the model."""
        return self.learning_rate or _RATES[self.model]


class Learned(NamedTuple):
    """A trained model in double precision.

    Attributes:
        model: the module.
        validation_loss: its objective on the validation points.
        steps: training steps taken.
        proposal: for importance sampling; None if the model is normalised.
    """

    model: DKEF | NICE
    validation_loss: float
    steps: int
    proposal: KernelProposal | None = None


def objective_of(value: Any, model: str) -> Objective:
    """The objective of a name, or the one that was given."""
    named = isinstance(value, str) and value.lower() in OBJECTIVES
    objective = OBJECTIVES[value.lower()]() if named else value
    if not isinstance(objective, Objective):
        raise ValueError(
            f"objective must be one of {', '.join(OBJECTIVES)} or an Objective, got {value!r}; "
            '"ssm-vr" is a good default'
        )
    if model == "dkef" and isinstance(objective, MaximumLikelihood):
        raise ValueError(
            'objective must be one for unnormalised models with model="dkef", got maximum '
            'likelihood; use "ssm-vr", or model="nice"'
        )
    return objective


def learn_dkef(
    z_train: Tensor,
    z_valid: Tensor,
    objective: Objective,
    settings: Settings,
    generator: torch.Generator,
) -> Learned:
    """Train a DKEF on whitened points ``(N, D)``: two-stage training, then ridge and calibration.

    Training is in single precision, which is twice as fast; the rest is in double precision.
    """
    num_inducing = min(settings.num_inducing, len(z_train))
    order = torch.randperm(len(z_train), generator=generator, device=z_train.device)
    proposal = KernelProposal(z_train[order[:_MAX_CENTRES]], widest_base(z_train))
    z_train, z_valid = (_noisy_copies(z, settings.noise, generator) for z in (z_train, z_valid))
    with torch.device(z_train.device):
        base = DiagonalBase(z_train.shape[1])
        model = DKEF(z_train.shape[1], num_inducing, base=base, generator=generator).float()
    config, single = _two_stages(settings, len(z_train)), (z_train.float(), z_valid.float())
    fit = fit_dkef(
        model, objective, *single, config, generator=generator, progress=settings.progress
    )
    # A solve propagates D tangents in any case, so an exact trace costs no more.
    exact = ScoreMatching() if isinstance(objective, Sliced) else objective
    choose_ridge(model.double(), exact, z_train, z_valid, generator)
    if settings.calibrate:
        num = min(settings.num_importance, _CALIBRATION_SAMPLES)
        calibrate(model, torch.cat([z_train, z_valid]), z_valid, proposal, generator, num)
    loss = exact(model, z_valid, generator).mean().item()
    return Learned(model, loss, fit.training.steps, proposal)


def _two_stages(settings: Settings, count: int) -> DeepKernelConfig:
    """The settings of `fit_dkef` for ``count`` training points."""
    return DeepKernelConfig(
        steps=settings.max_steps,
        batch_size=2 * min(settings.batch_size // 2, count // 2),
        lr=settings.rate,
        validate_every=_VALIDATE_EVERY,
        patience=settings.patience,
    )


def learn_nice(
    z_train: Tensor,
    z_valid: Tensor,
    objective: Objective,
    settings: Settings,
    generator: torch.Generator,
) -> Learned:
    """Train a NICE on whitened points ``(N, D)`` in single precision, new noise in every batch."""
    with torch.device(z_train.device):
        model = NICE(z_train.shape[1], settings.hidden, generator=generator).float()

    def blur(batch: Tensor, generator: torch.Generator) -> Tensor:
        return _blurred(batch, settings.noise, generator)

    config = TrainConfig(
        steps=settings.max_steps,
        batch_size=min(settings.batch_size, len(z_train)),
        lr=settings.rate,
        schedule="cosine",
        max_norm=100.0,
        validate_every=_VALIDATE_EVERY,
        patience=-(-settings.patience // _VALIDATE_EVERY),
    )
    result = train(
        model,
        objective,
        z_train.float(),
        config,
        validation=z_valid.float(),
        transform=blur,
        executor=("captured", "eager"),
        generator=generator,
        progress=settings.progress,
    )
    model.double()
    assert result.best_loss is not None
    return Learned(model, result.best_loss, result.steps)


def _noisy_copies(z: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Several copies of the points, each with its own noise; without noise the points."""
    return _blurred(z.repeat(_NOISY_COPIES, 1), noise, generator) if noise else z


def _blurred(z: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    eps = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
    return z + noise * eps
