"""A score network trained by sliced score matching, with scikit-learn's methods."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_count, check_share, check_type
from scorematching._memory import Budget, Chunks, joined, limited
from scorematching.datasets import Standardise
from scorematching.estimators.base import ScoreEstimator
from scorematching.estimators.density.copies import are_copies
from scorematching.estimators.time_limit import Clock, StopInTime, check_max_seconds
from scorematching.fields import VectorField
from scorematching.models.networks import ScoreNetwork
from scorematching.objectives import Objective, ScoreMatching, SlicedScoreMatchingVR
from scorematching.training import TrainConfig, train

_MAX_EXACT_DIM = 64
"""Dimension up to which validation uses the exact loss; above, the sliced one."""

_LEFT_OUT = 3
"""Points left out of the check of an improvement: those whose losses fell most."""

_NETWORK_DTYPE = torch.float32
"""Of networks and standardised points."""

_USES = 17
"""Uses of a model after which all kinds of checks of its derivatives have been made once."""

_COPIES = 8
"""Copies of the weights during training: gradients (twice, as they are clipped), the two moments of
Adam, an average, the best so far, the last finite ones, and the copy that is measured."""


@dataclass(eq=False, repr=False)
class SlicedScoreEstimator(ScoreEstimator):
    """A network for the score, trained by sliced score matching with variance reduction.

    The input of the network h is standardised; by the chain rule ``score(x) = h(z) / scale`` with
    ``z = (x - mean) / scale``, coordinate by coordinate. Some points are held out, with all their
    copies, and the weights with the least loss there are kept. An improvement counts only if it
    remains without the three points whose losses fell most, because a single point on a spike of
    the estimated density can have a loss of minus a hundred. Cost: that of training, and one pass
    of the network per point afterwards. With a few hundred points or less, the kernel estimators
    are the safer choice.

    Args:
        hidden: widths of the hidden layers.
        num_projections: directions per point.
        max_steps: training steps, at most.
        batch_size: points per step, at most all.
        lr: learning rate of Adam.
        validation_fraction: share of the points to hold out.
        patience: validations without a new least loss after which training stops; None never
            stops.
        validate_every: steps between validations.
        ema_decay: decay of a running average of the weights, which is then validated and kept;
            None keeps no average.
        random_state: seed or `numpy.random.RandomState`, for `fit`.
        device: where to compute; None for the CPU.
        verbose: show the progress of training; a number above zero does, too.
        max_seconds: after which training stops, with a warning; None has no limit.

    Attributes:
        network_: the trained `ScoreNetwork`, on standardised points.
        mean_: of the points, ``(D,)``.
        scale_: their standard deviations, ``(D,)``.
        result_: the `TrainResult` of the run.

    Raises:
        ValueError: by `fit`, if a coordinate does not vary.

    Reference: Song et al. (2019), Section 3.2.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(loc=5.0, size=(500, 2))
        >>> estimator = SlicedScoreEstimator(hidden=(16,), max_steps=300, lr=1e-2, random_state=0)
        >>> score = estimator.fit(X).grad_log_density([[6.0, 4.0]])
        >>> bool(np.abs(score - [[-1.0, 1.0]]).max() < 0.5)  # that of N(5, I) is 5 - x
        True
    """

    hidden: Sequence[int] = (128, 128)
    num_projections: int = 1
    max_steps: int = 2000
    batch_size: int = 128
    lr: float = 1e-3
    validation_fraction: float = 0.1
    patience: int | None = 5
    validate_every: int = 50
    ema_decay: float | None = 0.99
    random_state: Any = None
    device: str | None = None
    verbose: bool | int = False
    max_seconds: float | None = None

    @property
    def _dtype(self) -> torch.dtype:  # type: ignore[override]
        """Type of the points: double, so that columns far from zero keep their digits."""
        return torch.float32 if str(self.device).startswith("mps") else torch.float64

    def _fit(self, x: Tensor, max_memory: int | None) -> None:
        check_count(self.max_steps, "max_steps", "2000 suit most data")
        check_max_seconds(self.max_seconds)
        check_type(self.verbose, int, "verbose must be True, False or a number", "1 shows a bar")
        generator = self._generator(self.random_state)
        objective = SlicedScoreMatchingVR(num_projections=self.num_projections)
        with limited(max_memory, "take narrower hidden layers") as budget:
            rest, held = self._prepared(x, generator)
            with torch.device(x.device):
                network = ScoreNetwork(x.shape[1], self.hidden, generator=generator)
            self.network_ = network.to(_NETWORK_DTYPE)
            field, config = VectorField(self.network_), self._config(len(rest))
            held_out = HeldOut(held, self._validation_objective(), generator, budget)
            if budget is not None:
                parts = self._parts(objective, rest, config.batch_size, budget)
                config = replace(config, accumulate=parts)
                held_out.measure(self.network_)
        self.result_ = train(
            field,
            objective,
            rest,
            config,
            validation=held_out,
            executor=("captured", "eager"),
            callbacks=[StopInTime(Clock(self.max_seconds))],
            generator=generator,
            progress=self.verbose > 0,
        )

    def _prepared(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standardised points to train on, and to hold out."""
        standardise = Standardise.fit(x)
        self.mean_, self.scale_ = standardise.mean, standardise.std
        z = standardise(x).to(_NETWORK_DTYPE)
        check_share(self.validation_fraction, "validation_fraction", "0.1 suits most data")
        place = _places(x, generator)
        num = int(place.max()) + 1
        held_out = min(max(1, round(self.validation_fraction * num)), num - 1)
        order, count = place.argsort(stable=True), int((place < held_out).sum())
        is_first = place[order].diff(prepend=place.new_tensor([-1])) > 0
        return z[order[count:]], z[order[:count][is_first[:count]]]

    def _parts(self, objective: Objective, x: Tensor, batch_size: int, budget: Budget) -> int:
        """In how many parts a batch is evaluated, so that a training step fits into a budget.

        Steps of 1, 2, 4 ... points are measured until the next would not fit, each on a new copy of
        the network, whose derivatives are then checked as those of a new model are.

        Raises:
            ValueError: if the step of one point does not fit.
        """
        weights = sum(p.numel() * p.element_size() for p in self.network_.parameters())
        budget.require(_COPIES * weights, "copies of the weights take during training")
        chunks = Chunks(batch_size, budget, reserve=_COPIES * weights)
        generator = torch.Generator(x.device).manual_seed(0)

        def step(part: Tensor) -> None:
            network = copy.deepcopy(self.network_)
            for _ in range(_USES):
                loss = objective(VectorField(network), part, generator).mean()
                torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)

        for _ in chunks(step, x[: 2 * batch_size]):
            if not chunks.growing:
                break
        return -(-batch_size // chunks.size)

    def _field(self) -> VectorField:
        network, mean, scale = self.network_, self.mean_, self.scale_
        return VectorField(lambda x: network(((x - mean) / scale).to(_NETWORK_DTYPE)) / scale)

    def _config(self, num: int) -> TrainConfig:
        check_count(self.batch_size, "batch_size", "128 suits most data")
        return TrainConfig(
            steps=self.max_steps,
            batch_size=min(self.batch_size, num),
            lr=self.lr,
            ema_decay=self.ema_decay,
            validate_every=self.validate_every,
            patience=self.patience,
        )

    def _validation_objective(self) -> Objective:
        if self.n_features_in_ <= _MAX_EXACT_DIM:
            return ScoreMatching()
        return SlicedScoreMatchingVR(num_projections=self.num_projections)


def _places(x: Tensor, generator: torch.Generator) -> Tensor:
    """Places of points in a random order, ``(N,)``; copies of a point have the same."""
    rows, group = x.unique(dim=0, return_inverse=True)
    if len(rows) == len(x) or not are_copies(x):
        group = torch.arange(len(x), device=x.device)
    order = torch.randperm(int(group.max()) + 1, generator=generator, device=x.device)
    return order.argsort()[group]


class HeldOut:
    """The least loss on held-out points so far, where no improvement depends on a few points.

    Args:
        x: held-out points ``(N, D)``.
        objective: the loss, always with the same noise.
        generator: source of that noise.
        budget: of memory; points are then evaluated in parts.

    Example:
        >>> x = torch.tensor([[1.0], [1.1], [0.9], [0.8]])
        >>> held_out = HeldOut(x, ScoreMatching(), torch.Generator())
        >>> first = held_out(VectorField(lambda x: 0 * x))
        >>> second = held_out(VectorField(lambda x: -x))  # better, at every point
        >>> first == 0, second < -0.4, held_out(VectorField(lambda x: x)) == second
        (True, True, True)
    """

    def __init__(
        self,
        x: Tensor,
        objective: Objective,
        generator: torch.Generator,
        budget: Budget | None = None,
    ) -> None:
        self.x, self.objective = x, objective
        self.noise = objective.draw(x, generator)
        self.chunks = Chunks(len(x), budget)
        self.best: Tensor | None = None

    def __call__(self, field: VectorField) -> float:
        """The mean loss of a field if it improves on the best so far, or else that of the best."""
        losses = self.losses(field).double()
        if self.best is None or _improves(losses, self.best):
            self.best = losses
        return self.best.mean().item()

    def losses(self, field: VectorField) -> Tensor:
        """The loss of every point, ``(N,)``."""
        return joined(self.chunks, partial(self._losses, field), self._rows())

    def measure(self, network: nn.Module) -> None:
        """Find how many points fit into the budget."""

        def repeated(*rows: Tensor) -> Tensor:
            field = VectorField(copy.deepcopy(network))
            return [self._losses(field, *rows) for _ in range(_USES)][-1]

        for _ in self.chunks(repeated, *self._rows()):
            pass

    def _losses(self, field: VectorField, x: Tensor, *noise: Tensor) -> Tensor:
        directions = noise[0].movedim(0, -2) if noise else None
        return self.objective.loss(field, x, directions).detach()

    def _rows(self) -> list[Tensor]:
        return [self.x] if self.noise is None else [self.x, self.noise.movedim(-2, 0)]


def _improves(losses: Tensor, best: Tensor) -> bool:
    """Whether the total loss is lower without the points whose losses fell most."""
    change = (losses - best).sort().values
    return bool(change[min(_LEFT_OUT, len(change) - 1) :].sum() < 0)
