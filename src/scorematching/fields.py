"""Fields: a log-density or a score network, asked one question at points.

========================  =======================  ========================================
question                  first                    second
========================  =======================  ========================================
``score(x)``              s ``(N, *F, *event)``
``score_and_curvature``   s ``(N, *F, *event)``    mean over M of ``v' (ds/dx) v`` ``(N, *F)``
``score_and_divergence``  s ``(N, *F, *event)``    ``tr ds/dx`` ``(N, *F)``
``slice``                 ``v.s`` ``(N, *F, M)``   mean over M of ``v' (ds/dx) v`` ``(N, *F)``
========================  =======================  ========================================

F stands for the extra output axes of vector-valued log-densities, such as the features of an
exponential family; for an ordinary log-density it is empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from scorematching._checks import (
    can_read_values,
    check_batch,
    check_choice,
    check_directions,
    check_flag,
    check_log_density,
    check_points,
    check_positive,
    check_spacing,
    check_vector,
)
from scorematching._directions import for_reading
from scorematching._shapes import event_axes, inner, project
from scorematching.derivatives import double_backward, routes
from scorematching.derivatives.evaluations import refuse_nan
from scorematching.derivatives.memory import counted, findings_of
from scorematching.derivatives.model import Model
from scorematching.derivatives.repeats import check_mode
from scorematching.derivatives.trust import require_smooth
from scorematching.derivatives.verification import is_due
from scorematching.types import LogDensity, Vector


class Field(ABC):
    """A score field, however it is written down: `LogDensityField` or `VectorField`.

    Args:
        model: the callable to ask.
        check_smoothness: refuse a model with kinks where its loss or gradient would be wrong.
        route: "auto" traces the model where that is possible and takes double backward where it
            is not; "traced" and "reverse" insist on one.

    Example:
        Every field answers the same questions.

        >>> field: Field = VectorField(lambda x: -x)
        >>> field.score(torch.ones(1, 2)).tolist()
        [[-1.0, -1.0]]
    """

    def __init__(self, model: Any, kind: str, check: Any, check_smoothness: bool, route: str):
        if not callable(model):
            raise TypeError(
                f"the model must be callable, x -> tensor, got {type(model).__name__}; "
                "pass an nn.Module or a function"
            )
        check_flag(check_smoothness, "check_smoothness", "False accepts models with kinks")
        check_choice(route, "route", ("auto", "traced", "reverse"), '"auto" suits all')
        self.model = Model(model, check, kind, check_smoothness, route)

    def __repr__(self) -> str:
        call = self.model.call
        return f"{type(self).__name__}({getattr(call, '__name__', type(call).__name__)})"

    @abstractmethod
    def score(self, x: Tensor) -> Tensor:
        """The score ``s(x)``.

        Args:
            x: points ``(N, *event)``.

        Returns:
            ``(N, *F, *event)``.
        """

    _curvature: Callable[..., tuple[Tensor, Tensor]] = staticmethod(routes.score_and_curvature)
    _differences: Callable[..., tuple[Tensor, Tensor]]
    """``v.s`` and curvature, ``(M, N, *F)``, from outputs at x, outputs at ``x +- hv``, v and h."""

    def score_and_curvature(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The score, and ``v' (ds/dx) v`` averaged over the directions of each point.

        Args:
            x: points ``(N, *event)``.
            v: directions ``(M, N, *event)``, or ``(N, *event)`` for one per point.

        Returns:
            score ``(N, *F, *event)`` and curvature ``(N, *F)``.
        """
        check_batch(x)  # `answer` checks that x is finite
        return answer(self, partial(self._curvature, v=directions(v, x)), x)

    def score_and_divergence(
        self, x: Tensor, max_memory: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The score and its exact divergence ``tr ds/dx``; cost grows with D.

        Args:
            x: points ``(N, *event)``.
            max_memory: bytes that the tangents may take at one time; None leaves it to the
                library. Less memory means more chunks, not another answer.

        Returns:
            score ``(N, *F, *event)`` and divergence ``(N, *F)``.
        """
        return answer(self, partial(routes.score_and_divergence, max_memory=max_memory), x)

    def slice_by_differences(self, x: Tensor, v: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """`slice` by central differences: 2 M + 1 evaluations, no derivative.

        Of log-densities ``v.s ~ (f(x + hv) - f(x - hv)) / 2h`` and
        ``v'Hv ~ (f(x + hv) + f(x - hv) - 2 f(x)) / h^2``; of scores
        ``v.s ~ v.(s(x + hv) + s(x - hv)) / 2`` and ``v'Jv ~ v.(s(x + hv) - s(x - hv)) / 2h``.

        Args:
            x: points ``(N, *event)``.
            v: directions ``(M, N, *event)``, or ``(N, *event)`` for one per point.
            step: h, relative to the length of v.

        Returns:
            ``v.s``, ``(N, *F, M)``, and curvature ``(N, *F)``.
        """
        check_points(x)
        v = directions(v, x)
        check_positive(step, "step", "0.01 is a good start in float32")
        y = self.model.evaluate_to_subtract(x)
        check_mode(self.model.call, x)
        order = int(torch.is_grad_enabled())
        require_smooth(self.model, x, order, what="curvature", differentiates=False)
        moved = on_copies(self.model.evaluate, torch.cat([x + step * v, x - step * v]))
        projected, curvature = self._differences(y, moved, v, step)
        return projected.movedim(0, -1), curvature.mean(0)

    def check_steps(self, x: Tensor, sizes: Sequence[float], name: str, most: float) -> None:
        """`check_spacing`; on a GPU, which it waits for, at the 1st, 2nd, 4th ... use.

        Args:
            x: points ``(N, *event)``.
            sizes: of the steps away from them, one or one for each coordinate.
            name: of the argument that sets them.
            most: the largest spacing of numbers near x, relative to a step.
        """
        if not can_read_values(x):
            return
        if not x.is_cuda:
            return check_spacing(x, sizes, name, most)
        with counted(findings_of(self.model.call, "steps").uses, name) as uses:
            if is_due(uses):
                check_spacing(x, sizes, name, most)

    def check_support(self, x: Tensor) -> None:
        """Refuse points of the last score at which the log-density is minus infinity."""
        findings = self.model.findings
        refuse_nan(self.model, x, findings, wait=is_due(findings.uses["score"]))

    def given(self, *conditions: Any) -> Field:
        """The field of a model with further arguments, ``model(x, *conditions)``.

        Args:
            conditions: such as the level of noise of every point.

        Returns:
            A field of the same kind, with the same options.
        """
        call, field = self.model.call, copy(self)
        field.model = replace(self.model, call=lambda x: call(x, *conditions))
        return field

    def slice(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The score along each direction, and ``v' (ds/dx) v`` averaged over them.

        Args:
            x: points ``(N, *event)``.
            v: directions ``(M, N, *event)``, or ``(N, *event)`` for one per point.

        Returns:
            ``v.s``, ``(N, *F, M)``, and curvature ``(N, *F)``.
        """
        s, curvature = self.score_and_curvature(x, v)
        return project(s, directions(v, x)), curvature


class LogDensityField(Field):
    """The gradient field of an unnormalised log-density.

    Args:
        log_density: callable, ``x: (N, *event) -> (N,)``, or ``(N, *F)`` for features. Row i of
            its output may depend on row i of x only.
        feature_axes: number of axes in F that the output must have; None accepts any.
        check_smoothness: refuse a model with kinks, for which a loss or its gradient is wrong.
        route: "auto", "traced" or "reverse": how derivatives are taken.

    Example:
        The standard normal has score ``-x`` and divergence ``-D``.

        >>> field = LogDensityField(lambda x: -0.5 * x.square().sum(-1))
        >>> x = torch.arange(6.0).reshape(2, 3)
        >>> score, divergence = field.score_and_divergence(x)
        >>> torch.equal(score, -x), divergence.tolist()
        (True, [-3.0, -3.0])
    """

    def __init__(
        self,
        log_density: LogDensity,
        feature_axes: int | None = None,
        check_smoothness: bool = True,
        route: str = "auto",
    ) -> None:
        if feature_axes is not None and (type(feature_axes) is not int or feature_axes < 0):
            raise TypeError(
                f"feature_axes must be None or a number of axes, got {feature_axes!r}; 0 is one "
                "log-density per point, and None takes what the model returns"
            )
        self.feature_axes = feature_axes
        check = partial(check_log_density, feature_axes=feature_axes)
        super().__init__(log_density, "log-density", check, check_smoothness, route)

    def score(self, x: Tensor) -> Tensor:
        """The gradient of the log-density, ``(N, *event) -> (N, *F, *event)``."""
        return answer(self, routes.score, x)

    @property
    def normalised(self) -> bool:
        """Whether the model integrates to one; True unless it says otherwise."""
        return is_normalised(self.model.call)

    def contrast(self, x: Tensor, u: Tensor) -> Tensor:
        """How much likelier points are than moved ones, ``f(x) - f(x + u)``.

        Args:
            x: points ``(N, *event)``.
            u: steps ``(C, N, *event)``.

        Returns:
            ``(C, N)``.
        """
        check_points(x)
        f = self.model.evaluate_to_subtract(x)
        check_mode(self.model.call, x, in_any_mode=self.model.check_smoothness)
        return f - on_copies(self.model.evaluate, x + u)

    def log_density(self, x: Tensor) -> Tensor:
        """The log-density itself, ``(N, *event) -> (N, *F)``."""
        check_points(x)
        return self.model.evaluate(x)

    @staticmethod
    def _differences(f: Tensor, moved: Tensor, v: Tensor, step: float) -> tuple[Tensor, Tensor]:
        ahead, behind = moved.chunk(2)
        return (ahead - behind) / (2 * step), (ahead + behind - 2 * f) / step**2


class VectorField(Field):
    """A score given directly, by a score network for example.

    Conditioning goes in by closure, and the derivative is always taken in the argument:
    ``VectorField(lambda z: net(z, context))`` is the score of ``q(z | context)`` in z.

    Args:
        vector: callable, ``x: (N, *event) -> (N, *event)``.
        check_smoothness: refuse a network with kinks, for which a loss or its gradient is wrong.
        route: "auto", "traced" or "reverse": how derivatives are taken.

    Example:
        >>> field = VectorField(lambda x: -x)
        >>> x = torch.ones(2, 3)
        >>> _, curvature = field.score_and_curvature(x, v=x)
        >>> curvature.tolist()
        [-3.0, -3.0]
    """

    def __init__(self, vector: Vector, check_smoothness: bool = True, route: str = "auto") -> None:
        super().__init__(vector, "vector field", check_vector, check_smoothness, route)

    def score(self, x: Tensor) -> Tensor:
        """The vector field itself, ``(N, *event) -> (N, *event)``."""
        check_points(x)
        return routes.score(self.model, x, training=torch.is_grad_enabled())

    @staticmethod
    def _differences(s: Tensor, moved: Tensor, v: Tensor, step: float) -> tuple[Tensor, Tensor]:
        ahead, behind = inner(torch.cat([v, v]), moved, event_axes(s)).chunk(2)
        return (ahead + behind) / 2, (ahead - behind) / (2 * step)


def is_normalised(call: Any) -> bool:
    """Whether a log-density integrates to one, as far as it or what it wraps says."""
    while not hasattr(call, "normalised"):
        inner = _wrapped(call)
        if inner is None:
            return True
        call = inner
    return bool(call.normalised)


def _wrapped(call: Any) -> Any:
    """The model that a callable evaluates as it is: of torch's wrappers, a partial, a method."""
    if isinstance(call, (DataParallel, DistributedDataParallel, AveragedModel)):
        return call.module
    if isinstance(call, partial):
        return call.func
    evaluates = getattr(call, "__name__", "") in ("forward", "_wrapped_call_impl", "_call_impl")
    return getattr(call, "__self__", None) if evaluates else None


def as_field(model: Any) -> Field:
    """A field as it is; any other callable as a log-density with one number per point."""
    return model if isinstance(model, Field) else LogDensityField(model, feature_axes=0)


def answer(field: Field, question: Callable[..., Any], x: Tensor) -> Any:
    """What a function of `derivatives.routes` answers about the model of a field at points."""
    check_points(x)
    training = torch.is_grad_enabled()
    return double_backward.ask(lambda x: question(field.model, x, training=training), x)


def directions(v: Tensor, x: Tensor) -> Tensor:
    """Directions as ``(M, N, *event)``, whether or not they came with their first axis."""
    check_directions(v, x)
    return for_reading(v[None] if v.ndim == x.ndim else v)


def on_copies(evaluate: Callable[[Tensor], Tensor], copies: Tensor) -> Tensor:
    """Evaluate a model on C moved copies of the batch, ``(C, N, *event) -> (C, N, ...)``.

    One copy at a time: a model may carry a context of N rows in its closure.
    """
    return torch.stack([evaluate(copy) for copy in copies])
