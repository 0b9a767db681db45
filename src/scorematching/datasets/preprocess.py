"""Preprocessing: invertible maps with their log-Jacobians.

For ``z = T(x)`` the two log-densities are related by ``log p(x) = log p(z) + log |det dT/dx|``.

================  ==========================================  ==================================
transform         z                                           log |det dz/dx|
================  ==========================================  ==================================
`Standardise`     ``(x - mean) / std``                        ``-sum log std``
`Whiten`          ``(x - mean) V diag(1 / std) [V']``         ``-sum log std``
`Logit`           ``log y - log(1 - y)``, y = x clipped       ``-sum (log y + log(1 - y))``
`Compose`         one after the other                         the sum, each at its own input
================  ==========================================  ==================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching._checks import can_read_values, check_points, check_positive
from scorematching._tracing import is_transformed
from scorematching.datasets.columns import check_event, check_table, check_varies


class Transform(ABC):
    """An invertible map of points, ``(N, *event) -> (N, *event)``; calling it is `forward`.

    Example:
        The logit of a uniform variable, ``log p(x) = 0``, is logistic.

        >>> x = torch.tensor([[0.2], [0.7]], dtype=torch.float64)
        >>> z = Logit()(x)
        >>> log_p = (-z - 2 * (-z).exp().log1p()).squeeze(1)
        >>> torch.allclose(log_p + Logit().log_abs_det(x), torch.zeros_like(log_p))
        True
    """

    def __call__(self, x: Tensor) -> Tensor:
        """`forward`."""
        return self.forward(x)

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """``z = T(x)``, ``(N, *event) -> (N, *event)``."""

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """``x = T^-1(z)``, ``(N, *event) -> (N, *event)``."""

    @abstractmethod
    def log_abs_det(self, x: Tensor) -> Tensor:
        """``log |det dT/dx|`` at x, ``(N, *event) -> (N,)``."""


@dataclass(frozen=True, eq=False)
class Standardise(Transform):
    """Mean 0 and standard deviation 1 in every coordinate, ``z = (x - mean) / std``.

    Args:
        mean: ``(*event,)``.
        std: ``(*event,)``, positive.

    Example:
        >>> x = torch.tensor([[1.0, 10.0], [3.0, 50.0]])
        >>> Standardise.fit(x)(x).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, x: Tensor) -> Standardise:
        """Mean and standard deviation (with 1/N) of points ``(N, *event)``, in double precision.

        Raises:
            ValueError: a coordinate is constant.
        """
        check_points(x)
        check_varies(x)
        # In float32 the variance of large numbers that vary little is lost.
        wide = x.double()
        return cls(wide.mean(0).to(x), wide.std(0, correction=0).to(x))

    def forward(self, x: Tensor) -> Tensor:
        """``(x - mean) / std``."""
        check_event(x, self.mean)
        return (x - self.mean) / self.std

    def inverse(self, z: Tensor) -> Tensor:
        """``z std + mean``."""
        check_event(z, self.mean, "z")
        return z * self.std + self.mean

    def log_abs_det(self, x: Tensor) -> Tensor:
        """``-sum log std``, the same for every point."""
        check_event(x, self.mean, batch_axes=1)
        return -self.std.log().expand(x.shape[1:]).sum().expand(x.shape[0])


@dataclass(frozen=True, eq=False)
class Whiten(Transform):
    """Mean 0 and covariance I by principal components, ``z = (x - mean) V diag(1 / std)``.

    Components have decreasing standard deviations, and signs that make their largest entries
    positive. With ``symmetric=True`` the result is rotated back, ``z = (x - mean) V diag(1 / std)
    V'``: of all whitenings this one changes the points least, and it has no signs or order.

    Args:
        mean: ``(D,)``.
        components: V, orthonormal columns ``(D, D)``.
        std: standard deviations along them, ``(D,)``.
        symmetric: whether to rotate back.

    Example:
        >>> x = torch.randn(20, 3, dtype=torch.float64) @ torch.randn(3, 3, dtype=torch.float64)
        >>> z = Whiten.fit(x)(x)
        >>> torch.allclose(z.T @ z / 20, torch.eye(3, dtype=torch.float64))
        True
    """

    mean: Tensor
    components: Tensor
    std: Tensor
    symmetric: bool = False

    @classmethod
    def fit(cls, x: Tensor, symmetric: bool = False, min_ratio: float | None = None) -> Whiten:
        """The whitening of points ``(N, D)``, with covariance ``1/N sum``.

        Args:
            x: points ``(N, D)``.
            symmetric: whether to rotate back.
            min_ratio: least ratio of the smallest to the largest standard deviation; None refuses
                those that may be rounding errors.

        Raises:
            ValueError: the covariance of x is singular.
        """
        check_table(x)
        # In float32 the mean of large numbers that vary little is lost.
        wide = x.double()
        mean = wide.mean(0)
        _, singular, vt = torch.linalg.svd(wide - mean, full_matrices=False)
        least = _rounding(x, singular[0]) if min_ratio is None else min_ratio * singular[0]
        rank = int((singular > least).sum())
        if rank < x.shape[1]:
            raise ValueError(
                f"x must have a covariance of full rank {x.shape[1]} to be whitened, got rank "
                f"{rank} from {x.shape[0]} points; drop columns (see drop_correlated) or add points"
            )
        signs = vt.gather(1, vt.abs().argmax(1, keepdim=True)).sign()
        std = singular / x.shape[0] ** 0.5
        return cls(mean.to(x), (vt * signs).mT.to(x), std.to(x), symmetric)

    def forward(self, x: Tensor) -> Tensor:
        """``(x - mean) V diag(1 / std)``, rotated back if symmetric."""
        check_event(x, self.mean)
        z = (x - self.mean) @ self.components / self.std
        return z @ self.components.mT if self.symmetric else z

    def inverse(self, z: Tensor) -> Tensor:
        """``z diag(std) V' + mean``, after ``z V`` if symmetric."""
        check_event(z, self.mean, "z")
        z = z @ self.components if self.symmetric else z
        return (z * self.std) @ self.components.mT + self.mean

    def log_abs_det(self, x: Tensor) -> Tensor:
        """``-sum log std``, the same for every point, since V is orthonormal."""
        check_event(x, self.mean, batch_axes=1)
        return -self.std.log().expand(x.shape[1:]).sum().expand(x.shape[0])


