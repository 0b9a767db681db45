"""The base class of all distributions, and checks of their arguments."""

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from scorematching import _checks
from scorematching._checks import check_count
from scorematching._precision import without_autocast
from scorematching._random import normal, uniform

Array = Tensor | ArrayLike


class Distribution(ABC):
    """A distribution on R^D with everything in closed form.

    Subclasses write `_log_density`, `_score` and `_sample`; the public methods check their
    arguments, and stay in their precision under autocast. Points of another shape raise
    ValueError, of another dtype TypeError; see `to`.

    Attributes:
        dim: D, the number of coordinates.
        log_z: log of the integral of ``exp(log_density(x))``; 0 for a normalised log-density.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> p: Distribution = Gaussian(torch.zeros(2), torch.eye(2))
        >>> torch.equal(p.score(torch.ones(1, 2)), -torch.ones(1, 2))
        True
    """

    log_z: float = 0.0

    def __init__(self, dim: int, like: Tensor | None = None) -> None:
        """Take the dimension, and the dtype and device of ``like`` (default: torch's own)."""
        self.dim = dim
        self._like = torch.empty(0) if like is None else like.new_empty(0)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the points."""
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        """Device of the points."""
        return self._like.device

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim={self.dim}, dtype={self.dtype})"

    def __call__(self, x: Tensor) -> Tensor:
        """`log_density`, so that a distribution is itself a log-density model."""
        return self.log_density(x)

    def log_density(self, x: Tensor) -> Tensor:
        """Normalised log-density, ``x: (N, D) -> (N,)``."""
        self._check_points(x)
        with without_autocast(self._like):
            return self._log_density(x)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log-density by its formula, ``x: (N, D) -> (N, D)``."""
        self._check_points(x)
        with without_autocast(self._like):
            return self._score(x)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n independent points of exactly this distribution, ``(n, D)``.

        Args:
            n: number of points.
            generator: source of randomness; None is torch's default generator.
        """
        check_count(n, "n", "ask for one point or more")
        with without_autocast(self._like):
            return self._sample(n, generator)

    def to(
        self,
        device: torch.device | str | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Copy on another device or in another precision.

        Parameters are cast as they are: what float32 has rounded stays rounded, and density, score
        and samples still belong to the same distribution.

        Args:
            device: where to; None leaves it. A dtype may stand alone, as for tensors.
            dtype: floating-point type; None leaves it.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype must be floating-point, got {dtype}; use torch.float64")
        moved = copy.copy(self)
        vars(moved).update({k: _moved(v, device, dtype) for k, v in vars(self).items()})
        return moved

    @abstractmethod
    def _log_density(self, x: Tensor) -> Tensor:
        """`log_density` of checked points."""

    @abstractmethod
    def _score(self, x: Tensor) -> Tensor:
        """`score` of checked points."""

    @abstractmethod
    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """`sample` of a checked number of points."""

    def _check_points(self, x: Tensor) -> None:
        wanted = f"x must have shape (N, {self.dim})"
        _checks.check_shape(x, (None, self.dim), wanted, "one point needs a batch axis, x[None]")
        if x.dtype != self.dtype:
            raise TypeError(
                f"x must have dtype {self.dtype}, got {x.dtype}; "
                f"convert the distribution with .to(dtype={x.dtype})"
            )

    def _normal(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Standard normal noise."""
        return normal(shape, self._like, generator)

    def _uniform(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Uniform noise in [0, 1)."""
        return uniform(shape, self._like, generator)


def _moved(value: Any, device: torch.device | str | None, dtype: torch.dtype | None) -> Any:
    """A copy of an attribute elsewhere: a tensor, or a part, module or transform made of them."""
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, Distribution):
        return value.to(device, dtype)
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to(device=device, dtype=dtype)
    if type(value) in (tuple, list):
        return type(value)(_moved(part, device, dtype) for part in value)
    if not isinstance(value, type) and hasattr(value, "log_abs_det"):  # a transform of points
        moved = copy.copy(value)
        vars(moved).update({k: _moved(v, device, dtype) for k, v in vars(value).items()})
        return moved
    return value


def log_det(triangle: Tensor) -> Tensor:
    """Log-determinant of triangular matrices with positive diagonal, ``(..., D, D) -> (...)``."""
    return triangle.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def inverse(triangle: Tensor) -> Tensor:
    """Inverse of lower triangular matrices, ``(..., D, D) -> (..., D, D)``."""
    inverse: Tensor = torch.linalg.inv(triangle)
    return inverse.tril()


def whitener(covariance: Tensor, name: str) -> Tensor:
    """Lower triangular W with ``W covariance W' = I``, ``(..., D, D) -> (..., D, D)``."""
    if covariance.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(
            f"{name} must be in single or double precision, got {covariance.dtype}; convert the "
            "parameters with .float()"
        )
    asymmetry = (covariance - covariance.mT).abs().max().item()
    if asymmetry > 1e-6 * covariance.abs().max().item():
        raise ValueError(
            f"{name} must be symmetric, got entries that differ from their mirror image by "
            f"{asymmetry:.3g}; use (C + C.T) / 2"
        )
    covariance = (covariance + covariance.mT) / 2
    root, info = torch.linalg.cholesky_ex(covariance)
    if bool(info.any()):
        least = torch.linalg.eigvalsh(covariance.detach()).min().item()
        raise ValueError(
            f"{name} must be positive definite, got smallest eigenvalue {least:.3g}; "
            "add a small multiple of the identity"
        )
    found = inverse(root)
    if not bool((found.mT @ found).isfinite().all()):
        raise ValueError(
            f"{name} must have an inverse in {covariance.dtype}, got variances down to "
            f"{covariance.detach().diagonal(dim1=-2, dim2=-1).min().item():.3g}; multiply the "
            "points by a number that brings their standard deviation near one"
        )
    return found


def component_covariances(covariances: Tensor, means: Tensor) -> Tensor:
    """Covariances in any accepted form as ``(K, D, D)``."""
    num, dim = means.shape
    shapes = [(), (num,), (dim, dim), (num, dim, dim)]
    check_shape(covariances, "covariances", shapes[min(covariances.ndim, 3)])
    if covariances.ndim < 2:
        covariances = covariances[..., None, None] * torch.eye(dim).to(means)
    return covariances.expand(num, dim, dim)


def tensors(values: dict[str, Array]) -> list[Tensor]:
    """Own copies of parameters, in their common floating-point dtype and device."""
    values = {name: _checks.torch_numbers(value, name) for name, value in values.items()}
    arrays = [torch.as_tensor(value) for value in values.values() if hasattr(value, "dtype")]
    dtypes = [array.dtype for array in arrays if array.is_floating_point()]
    dtype = functools.reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()
    device = arrays[0].device if arrays else None
    tensors = []
    for name, value in values.items():
        tensor = torch.as_tensor(value, dtype=dtype, device=device).clone()
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} must be finite, got NaN or infinity; check its computation")
        tensors.append(tensor)
    return tensors


