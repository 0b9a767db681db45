"""The kernel estimates of a score as scikit-learn estimators."""

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_choice, check_count, is_number
from scorematching.estimators.base import LogDensityMixin, ScoreEstimator
from scorematching.fields import VectorField
from scorematching.kernels import (
    KernelExpFamily,
    KernelScore,
    fit_kernel_exp_family,
    fit_nu_method,
    fit_spectral,
    fit_stein,
)

_MAX_FULL_EQUATIONS, _INDUCED_EQUATIONS = 2000, 1000
"""Largest N D for which "auto" solves the full system, and m D above it: a second of work each."""


_MAX_SCALES, _MAX_SCALES_OF_STEIN = 20.0, 100.0
"""Quotients of standard deviations above which one bandwidth does not suit all columns. At 1000 a
score by Stein's identity is off by 70% to 90% in the narrow column, at 50 by 3% to 30%."""


class KernelScoreEstimator(ScoreEstimator):
    """An estimator whose `fitted_` is a `KernelScore`; subclasses define `_fit_kernel`."""

    fitted_: Any

    def _fit(self, x: Tensor, max_memory: int | None) -> None:
        self._warn_of_constants(x)
        self.fitted_ = self._fit_kernel(x, max_memory)
        self.bandwidth_ = float(self.fitted_.kernel.bandwidth)

    def _arguments(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    @abstractmethod
    def _fit_kernel(self, x: Tensor, max_memory: int | None) -> KernelScore:
        """The estimate for checked points ``(N, D)``."""

    def _field(self) -> VectorField:
        return VectorField(self.fitted_.score)

    def _warn_of_constants(self, x: Tensor) -> None:
        """Warn of constant columns ``(N, D)``, whose narrow peaks decide every `score`."""
        constant = (x == x[:1]).all(0).nonzero().flatten().tolist()
        if constant:
            names = getattr(self, "feature_names_in_", range(x.shape[1]))
            warnings.warn(
                f"X has constant columns, {', '.join(str(names[i]) for i in constant[:5])}, which "
                "have no density: score(X) measures how narrow the estimate is there; drop them",
                stacklevel=4,
            )

    def _warn_of_scales(self, x: Tensor, most: float = _MAX_SCALES) -> None:
        """Warn of columns ``(N, D)`` in very different units; refuse those of no size at all."""
        scale = x.std(0)
        if not bool((scale > 0).any()):
            raise ValueError(
                "X must vary by more than 1e-150, the least number with a square, got columns "
                "that do not; divide them by their size"
            )
        low, high = scale[scale > 0].aminmax()
        if high > most * low:
            warnings.warn(
                f"X has columns of different scales, with standard deviations from {low:.2g} to "
                f"{high:.2g}, and the kernel has one bandwidth for all; standardise the columns "
                "first, and divide scores by their standard deviations: with scaler = "
                "sklearn.preprocessing.StandardScaler().fit(X), "
                "estimator.grad_log_density(scaler.transform(X)) / scaler.scale_",
                stacklevel=5,
            )


@dataclass(eq=False, repr=False)
class SteinScoreEstimator(KernelScoreEstimator):
    """The Stein gradient estimator (Li and Turner, 2018).

    See `scorematching.kernels.SteinScore` for its formula. `grad_log_density` appends each point to
    the samples, one at a time. Cost: N^3 to fit, N^2 per point. The kernel has one bandwidth for
    all columns: standardise columns of different units first.

    Args:
        kernel: "rbf" or "imq".
        bandwidth: of the kernel; None is the median distance between samples.
        eta: ridge, added to the kernel matrix.
        device: where to compute; None for the CPU.

    Attributes:
        fitted_: the `SteinScore`.
        bandwidth_: of the kernel.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> estimator = SteinScoreEstimator(bandwidth=3.0, eta=0.1).fit(X)
        >>> score = estimator.grad_log_density([[1.0, -1.0]])
        >>> bool(np.abs(score - [[-1.0, 1.0]]).max() < 0.5)  # that of N(0, I) is -x
        True
    """

    kernel: str = "rbf"
    bandwidth: float | None = None
    eta: float = 1e-3
    device: str | None = None

    def _fit_kernel(self, x: Tensor, max_memory: int | None) -> KernelScore:
        if is_number(self.eta) and self.eta == 0:
            raise ValueError(
                "eta must be positive for scores at given points, got 0, for which they are NaN at "
                "the samples; use 1e-3, or fit_stein(X, eta=0).at_samples()"
            )
        self._warn_of_scales(x, _MAX_SCALES_OF_STEIN)
        return fit_stein(x, max_memory=max_memory, **self._arguments("kernel", "bandwidth", "eta"))


@dataclass(eq=False, repr=False)
class SpectralScoreEstimator(KernelScoreEstimator):
    """The spectral Stein gradient estimator (Shi et al., 2018).

    See `scorematching.kernels.SpectralScore` for its formula. Cost: N^3 to fit, N per point. The
    kernel has one bandwidth for all columns: standardise columns of different units first.

    Args:
        num_eigen: J, eigenfunctions to keep; None keeps those that make up ``mass``.
        mass: share of the sum of the eigenvalues to stay below.
        kernel: "rbf" or "imq".
        bandwidth: of the kernel; None is the median distance between samples.
        device: where to compute; None for the CPU.

    Attributes:
        fitted_: the `SpectralScore`.
        bandwidth_: of the kernel.
        num_eigen_: J.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> score = SpectralScoreEstimator().fit(X).grad_log_density([[1.0, -1.0]])
        >>> bool(np.abs(score - [[-1.0, 1.0]]).max() < 0.5)  # that of N(0, I) is -x
        True
    """

    num_eigen: int | None = None
    mass: float = 0.99
    kernel: str = "rbf"
    bandwidth: float | None = None
    device: str | None = None

    def _fit_kernel(self, x: Tensor, max_memory: int | None) -> KernelScore:
        self._warn_of_scales(x)
        named = self._arguments("kernel", "bandwidth", "num_eigen", "mass")
        fitted = fit_spectral(x, max_memory=max_memory, **named)
        self.num_eigen_ = int(fitted.num_eigen)
        return fitted


@dataclass(eq=False, repr=False)
class KernelExpFamilyEstimator(LogDensityMixin, KernelScoreEstimator):
    """A kernel exponential family fitted by score matching.

    See `scorematching.kernels.KernelExpFamily` for its formulas. `score_samples` returns its
    log-density up to a constant, so that only differences between points are meaningful. The kernel
    has one bandwidth for all columns: standardise columns of different units first.

    Args:
        kernel: "rbf" or "imq".
        bandwidth: of the kernel; None is the median distance between samples.
        lam: strength of the penalty on f; unused by the nu-method.
        base_scale: q0 is normal with the mean of the samples and this multiple of their standard
            deviations; None is no q0, and a score that falls to zero far from the data.
        method: "tikhonov" solves linear equations, "nu" iterates and stops early.
        num_inducing: samples, drawn at random, whose derivatives span f, for "tikhonov"; None for
            all, which costs (N D)^3; "auto" for all while N D <= 2000, then for 1000 / D.
        num_iterations: of the nu-method; fewer give a smoother estimate.
        nu: order of the nu-method.
        random_state: draws the inducing samples.
        device: where to compute; None for the CPU.

    Attributes:
        fitted_: the `KernelExpFamily`.
        bandwidth_: of the kernel.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> estimator = KernelExpFamilyEstimator().fit(X)
        >>> bool(np.abs(estimator.grad_log_density([[1.0, -1.0]]) - [[-1.0, 1.0]]).max() < 0.5)
        True
        >>> likely, unlikely = estimator.score_samples([[0.0, 0.0], [2.0, 2.0]])
        >>> bool(likely > unlikely)
        True
    """

    kernel: str = "rbf"
    bandwidth: float | None = None
    lam: float = 1e-2
    base_scale: float | None = 2.0
    method: str = "tikhonov"
    num_inducing: int | str | None = "auto"
    num_iterations: int = 10
    nu: float = 1.0
    random_state: Any = None
    device: str | None = None

    def _fit_kernel(self, x: Tensor, max_memory: int | None) -> KernelExpFamily:
        check_choice(self.method, "method", ("tikhonov", "nu"), '"tikhonov" suits most')
        self._warn_of_scales(x)
        shared = self._arguments("kernel", "bandwidth", "base_scale") | {"max_memory": max_memory}
        if self.method == "nu":
            return fit_nu_method(x, num_iterations=self.num_iterations, nu=self.nu, **shared)
        return fit_kernel_exp_family(x, lam=self.lam, inducing=self._inducing(x), **shared)

    def _inducing(self, x: Tensor) -> Tensor | None:
        """Inducing samples, drawn at random; None for the full solution."""
        num = self.num_inducing
        if num == "auto":
            full = x.numel() <= _MAX_FULL_EQUATIONS
            num = None if full else max(1, _INDUCED_EQUATIONS // x.shape[1])
        if num is None:
            return None
        check_count(num, "num_inducing", 'None takes all samples, "auto" what is affordable')
        generator = self._generator(self.random_state)
        order = torch.randperm(len(x), generator=generator, device=x.device)
        return x[order[: int(num)]]

    def _log_density(self, x: Tensor) -> Tensor:
        return self.fitted_.log_density(x)
