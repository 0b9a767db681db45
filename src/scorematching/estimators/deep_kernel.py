"""Training of deep kernel exponential families: kernel and ridge penalty, then the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_flag, check_generator, check_points
from scorematching.closed_form import QuadraticForm
from scorematching.evaluation import score_matching_loss
from scorematching.models import DKEF
from scorematching.training import TrainConfig, TrainResult, train

SELECTIONS = ("objective", "score matching")

_CHUNK, _SCAN, _ZOOMS = 512, 241, 4


@dataclass(frozen=True)
class DeepKernelConfig:
    """Settings of `fit_dkef`; the defaults are those of Song et al. (2019), Appendix C.1.

    Args:
        epochs: passes over the training points, at most.
        steps: number of steps at most, in place of epochs.
        batch_size: points per step: one half to solve for alpha, the other to take the loss of.
        lr: learning rate of Adam.
        max_norm: clip the norm of the gradient to this; None leaves it alone.
        validate_every: steps between validations. A validation costs about as much as ten steps.
        patience: stop after this many steps without a new least validation loss, rounded up to
            a whole number of validations; None never stops.
        alpha_points: training points that alpha is solved on for a validation, at most.
        select: what the validation loss is: "objective", that of training, or "score matching",
            exact whatever the objective.
        initialise: put the inducing points on training points first; False goes on with the model
            as it is.
        checkpoint_every: steps between checkpoints, where there is a folder.
        capture: as in `TrainConfig`.

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
    capture: bool | None = None

    def __post_init__(self) -> None:
        """Check the arguments; those of training are checked by its own configuration."""
        if self.patience is not None:
            check_count(self.patience, "patience", "it counts steps; None trains to the end")
        check_count(self.batch_size, "batch_size", "200 is a good default")
        check_count(self.alpha_points, "alpha_points", "1000 is a good default")
        check_flag(self.initialise, "initialise", "True puts inducing points on training points")
        if self.batch_size % 2:
            raise ValueError(
                f"batch_size must be even, got {self.batch_size}; one half of a batch gives alpha, "
                "the other the loss"
            )
        if self.select not in SELECTIONS:
            raise ValueError(
                f'select must be "objective" or "score matching", got {self.select!r}; '
                '"objective" needs no second derivatives that training does without'
            )
        self.training()

    @property
    def patience_in_validations(self) -> int | None:
        """Patience, counted as `TrainConfig` does."""
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
            capture=self.capture,
        )


