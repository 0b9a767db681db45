"""What score matching adds to the base: ``log p = log q0 + a t - log Z``, t learned by slopes.

For a fixed base the score-matching loss of the sum is that of t alone plus one product::

    0.5 |s0 + grad t|^2 + tr grad (s0 + grad t)
        = [0.5 |grad t|^2 + tr grad^2 t] + <s0, grad t> + what does not depend on t

so the base enters through its score s0 at the points, computed once. Its second derivatives are
not needed: splines, whose score jumps, are as good a base as any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scorematching.closed_form import QuadraticForm, SelectableFeatures, quadratic_form
from scorematching.errors import DivergedError
from scorematching.estimators.density.fitting import Points, fit_module
from scorematching.estimators.density.ridge import RidgePath
from scorematching.estimators.time_limit import Clock
from scorematching.models import DKEF
from scorematching.models.networks import mlp
from scorematching.objectives import Objective, ScoreMatching
from scorematching.training.progress import Record

_BOUND = 5.0
_CHUNK = 512
_RATES = {"dkef": 1e-2, "mlp": 2e-3}


class Learned(NamedTuple):
    """A tilt.

    Attributes:
        tilt: t, a module ``(N, D) -> (N,)`` in double precision.
        validation_loss: its held-out loss, less the part that does not depend on it; zero is
            that of no tilt.
        steps: training steps taken.
        history: losses on the way.
    """

    tilt: nn.Module
    validation_loss: float
    steps: int
    history: list[Record]


class NetworkTilt(nn.Module):
    """A bounded network, ``t(z) = b tanh(net(z) / b)`` with b = 5; ``hidden`` are its widths.

    Example:
        >>> bool(NetworkTilt(2, (8,))(1e6 * torch.randn(9, 2)).abs().max() <= 5)
        True
    """

    def __init__(
        self, dim: int, hidden: Sequence[int], generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.net = mlp([dim, *hidden, 1], nn.Softplus, generator)

    def forward(self, z: Tensor) -> Tensor:
        """The tilt, ``(N, D) -> (N,)``."""
        return _BOUND * torch.tanh(self.net(z).squeeze(-1) / _BOUND)


class KernelTilt(nn.Module):
    """The kernel part of a DKEF, ``t(z) = alpha . k(z)``, whose base is not used."""

    def __init__(self, model: DKEF) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor) -> Tensor:
        """The tilt, ``(N, D) -> (N,)``."""
        return self.model.features(z) @ self.model.alpha

    def form(
        self, objective: Objective, points: Tensor, generator: torch.Generator | None
    ) -> QuadraticForm:
        """The mean loss at points and scores ``[z, s0]: (N, 2 D)``, as a function of alpha."""
        z, s0 = points.chunk(2, 1)
        features = SelectableFeatures(self.model.features, self.model.feature_at)
        form = quadratic_form(features, None, z, objective, objective.draw(z, generator))
        b = form.b + _along(self.model.features, z, s0).mean(0)
        return QuadraticForm(form.G, b, form.constant, len(z))


def _along(f: Callable[[Tensor], Tensor], z: Tensor, v: Tensor) -> Tensor:
    """The derivative of f at z along v."""
    # The gradient of w.f(z) is linear in w; its derivative in w is what is wanted.
    training = torch.is_grad_enabled()
    with torch.enable_grad():
        points = z.detach().requires_grad_()
        value = f(points)
        w = torch.zeros_like(value, requires_grad=True)
        (pulled,) = torch.autograd.grad(value, points, w, create_graph=True)
        (along,) = torch.autograd.grad((pulled * v).sum(), w, create_graph=training)
    return along


def learn_tilt(
    points: Points, objective: Objective, settings: Any, generator: torch.Generator, clock: Clock
) -> Learned | None:
    """Train a tilt by exact or sliced score matching, with early stopping on the held-out loss.

    Points come with scores of the base, ``[z, s0]: (N, 2 D)``; the settings are the arguments of
    `DensityEstimator`. Returns None where training diverges: the base then stands alone.
    """
    learn = _learn_kernel if settings.model == "dkef" else _learn_network
    try:
        learned = learn(points, objective, settings, generator, clock)
    except (DivergedError, ValueError, torch.linalg.LinAlgError):
        return None
    finite = all(bool(p.isfinite().all()) for p in learned.tilt.state_dict().values())
    return learned if finite else None


def _learn_network(
    points: Points, objective: Objective, settings: Any, generator: torch.Generator, clock: Clock
) -> Learned:
    with torch.device(points.train.device):
        tilt = NetworkTilt(points.train.shape[1] // 2, settings.hidden, generator).float()

    def loss(model: nn.Module, batch: Tensor, generator: Any = None) -> Tensor:
        z, s0 = batch.chunk(2, 1)
        return objective(model, z, generator) + _along(model, z, s0)

    found = fit_module(tilt, loss, points, settings, generator, rate=_RATES["mlp"], clock=clock)
    return Learned(tilt.double().requires_grad_(False), *found)


def _learn_kernel(
    points: Points, objective: Objective, settings: Any, generator: torch.Generator, clock: Clock
) -> Learned:
    count, dim = len(points.train), points.train.shape[1] // 2
    with torch.device(points.train.device):
        model = DKEF(dim, min(settings.num_inducing, count), generator=generator).float()
    model.initialise(points.train[:, :dim].float(), generator)
    tilt = KernelTilt(model)

    def loss(model: KernelTilt, batch: Tensor, generator: Any = None) -> Tensor:
        solved, other = batch.chunk(2)
        alpha = model.form(objective, solved, generator).solve(model.model.lam)
        z, s0 = other.chunk(2, 1)

        def t(z: Tensor) -> Tensor:
            return model.model.features(z) @ alpha

        return objective(t, z, generator) + _along(t, z, s0)

    found = fit_module(tilt, loss, points, settings, generator, rate=_RATES["dkef"], clock=clock)
    tilt.double()
    with torch.no_grad():
        path = RidgePath(*(_form(tilt, part, generator) for part in points))
        lam = path.best()
        model.alpha.copy_(path.alpha(lam))
    return Learned(tilt.requires_grad_(False), path.loss(lam), found.steps, found.history)


def _form(tilt: KernelTilt, points: Tensor, generator: torch.Generator) -> QuadraticForm:
    """The exact loss of all points as a function of alpha, some points at a time."""
    forms = (tilt.form(ScoreMatching(), chunk, generator) for chunk in points.split(_CHUNK))
    return functools.reduce(QuadraticForm.merge, forms)
