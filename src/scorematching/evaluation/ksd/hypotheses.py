"""What a model was fitted to decides how it can be tested: three types, one test each.

=============================  ==========================================  ====================
type                           how the model came about                    test
=============================  ==========================================  ====================
``Fixed(model)``               without the points that it is tested on     wild bootstrap
``Fitted(fit, sample)``        from the same points, by ``fit``            parametric bootstrap
``Split(fit)``                 from other rows of the same table           wild bootstrap
=============================  ==========================================  ====================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_flag, check_share
from scorematching.fields import Field
from scorematching.kernels import KernelScore

Fit = Callable[[Tensor], Any]
Draw = Callable[[Any, int, torch.Generator | None], Tensor]


@dataclass(frozen=True)
class Fixed:
    """A model that does not depend on the points it is tested on.

    A model that looks fitted (a fitted estimator, the result of a fit, a kernel estimate of a
    score) is refused unless ``held_out=True`` states that the test uses other points. An
    `nn.Module` does not show what it was trained on: do not test it on its training points.

    Args:
        model: a `Field`, a `Distribution`, an estimator with ``grad_log_density``, a function that
            returns log-densities ``(N,)`` or scores of the shape of x, or a tensor of scores at x.
        held_out: the model was fitted, but not to the points of the test.

    Raises:
        TypeError: the model was fitted, and held_out is False.

    Example:
        >>> Fixed(lambda x: -x).held_out
        False
    """

    model: Any
    held_out: bool = False

    def __post_init__(self) -> None:
        """Refuse a fitted model."""
        check_flag(self.held_out, "held_out", "True states that the points are new to the model")
        if not self.held_out and _was_fitted(self.model):
            raise TypeError(
                "Fixed needs a model that does not depend on the points of the test, got a fitted "
                f"{type(_owner(self.model)).__name__}; its wild bootstrap p-value is not valid on "
                "the points it was fitted to: use Fitted(fit, sample) or Split(fit), or state that "
                "the points are new with Fixed(model, held_out=True)"
            )


@dataclass(frozen=True)
class Fitted:
    """A family of models, of which one is fitted to the points of the test.

    Args:
        fit: ``x: (N, *event) -> model``, a model as for `Fixed`. It is called for the data and for
            every simulated data set, and must be the whole procedure, selection included.
        sample: ``(model, n, generator) -> (n, *event)``, points drawn from a fitted model.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> family = Fitted(
        ...     fit=lambda x: Gaussian(x.mean(0), x.T.cov()),
        ...     sample=lambda model, n, generator: model.sample(n, generator),
        ... )
        >>> x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
        >>> family.sample(family.fit(x), 5, None).shape
        torch.Size([5, 2])
    """

    fit: Fit
    sample: Draw

    def __post_init__(self) -> None:
        """Check the two functions."""
        _check_function(self.fit, "fit", "x -> model")
        _check_function(self.sample, "sample", "(model, n, generator) -> points")

    @classmethod
    def estimator(cls, estimator: Any) -> Fitted:
        """The family of an estimator by scikit-learn's conventions, with ``fit`` and ``sample``.

        Args:
            estimator: not changed; every fit uses a clone of it.

        Example:
            >>> from scorematching import DensityEstimator
            >>> family = Fitted.estimator(DensityEstimator())
        """
        for name in ("fit", "sample", "grad_log_density"):
            if not callable(getattr(estimator, name, None)):
                raise TypeError(
                    f"estimator must have a method {name}, as DensityEstimator has, got "
                    f"{type(estimator).__name__}; write the two functions of Fitted(fit, sample)"
                )

        def fit(x: Tensor) -> Any:
            from sklearn.base import clone

            return clone(estimator).fit(x.cpu().numpy())

        def draw(model: Any, n: int, generator: torch.Generator | None) -> Tensor:
            seed = int(torch.randint(2**31 - 1, (), generator=generator))
            return torch.as_tensor(model.sample(n, random_state=seed))

        return cls(fit, draw)


@dataclass(frozen=True)
class Split:
    """A fit to some of the points, tested on the others.

    The hypothesis is that the fitted model *as it stands* is the distribution of the data. Its
    parameters have an estimation error, so the hypothesis is not exactly true even where the
    family is right: the more points are tested compared with those fitted, the more often it is
    rejected. Use `Fitted` where one can sample from the model and afford to fit it often.

    Args:
        fit: ``x: (n, *event) -> model``, a model as for `Fixed`.
        test_fraction: share of the points that are tested, chosen at random.

    Example:
        >>> Split(fit=lambda x: (lambda y: x.mean(0) - y)).test_fraction
        0.1
    """

    fit: Fit
    test_fraction: float = 0.1

    def __post_init__(self) -> None:
        """Check the arguments."""
        _check_function(self.fit, "fit", "x -> model")
        advice = "small values keep the false-positive rate near its level"
        check_share(self.test_fraction, "test_fraction", advice)


def _owner(model: Any) -> Any:
    """The object behind a field or a bound method."""
    while True:
        if isinstance(model, Field):
            model = model.model.call
        elif hasattr(model, "__self__"):
            model = model.__self__
        else:
            return model


def _was_fitted(model: Any) -> bool:
    """Whether a model is a fitted estimator, the result of a fit, or a kernel estimate."""
    owner = _owner(model)
    names = (name for name in getattr(owner, "__dict__", ()) if not name.startswith("_"))
    learned = hasattr(owner, "fit") and any(name.endswith("_") for name in names)
    return learned or hasattr(owner, "cov_params") or isinstance(owner, KernelScore)


def _check_function(value: Any, name: str, form: str) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a function, {form}, got {type(value).__name__}")
