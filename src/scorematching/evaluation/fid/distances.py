"""Distances between sets of images by their features: Frechet (FID) and kernel (KID).

Features come from any network, ``images: (N, *event) -> (N, D)``; `inception` is the usual one.
Distances from different networks, or from different numbers of images, cannot be compared: the
Frechet distance of finite samples is too large on average, by an amount that falls as 1/N. The
kernel distance is unbiased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_batch, check_count, check_points, check_shape, check_type
from scorematching._memory import Chunks, limited
from scorematching.derivatives.repeats import check_repeats
from scorematching.evaluation.estimate import Estimate

_BATCH_SIZE, _ALL = 64, 2**40

Features = Callable[[Tensor], Tensor]
"""A feature network, ``images: (N, *event) -> (N, D)``."""


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """Mean and scatter of features; those of several batches can be merged.

    Attributes:
        count: N, number of rows.
        mean: ``(D,)``, in double precision.
        scatter: ``sum_i (x_i - mean)(x_i - mean)'``, ``(D, D)``, in double precision.

    Example:
        >>> x = torch.randn(10, 3, dtype=torch.float64)
        >>> halves = FeatureMoments.of(x[:4]).merge(FeatureMoments.of(x[4:]))
        >>> torch.allclose(halves.covariance, x.T.cov())
        True
    """

    count: int
    mean: Tensor = field(repr=False)
    scatter: Tensor = field(repr=False)

    @classmethod
    def of(cls, features: Tensor) -> FeatureMoments:
        """The moments of features ``(N, D)``."""
        _check_features(features, "features")
        x = features.detach().double()
        mean = x.mean(0)
        centred = x - mean
        return cls(len(x), mean, centred.T @ centred)

    def merge(self, other: FeatureMoments) -> FeatureMoments:
        """The moments of both sets of rows together.

        With ``d`` the difference of the means, the scatter of all rows is the sum of both and of
        ``d d' n m / (n + m)``. No large sums of squares are subtracted.
        """
        _check_dims(len(self.mean), len(other.mean))
        n, m = self.count, other.count
        d = other.mean - self.mean
        scatter = self.scatter + other.scatter + torch.outer(d, d) * (n * m / (n + m))
        return FeatureMoments(n + m, self.mean + d * (m / (n + m)), scatter)

    @property
    def covariance(self) -> Tensor:
        """Unbiased covariance, ``scatter / (N - 1)``, ``(D, D)``."""
        if self.count < 2:
            raise ValueError(
                f"features must hold at least two rows for a covariance, got {self.count}; "
                "take a few thousand"
            )
        return self.scatter / (self.count - 1)


def feature_moments(
    network: Features,
    images: Tensor | Iterable[Tensor],
    batch_size: int = _BATCH_SIZE,
    max_memory: int | None = None,
) -> FeatureMoments:
    """Moments of the features of many images, batch by batch.

    Args:
        network: ``(N, *event) -> (N, D)``.
        images: ``(N, *event)``, or an iterable of batches.
        batch_size: images evaluated at a time, if images is a tensor.
        max_memory: bytes that may be taken beside network and images, the moments included, which
            is measured; images are then evaluated fewer at a time.

    Raises:
        ValueError: there are no images, the network returns NaN or features that depend on the
            batch or the call, as in training mode, or max_memory is too small.

    Example:
        >>> images = torch.randn(10, 1, 2, 2)
        >>> feature_moments(lambda x: x.flatten(1), images, batch_size=3).count
        10
    """
    check_count(batch_size, "batch_size", "it limits memory; 64 suits most networks")
    check_type(network, Callable, "network must be callable", "pass a function of images -> (N, D)")
    if isinstance(images, Tensor):
        check_batch(images, "images")
        images = images.split(int(batch_size))
    total: FeatureMoments | None = None
    with limited(max_memory, "take a network with fewer features") as budget, torch.no_grad():
        chunks = Chunks(_ALL, budget)
        for batch in images:
            advice = "convert an array with torch.as_tensor"
            check_type(batch, Tensor, "images must be a tensor or batches of tensors", advice)
            if total is None:
                check_repeats(network, batch, limited=max_memory is not None)
            for moments in chunks(partial(_moments, network), batch):
                total = moments if total is None else total.merge(moments)
    if total is None:
        raise ValueError("images must hold at least one batch, got none; check the iterable")
    return total


def _moments(network: Features, images: Tensor) -> FeatureMoments:
    features = network(images.clone())  # which a network may normalise in place
    wanted = f"network must return one row of features per image, shape ({len(images)}, D)"
    check_shape(features, (len(images), None), wanted, "keep its batch axis, and flatten the rest")
    return FeatureMoments.of(features)


def frechet_distance(
    a: FeatureMoments | Tensor, b: FeatureMoments | Tensor, max_memory: int | None = None
) -> float:
    """Squared Frechet distance between the Gaussians with the moments of two sets of features.

    ``|m_a - m_b|^2 + tr(S_a + S_b - 2 (S_a^1/2 S_b S_a^1/2)^1/2)``

    The eigenvalues of the last root are computed as singular values of ``S_a^1/2 S_b^1/2``, which
    keeps twice the digits of square roots of eigenvalues and allows singular covariances, as with
    fewer images than features. Cost: three decompositions of ``D x D`` matrices in double
    precision, some seconds for 2048 features.

    Args:
        a: moments, or features ``(N, D)``.
        b: moments, or features ``(M, D)``.
        max_memory: bytes that may be taken beside them; a network with many features is refused
            before its matrices are allocated.

    Returns:
        The distance, zero or more: the FID if the features are those of `inception`.

    Reference: Heusel et al. (2017), GANs trained by a two time-scale update rule.

    Example:
        A shift by one in each of two coordinates.

        >>> x = torch.randn(50, 2, dtype=torch.float64)
        >>> round(frechet_distance(x, x + 1), 9)
        2.0
    """
    with limited(max_memory, "take a network with fewer features"):
        a, b = (m if isinstance(m, FeatureMoments) else FeatureMoments.of(m) for m in (a, b))
        _check_dims(len(a.mean), len(b.mean))
        roots = [_square_root(m.covariance) for m in (a, b)]
        overlap = torch.linalg.svdvals(roots[0] @ roots[1]).sum()
        spread = a.covariance.trace() + b.covariance.trace() - 2 * overlap
        return max(0.0, ((a.mean - b.mean).square().sum() + spread).item())


def kernel_distance(
    a: Tensor, b: Tensor, block_size: int = 1000, max_memory: int | None = None
) -> Estimate:
    """Squared maximum mean discrepancy with the kernel ``(x.y / D + 1)^3``, unbiased.

    In blocks of n rows of each set::

        sum_(i != j) (k(a_i, a_j) + k(b_i, b_j)) / (n (n - 1)) - 2 sum_ij k(a_i, b_j) / n^2

    Blocks are taken in order and do not overlap, so that they are independent and give a valid
    standard error; shuffle sorted rows. Remaining rows are not used.

    Args:
        a: features ``(N, D)``.
        b: features ``(M, D)``.
        block_size: n, rows of each set in a block; fewer where there are fewer.
        max_memory: bytes that may be taken beside the features; blocks that need more are refused.

    Returns:
        Mean and standard error over the blocks: the KID if the features are those of `inception`.
        As an unbiased estimate it may be negative.

    Reference: Binkowski et al. (2018), Demystifying MMD GANs.

    Example:
        >>> x, y = torch.randn(300, 4), torch.randn(300, 4) + 1
        >>> kernel_distance(x, y, 50).mean > kernel_distance(x, torch.randn(300, 4), 50).mean
        True
    """
    for features, name in ((a, "a"), (b, "b")):
        _check_features(features, name)
        if len(features) < 2:
            raise ValueError(f"{name} must hold at least two rows, got {len(features)}; take more")
    check_count(block_size, "block_size", "1000 rows are usual")
    _check_dims(a.shape[1], b.shape[1])
    n = max(2, min(block_size, len(a), len(b)))
    num = min(len(a), len(b)) // n
    blocks = zip(*(z[: num * n].detach().reshape(num, n, -1) for z in (a, b)))
    with limited(max_memory, "take a smaller block_size"):
        return Estimate.of(torch.stack([_discrepancy(*block) for block in blocks]))


def _discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """Unbiased estimate from one block, ``(n, D), (n, D) -> ()``."""
    x, y, n = x.double(), y.double(), len(x)
    within = sum(k.sum() - k.trace() for k in (_cubic(x, x), _cubic(y, y)))
    return within / (n * (n - 1)) - 2 * _cubic(x, y).mean()


def _cubic(x: Tensor, y: Tensor) -> Tensor:
    """``k(x_i, y_j) = (x_i.y_j / D + 1)^3``."""
    return (x @ y.T / x.shape[1] + 1) ** 3


def _square_root(covariance: Tensor) -> Tensor:
    """The symmetric root of a positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh(covariance)
    # Rounding can make zero eigenvalues negative.
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def _check_features(features: Any, name: str) -> None:
    check_points(features, name)
    advice = f"pass images through a network, or flatten them with {name}.flatten(1)"
    check_shape(features, (None, None), f"{name} must be features of shape (N, D)", advice)


def _check_dims(a: int, b: int) -> None:
    if a != b:
        raise ValueError(
            f"b must have as many features as a ({a}), got {b}; take both from the same network"
        )
