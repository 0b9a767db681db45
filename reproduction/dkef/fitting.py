"""Training of deep kernel exponential families, and the choice of their ridge penalty.

Reference: Wenliang et al. (2019), Algorithm 1; Song et al. (2019), Appendix C.1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import (
    check_choice,
    check_count,
    check_flag,
    check_generator,
    check_points,
)
from scorematching._memory import limited
from scorematching.estimators.density.ridge import RidgePath
from scorematching.evaluation import score_matching_loss
from scorematching.models import DKEF
from scorematching.training import TrainConfig, TrainResult, train

SELECTIONS = ("objective", "score matching")

_CHUNK = 512


@dataclass(frozen=True)
class DeepKernelConfig:
    """Settings of `fit_dkef`; the defaults are those of Song et al. (2019), Appendix C.1.

    Args:
        epochs: passes over the training points, at most.
        steps: number of steps at most, in place of epochs.
        batch_size: points per step: one half to solve for alpha, the other for the loss.
        lr: learning rate of Adam.
        max_norm: largest norm of the gradient, which is clipped; None does not clip.
        validate_every: steps between validations. A validation costs about as much as ten steps.
        patience: steps without a new least validation loss after which training stops, rounded up
            to a whole number of validations; None never stops.
        alpha_points: training points that alpha is solved on for a validation, at most.
        select: the validation loss: "objective", that of training, or "score matching", the exact
            loss for any objective.
        initialise: set the inducing points to training points first.
        checkpoint_every: steps between checkpoints, where there is a folder.
        executor: how steps are run, as in `train`.

    Raises:
        TypeError: if a number is of the wrong type.
        ValueError: if a number is out of range, or a name unknown.

    Example:
        >>> DeepKernelConfig(validate_every=30).patience_in_validations
        7
    """

    epochs: int = 500
    steps: int | None = None
    batch_size: int = 200
    lr: float = 1e-2
    max_norm: float | None = 100.0
    validate_every: int = 10
    patience: int | None = 200
    alpha_points: int = 1000
    select: str = "objective"
    initialise: bool = True
    checkpoint_every: int = 100
    executor: str | Sequence[str] = ("captured", "eager")

    def __post_init__(self) -> None:
        """Check the arguments; those of training are checked by its own configuration."""
        if self.patience is not None:
            check_count(self.patience, "patience", "it counts steps; None trains to the end")
        check_count(self.batch_size, "batch_size", "200 is a good default")
        check_count(self.alpha_points, "alpha_points", "1000 is a good default")
        check_flag(self.initialise, "initialise", "True sets inducing points to data")
        if self.batch_size % 2:
            raise ValueError(
                f"batch_size must be even, got {self.batch_size}; alpha is solved on one half of a "
                "batch, the loss is that of the other"
            )
        advice = '"objective" needs no further derivatives'
        check_choice(self.select, "select", SELECTIONS, advice)
        self.training()

    @property
    def patience_in_validations(self) -> int | None:
        """Patience in validations, as `TrainConfig` counts it."""
        return None if self.patience is None else math.ceil(self.patience / self.validate_every)

    def training(self) -> TrainConfig:
        """The settings of the loop."""
        check_count(self.validate_every, "validate_every", "1 validates after every step")
        return TrainConfig(
            steps=self.steps,
            epochs=self.epochs if self.steps is None else None,
            batch_size=self.batch_size,
            lr=self.lr,
            max_norm=self.max_norm,
            validate_every=self.validate_every,
            patience=self.patience_in_validations,
            checkpoint_every=self.checkpoint_every,
        )


@dataclass(frozen=True)
class DeepKernelFit:
    """The result of `fit_dkef`; the weights are in the model.

    Attributes:
        training: losses during training, steps, time.
        trained_lam: the ridge penalty as training left it.
        lam: the ridge penalty of the final alpha.
        valid_loss: the objective's loss on the validation points with the final alpha.

    Example:
        >>> fit = DeepKernelFit(TrainResult([], steps=10), 0.01, 1e-4, -3.0)
        >>> fit.training.steps
        10
    """

    training: TrainResult
    trained_lam: float
    lam: float
    valid_loss: float


def fit_dkef(
    model: DKEF,
    objective: Any,
    x_train: Tensor,
    x_valid: Tensor,
    config: DeepKernelConfig | None = None,
    *,
    generator: torch.Generator | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    max_memory: int | None = None,
) -> DeepKernelFit:
    """Train a deep kernel exponential family in place.

    Every step minimises `DKEF.two_stage_loss` of the two halves of a batch. Validations solve for
    alpha on some training points, the same ones each time and with the same noise. At the end the
    parameters of the best validation are restored, and `choose_ridge` chooses alpha and lam again.

    Args:
        model: of the dtype and on the device of the points.
        objective: any objective that has a closed form for alpha.
        x_train: training points ``(N, D)``.
        x_valid: validation points ``(N', D)``.
        config: settings; None is the paper's.
        generator: source of randomness; None is torch's default generator.
        folder: as in `train`, like resume and progress.
        resume: continue from the checkpoint in the folder, if there is one.
        progress: show a bar on a terminal, lines elsewhere.
        max_memory: bytes that may be taken beside model and points; a step that would take more
            is refused before it does. Steps are then run one operation at a time.

    Raises:
        DivergedError: if a loss is not finite.
        ValueError: if alpha has no solution in the working precision; try ``model.double()``.

    Example:
        >>> from scorematching import ScoreMatching
        >>> x = torch.randn(120, 2)
        >>> model = DKEF(dim=2, num_inducing=10, width=4)
        >>> config = DeepKernelConfig(steps=3, batch_size=40, validate_every=1)
        >>> fit_dkef(model, ScoreMatching(), x[:100], x[100:], config).training.steps
        3
    """
    config = DeepKernelConfig() if config is None else config
    _check_arguments(model, x_train, x_valid, config, generator)
    advice = "take a smaller batch_size, or fewer inducing points"
    with limited(max_memory, advice) as budget:
        if config.initialise:
            model.initialise(x_train, generator)
        validation = _validation(objective, x_train, x_valid, config, generator)
        executor = config.executor if budget is None else "eager"
        running: dict[str, Any] = {"folder": folder, "resume": resume, "progress": progress}
        running |= {"validation": validation, "executor": executor, "generator": generator}
        loss = two_stage_loss(objective)
        result = train(model, loss, x_train, config.training(), **running)
        trained_lam = model.lam.item()
        lam, valid_loss = choose_ridge(model, objective, x_train, x_valid, generator)
    return DeepKernelFit(result, trained_lam, lam, valid_loss)


def choose_ridge(
    model: DKEF,
    objective: Any,
    x_train: Tensor,
    x_valid: Tensor,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """Solve for alpha on all training points, with the ridge penalty of least validation loss.

    Both losses are quadratic in alpha, and ``alpha(lam) = -(G + lam I)^-1 b`` of the training
    points is cheap for any lam once G is diagonalised. So the penalty is found by a search over all
    values, in double precision. Alpha and lam are stored in the model. Returns lam and the loss.

    Args:
        model: only its alpha and lam change.
        objective: any objective that has a closed form for alpha.
        x_train: training points ``(N, D)``.
        x_valid: validation points ``(N', D)``.
        generator: source of randomness; None is torch's default generator.

    Example:
        >>> from scorematching import ScoreMatching
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(60, 2, generator=g, dtype=torch.float64)
        >>> model = DKEF(dim=2, num_inducing=10, width=4, generator=g).double()
        >>> lam, loss = choose_ridge(model, ScoreMatching(), x[:40], x[40:])
        >>> bool((model.lam - lam).abs() < 1e-12)
        True
        >>> torch.allclose(ScoreMatching()(model, x[40:]).mean(), torch.tensor(loss).double())
        True
    """
    train_form = model.alpha_form(x_train, objective, generator)
    path = RidgePath(train_form, model.alpha_form(x_valid, objective, generator))
    lam = path.best()
    with torch.no_grad():
        model.alpha.copy_(path.alpha(lam))
        model.log10_lam.fill_(math.log10(lam))
    return lam, path.loss(lam)


def two_stage_loss(objective: Any) -> Callable[..., Tensor]:
    """A loss for `train`: of the second half of a batch, with alpha solved on the first half."""

    def loss(model: DKEF, batch: Tensor, generator: torch.Generator | None = None) -> Tensor:
        x_alpha, x_loss = batch.chunk(2)
        return model.two_stage_loss(x_alpha, x_loss, objective, generator)

    return loss


def _validation(
    objective: Any,
    x_train: Tensor,
    x_valid: Tensor,
    config: DeepKernelConfig,
    generator: torch.Generator | None,
) -> Callable[[DKEF], float]:
    """The validation loss; `train` resets the generator to the same state every time."""

    @torch.no_grad()
    def loss(model: DKEF) -> float:
        order = torch.randperm(len(x_train), generator=generator, device=x_train.device)
        form = model.alpha_form(x_train[order[: config.alpha_points]], objective, generator)
        if model.overflows(form):
            return math.nan  # which `train` reports as divergence
        model.alpha.copy_(form.solve(model.lam))
        if config.select == "score matching":
            return score_matching_loss(model, x_valid, _CHUNK).mean
        losses = [objective(model, x, generator) for x in x_valid.split(_CHUNK)]
        return torch.cat(losses).double().mean().item()

    return loss


def _check_arguments(
    model: Any, x_train: Any, x_valid: Any, config: Any, generator: torch.Generator | None
) -> None:
    if not isinstance(model, DKEF):
        raise TypeError(
            f"model must be a DKEF, got {type(model).__name__}; train other models with "
            "scorematching.training.train"
        )
    if not isinstance(config, DeepKernelConfig):
        raise TypeError(
            f"config must be a DeepKernelConfig, got {type(config).__name__}; None is the paper's"
        )
    for name, x in (("x_train", x_train), ("x_valid", x_valid)):
        check_points(x, name)
        if x.shape[1:] != (model.dim,) or x.dtype != model.alpha.dtype:
            raise ValueError(
                f"{name} must have {model.dim} coordinates in {model.alpha.dtype}, like the "
                f"model, got shape {tuple(x.shape)} in {x.dtype}; convert one with .to(dtype)"
            )
    check_generator(generator, x_train)
