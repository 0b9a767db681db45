"""Losses whose noise is drawn before they are evaluated.

Such a loss is a deterministic function of weights, points and noise. So it can be compiled, and
processes that train together draw the noise of the whole batch and share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching.fields import as_field
from scorematching.objectives import Objective
from scorematching.objectives.base import share_rows
from scorematching.training.data import count_points


class DrawnLoss(ABC):
    """A loss of a model for `train`, with `draw` for its noise and `loss` for the rest.

    It is used like any function ``(model, batch, generator=...) -> (N,)``; in addition it can be
    compiled, and its noise does not depend on the number of processes. What `Objective` is for
    densities and score networks, this is for models with losses of their own.

    Example:
        A denoising auto-encoder.

        >>> class Denoising(DrawnLoss):
        ...     def draw(self, model, batch, generator=None):
        ...         return torch.randn(batch.shape, generator=generator)
        ...     def loss(self, model, batch, noise):
        ...         return (model(batch + noise) - batch).square().sum(-1)
        >>> Denoising()(torch.nn.Linear(3, 3), torch.ones(5, 3)).shape
        torch.Size([5])
    """

    def __call__(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Tensor:
        """The loss of every point, ``(N,)``, with noise drawn from a generator."""
        return self.loss(model, batch, self.draw(model, batch, generator))

    @abstractmethod
    def draw(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Any:
        """The noise of one evaluation: a tensor, or a tuple of tensors and of such tuples.

        None says that the loss draws while it runs, from the generator it is called with.

        Args:
            model: the model; its sizes may be used, but not its weights.
            batch: the points.
            generator: source of randomness; None is torch's default generator.
        """

    @abstractmethod
    def loss(self, model: Any, batch: Any, noise: Any) -> Tensor:
        """The loss of every point, ``(N,)``, for noise that has been drawn: deterministic."""

    def share(self, noise: Any, batch: Any, rows: slice) -> Any:
        """The noise of some points of a batch: rows of the noise that was drawn for all of them.

        Args:
            noise: from `draw`; its tensors have the points along their first axis, or the subclass
                writes a method of its own.
            batch: the whole batch.
            rows: which of its points.

        Returns:
            The noise of these points; None where it must be drawn for them anew.
        """
        return share_rows(noise, count_points(batch), rows, self)


@dataclass(frozen=True)
class ModelLoss(DrawnLoss):
    """The loss that a model has itself, such as `VAE`, `ImplicitVAE` and `WAE`.

    ``model.loss(x, noise=noise)`` with ``noise = model.draw_noise(x, generator)``. A model without
    `draw_noise` draws while it runs, in ``model.loss(x, generator=generator)``.

    Example:
        >>> from scorematching.models import VAE, BernoulliPixels
        >>> vae = VAE(torch.nn.Linear(5, 4), torch.nn.Linear(2, 5), BernoulliPixels(), latent_dim=2)
        >>> loss, x = ModelLoss(), torch.ones(3, 5)
        >>> noise = loss.draw(vae, x)
        >>> torch.equal(loss.loss(vae, x, noise), vae.loss(x, noise=noise))
        True
    """

    def __call__(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Tensor:
        """The loss of every point, ``(N,)``, with noise drawn from a generator."""
        losses: Tensor = model.loss(batch, generator=generator)
        return losses

    def draw(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Any:
        """The noise of the encoder; None where the model cannot draw it first."""
        return model.draw_noise(batch, generator) if hasattr(model, "draw_noise") else None

    def loss(self, model: Any, batch: Any, noise: Any) -> Tensor:
        """The loss of every point, ``(N,)``, for this noise."""
        losses: Tensor = model.loss(batch, noise=noise)
        return losses


@dataclass(frozen=True)
class ScoreLoss(DrawnLoss):
    """The loss of the score network of an `ImplicitVAE` or `WAE`.

    ``model.score_loss(x, objective, noise=noise)``, where the noise is that of the encoder and
    that of the objective. A model without `draw_score_noise` draws while it runs.

    Args:
        objective: for the score network.

    Example:
        >>> from scorematching import ScoreMatching
        >>> ScoreLoss(ScoreMatching()).objective
        ScoreMatching(max_memory=None, domain=None)
    """

    objective: Objective

    def __call__(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Tensor:
        """The loss of every point, ``(N,)``, with noise drawn from a generator."""
        losses: Tensor = model.score_loss(batch, self.objective, generator)
        return losses

    def draw(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Any:
        """The noise of encoder and objective; None where the model cannot draw it first."""
        if not hasattr(model, "draw_score_noise"):
            return None
        return model.draw_score_noise(batch, self.objective, generator)

    def loss(self, model: Any, batch: Any, noise: Any) -> Tensor:
        """The loss of every point, ``(N,)``, for this noise."""
        losses: Tensor = model.score_loss(batch, self.objective, noise=noise)
        return losses

    def share(self, noise: Any, batch: Any, rows: slice) -> Any:
        """The noise of some points; None where the objective draws it anew."""
        of_encoder, of_objective = noise
        mine = self.objective.share(of_objective, batch, rows)
        if mine is None and of_objective is not None:
            return None
        return type(noise)(super().share(of_encoder, batch, rows), mine)


@dataclass(frozen=True)
class ObjectiveLoss(DrawnLoss):
    """An `Objective`, in the same form."""

    objective: Objective

    def __call__(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Tensor:
        """The loss of every point, ``(N,)``, after the checks of the objective."""
        return self.objective(model, _points_of(batch), generator=generator)

    def draw(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Any:
        """The noise of the objective; None if there is none."""
        return self.objective.draw(_points_of(batch), generator)

    def loss(self, model: Any, batch: Any, noise: Any) -> Tensor:
        """The loss of every point, ``(N,)``, for this noise."""
        return self.objective.loss(as_field(model), _points_of(batch), noise)

    def share(self, noise: Any, batch: Any, rows: slice) -> Any:
        """The noise of some points of a batch."""
        return self.objective.share(noise, _points_of(batch), rows)


def _points_of(batch: Any) -> Any:
    """The points of a batch, which a `DataLoader` of ``TensorDataset(x)`` gives in a list."""
    if isinstance(batch, tuple | list) and len(batch) == 1 and isinstance(batch[0], Tensor):
        return batch[0]
    if isinstance(batch, tuple | list | dict):
        take = "batch[name]" if isinstance(batch, dict) else "batch[0]"
        raise TypeError(
            f"batches must be tensors for an Objective, got {type(batch).__name__}, as of a "
            f"DataLoader of several tensors; pass transform=lambda batch, generator: {take}"
        )
    return batch
