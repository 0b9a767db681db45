"""How many directions per point a model's training needs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.diagnostics import variance_report
from scorematching.diagnostics.variance.report import VarianceReport
from scorematching.estimators.density.nice import NICEDensity
from scorematching.estimators.density.tilted import Tilted
from scorematching.fields import VectorField
from scorematching.models import MLPDensity
from scorematching.objectives import SlicedScoreMatchingVR
from scorematching.projections import SplitRademacher
from scorematching.runs.space import Space
from scorematching.training import TrainConfig, train

_POINTS, _REPEATS, _NUMBERS = 64, 8, (1, 2, 4, 8)
_HIDDEN, _STEPS, _RATE, _MAX_ROWS = (64, 64), 100, 2e-3, 10_000


def direction_variance(model: Any, space: Space, x: Tensor, seed: int) -> Directions:
    """Variance of the gradient of sliced score matching due to its directions.

    Args:
        model: a fitted estimator.
        space: of the modelled columns.
        x: training rows ``(N, K)``; the variances are those of a batch of 64.
        seed: of the directions.

    Returns:
        The variances, of the model's own network or, where the final model has none, of a small
        one that is trained for a moment.
    """
    own = _own_network(model, space, some_rows(x, _POINTS))
    network = own or _small_network(space.z(some_rows(x, _MAX_ROWS)), seed)
    report = variance_report(
        network.model,
        network.points,
        SlicedScoreMatchingVR(),
        [m for m in _NUMBERS if m <= max(1, x.shape[1])],
        _REPEATS,
        torch.Generator().manual_seed(seed),
        show=False,
        parameters=network.parameters,
        projections=[SplitRademacher()],
    )
    what = "the model's network" if own else f"a small network trained for {_STEPS} steps"
    return Directions(report, what)


@dataclass(frozen=True)
class Directions:
    """How much of the gradient's variance is due to directions.

    Attributes:
        report: variances by number of directions.
        network: whose gradient it is.
    """

    report: VarianceReport
    network: str

    def rows(self) -> list[tuple[int, float, float]]:
        """Directions per row, share of the variance that is due to them, and seconds per step."""
        data = self.report.data_gradient_variance or 0.0
        found = []
        for row in self.report.rows:
            names = (self.report.objective, self.report.projection)
            same = (row.objective, row.projection) == names
            variance = row.gradient_variance or 0.0
            if same and variance + data > 0:
                found.append((row.num_projections, variance / (variance + data), row.seconds))
        return found


class Network(NamedTuple):
    """What sliced score matching trains, the points it sees, and its parameters."""

    model: Any
    points: Tensor
    parameters: list[Tensor]


def _own_network(model: Any, space: Space, x: Tensor) -> Network | None:
    """The network of a fitted estimator; None if the final model has none."""
    s = space.scaling(x)
    density = getattr(model, "density_", None)
    if density is None:
        network = copy.deepcopy(model.network_).requires_grad_(True)
        weights = list(network.parameters())
        return Network(VectorField(network), s.to(weights[0].dtype), weights)
    if isinstance(density, Tilted) and isinstance(density.tilt, torch.nn.Module):
        tilt = copy.deepcopy(density.tilt).requires_grad_(True)
        return Network(tilt, density.whiten(s), list(tilt.parameters()))
    inner = getattr(density, "inner", None)
    if isinstance(inner, NICEDensity):
        flow = copy.deepcopy(inner.model).requires_grad_(True)
        return Network(flow, density.transform(s), list(flow.parameters()))
    return None


def _small_network(z: Tensor, seed: int) -> Network:
    """A network that was trained at whitened rows for a moment."""
    generator = torch.Generator().manual_seed(seed)
    network = MLPDensity(z.shape[1], _HIDDEN, generator=generator).double()
    config = TrainConfig(steps=_STEPS, batch_size=min(_POINTS, len(z)), lr=_RATE)
    train(network, SlicedScoreMatchingVR(), z, config, executor="eager", generator=generator)
    return Network(network, some_rows(z, _POINTS), list(network.parameters()))
