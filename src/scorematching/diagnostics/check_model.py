"""Whether the derivatives of a model are right, against finite differences."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_points
from scorematching._shapes import event_axes, inner
from scorematching._tables import Table
from scorematching.derivatives.verification import best_difference, moved
from scorematching.errors import SmoothnessError, WrongDerivativeError
from scorematching.fields import Field, LogDensityField, VectorField, as_field
from scorematching.objectives import Objective
from scorematching.projections import Rademacher

TOLERANCE = 1e-4
"""Relative difference from finite differences, in double precision, that still counts as right."""


@dataclass(frozen=True, repr=False)
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

    On a copy of the model in double precision, the smoothness near the points is measured, the
    score and the curvature are compared with central differences of the log-density and of the
    score along random directions, and the gradient of the objective is compared with central
    differences along a random direction of every parameter. Steps are relative to the spread of
    the points and the size of the parameters. The model itself is left alone.

    Args:
        model: an `nn.Module` that is a log-density, or a `Field` around a module.
        x: a few points ``(N, *event)``; more cost more and show no more.
        objective: what the model is to be trained with.
        generator: source of randomness, on the CPU; None is torch's default generator.
        show: whether to print the table.

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
            errors[layer] = _largest(error, errors.get(layer, 0.0))
    except (SmoothnessError, WrongDerivativeError) as refusal:
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
    """A field in double precision on the CPU, and the module it evaluates."""
    field = as_field(model)
    call = field.model.call
    if not isinstance(call, nn.Module):
        raise TypeError(
            f"model must be an nn.Module, or a Field around one, got {field}; a function hides "
            "its parameters: write it as a module"
        )
    # Attributes that are results of a computation, as weight_norm leaves behind, cannot be copied.
    values = [v for m in call.modules() for v in vars(m).values() if isinstance(v, Tensor)]
    memo: dict[int, Any] = {id(v): v.detach().clone() for v in values if not v.is_leaf}
    module = copy.deepcopy(call, memo).double().cpu()
    kind: Any = VectorField if isinstance(field, VectorField) else LogDensityField
    options = {"check_smoothness": field.model.check_smoothness, "route": field.model.route}
    return kind(module, **options), module


def _points_error(field: Field, x: Tensor, generator: torch.Generator | None) -> float:
    """Relative error of the score and curvature along random directions."""
    v = Rademacher(balanced=False).draw(x, 1, generator)
    spread = x.std() if x.numel() > 1 else x.abs().max()
    v = v * torch.where(spread > 0, spread, torch.ones_like(spread))
    score, curvature = field.score_and_curvature(x, v)
    along = inner(v[0], score.detach(), event_axes(x))

    def score_along(h: float) -> Tensor:
        return inner(v[0], field.score(x + h * v[0]).detach(), event_axes(x))

    errors = [_error(curvature.detach(), *best_difference(score_along))]
    if isinstance(field, LogDensityField):
        errors.append(
            _error(along, *best_difference(lambda h: field.log_density(x + h * v[0]).detach()))
        )
    return _largest(*errors)


def _largest(*errors: float) -> float:
    """The maximum; NaN, which is not right, counts as the largest."""
    return torch.tensor(errors, dtype=torch.float64).max().item()


def _error(exact: Tensor, near: Tensor, rough: Tensor) -> float:
    """Relative difference beyond what the differences themselves are uncertain by."""
    beyond = ((exact - near).abs() - 10 * rough).clamp(min=0)
    scale = near.abs().max() + near.abs().mean() + 1e-300
    return float((beyond / scale).max())


def _parameter_errors(
    field: Field,
    module: nn.Module,
    x: Tensor,
    objective: Objective,
    noise: Any,
    generator: torch.Generator | None,
) -> Iterator[tuple[str, float]]:
    """For every trained parameter, its layer and the error of the gradient along a direction."""
    loss = objective.loss(field, x, noise).mean()
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named or not loss.requires_grad:
        return
    gradients = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    sizes = [float(p.detach().abs().square().mean()) ** 0.5 or 1.0 for _, p in named]
    scale = sum(
        float(g.abs().square().sum()) * size**2
        for g, size in zip(gradients, sizes)
        if g is not None
    )
    layers = dict(module.named_modules(remove_duplicate=False))
    for (name, p), g, size in zip(named, gradients, sizes):
        d = size * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        near, rough = best_difference(partial(_moved_loss, objective, field, x, noise, p, d))
        exact = 0.0 if g is None else float((g.conj() * d).sum().real)
        beyond = max(abs(exact - float(near)) - 10 * float(rough), 0.0)
        layer = layers[name.rpartition(".")[0]]
        yield (
            getattr(layer, "original_name", type(layer).__name__),
            beyond / (abs(float(near)) + scale**0.5 + 1e-300),
        )


def _moved_loss(
    objective: Objective, field: Field, x: Tensor, noise: Any, p: Tensor, d: Tensor, h: float
) -> Tensor:
    """The mean loss after a step h of one parameter along d."""
    with torch.no_grad(), moved([p], [h * d]):
        return objective.loss(field, x, noise).mean()
