"""From standardised points to a density: base, tilt and normaliser, or NICE."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.datasets import Standardise, Whiten
from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.candidates import Family, families
from scorematching.estimators.density.bases.given import fit_given, is_given
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.estimators.density.calibration import Size, calibrate
from scorematching.estimators.density.choice import Base, choose_base
from scorematching.estimators.density.fitting import Points
from scorematching.estimators.density.nearby import far_out, less_nearby, near_points, with_nearby
from scorematching.estimators.density.nice import learn_nice
from scorematching.estimators.density.normaliser import normalise, tilt_at_samples
from scorematching.estimators.density.scaling import Inverse
from scorematching.estimators.density.selection import Candidate, make_folds
from scorematching.estimators.density.tilt import NetworkTilt, learn_tilt
from scorematching.estimators.density.tilted import Tilted
from scorematching.estimators.time_limit import Clock
from scorematching.objectives import Objective
from scorematching.training.progress import Record

_CALIBRATION_ENTRIES, _MIN_CALIBRATION, _MAX_TILT_POINTS = 20_000, 500, 10_000
_MIN_TILT_POINTS = 250
"""Points from which a tilt is tried: with fewer, a fifth of them cannot tell a good size."""


@dataclass(frozen=True)
class Learned:
    """The result of a fit.

    Attributes:
        density: of standardised points.
        held_out_log_likelihood: mean cross-validated log-density of the base.
        weights: of the parts of the base, by name.
        tilt_size: a.
        validation_loss: of the tilt, over that of the base; or of NICE.
        steps: of training.
        history: losses on the way.
    """

    density: Distribution
    held_out_log_likelihood: float
    weights: dict[str, float] = field(default_factory=dict)
    tilt_size: float = 0.0
    validation_loss: float = 0.0
    steps: int = 0
    history: list[Record] = field(default_factory=list)


def learn_density(
    settings: Any,
    s: Tensor,
    groups: Tensor,
    scale: Standardise,
    whiten: Whiten,
    objective: Objective,
    generator: torch.Generator,
) -> Learned:
    """Fit a density to standardised points ``s: (N, D)``, by the arguments of an estimator.

    Rows with the same number in ``groups: (N,)`` stay together when points are held out; ``scale``
    is how the points were standardised. The objective is that of the tilt, or of NICE.
    """
    if settings.model == "nice":
        return _nice(settings, s, groups, whiten, objective, generator)

    clock = Clock(settings.max_seconds)

    def report(line: str) -> None:
        if callable(settings.verbose):
            settings.verbose(line)
        elif settings.verbose:
            print(line, flush=True)

    folds = make_folds(s, generator, groups=groups)
    base = choose_base(_families(settings.base, s, scale), folds, generator, report, clock)
    held_out = base.log_densities.mean().item()
    report(f"base: held-out log-likelihood {held_out:.3f}, parts {', '.join(base.weights)}")
    too_few = settings.calibrate and len(s) < _MIN_TILT_POINTS
    if settings.model == "none" or too_few or clock.cuts("no tilt was trained"):
        return Learned(base.distribution, held_out, base.weights)
    return _tilted(settings, base, whiten, objective, generator, report, clock)


def _families(base: Any, s: Tensor, scale: Standardise) -> list[Family]:
    """The candidates: by name, or the object that was given."""
    if not is_given(base):
        return families(base, len(s))

    def fit(x: Tensor, held: Tensor, g: torch.Generator) -> Distribution:
        if hasattr(base, "fit"):
            return fit_given(base, x)
        return Transformed(fit_given(base, x), Inverse(scale))

    return [Family([Candidate("given", fit, required=True)])]


def _tilted(
    settings: Any,
    base: Base,
    whiten: Whiten,
    objective: Objective,
    generator: torch.Generator,
    report: Any,
    clock: Clock,
) -> Learned:
    """The base with a tilt, where that raises the likelihood of the first fold."""
    train, held = (some_rows(points, _MAX_TILT_POINTS) for points in base.folds.split(0))
    jacobian = whiten.inverse(torch.eye(train.shape[1]).to(train)) - whiten.mean

    def with_scores(s: Tensor) -> Tensor:
        return torch.cat([whiten(s), base.held_out.score(s) @ jacobian.mT], 1)

    points = Points(with_scores(train), with_scores(held))
    learned = learn_tilt(points, objective, settings, generator, clock)
    held_out = base.log_densities.mean().item()
    if learned is None or (settings.calibrate and learned.validation_loss >= 0):
        report("tilt: none, since training does not lower the held-out loss of the base")
        history = learned.history if learned else []
        return Learned(base.distribution, held_out, base.weights, history=history)
    nearby = _nearby(learned.tilt, base, whiten)
    size = _size(settings, base, nearby, lambda s: learned.tilt(whiten(s)), held, generator)
    report(f"tilt: size {size.size:.2f}, held-out gain {size.gain:.3f}, error {size.error:.3f}")
    about = (base.weights, size.size, *learned[1:])
    if size.size == 0:
        return Learned(base.distribution, held_out, *about)
    density = Tilted(base.distribution, learned.tilt, whiten, size.size, nearby)
    density.normaliser = normalise(
        density.log_weight, density.proposal, settings.num_importance, generator
    )
    return Learned(density, held_out, *about)


def _nearby(tilt: Any, base: Base, whiten: Whiten) -> Distribution | None:
    """Where the tilt may add mass that samples of the base miss; None for a base of light tails."""
    x = base.folds.x
    if not isinstance(tilt, NetworkTilt):
        return near_points(x, whiten)
    return far_out(whiten, x.shape[1], x) if "student-t" in base.weights else None


def _size(
    settings: Any,
    base: Base,
    nearby: Distribution | None,
    tilt: Any,
    held: Tensor,
    generator: torch.Generator,
) -> Size:
    if not settings.calibrate:
        return Size(1.0, 0.0, 0.0)
    # Flows take a pass for each column of a sample.
    num = max(_MIN_CALIBRATION, _CALIBRATION_ENTRIES // held.shape[1])
    num = min(settings.num_importance, num)

    def with_weights(x: Tensor) -> Tensor:
        return torch.stack([tilt(x), less_nearby(base.held_out, nearby, x)], 1)

    with torch.no_grad():
        found = tilt_at_samples(with_weights, with_nearby(base.held_out, nearby), num, generator)
        return calibrate(tilt(held), *found.unbind(1))


def _nice(
    settings: Any,
    s: Tensor,
    groups: Tensor,
    whiten: Whiten,
    objective: Objective,
    generator: torch.Generator,
) -> Learned:
    """NICE at whitened points."""
    count = max(2, round(1 / settings.validation_fraction))
    train, held = make_folds(s, generator, count, groups).split(0)
    points = Points(whiten(train), whiten(held))
    learned, fit = learn_nice(points, objective, settings, generator)
    density = Transformed(learned, whiten)
    with torch.no_grad():
        held_out = density(held).mean().item()
    return Learned(density, held_out, {"nice": 1.0}, 0.0, *fit)
