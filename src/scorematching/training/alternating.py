"""Models whose parts are trained in turn, each on a loss of its own.

A training step then has several phases. Each evaluates its loss with the weights that the phases
before it have updated, and updates its own parts only. An implicit auto-encoder, for example,
updates its score network first, and then its encoder with the improved scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scorematching.objectives import Objective, SlicedScoreMatchingVR
from scorematching.projections import Gaussian
from scorematching.training.drawn import ModelLoss, ScoreLoss

Loss = Callable[..., Tensor]
"""An `Objective`, a `DrawnLoss`, or any ``(model, batch, generator=...) -> (N,)``."""


@dataclass(frozen=True)
class Phase:
    """A loss and the parts of a model that it trains.

    Args:
        loss: an `Objective`, a `DrawnLoss`, or any ``(model, batch, generator=...) -> (N,)``.
        trains: names of submodules or parameters of the model. Other parts may have a gradient of
            this loss, but are not updated; a loss that detaches them saves time.

    Example:
        >>> Phase(lambda model, x, generator=None: model.score_loss(x), "score_network").names
        ('score_network',)
    """

    loss: Loss
    trains: str | Sequence[str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names, as a tuple."""
        return (self.trains,) if isinstance(self.trains, str) else tuple(self.trains)

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The parameters of a module that it trains, also those that other parts share."""
        trained = {
            id(p): p
            for name, p in module.named_parameters(remove_duplicate=False)
            if p.requires_grad and any(f"{name}.".startswith(f"{part}.") for part in self.names)
        }
        return [*trained.values()]


class Alternating:
    """An objective of several phases, for `train`.

    Every training step runs the phases in order on one batch: each clips its gradient and takes
    an optimiser step; the weights are averaged after the last. Optimisers with a state for each
    parameter (SGD, RMSprop, Adam and similar) act as if each phase had its own. A phase given
    twice is run twice.

    Called as an objective it returns the loss of the last phase, which `train` records and
    validates.

    Args:
        phases: in the order in which they are run.

    Example:
        Two numbers: the update of b uses the updated a.

        >>> from scorematching.training import TrainConfig, train
        >>> class Pair(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.a = torch.nn.Parameter(torch.zeros(()))
        ...         self.b = torch.nn.Parameter(torch.zeros(()))
        >>> pair = Pair()
        >>> objective = Alternating(
        ...     Phase(lambda m, x, generator: -m.a * torch.ones(len(x)), "a"),
        ...     Phase(lambda m, x, generator: -m.b * m.a * torch.ones(len(x)), "b"),
        ... )
        >>> config = TrainConfig(steps=1, batch_size=1, lr=0.5)
        >>> _ = train(pair, objective, torch.ones(1, 1), config, optimizer=torch.optim.SGD)
        >>> pair.a.item(), pair.b.item()
        (0.5, 0.25)
    """

    def __init__(self, *phases: Phase) -> None:
        if not phases or not all(isinstance(phase, Phase) for phase in phases):
            raise TypeError(
                f"phases must be one Phase or more, got {phases!r}; "
                "try Phase(loss, trains='encoder')"
            )
        self.phases = phases

    def __call__(self, model: Any, batch: Any, generator: torch.Generator | None = None) -> Tensor:
        """The loss of the last phase, ``(N,)``."""
        return self.phases[-1].loss(model, batch, generator=generator)

    def parameters(self, module: nn.Module) -> list[list[nn.Parameter]]:
        """The parameters that each phase trains.

        Raises:
            ValueError: if a phase trains none, or a parameter is trained by no phase.
        """
        parts = [phase.parameters(module) for phase in self.phases]
        trained = {id(p) for part in parts for p in part}
        left = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in trained]
        for phase, part in zip(self.phases, parts):
            if not part:
                known = dict.fromkeys(name.split(".")[0] for name, _ in module.named_parameters())
                raise ValueError(
                    f"trains must name parts with parameters, got {phase.names} for "
                    f"{type(module).__name__} with {', '.join(known) or 'none'}; name some of these"
                )
        if left:
            raise ValueError(
                f"every parameter must be trained by some phase, got none for {', '.join(left)}; "
                "name it in a phase, or freeze it with requires_grad_(False)"
            )
        return parts


def score_first(objective: Loss | None = None) -> Alternating:
    """The two phases of an implicit auto-encoder: its score network, then the rest.

    One step of the score network on ``model.score_loss(x, objective)``, then one of encoder and
    decoder on ``model.loss(x)``, each with latents of its own.

    Args:
        objective: for the score network; None is sliced score matching with variance reduction
            and one Gaussian direction per latent, as in the experiments of the paper.
            ``ScoreMatching()``, whose trace is exact, is cheap for a few dozen latents.

    Reference: Song et al. (2019), Section 6.2.

    Example:
        >>> from scorematching import ScoreMatching
        >>> [phase.names for phase in score_first(ScoreMatching()).phases]
        [('score_network',), ('encoder', 'decoder')]
    """
    of_score = SlicedScoreMatchingVR(Gaussian()) if objective is None else objective
    return Alternating(
        Phase(_score_loss(of_score), "score_network"),
        Phase(ModelLoss(), ("encoder", "decoder")),
    )


def _score_loss(objective: Loss) -> Loss:
    if isinstance(objective, Objective):
        return ScoreLoss(objective)
    return lambda model, x, generator=None: model.score_loss(x, objective, generator)


def phases_of(objective: Loss, module: nn.Module) -> list[tuple[Loss, list[nn.Parameter]]]:
    """Losses and the parameters they train; an ordinary objective is one phase with all of them."""
    if isinstance(objective, Alternating):
        return [(p.loss, part) for p, part in zip(objective.phases, objective.parameters(module))]
    return [(objective, [p for p in module.parameters() if p.requires_grad])]
