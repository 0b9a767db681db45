"""Tests of fit by the kernel Stein discrepancy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_generator, check_points, check_shape, is_number
from scorematching._memory import limited
from scorematching.evaluation.ksd.hypotheses import Fitted, Fixed, Split
from scorematching.evaluation.ksd.stein_kernel import SteinKernel

_ADVICE = "take fewer points, or a smaller num_bootstrap"


@dataclass(frozen=True)
class KSDTest:
    """The outcome of `ksd_test`.

    Attributes:
        statistic: the U-statistic of the squared discrepancy.
        p_value: share of the null distribution that is at least as large, the data included:
            ``(1 + #{null >= statistic}) / (1 + B)``.
        null: the statistics of the bootstrap, ``(B,)``.
        count: number of points that were tested.
        method: "wild bootstrap" or "parametric bootstrap".

    Example:
        >>> null = torch.tensor([0.1, 0.2, 0.3])
        >>> print(KSDTest(0.25, 0.5, null, 100, "wild bootstrap"))
        squared KSD 0.25, p = 0.5 (wild bootstrap, 3 draws, n=100)
    """

    statistic: float
    p_value: float
    null: Tensor = field(repr=False)
    count: int
    method: str

    def __str__(self) -> str:
        """Statistic, p-value and how it was computed."""
        how = f"{self.method}, {len(self.null)} draws, n={self.count}"
        return f"squared KSD {self.statistic:.4g}, p = {self.p_value:.3g} ({how})"

    __repr__ = __str__  # at the prompt, too


def ksd_test(
    model: Fixed | Fitted | Split,
    x: Tensor,
    kernel: str = "imq",
    bandwidth: float | None = None,
    num_bootstrap: int = 499,
    flip_probability: float = 0.5,
    generator: torch.Generator | None = None,
    max_memory: int | None = None,
) -> KSDTest:
    """Test whether points come from a model, of which only the score is needed.

    ===================  ========================================================================
    ``Fixed(model)``     wild bootstrap: ``sum_{i != j} w_i w_j u_ij`` with random signs w
    ``Fitted(fit,        parametric bootstrap: data sets drawn from the fitted model, each with a
    sample)``            fit of its own
    ``Split(fit)``       the model is fitted to some points; wild bootstrap on the others
    ===================  ========================================================================

    A wild bootstrap on the points that a model was fitted to is not valid: the fit makes the
    statistic smaller, but not the signed sums. So the model says how it came about.

    Args:
        model: `Fixed`, `Fitted` or `Split`.
        x: points ``(N, *event)``, independent draws unless flip_probability says otherwise.
        kernel: "imq" or "rbf".
        bandwidth: of the kernel; None is the median distance between the points.
        num_bootstrap: B, draws of the null distribution. For `Fitted` each is a fit.
        flip_probability: chance that the sign of a point differs from that of the point before,
            for the wild bootstrap. 0.5 is right for independent points; use less for a Markov
            chain in its order, such as one over its correlation time.
        generator: source of randomness; None is torch's default generator.
        max_memory: bytes that may be taken beside model, points and what ``fit`` takes.

    Raises:
        TypeError: the model is not one of the three.
        ValueError: there are too few points, an option is unknown, or max_memory is too small.

    Reference: Liu, Lee and Jordan (2016); Chwialkowski, Strathmann and Gretton (2016), Section 3;
    for fitted models Key et al. (2025), *Composite goodness-of-fit tests with kernels*.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(200, 2, generator=g)
        >>> ksd_test(Fixed(lambda x: -x), x, generator=g).p_value > 0.05
        True
        >>> ksd_test(Fixed(lambda x: 0.5 - x), x, generator=g).p_value
        0.002
    """
    _check(model, x, num_bootstrap, flip_probability, generator)
    if isinstance(model, Fitted):
        options = (kernel, bandwidth, max_memory)
        return _parametric_bootstrap(model, x, options, num_bootstrap, generator)
    fixed, x = _fit_some(model, x, generator) if isinstance(model, Split) else (model.model, x)
    with limited(max_memory, _ADVICE) as budget:
        stein = SteinKernel.of(fixed, x, kernel, bandwidth, budget)
        signs = _signs((num_bootstrap, len(x)), flip_probability, x, generator)
        statistics = stein.statistics(torch.cat([torch.ones_like(signs[:1]), signs]))
        return _outcome(statistics, len(x), "wild bootstrap")


def _parametric_bootstrap(
    family: Fitted,
    x: Tensor,
    options: tuple[str, float | None, int | None],
    num_bootstrap: int,
    generator: torch.Generator | None,
) -> KSDTest:
    kernel, bandwidth, max_memory = options

    def statistic(model: Any, x: Tensor) -> Tensor:
        with limited(max_memory, _ADVICE) as budget:
            return SteinKernel.of(model, x, kernel, bandwidth, budget).statistics()

    fitted = family.fit(x.clone())  # a fit may centre its points in place
    found = [statistic(fitted, x)]
    for _ in range(num_bootstrap):
        drawn = _drawn(family, fitted, x, generator)
        found.append(statistic(family.fit(drawn.clone()), drawn))
    return _outcome(torch.cat(found), len(x), "parametric bootstrap")


def _drawn(family: Fitted, fitted: Any, x: Tensor, generator: torch.Generator | None) -> Tensor:
    """A data set from the fitted model, of the form of x."""
    drawn = family.sample(fitted, len(x), generator)
    wanted = "sample must return points of the shape of x, {}"
    check_shape(drawn, x.shape, wanted, "draw n points as a tensor")
    return drawn.detach().to(x)


def _fit_some(split: Split, x: Tensor, generator: torch.Generator | None) -> tuple[Any, Tensor]:
    """A model fitted to some of the points, and the others."""
    order = torch.randperm(len(x), generator=generator, device=x.device)
    count = round(split.test_fraction * len(x))
    if not 2 <= count <= len(x) - 1:
        raise ValueError(
            f"test_fraction must leave points to fit and two or more to test, got "
            f"{split.test_fraction} of {len(x)} points; use Fitted for so few"
        )
    return split.fit(x[order[count:]]), x[order[:count]]


def _signs(
    shape: tuple[int, int], flip: float, x: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Rows of signs, each a Markov chain that changes its sign with probability ``flip``.

    As integers of one byte, drawn row by row, since there may be many.
    """
    signs = torch.empty(shape, dtype=torch.int8, device=x.device)
    for row in signs:
        draws = torch.rand(shape[1], generator=generator, dtype=torch.float64, device=x.device)
        changes = draws < flip
        changes[0] = draws[0] < 0.5
        row.copy_(1 - 2 * (changes.cumsum(0, dtype=torch.int32) % 2))
    return signs


def _outcome(statistics: Tensor, count: int, method: str) -> KSDTest:
    """The test from the statistic of the data, which comes first, and those of the null."""
    found, null = statistics[0], statistics[1:]
    p_value = (1 + int((null >= found).sum())) / (1 + len(null))
    return KSDTest(found.item(), p_value, null, count, method)


def _check(
    model: Any, x: Any, num_bootstrap: int, flip: float, generator: torch.Generator | None
) -> None:
    if not isinstance(model, Fixed | Fitted | Split):
        raise TypeError(
            f"model must be Fixed(model), Fitted(fit, sample) or Split(fit), got "
            f"{type(model).__name__}; Fixed is for a model that does not depend on the points, the "
            "others for one that is fitted to them"
        )
    check_points(x)
    check_generator(generator, x)
    check_count(num_bootstrap, "num_bootstrap", "499 determines a p-value near 0.05 to 0.01")
    if len(x) < 2:
        raise ValueError(f"x must hold two points or more, got {len(x)}; a test needs dozens")
    if not is_number(flip) or not 0 < flip <= 0.5:
        raise ValueError(
            f"flip_probability must lie in (0, 0.5], got {flip!r}; 0.5 is for independent points"
        )
