"""How the models of `DensityEstimator` are trained on whitened points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_count, check_flag, check_positive, is_number
from scorematching.estimators.deep_kernel import DeepKernelConfig, choose_ridge, fit_dkef
from scorematching.estimators.density_calibration import DiagonalBase, calibrate, wide_law
from scorematching.estimators.density_sampling import KernelProposal
from scorematching.models import DKEF, NICE
from scorematching.objectives import MaximumLikelihood, Objective, ScoreMatching
from scorematching.objectives.names import NAMES
from scorematching.objectives.sliced import Sliced
from scorematching.training import TrainConfig, train

OBJECTIVES = {name.lower(): NAMES[name] for name in ("SSM-VR", "SSM", "SM", "MLE")}

_RATES = {"dkef": 1e-2, "nice": 2e-3}
_VALIDATE_EVERY = 10
_COPIES = 8
_CALIBRATION = 50_000
_CENTRES = 2000


@dataclass(frozen=True)
class Settings:
    """The arguments of `DensityEstimator` that concern learning, under the same names."""

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
        check_flag(self.calibrate, "calibrate", "True suits densities")
        for name in ("num_inducing", "max_steps", "batch_size", "patience", "num_importance"):
            check_count(getattr(self, name), name, "it counts points or steps")
        if self.batch_size < 2:
            raise ValueError(
                "batch_size must be at least 2, got 1; DKEF solves on one half and learns on the "
                "other"
            )
        if self.learning_rate is not None:
            check_positive(self.learning_rate, "learning_rate", "None suits the model")

    @property
    def rate(self) -> float:
        """The learning rate: the one given, or the model's own."""
        return self.learning_rate or _RATES[self.model]


class Learned(NamedTuple):
    """A trained model in double precision.

    Attributes:
        model: the module.
        validation_loss: its objective on the validation points.
        steps: training steps taken.
        proposal: for importance sampling, where the model is not normalised.
    """

    model: DKEF | NICE
    validation_loss: float
    steps: int
    proposal: KernelProposal | None = None


def learn(
    z_train: Tensor,
    z_valid: Tensor,
    objective: Objective,
    settings: Settings,
    generator: torch.Generator,
) -> Learned:
    """The model of these settings, trained on whitened points ``(N, D)`` and held-out ones.

    Training is in single precision, which is twice as fast; what is solved for, and all that is
    asked of the model later, is in double precision.
    """
    train_model = _learn_dkef if settings.model == "dkef" else _learn_nice
    return train_model(z_train, z_valid, objective, settings, generator)


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


def _learn_dkef(
    z_train: Tensor,
    z_valid: Tensor,
    objective: Objective,
    settings: Settings,
    generator: torch.Generator,
) -> Learned:
    """Kernel by two-stage training, weights in closed form, base by likelihood."""
    num_inducing = min(settings.num_inducing, len(z_train))
    proposal = KernelProposal(_some(z_train, _CENTRES, generator), wide_law(z_train))
    z_train, z_valid = (_copies(z, settings.noise, generator) for z in (z_train, z_valid))
    with torch.device(z_train.device):
        base = DiagonalBase(z_train.shape[1])
        model = DKEF(z_train.shape[1], num_inducing, base=base, generator=generator).float()
    config, single = _two_stages(settings, len(z_train)), (z_train.float(), z_valid.float())
    fit = fit_dkef(
        model, objective, *single, config, generator=generator, progress=settings.progress
    )
    # A solve costs D tangents anyway, so the trace may as well be exact.
    exact = ScoreMatching() if isinstance(objective, Sliced) else objective
    choose_ridge(model.double(), exact, z_train, z_valid, generator)
    if settings.calibrate:
        num = min(settings.num_importance, _CALIBRATION)
        calibrate(model, torch.cat([z_train, z_valid]), z_valid, proposal, generator, num)
    loss = exact(model, z_valid, generator).mean().item()
    return Learned(model, loss, fit.training.steps, proposal)


def _two_stages(settings: Settings, count: int) -> DeepKernelConfig:
    """The settings of `fit_dkef` for so many training points."""
    return DeepKernelConfig(
        steps=settings.max_steps,
        batch_size=2 * min(settings.batch_size // 2, count // 2),
        lr=settings.rate,
        validate_every=_VALIDATE_EVERY,
        patience=settings.patience,
    )


def _learn_nice(
    z_train: Tensor,
    z_valid: Tensor,
    objective: Objective,
    settings: Settings,
    generator: torch.Generator,
) -> Learned:
    """Everything by gradient descent, with noise that is new in every batch."""
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
    z_valid = _blurred(z_valid, settings.noise, generator).float()
    result = train(
        model,
        objective,
        z_train.float(),
        config,
        validation=z_valid,
        transform=blur,
        generator=generator,
        progress=settings.progress,
    )
    model.double()
    assert result.best_loss is not None
    return Learned(model, result.best_loss, result.steps)


def _some(z: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """So many points at random, at most."""
    return z[torch.randperm(len(z), generator=generator, device=z.device)[:num]]


def _copies(z: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Copies of points, each with noise of its own; the points themselves without noise."""
    return _blurred(z.repeat(_COPIES, 1), noise, generator) if noise else z


def _blurred(z: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    eps = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
    return z + noise * eps
