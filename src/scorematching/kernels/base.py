"""What the kernel estimates of a score share: their evaluation, and the checks of their points."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from scorematching._checks import can_read_values
from scorematching._precision import at_least_single, without_autocast
from scorematching.kernels.distances import in_chunks
from scorematching.kernels.radial import Kernel


@dataclass(frozen=True, eq=False, repr=False)
class KernelScore(ABC):
    """A score estimated from sets of samples with a kernel.

    Fits are computed in double precision: an inverse kernel matrix magnifies rounding by the number
    of samples over the ridge. Results have the dtype of the points.

    Attributes:
        samples: B sets of M samples, ``(*B, M, D)``.
        kernel: with one bandwidth per set.
    """

    samples: Tensor
    kernel: Kernel

    def __repr__(self) -> str:
        """Short: the fields are large tensors."""
        kernel, shape = type(self.kernel).__name__, tuple(self.samples.shape)
        return f"{type(self).__name__}({kernel}, samples {shape})"

    @abstractmethod
    def at_samples(self) -> Tensor:
        """The score at the samples themselves, ``(*B, M, D)``."""

    def score(self, x: Tensor, chunk_size: int | None = None) -> Tensor:
        """The score at points, ``(*B, N, D) -> (*B, N, D)``, differentiable in them.

        Args:
            x: points ``(*B, N, D)``.
            chunk_size: points evaluated at a time; None limits the memory.
        """
        return self._in_chunks(self._score, x, chunk_size)

    @abstractmethod
    def _score(self, x: Tensor) -> Tensor:
        """`score` of checked points in the precision of the fit."""

    @property
    @abstractmethod
    def _fitted(self) -> Tensor:
        """What was fitted, in the precision of the fit."""

    @property
    def _wide(self) -> Tensor:
        """The samples in the precision of the fit."""
        return self.samples.to(self._fitted.dtype)

    def _in_chunks(self, function: Any, x: Tensor, chunk_size: int | None) -> Tensor:
        x = at_least_single(x)
        check_queries(x, self.samples, "x")
        wide = x.to(self._fitted.dtype)
        with without_autocast(self.samples):
            return in_chunks(function, wide, self.samples.shape[-2], chunk_size).to(x.dtype)


def add_ridge(matrix: Tensor, ridge: float | Tensor) -> Tensor:
    """A copy of square matrices ``(*B, M, M)`` with numbers ``(*B, 1)`` added to the diagonals."""
    diagonal = matrix.diagonal(dim1=-2, dim2=-1) + ridge
    return matrix.diagonal_scatter(diagonal, dim1=-2, dim2=-1)


def checked_samples(samples: Any) -> Tensor:
    """Sets of two or more finite samples, ``(*B, M, D)``, in single precision or above.

    Half precision, as of a model under autocast, is too little for inverse kernel matrices.
    """
    if not isinstance(samples, Tensor) or not samples.is_floating_point():
        kind = samples.dtype if isinstance(samples, Tensor) else type(samples).__name__
        raise TypeError(
            f"samples must be a floating-point torch.Tensor, got {kind}; "
            "convert them with torch.as_tensor(samples, dtype=torch.float64)"
        )
    if samples.ndim < 2 or samples.shape[-2] < 2 or samples.numel() == 0:
        raise ValueError(
            f"samples must have shape (*B, M, D) with M >= 2, got {tuple(samples.shape)}; a score "
            "is estimated from several samples, the more the better, as is a bandwidth"
        )
    require_finite(samples, "samples")
    return at_least_single(samples)


def require_finite(samples: Tensor, name: str) -> None:
    """Refuse NaN and infinity, where values can be read."""
    if can_read_values(samples) and not bool(samples.isfinite().all()):
        bad = int((~samples.isfinite()).any(-1).sum())
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {bad} points; drop them, or find out "
            "what diverged"
        )


def check_queries(x: Any, samples: Tensor, name: str) -> None:
    """Require points ``(*B, N, D)`` of the dtype, device, sets and coordinates of samples."""
    # No isinstance: while a score is differentiated, points may be wrapped tensors.
    dtype, device = getattr(x, "dtype", type(x).__name__), getattr(x, "device", "the CPU")
    if (dtype, device) != (samples.dtype, samples.device):
        raise TypeError(
            f"{name} must be a tensor like samples, {samples.dtype} on {samples.device}, got "
            f"{dtype} on {device}; convert them with {name}.to(samples)"
        )
    sets, dim = tuple(samples.shape[:-2]), samples.shape[-1]
    if x.ndim != samples.ndim or x.shape[:-2] != samples.shape[:-2] or x.shape[-1] != dim:
        wanted = ", ".join(map(str, (*sets, "N", dim)))
        raise ValueError(
            f"{name} must have shape ({wanted}) to match samples of shape "
            f"{tuple(samples.shape)}, got {tuple(x.shape)}; expand them to all sets, with the "
            "coordinates of the samples"
        )
