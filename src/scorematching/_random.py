"""Random numbers in the dtype and on the device of a tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scorematching._checks import check_generator


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers."""
    check_generator(generator, like)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1)."""
    check_generator(generator, like)
    return torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
