"""A score network trained by sliced score matching, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, is_number
from scorematching.estimators.base import ScoreEstimator
from scorematching.fields import VectorField
from scorematching.models.networks import ScoreNetwork
from scorematching.objectives import Objective, ScoreMatching, SlicedScoreMatchingVR
from scorematching.training import TrainConfig, train

_EXACT = 64
"""Dimension up to which validation takes the exact loss; above, the sliced one."""

_LEFT_OUT = 3
"""Held-out points without which an improvement must still be one."""


class SlicedScoreEstimator(ScoreEstimator):
    """A network for the score, trained by sliced score matching with variance reduction.

    The network h sees standardised points; by the chain rule ``score(x) = h(z) / scale`` with
    ``z = (x - mean) / scale``, coordinate by coordinate. A part of the points is held out, and the
    weights are kept that did best there, where better means better even without the three points
    that gain most: one point on a spike of the estimated density has a loss of minus a hundred,
    and in a small sample would lead training astray. Cost: that of training; a pass of the network
    per point afterwards, however many it was fitted to. With a few hundred points or less, the
    kernel estimators are the safer choice.

    Args:
        hidden: widths of the hidden layers.
        num_projections: directions per point.
        max_steps: training steps at the most.
        batch_size: points per step; all of them where there are fewer.
        lr: learning rate of Adam.
        validation_fraction: share of the points to hold out.
        patience: stop after so many validations without a new least loss; None never stops.
        validate_every: steps between validations.
        ema_decay: decay of a running average of the weights, which is then what is validated and
            kept; None keeps no average.
        random_state: of the initial weights, the split and the training.
        device: where to compute; None for the CPU.
        verbose: show the progress of training.

    Attributes:
        network_: the trained `ScoreNetwork`, on standardised points.
        mean_: of the points, ``(D,)``.
        scale_: their standard deviations, ``(D,)``.
        result_: what `train` says about the run.
        n_features_in_: D.

    Raises:
        ValueError: by `fit`, if a coordinate does not vary, or if a number is out of range.

    Reference: Song et al. (2019), Section 3.2.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(loc=5.0, size=(500, 2))
        >>> estimator = SlicedScoreEstimator(hidden=(16,), max_steps=300, lr=1e-2, random_state=0)
        >>> score = estimator.fit(X).grad_log_density([[6.0, 4.0]])
        >>> bool(np.abs(score - [[-1.0, 1.0]]).max() < 0.5)  # that of N(5, I) is 5 - x
        True
    """

    _dtype = torch.float32

    def __init__(
        self,
        hidden: Sequence[int] = (128, 128),
        num_projections: int = 1,
        max_steps: int = 2000,
        batch_size: int = 128,
        lr: float = 1e-3,
        validation_fraction: float = 0.1,
        patience: int | None = 5,
        validate_every: int = 50,
        ema_decay: float | None = 0.99,
        random_state: Any = None,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        """Keep the arguments."""
        self.hidden = hidden
        self.num_projections = num_projections
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.lr = lr
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.validate_every = validate_every
        self.ema_decay = ema_decay
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _fit(self, x: Tensor) -> None:
        check_count(self.max_steps, "max_steps", "2000 suit most data")
        self.mean_, self.scale_ = _location_and_scale(x)
        generator = self._generator()
        z = (x - self.mean_) / self.scale_
        held_out = _number_held_out(len(z), self.validation_fraction)
        order = torch.randperm(len(z), generator=generator, device=z.device)
        held, rest = z[order[:held_out]], z[order[held_out:]]
        with torch.device(z.device):
            network = ScoreNetwork(z.shape[1], tuple(self.hidden), generator=generator)
        self.network_ = network.to(self._dtype)
        self.result_ = train(
            VectorField(self.network_),
            SlicedScoreMatchingVR(num_projections=self.num_projections),
            rest,
            self._config(len(rest)),
            validation=HeldOut(held, self._validation_objective(), generator),
            executor=("captured", "eager"),
            generator=generator,
            progress=self.verbose,
        )

    def _field(self) -> VectorField:
        network, mean, scale = self.network_, self.mean_, self.scale_
        return VectorField(lambda x: network((x - mean) / scale) / scale)

    def _config(self, num: int) -> TrainConfig:
        return TrainConfig(
            steps=self.max_steps,
            batch_size=min(self.batch_size, num),
            lr=self.lr,
            ema_decay=self.ema_decay,
            validate_every=self.validate_every,
            patience=self.patience,
        )

    def _validation_objective(self) -> Objective:
        if self.n_features_in_ <= _EXACT:
            return ScoreMatching()
        return SlicedScoreMatchingVR(num_projections=self.num_projections)


class HeldOut:
    """The loss on held-out points, which goes down only where that does not hang on a few of them.

    Args:
        x: held-out points ``(N, D)``.
        objective: whose loss it is, always with the same noise.
        generator: source of that noise.

    Example:
        >>> x = torch.tensor([[1.0], [1.1], [0.9], [0.8]])
        >>> held_out = HeldOut(x, ScoreMatching(), torch.Generator())
        >>> first = held_out(VectorField(lambda x: 0 * x))
        >>> second = held_out(VectorField(lambda x: -x))  # better, at every point
        >>> first == 0, second < -0.4, held_out(VectorField(lambda x: x)) == second
        (True, True, True)
    """

    def __init__(self, x: Tensor, objective: Objective, generator: torch.Generator) -> None:
        """Draw the noise."""
        self.x, self.objective = x, objective
        self.noise = objective.draw(x, generator)
        self.best: Tensor | None = None

    def __call__(self, field: VectorField) -> float:
        """The mean loss of a field, or that of the best before it if that is about as good."""
        losses = self.objective.loss(field, self.x, self.noise).double()
        if self.best is None or _improves(losses, self.best):
            self.best = losses
        return self.best.mean().item()


def _improves(losses: Tensor, best: Tensor) -> bool:
    """Whether losses are lower on the whole, the points that gain most left out."""
    change = (losses - best).sort().values
    return bool(change[min(_LEFT_OUT, len(change) - 1) :].sum() < 0)


def _location_and_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every coordinate."""
    # In double precision: of large numbers that vary little, float32 sees no variation.
    mean, scale = x.double().mean(0), x.double().std(0)
    still = (x == x[:1]).all(0).nonzero().flatten().tolist()
    if still:
        raise ValueError(
            f"X must vary in every coordinate, got the same value everywhere in column {still[0]}; "
            "drop that column"
        )
    return mean.to(x), scale.to(x)


def _number_held_out(num: int, fraction: Any) -> int:
    """How many points to hold out, at least one and not all."""
    if not is_number(fraction) or not 0 < fraction < 1:
        raise ValueError(
            f"validation_fraction must lie between 0 and 1, got {fraction!r}; 0.1 suits most data"
        )
    return min(max(1, round(fraction * num)), num - 1)
