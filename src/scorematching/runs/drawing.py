"""Samples of a fitted model: exact, resampled, or by Markov chains with diagnostics."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorematching._extras import import_extra
from scorematching.estimators.density.tilted import Tilted
from scorematching.runs.modelled import standardised_score
from scorematching.runs.space import Space
from scorematching.samplers import adapt, begin_adaptation, hmc, langevin

METHODS = ("auto", "exact", "resampled", "hmc", "langevin")

_CHAINS, _WARM_UP, _LEAPFROG, _THIN = 8, 300, 10, 2
_LANGEVIN_STEP, _LANGEVIN_STEPS = 0.1, 500
_POOL = 20


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples.

    Attributes:
        x: modelled columns, ``(n, K)``.
        method: how they were drawn.
        notes: diagnostics, one sentence each.
    """

    x: Tensor
    method: str
    notes: tuple[str, ...] = ()


def draw(
    model: Any, space: Space, n: int, method: str = "auto", seed: int = 0, start: Any = None
) -> Drawn:
    """Draw samples of a fitted model.

    ============  ===============================================================================
    exact         independent samples, of a tilted base by rejection
    resampled     samples of the base, resampled in proportion to the tilt
    hmc           Hamiltonian Monte Carlo, 8 chains, with R-hat and effective sample size
    langevin      Langevin steps without rejection, for a model of the score alone; biased by
                  their step size
    ============  ===============================================================================

    Args:
        model: a fitted `DensityEstimator` or `SlicedScoreEstimator`.
        space: of the modelled columns.
        n: number of samples.
        method: "auto" is exact, or langevin for a model of the score alone.
        seed: of all randomness.
        start: rows ``(N, K)`` where Langevin chains begin; None begins at the Gaussian's samples.

    Raises:
        ValueError: if the model cannot be sampled by that method.
    """
    generator = torch.Generator().manual_seed(seed)
    density = getattr(model, "density_", None)
    if method == "auto":
        method = "langevin" if density is None else "exact"
    if density is None and method != "langevin":
        raise ValueError(
            f"method must be langevin for a model of the score alone, got {method}; other methods "
            "need a log-density"
        )
    ways: dict[str, Callable[[], Drawn]] = {
        "exact": lambda: _exact(density, space, n, generator),
        "resampled": lambda: _resampled(density, space, n, generator),
        "hmc": lambda: _hmc(density, space, n, generator),
        "langevin": lambda: _langevin(model, space, n, generator, start),
    }
    if method not in ways:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return ways[method]()


def _exact(density: Any, space: Space, n: int, generator: torch.Generator) -> Drawn:
    s = density.sample(n, generator)
    how = "by rejection from the base" if isinstance(density, Tilted) else "independent"
    return Drawn(space.scaling.inverse(s), "exact", (f"{n} samples, {how}",))


def _resampled(density: Any, space: Space, n: int, generator: torch.Generator) -> Drawn:
    if not isinstance(density, Tilted):
        return _exact(density, space, n, generator)
    pool = density.proposal.sample(_POOL * n, generator)
    with torch.no_grad():
        weights = density.log_weight(pool).softmax(0)
    rows = torch.multinomial(weights, n, replacement=True, generator=generator)
    effective = 1 / weights.square().sum().item()
    note = f"effective sample size {effective:.0f} of a pool of {len(pool)}"
    return Drawn(space.scaling.inverse(pool[rows]), "resampled", (note,))


def _hmc(density: Any, space: Space, n: int, generator: torch.Generator) -> Drawn:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its next version, at its import
        arviz = import_extra("arviz", "chains")
    whitened = space.density(density)

    def target(z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return whitened(z), whitened.score(z)

    def length() -> int:
        # Paths of one length can end where they began.
        return int(torch.randint(1, _LEAPFROG + 1, (), generator=generator))

    state = hmc.start(target, torch.randn(_CHAINS, whitened.dim, generator=generator).double())
    size = begin_adaptation(0.2)
    for _ in range(_WARM_UP):
        state, info = hmc.step(state, target, float(size.step_size), length(), generator)
        size = adapt(size, info.acceptance.mean())
    kept, accepted = [], []
    for _ in range(-(-n // _CHAINS)):
        for _ in range(_THIN):
            state, info = hmc.step(state, target, float(size.average), length(), generator)
            accepted.append(info.acceptance.mean().item())
        kept.append(state.x)
    chains = torch.stack(kept, 1)  # (chains, draws, K)
    notes = (
        f"{_CHAINS} chains, {_WARM_UP} steps of warm-up, every {_THIN}nd kept, acceptance "
        f"{np.mean(accepted):.2f}",
        _diagnosis(arviz, chains.numpy(), list(space.columns)),
    )
    return Drawn(space.x(chains.transpose(0, 1).flatten(0, 1)[:n]), "hmc", notes)


def _diagnosis(arviz: Any, chains: Any, columns: list[str]) -> str:
    """The largest R-hat and the least effective sample size over whitened coordinates."""
    if chains.shape[1] < 4:
        return "too few samples for R-hat and effective sample size; draw 32 or more"
    each = [chains[:, :, k] for k in range(len(columns))]
    rhat = max(float(arviz.rhat(values)) for values in each)
    effective = min(float(arviz.ess(values)) for values in each)
    verdict = "converged" if rhat < 1.01 else "not converged by the usual limit of 1.01"
    return f"largest R-hat {rhat:.3f} ({verdict}), least effective sample size {effective:.0f}"


def _langevin(model: Any, space: Space, n: int, generator: torch.Generator, start: Any) -> Drawn:
    field = space.field(standardised_score(model))

    def score(z: Tensor) -> Tensor:
        with torch.no_grad():
            return field.score(z)

    z = torch.randn(n, len(space.columns), generator=generator, dtype=torch.float64)
    if start is not None:
        rows = torch.randint(len(start), (n,), generator=generator)
        z = space.z(torch.tensor(start)[rows])
    for _ in range(_LANGEVIN_STEPS):
        z, _ = langevin.step(z, score, _LANGEVIN_STEP, generator=generator)
    note = f"{n} chains of {_LANGEVIN_STEPS} steps of size {_LANGEVIN_STEP}; no correction for it"
    return Drawn(space.x(z), "langevin", (note,))
