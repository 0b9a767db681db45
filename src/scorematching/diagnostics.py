"""What the engine makes of a model, and whether its derivatives are right."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_points
from scorematching._shapes import inner
from scorematching._tables import text_table
from scorematching.derivatives import pairing
from scorematching.derivatives.smoothness import ORDERS
from scorematching.errors import SmoothnessError
from scorematching.fields import Field, LogDensityField, VectorField, as_field
from scorematching.objectives import Objective
from scorematching.projections import Rademacher

TOLERANCE = 1e-5
"""Relative difference from finite differences, in double precision, that still counts as right."""


@dataclass(frozen=True)
class Table:
    """Rows under headings, above a conclusion; prints as text.

    Example:
        >>> print(Table(("layer", "error"), (("Linear", "1e-9"),), "all is well"))
        layer   error
        Linear  1e-9
        <BLANKLINE>
        all is well
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    conclusion: str

    def __str__(self) -> str:
        """The table, aligned by spaces."""
        return f"{text_table(self.headings, self.rows)}\n\n{self.conclusion}"


def explain(model: Any, x: Tensor, show: bool = True) -> Table:
    """How the derivatives of a model are taken, operation by operation.

    Routes: "rule", a closed form of the library; "linear", nothing to differentiate twice;
    "composed", taken apart into simpler operations, which are listed too; "nested jvp", torch's
    forward mode through that operation alone. A model that cannot be traced is differentiated
    by double backward, and the conclusion says what stood in the way.

    Args:
        model: a log-density ``(N, *event) -> (N,)`` or a `Field`.
        x: a few points ``(N, *event)``.
        show: whether to print the table.

    Returns:
        The table: operation, count, route, smoothness.

    Example:
        >>> table = explain(lambda x: -x.square().sum(-1), torch.ones(1, 2), show=False)
        >>> [row[:3] for row in table.rows]
        [('square', '1', 'rule'), ('sum', '1', 'rule'), ('neg', '1', 'rule')]
    """
    check_points(x)
    field = as_field(model)
    tape = pairing.Tangents(x.shape[0])
    obstacle = None
    with torch.enable_grad():
        try:
            pairing.run(
                field.model.call, x.detach().requires_grad_(), torch.ones_like(x)[None], tape
            )
        except Exception as error:
            obstacle = f"{type(error).__name__}: {error}"
    rows = tuple(
        (name, str(count), route, _smoothness(name))
        for (name, route), count in tape.operations.items()
    )
    conclusion = (
        "traced: one reverse pass for all directions"
        if obstacle is None
        else f"not traced, double backward instead ({obstacle})"
    )
    table = Table(("operation", "count", "route", "smoothness"), rows, conclusion)
    if show:
        print(table)
    return table


@dataclass(frozen=True)
class ModelCheck(Table):
    """What `check_model` found.

    Attributes:
        passed: whether every difference is within tolerance and nothing was refused.
        errors: largest relative difference, by kind of layer.
    """

    passed: bool
    errors: dict[str, float]


def check_model(
    model: Any,
    x: Tensor,
    objective: Objective,
    generator: torch.Generator | None = None,
    show: bool = True,
) -> ModelCheck:
    """Test of a model's derivatives under an objective, against finite differences.

    A copy of the model in double precision is asked for its score and curvature along random
    directions, and for the gradient of the objective along a random direction of every parameter;
    each is compared with central differences, which know nothing of derivative rules. The model
    itself is left alone.

    Args:
        model: an `nn.Module` that is a log-density, or a `Field` around a module.
        x: a few points ``(N, *event)``; more cost more and show no more.
        objective: what the model is to be trained with.
        generator: source of randomness, on the CPU; None is torch's default generator.
        show: whether to print the table.

    Returns:
        A table with a verdict for each kind of layer, and ``passed``.

    Raises:
        TypeError: if there is no module to copy.

    Example:
        >>> from scorematching import SlicedScoreMatchingVR, models
        >>> density = models.MLPDensity(dim=2, hidden=(8,))
        >>> check_model(density, torch.randn(4, 2), SlicedScoreMatchingVR(), show=False).passed
        True
    """
    check_points(x)
    field, module = _double_copy(model)
    x = x.detach().double().cpu()
    noise = objective.draw(x, generator)
    try:
        errors = {"derivatives in x": _points_error(field, x, generator)}
        for layer, error in _parameter_errors(field, module, x, objective, noise, generator):
            errors[layer] = max(error, errors.get(layer, 0.0))
    except SmoothnessError as refusal:
        check = ModelCheck(("layer", "verdict"), (("model", "refused"),), str(refusal), False, {})
    else:
        check = _verdict(errors)
    if show:
        print(check)
    return check


