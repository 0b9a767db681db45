"""The one statistical assertion of the suite: a sample mean against its expectation."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats
import torch
from numpy.typing import ArrayLike

POWER = 8.0
"""How many standard errors an error of the size to be detected must amount to."""


def assert_mean(samples: Any, truth: Any, detect: ArrayLike, error_rate: float = 1e-6) -> None:
    """Assert that independent rows have a given expectation, and that an error would show.

    With mean m, standard deviation sd and standard error ``se = sd / sqrt(n)`` of each of the K
    entries of a row, the assertion fails if, for any entry,

    * ``n < 64 (sd / detect)^2``, that is ``detect < 8 se``: too weak a test to be worth having;
    * ``|m - truth| > c se``, with c the quantile of Student's t with n - 1 degrees of freedom at
      ``1 - error_rate / (2 K)``.

    If the expectation is right, the t statistic exceeds c in either direction in one entry with
    probability ``error_rate / K`` (exactly for normal rows, by the central limit theorem for
    others), and in any of K entries with probability at most ``error_rate`` (Bonferroni), however
    the entries depend on each other. If it is wrong by ``detect`` in some entry, that entry's
    statistic is at least 8 on average with standard deviation 1, so the error is missed with
    probability below ``Phi(c - 8)``: 0.001 for K = 1 (c = 4.9), 0.012 for K = 100 (c = 5.7).
    Rounding of constant entries is forgiven to a few units in the last place of the input's dtype.

    Args:
        samples: ``(n, *shape)``, independent and identically distributed rows.
        truth: their expectation, a number or ``(*shape)``.
        detect: size of the error that must not go unseen, a number or ``(*shape)``.
        error_rate: probability of a false alarm.

    Raises:
        AssertionError: if the mean is off, the test is too weak or a sample is not finite.
        ValueError: if the arguments make no test.
    """
    samples, eps = _float64(samples)
    truth = _entries("truth", truth, samples.shape[1:])
    detect = _entries("detect", detect, samples.shape[1:])
    n = len(samples)
    if n < 2 or (detect <= 0).any():
        raise ValueError(f"need at least two rows and detect > 0, got {n} rows, detect {detect}")
    assert np.isfinite(samples).all(), "samples must be finite, got NaN or infinity"

    error = np.abs(samples.mean(0) - truth)
    sd = samples.std(0, ddof=1)
    rounding = 64 * eps * np.abs(samples).max(0)

    needed = (POWER * sd / detect) ** 2
    at = _worst(needed)
    assert n >= needed.max(), (
        f"cannot see an error of {detect[at]:.3g} in entry {at}: its standard deviation "
        f"{sd[at]:.3g} takes {needed[at]:.0f} rows, got {n}"
    )
    quantile = scipy.stats.t.isf(error_rate / (2 * truth.size), n - 1)
    allowed = quantile * sd / np.sqrt(n) + rounding
    at = _worst(error - allowed)
    assert (error <= allowed).all(), (
        f"mean {samples.mean(0)[at]:.6g} of entry {at} differs from {truth[at]:.6g} by "
        f"{error[at]:.3g}, more than the {allowed[at]:.3g} that chance allows"
    )


def _float64(samples: Any) -> tuple[np.ndarray, float]:
    """Samples in float64 with the rounding unit they came in."""
    if isinstance(samples, torch.Tensor):
        samples = samples.detach().cpu().numpy()
    samples = np.asarray(samples)
    dtype = samples.dtype if samples.dtype.kind == "f" else np.float64
    return samples.astype(np.float64), float(np.finfo(dtype).eps)


def _entries(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A number or an array of exactly the shape of one row; broadcasting would hide mistakes."""
    value = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    if value.shape not in ((), shape):
        raise ValueError(f"{name} must be a number or have shape {shape}, got {value.shape}")
    return np.broadcast_to(value.astype(np.float64), shape)


def _worst(badness: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(badness.argmax(), badness.shape))
