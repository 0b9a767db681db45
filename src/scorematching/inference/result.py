"""The result of a fit: estimates with standard errors, and what they are based on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scorematching.derivatives.repeats import needs_all_rows
from scorematching.domains.base import Region
from scorematching.fields import Field
from scorematching.inference.covariance import Split, meat, split
from scorematching.inference.estimates import Array, Estimates, transformed
from scorematching.inference.how_many import HowMany, how_many_projections
from scorematching.inference.optimise import Optimum
from scorematching.inference.parameters import Parametric, Theta, as_float64, in_order
from scorematching.inference.problem import Problem
from scorematching.inference.summary import Summary
from scorematching.objectives.base import Objective
from scorematching.objectives.denoising import DenoisingScoreMatching
from scorematching.objectives.sliced import Sliced

ENOUGH_CLUSTERS = 30
"""From which the normal distribution of estimates is a fair approximation."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What was fitted, and how.

    Attributes:
        model: whose parameters were estimated.
        problem: points and weights, and the loss that was minimised.
        optimum: where the mean loss is least.
        objective: whose loss it is.
        groups: clusters of rows ``(N,)``; None for independent rows.
        seed: of the directions that K is split with.
        columns: names of the columns of X; None if it had none.
    """

    model: Parametric
    problem: Problem
    optimum: Optimum
    objective: Objective
    groups: Tensor | None
    seed: int
    columns: tuple[Any, ...] | None = None

    @property
    def event(self) -> torch.Size:
        """The shape of a complete point."""
        part = self.problem.parts[0]
        pattern = getattr(part.view, "pattern", part.x[0])
        return pattern.shape

    @cached_property
    def split(self) -> Split | None:
        """K by source; None for an objective without noise."""
        if self.problem.parts[0].noise is None:
            return None
        generator = torch.Generator().manual_seed(self.seed)
        return split(self.problem, self.optimum.theta, self.groups, generator)


class FitResult(Estimates):
    """Estimates of a fit with their standard errors.

    Args:
        setting: what was fitted, and how.
        covariance: of the estimates ``(P, P)``.

    Example:
        >>> from scorematching.inference import fit
        >>> x = torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
        >>> result = fit(lambda theta, x: -0.5 * theta["precision"] * x.square().sum(-1), x,
        ...              start={"precision": 1.0})
        >>> sd = result.function(lambda theta: theta["precision"] ** -0.5, ["sd"])
        >>> round(sd.params["sd"], 4)
        1.8875
    """

    def __init__(self, setting: Setting, covariance: Tensor) -> None:
        """Keep both."""
        model = setting.model
        super().__init__(model.names, setting.optimum.theta, covariance)
        self._setting = setting

    @property
    def field(self) -> Field:
        """The fitted model as a field of float64 points."""
        model = self._setting.model
        call = model.at(self._values)
        vars(call)["normalised"] = model.normalised  # which `MaximumLikelihood` asks for
        vars(call)["domain"] = self.domain  # which tests of fit and comparisons ask for
        return model.field(call)

    @property
    def domain(self) -> Region | None:
        """Where the points live; None for all of space."""
        return getattr(self._setting.objective, "domain", None)

    @property
    def theta(self) -> Theta:
        """The estimates as tensors by the names of the model's parameters."""
        return self._setting.model.unflatten(self._values.clone())

    @property
    def method(self) -> str:
        """How the minimum was found."""
        return self._setting.optimum.method

    @property
    def nobs(self) -> int:
        """N, the number of points."""
        return self._setting.problem.num_points

    @property
    def loss(self) -> float:
        """The (weighted) mean loss at the estimates."""
        with torch.inference_mode(False), torch.enable_grad():
            value, _ = self._setting.problem.value_and_gradient(self._values)
        return float(value)

    @property
    def H(self) -> Array:
        """The Hessian of the mean loss at the estimates, ``(P, P)``.

        Of a robust fit, the derivative of its estimating equation, which is not symmetric.
        """
        return self._setting.optimum.derivatives.hessian.numpy().copy()

    @property
    def K(self) -> Array:
        """The variance of the (weighted) gradient of one point's loss, ``(P, P)``.

        Of clusters, N times the variance of their shares in the mean: with it the covariance of the
        estimates is ``H^-1 K H'^-1 / N``.
        """
        setting = self._setting
        rows, weights = setting.optimum.derivatives.gradients, setting.problem.weights
        return (self.nobs * meat(rows, weights, setting.groups)).numpy()

    @property
    def K_split(self) -> Split | None:
        """K by source, data and directions; None for an objective without noise."""
        return self._setting.split

    def function(self, g: Callable[[Theta], Any], names: Sequence[str] | None = None) -> Estimates:
        """A function of the parameters, with standard errors by the delta method.

        Args:
            g: differentiable, takes the parameters by name and returns a tensor, or several.
            names: of the numbers that it returns; "g", or "g[0]", "g[1]" ..., by default.

        Returns:
            Estimates, with the same methods as the fit.
        """
        model = self._setting.model

        def flat(theta: Tensor) -> Tensor:
            return _as_vector(g(model.unflatten(theta)))

        count = len(flat(self._values))
        if names is None:
            names = ["g"] if count == 1 else [f"g[{i}]" for i in range(count)]
        if len(names) != count:
            raise ValueError(
                f"names must hold one name per number that g returns, {count}, got {len(names)}; "
                "leave them out for g[0], g[1] ..."
            )
        return transformed(names, flat, self._values, self._covariance)

    def predict(self, X: Any, which: str = "log_density") -> Array:
        """The fitted log-density, up to its constant, or its score.

        Args:
            X: points ``(N, *event)``; columns of data frames are matched by name. A model with
                covariates in a closure has values for those alone, row by row.
            which: "log_density" for ``(N,)``, "score" for ``(N, *event)``: the gradient of the
                log-density as it is written, in all coordinates of X. On a sphere or the simplex
                the part of it along the set is what the fit determines.

        Raises:
            ValueError: if X has another shape than the points of the fit, or points lie outside its
                domain, where there is no density.
        """
        model, x = self._setting.model, self._points(X)
        if self.domain is not None:
            self.domain.check(x)
        if which == "score":
            with torch.no_grad():
                return self.field.score(x).numpy()
        if which != "log_density" or model.vector:
            raise ValueError(
                f'which must be "score", or for a log-density "log_density", got {which!r}; a '
                "score network has no log-density"
            )
        with torch.no_grad():
            return model.at(self._values)(x).numpy()

    def _points(self, X: Any) -> Tensor:
        """Points of the shape of those of the fit."""
        x, event = as_float64(in_order(X, self._setting.columns), "X"), self._setting.event
        if x.shape[1:] != event or not x.ndim:
            raise ValueError(
                f"X must have shape (N, {', '.join(map(str, event))}), got {tuple(x.shape)}; give "
                "the columns of the fit"
            )
        self._require_rows(x)
        return x

    def _require_rows(self, x: Tensor) -> None:
        """Refuse other rows than those that covariates in a closure belong to."""
        model, own = self._setting.model, self._setting.problem.parts[0].x
        if len(x) != self.nobs and needs_all_rows(model.at(self._values), own):
            raise ValueError(
                f"X must have the {self.nobs} rows of the fit for a model that has a value for all "
                f"of them together only, as with covariates in a closure, got {len(x)}; write the "
                "function again with the covariates of these rows, and call it with result.theta"
            )

    def how_many_projections(self, share: float = 0.1) -> HowMany:
        """The variance that directions add, for M = 1, 2, 4 ... directions per point.

        Args:
            share: how much of the variance of exact score matching they may add.

        Returns:
            Inflation of every parameter's variance, and the smallest M within the share.

        Raises:
            TypeError: if the objective draws no directions.
        """
        objective = self._setting.objective
        if not isinstance(objective, Sliced) or self._setting.split is None:
            raise TypeError(
                f"how_many_projections needs a sliced objective, got {type(objective).__name__}, "
                "which draws no directions; fit with SlicedScoreMatchingVR()"
            )
        return how_many_projections(self._setting, self.names, share)

    def summary(self, alpha: float = 0.05) -> Summary:
        """A table of all estimates: text, HTML in notebooks, LaTeX by `Summary.as_latex`."""
        title = f"Score matching: {self._setting.model.label}"
        plain = super().summary(alpha)
        return replace(plain, title=title, facts=self._facts(), notes=self._notes())

    def _facts(self) -> tuple[tuple[str, str], ...]:
        setting = self._setting
        clusters = setting.groups
        kind = "robust (sandwich)"
        if clusters is not None:
            kind = f"robust to {int(clusters.max()) + 1} clusters"
        return (
            ("objective", str(setting.objective)),
            ("points", str(self.nobs)),
            ("mean loss", f"{self.loss:.6g}"),
            ("method", setting.optimum.method),
            ("covariance", kind),
        )

    def _notes(self) -> tuple[str, ...]:
        return (*self._no_density(), *self._few_clusters(), *self._noise())

    def _no_density(self) -> tuple[str, ...]:
        names = ", ".join(self._setting.model.too_steep(self.theta))
        why = "its integral is infinite near zero, by a power of -1 or less"
        return (f"Not a density: {why}, {names}.",) if names else ()

    def _few_clusters(self) -> tuple[str, ...]:
        groups = self._setting.groups
        count = ENOUGH_CLUSTERS if groups is None else int(groups.max()) + 1
        if count >= ENOUGH_CLUSTERS:
            return ()
        return (f"Only {count} clusters: standard errors are rough, and intervals are too short.",)

    def _noise(self) -> tuple[str, ...]:
        parts = self._setting.split
        if parts is None:
            return ()
        share = parts.directions.trace() / (parts.data + parts.directions).trace()
        what, they = "Directions are", "they cause"
        if isinstance(self._setting.objective, DenoisingScoreMatching):
            what, they = "Noise is", "it causes"
        return (
            f"{what} independent between points; {they} {100 * float(share):.1f}% of the variance "
            "of the gradient.",
        )


def _as_vector(value: Any) -> Tensor:
    """What a function of parameters returned, as one vector.

    Raises:
        TypeError: if it is neither numbers nor a sequence of tensors.
    """
    if isinstance(value, (list, tuple)):
        return torch.cat([_as_vector(each) for each in value])
    try:
        return torch.as_tensor(value).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"g must return a tensor, or a tuple of tensors, got {type(value).__name__}; stack "
            "the numbers that you want"
        ) from error