def _verdict(errors: dict[str, float]) -> ModelCheck:
    wrong = [layer for layer, error in errors.items() if not error < TOLERANCE]
    rows = tuple(
        (layer, f"{error:.1e}", "wrong" if layer in wrong else "right")
        for layer, error in errors.items()
    )
    conclusion = f"wrong: {', '.join(wrong)}" if wrong else "all derivatives are right"
    headings = ("layer", "relative error", "verdict")
    return ModelCheck(headings, rows, conclusion, not wrong, errors)


def _double_copy(model: Any) -> tuple[Field, nn.Module]:
    """A field in double precision on the CPU, and the module it asks."""
    field = as_field(model)
    call = field.model.call
    if not isinstance(call, nn.Module):
        raise TypeError(
            f"model must be an nn.Module, or a Field around one, got {field}; a function hides "
            "its parameters: write it as a module"
        )
    module = copy.deepcopy(call).double().cpu()
    kind: Any = VectorField if isinstance(field, VectorField) else LogDensityField
    options = {"check_smoothness": field.model.check_smoothness, "route": field.model.route}
    return kind(module, **options), module


def _points_error(field: Field, x: Tensor, generator: torch.Generator | None) -> float:
    """Relative error of the score and curvature along random directions."""
    v = Rademacher(balanced=False).draw(x, 1, generator)
    with torch.no_grad():
        exact, near = field.slice(x, v), field.slice_by_differences(x, v, 1e-4)
    return max(_relative(a, b) for a, b in zip(exact, near))


def _parameter_errors(
    field: Field,
    module: nn.Module,
    x: Tensor,
    objective: Objective,
    noise: Any,
    generator: torch.Generator | None,
) -> Iterator[tuple[str, float]]:
    """For every parameter, its layer and the error of the gradient along a random direction."""
    names, parameters = zip(*module.named_parameters())
    loss = objective.loss(field, x, noise).mean()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    scale = max(float(g.norm()) for g in gradients if g is not None)
    for name, p, g in zip(names, parameters, gradients):
        d = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        step = 1e-5 / float(d.norm())
        near = (
            _moved(field, x, objective, noise, p, step * d)
            - _moved(field, x, objective, noise, p, -step * d)
        ) / (2 * step)
        exact = 0.0 if g is None else float(inner(g, d, g.ndim))
        error = abs(exact - near) / max(abs(near), 1e-3 * scale * float(d.norm()))
        yield _layer(module, name), error


def _moved(
    field: Field, x: Tensor, objective: Objective, noise: Any, p: Tensor, change: Tensor
) -> float:
    """The mean loss with one parameter moved."""
    with torch.no_grad():
        p += change
        loss = float(objective.loss(field, x, noise).mean())
        p -= change
    return loss


def _layer(module: nn.Module, parameter: str) -> str:
    """The kind of layer a parameter belongs to."""
    return type(module.get_submodule(parameter.rpartition(".")[0])).__name__


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-3))


def _smoothness(name: str) -> str:
    order = ORDERS.get(name)
    return "smooth" if order is None else f"C{order}" if order >= 0 else "discontinuous"