@dataclass(frozen=True)
class DeepKernelFit:
    """What a fit came to; the weights are in the model.

    Attributes:
        training: losses on the way, steps, time.
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
) -> DeepKernelFit:
    """Train a deep kernel exponential family in place, and say how it went.

    Every step solves for alpha on one half of a batch and takes the loss of the other half, as a
    function of everything but alpha. Validations solve for alpha on some training points, the
    same ones each time and with the same noise. At the end the weights of the best validation
    are restored, and alpha and its ridge penalty are chosen anew (`choose_ridge`).

    Args:
        model: of the dtype and on the device of the points.
        objective: any objective that has a closed form for alpha.
        x_train: training points ``(N, D)``.
        x_valid: validation points ``(N', D)``.
        config: settings; None is the paper's.
        generator: source of all randomness; None is torch's default generator.
        folder: where checkpoints and the log go; None writes nothing.
        resume: go on from the checkpoint in the folder, if there is one.
        progress: show a bar on a terminal, lines elsewhere.

    Returns:
        Course of the training, ridge penalty and validation loss.

    Raises:
        DivergedError: if a loss is not finite.
        TypeError: if an argument is of the wrong type.
        ValueError: if arguments do not fit each other, or if alpha has no solution to working
            precision: single precision is enough in most cases, ``model.double()`` in more.

    Reference: Wenliang et al. (2019), Algorithm 1; Song et al. (2019), Appendix C.1.

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
    if config.initialise:
        model.initialise(x_train, generator)
    result = train(
        model,
        two_stage_loss(objective),
        x_train,
        config.training(),
        validation=_validation(objective, x_train, x_valid, config, generator),
        generator=generator,
        folder=folder,
        resume=resume,
        progress=progress,
    )
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
    """The final alpha: solved on all training points, its ridge penalty chosen on held-out ones.

    Both losses are quadratic in alpha, and ``alpha(lam) = -(G + lam I)^-1 b`` of the training
    points is cheap for any lam once G is diagonal. So the penalty with the least validation loss
    is found by looking at all of them, in double precision. Alpha and lam are stored in the model.

    Args:
        model: everything else in it stays as it is.
        objective: any objective that has a closed form for alpha.
        x_train: training points ``(N, D)``.
        x_valid: validation points ``(N', D)``.
        generator: source of randomness; None is torch's default generator.

    Returns:
        The penalty, and the validation loss.

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
    train_form = model.alpha_form(objective, x_train, generator)
    path = RidgePath(train_form, model.alpha_form(objective, x_valid, generator))
    lam = path.best()
    with torch.no_grad():
        model.alpha.copy_(path.alpha(lam))
        model.log10_lam.fill_(math.log10(lam))
    return lam, path.loss(lam)


class RidgePath:
    """Weights and held-out loss as functions of the ridge penalty.

    With ``G = U diag(g) U'`` of the training points, ``alpha(lam) = -U (U'b / (g + lam))``.

    Args:
        train: the loss that alpha minimises, with a penalty.
        valid: the loss that judges alpha, without.

    Example:
        Where both losses are the same one, no penalty is the best.

        >>> form = QuadraticForm(torch.eye(2), torch.ones(2), torch.tensor(0.0), count=1)
        >>> path = RidgePath(form, form)
        >>> path.alpha(1.0).tolist(), path.best() < 1e-6
        ([-0.5, -0.5], True)
    """

    def __init__(self, train: QuadraticForm, valid: QuadraticForm) -> None:
        """Diagonalise G."""
        g, self.basis = torch.linalg.eigh(train.G.double())
        self.g, self.rotated_b = g.clamp(min=0), train.b.double() @ self.basis
        self.valid_G = self.basis.mT @ valid.G.double() @ self.basis
        self.valid_b = valid.b.double() @ self.basis
        self.constant = valid.constant.double()
        top = max(self.g[-1].item(), torch.finfo(torch.float64).tiny)
        # Below the rounding of G a penalty says nothing; far above G alpha is zero.
        self.range = (math.log10(top * torch.finfo(train.G.dtype).eps), math.log10(top) + 3)

    def alpha(self, lam: float) -> Tensor:
        """The weights at a penalty, ``(L,)``."""
        return -self.basis @ (self.rotated_b / (self.g + lam))

    def loss(self, lam: float) -> float:
        """The held-out loss at a penalty."""
        return self._losses(torch.tensor([lam], dtype=self.g.dtype, device=self.g.device)).item()

    def best(self) -> float:
        """The penalty of least held-out loss: a scan of log lam, then of where it is least."""
        low, high = self.range
        for _ in range(_ZOOMS):
            log_lam = torch.linspace(low, high, _SCAN, dtype=self.g.dtype, device=self.g.device)
            least, width = int(self._losses(10**log_lam).argmin()), (high - low) / (_SCAN - 1)
            centre = log_lam[least].item()
            low, high = max(low, centre - width), min(high, centre + width)
        return float(10**centre)

    def _losses(self, lam: Tensor) -> Tensor:
        """Held-out losses at penalties, ``(K,) -> (K,)``."""
        a = -self.rotated_b / (self.g + lam[:, None])
        return 0.5 * ((a @ self.valid_G) * a).sum(1) + a @ self.valid_b + self.constant


def two_stage_loss(objective: Any) -> Callable[..., Tensor]:
    """A loss for `train`: of the second half of a batch, with alpha solved on the first half."""

    def loss(model: DKEF, batch: Tensor, generator: torch.Generator | None = None) -> Tensor:
        x_alpha, x_loss = batch.chunk(2)
        try:
            return model.two_stage_loss(objective, x_alpha, x_loss, generator)
        except ValueError as error:
            return (_nan_if_overflow(error) * model.lam).expand(len(x_loss))

    return loss


def _validation(
    objective: Any,
    x_train: Tensor,
    x_valid: Tensor,
    config: DeepKernelConfig,
    generator: torch.Generator | None,
) -> Callable[[DKEF], float]:
    """The validation loss; training puts the generator in the same state every time."""

    def loss(model: DKEF) -> float:
        order = torch.randperm(len(x_train), generator=generator, device=x_train.device)
        try:
            model.fit_alpha(objective, x_train[order[: config.alpha_points]], generator)
        except ValueError as error:
            return _nan_if_overflow(error)
        if config.select == "score matching":
            return score_matching_loss(model, x_valid, _CHUNK).mean
        losses = [objective(model, x, generator) for x in x_valid.split(_CHUNK)]
        return torch.cat(losses).double().mean().item()

    return loss


def _nan_if_overflow(error: ValueError) -> float:
    """A loss that tells the loop of divergence; any other error is passed on."""
    if "must be finite" not in str(error):  # said of G, b or lam: the points are finite
        raise error
    return math.nan


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