def check_shape(value: Tensor, name: str, shape: Sequence[int | None]) -> None:
    """Require a shape; None accepts any positive length."""
    fits = value.ndim == len(shape) and all(
        length == wanted if wanted is not None else length > 0
        for length, wanted in zip(value.shape, shape, strict=True)
    )
    if not fits:
        letters = iter("KD" if len(shape) == 2 else "D")
        wanted = ", ".join(next(letters) if k is None else str(k) for k in shape)
        comma = "," if len(shape) == 1 else ""
        raise ValueError(
            f"{name} must have shape ({wanted}{comma}), got {tuple(value.shape)}; reshape it"
        )


def check_dim(dim: int, name: str, least: int) -> None:
    """Require at least so many coordinates."""
    check_count(dim, "dim", "it is the number of coordinates")
    if dim < least:
        raise ValueError(f"dim must be at least {least} for {name}, got {dim}; use dim={least}")


def check_all_positive(value: Tensor, name: str, advice: str) -> None:
    """Require every entry above zero."""
    least = value.min().item()
    if least <= 0:
        raise ValueError(f"{name} must be positive, got {least}; {advice}")


def check_weights(weights: Tensor, num: int) -> None:
    """Require positive weights that sum to one."""
    check_shape(weights, "weights", (num,))
    check_all_positive(weights, "weights", "leave out components of weight zero")
    total = weights.sum().item()
    if abs(total - 1) > 1e-6:
        raise ValueError(f"weights must sum to 1, got {total:.6g}; divide them by their sum")
