"""Score-matching losses of a fitted density at held-out points."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from scorematching._memory import in_chunks
from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.flow import Flow
from scorematching.estimators.density.bases.given import Given
from scorematching.evaluation import score_matching_losses
from scorematching.fields import LogDensityField

_STEP, _BATCH_SIZE = 0.05, 512


def held_out_losses(
    density: Distribution, z: Tensor, max_memory: int | None = None, scale: float = 1.0
) -> Tensor:
    """``tr grad s + 0.5 |s|^2`` of a density of whitened points z, ``(N, D) -> (N,)``.

    Exact for smooth densities, which all but flows and given ones are. The score of a spline flow
    jumps at its knots, where an exact trace misses the jumps; with flows the trace is that of
    differences over 0.05 to either side, which counts them, times the ``scale`` of the rows, which
    is below one where outliers widen the whitening. ``max_memory`` bytes may be taken beside
    density, points and result.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> held_out_losses(Gaussian([0.0], [[1.0]]), torch.tensor([[3.0]])).item()
        3.5
    """
    if is_smooth(density):
        field = LogDensityField(density, check_smoothness=False)
        return score_matching_losses(field, z, max_memory=max_memory)
    losses = partial(_by_differences, density, scale * _STEP)
    return in_chunks(losses, [z], _BATCH_SIZE, max_memory)


def _by_differences(density: Distribution, size: float, z: Tensor) -> Tensor:
    divergence = z.new_zeros(len(z))
    for j, step in enumerate(size * torch.eye(density.dim, dtype=z.dtype, device=z.device)):
        rise = density.score(z + step)[:, j] - density.score(z - step)[:, j]
        divergence += rise / (2 * size)
    return divergence + 0.5 * density.score(z).square().sum(1)


def is_smooth(density: object) -> bool:
    """Whether a density is known to be smooth: one without flows and given parts.

    Its smoothness must not be measured, since narrow kernels and components would be taken for
    kinks, or for values that are cut from the graph.
    """
    return not has_part(density, (Flow, Given))


def has_part(density: object, kinds: tuple[type, ...]) -> bool:
    """Whether a distribution is of some type, or has a part that is."""
    if isinstance(density, kinds):
        return True
    parts = [getattr(density, name, None) for name in ("inner", "base")]
    parts += list(getattr(density, "parts", ()))
    return any(has_part(part, kinds) for part in parts if part is not None)