@dataclass(frozen=True)
class Logit(Transform):
    """From the unit cube to R^D, ``z = log y - log(1 - y)`` with y = x clipped to [clip, 1 - clip].

    Inverse and Jacobian are those of the logit at y: clipping counts as a correction of the data,
    not as part of the map. Values below -0.5 or above 2 are refused.

    Args:
        clip: distance kept from 0 and from 1.

    Example:
        >>> logit = Logit()
        >>> x = torch.tensor([[0.25, 0.5]])
        >>> torch.allclose(logit.inverse(logit(x)), x)
        True
    """

    clip: float = 1e-3

    def __post_init__(self) -> None:
        check_positive(self.clip, "clip", "the logit is infinite at 0 and 1; 1e-3 is usual")
        if self.clip >= 0.5:
            raise ValueError(f"clip must be below 0.5, got {self.clip}; 1e-3 is usual")

    def forward(self, x: Tensor) -> Tensor:
        """``log y - log(1 - y)``."""
        return self._clipped(x).logit()

    def inverse(self, z: Tensor) -> Tensor:
        """``1 / (1 + exp(-z))``."""
        return z.sigmoid()

    def log_abs_det(self, x: Tensor) -> Tensor:
        """``-sum (log y + log(1 - y))``."""
        y = self._clipped(x)
        return -(y.log() + (-y).log1p()).flatten(1).sum(1)

    def _clipped(self, x: Tensor) -> Tensor:
        _check_unit_cube(x)
        # Where 1 - clip would round to one, the largest number below one takes its place.
        return x.clamp(self.clip, 1 - max(self.clip, torch.finfo(x.dtype).eps / 2))


class Compose(Transform):
    """Several transforms, one after the other.

    Args:
        transforms: in the order in which they are applied.

    Example:
        >>> x = torch.tensor([[0.2], [0.4], [0.7]], dtype=torch.float64)
        >>> both = Compose(Logit(), Standardise.fit(Logit()(x)))
        >>> torch.allclose(both.inverse(both(x)), x)
        True
    """

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = transforms

    def __repr__(self) -> str:
        return f"Compose({', '.join(type(t).__name__ for t in self.transforms)})"

    def forward(self, x: Tensor) -> Tensor:
        """First to last."""
        for transform in self.transforms:
            x = transform.forward(x)
        return x

    def inverse(self, z: Tensor) -> Tensor:
        """Last to first."""
        for transform in reversed(self.transforms):
            z = transform.inverse(z)
        return z

    def log_abs_det(self, x: Tensor) -> Tensor:
        """The sum over the transforms, each at its own input."""
        total = x.new_zeros(x.shape[0])
        for transform in self.transforms:
            total = total + transform.log_abs_det(x)
            x = transform.forward(x)
        return total


def _rounding(x: Tensor, largest: Tensor) -> Tensor:
    """How much rounding of points, and in double precision, may change their singular values."""
    of_points = 2 * torch.finfo(x.dtype).eps * x.double().norm()
    return of_points + max(x.shape) * torch.finfo(torch.float64).eps * largest


def _check_unit_cube(x: Tensor) -> None:
    """Refuse other ranges, where values can be read; noise may lead outside a little."""
    if type(x) is not Tensor or is_transformed() or x.is_cuda or not can_read_values(x):
        return
    if x.numel() and (x.min().item() < -0.5 or x.max().item() > 2.0):
        raise ValueError(
            f"x must lie between 0 and 1 for a logit, got values from {x.min().item():g} to "
            f"{x.max().item():g}; divide grey levels by 256, or map [-1, 1] by (x + 1) / 2"
        )
