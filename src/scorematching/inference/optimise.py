"""Minimisation of the mean loss: in closed form, or by L-BFGS and Newton steps.

Where these fail, as they may from a poor start, steps within a trusted region replace L-BFGS.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scorematching.errors import NotConvergedError, SingularInformationError
from scorematching.inference.problem import Derivatives, Problem
from scorematching.inference.trust_region import descend

MAX_LBFGS = 300
MAX_NEWTON = 100
TOLERANCE = 1e-9
"""Share of the parameters below which a Newton step is zero, both in units of 1/sqrt(H_pp)."""

NEGLIGIBLE = 1e-6
"""Share of what one point moves a parameter by, below which a step of this parameter is zero."""

FAR = 1e4
"""Mean of a column, in standard deviations, from which rounding is worth a note."""

RANK = 1e-11
"""Share of the largest eigenvalue below which one is zero, for the Hessian with unit diagonal."""

CLOSED_FORM = "closed form: the loss is quadratic in the parameters"

QUADRATIC = 1e-8
"""Relative change of the gradient, beyond a linear one, up to which a loss counts as quadratic."""

OWN_QUADRATIC = 1e-4
"""The same of one parameter, whose gradient may be rounding of larger numbers that cancel."""

REFINEMENTS = 10
"""Steps to the solution of a closed form, each of which removes the rounding errors of the last."""

MAX_REFINEMENTS = 40
"""Steps where each of them is still far smaller than the last, as in units of 1e75."""

ROUNDING = 1e-10
"""Share of a parameter below which a step to a closed form is rounding."""

SINGLE = 1e-5
"""Share of the gradients of points that single precision leaves of them in their mean."""

NOT_SHRUNK = 1e-3
"""Share of the step before from which a step is no rounding: the loss is not quadratic."""

BOTTOMLESS, MANY_ROWS = 1e6, 0.1
"""Multiples of the size of losses at the start below which the mean loss has no bound, and the
share of the rows that may cause it."""

NEARER = (
    "choose a start nearer to the minimum, or another parametrisation (log-scales, for example)"
)


class Optimum(NamedTuple):
    """Where the mean loss is least.

    Attributes:
        theta: the parameters ``(P,)``.
        derivatives: of the loss, there.
        method: how they were found.
        iterations: all steps that led there; 1 for a closed form.
    """

    theta: Tensor
    derivatives: Derivatives
    method: str
    iterations: int

    @property
    def is_closed_form(self) -> bool:
        """Whether the loss is quadratic in the parameters."""
        return self.method == CLOSED_FORM


def minimise(problem: Problem) -> Optimum:
    """The minimum of a problem, from its model's start.

    Raises:
        SingularInformationError: if the Hessian is singular or not positive definite.
        NotConvergedError: if no minimum is found.
    """
    start = problem.model.start
    found = problem.derivatives(start)
    if not all(bool(part.isfinite().all()) for part in found):
        raise _not_finite(problem, found)
    _require_squares(problem, found)
    if is_quadratic(problem, start, found):
        require_regular(problem, found.hessian)
        solution = _closed_form(problem, start, found)
        if solution is not None:
            return Optimum(solution, problem.derivatives(solution), CLOSED_FORM, 1)
    try:
        return _newton(problem, *_lbfgs(problem, start, found), "L-BFGS")
    except (NotConvergedError, SingularInformationError):
        theta, steps = descend(problem, start)
    try:
        return _newton(problem, theta, steps, "steps in a trust region")
    except (NotConvergedError, SingularInformationError) as error:
        raise _without_bound(problem, theta) or error from None


def _without_bound(problem: Problem, theta: Tensor) -> NotConvergedError | None:
    """The error where the loss falls for ever, as the density concentrates at few points.

    A score ``-(y - m) / s^2`` of one point has the loss ``-1 / s^2`` where m meets y: if scales
    depend on covariates, or on components of a mixture, they can be small there alone.
    """
    losses, before = (problem.losses(each).detach() for each in (theta, problem.model.start))
    parts = problem.weights * losses
    fall = float(parts.sum())
    usual = float(problem.weights @ before.abs())
    if not -torch.inf < fall < -BOTTOMLESS * usual:
        return None
    order = parts.argsort()
    count = 1 + int((parts[order].cumsum(0) > 0.5 * fall).sum())
    if count > max(1, MANY_ROWS * len(parts)):
        return None
    rows = ", ".join(map(str, order[: min(count, 8)].tolist())) + (", ..." if count > 8 else "")
    return NotConvergedError(
        "the fit must converge to a minimum, got a loss that falls without bound, from "
        f"{float(problem.weights @ before):.3g} at the start to {fall:.3g}, as the density "
        f"concentrates at row{'s' * (count > 1)} {rows}; make scales the same for all rows, or "
        "bound them, or if they depend on covariates give weights, the squares of a first estimate "
        "of the scale of each row"
    )


def is_quadratic(problem: Problem, start: Tensor, found: Derivatives) -> bool:
    """Whether the gradient at random parameters is what a constant Hessian predicts."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        noise = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        step = noise * (1 + start.abs())
        _, gradient = problem.value_and_gradient(start + step)
        linear = found.hessian @ step
        size = linear.abs().max() + found.gradient.abs().max()
        error = (gradient - found.gradient - linear).abs()
        # In its own units, too, in which gradients of other columns hide nothing.
        own = found.hessian.abs() @ step.abs() + (problem.weights @ found.gradients.square()).sqrt()
        if not bool((error <= QUADRATIC * size).all() & (error <= OWN_QUADRATIC * own).all()):
            return False
    return True


def _closed_form(problem: Problem, start: Tensor, found: Derivatives) -> Tensor | None:
    """The minimum of a quadratic loss; None if the gradient there shows that it is not quadratic.

    A step leaves rounding errors of the size of what it started from. In large units these are far
    above the solution, so steps go on until they are small beside every parameter.
    """
    d, before = _scale(found.hessian), torch.inf
    theta, gradient = start, found.gradient
    for iteration in range(1, MAX_REFINEMENTS + 1):
        step = solve(found.hessian, gradient)
        size = float((step * d).norm())
        shrinks = size <= NOT_SHRUNK * before
        if not shrinks and size > ROUNDING * float((theta * d).norm()):
            return None
        theta, before = theta - step, size
        if bool((step.abs() <= ROUNDING * theta.abs()).all()):
            break
        if iteration >= REFINEMENTS and not shrinks:
            break
        gradient = problem.value_and_gradient(theta)[1]
    return theta


def solve(hessian: Tensor, right: Tensor) -> Tensor:
    """``H^-1 r``, with the diagonal of H brought to one first."""
    d = _scale(hessian)
    matrix = right[:, None] if right.ndim == 1 else right
    x = torch.linalg.solve(hessian / d / d[:, None], matrix / d[:, None]) / d[:, None]
    return x[:, 0] if right.ndim == 1 else x


def require_regular(problem: Problem, hessian: Tensor) -> None:
    """Refuse a Hessian that is singular or has a negative direction.

    Raises:
        SingularInformationError: naming the combination of parameters that is not determined.
    """
    d = _scale(hessian)
    values, vectors = torch.linalg.eigh(hessian / d / d[:, None])
    if values[0] > RANK * values[-1]:
        return
    along = _combination(problem, vectors[:, 0] / d)
    if values[0] < -RANK * values[-1]:
        raise SingularInformationError(
            "the Hessian of the mean loss must be positive definite, got one that is not positive "
            f"definite: the fit has stopped where the loss still falls along {along}"
            f"{_far_columns(problem, beyond=100)}; choose another start, or fix or remove "
            "parameters"
        )
    raise SingularInformationError(
        "the Hessian of the mean loss must be positive definite, got one that is singular: the "
        f"data do not determine {along}{_columns_to_blame(problem)}; fix or remove parameters, or "
        "collect points that tell them apart"
    )


def _combination(problem: Problem, vector: Tensor) -> str:
    """The direction in which the loss is flat, as a sum of named parameters."""
    vector = vector / vector.abs().max()
    order = vector.abs().argsort(descending=True)[:4]
    terms = [f"{vector[i]:+.3g} {problem.model.names[i]}" for i in order if vector[i].abs() > 0.01]
    return " ".join(terms)


def _columns_to_blame(problem: Problem) -> str:
    """A note where columns of the data are far from zero, or a combination of others."""
    if far := _far_columns(problem, FAR):
        return far
    part = problem.parts[0]
    centred, scale, _ = _spread(part.x.flatten(1))
    _, values, v = torch.linalg.svd(centred / scale, full_matrices=False)
    if len(values) < centred.shape[1] or values[-1] > 1e-10 * values[0]:
        return ""
    columns = part.columns[v[-1].abs() > 1e-6].tolist()
    return f" (columns {columns} of X are collinear, or constant)"


def _far_columns(problem: Problem, beyond: float) -> str:
    """A note where means of columns are larger than so many standard deviations."""
    far = set()
    for part in problem.parts:
        x = part.x.flatten(1)
        _, scale, mean = _spread(x)
        far |= {*part.columns[(mean.abs() > beyond * scale) & (x != x[0]).any(0)].tolist()}
    note = f" (columns {sorted(far)} of X vary little beside their means: subtract these first)"
    return note if far else ""


def _spread(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Points without their means, standard deviations and means of the columns."""
    mean = x.mean(0)
    return x - mean, (x - mean).square().mean(0).sqrt().clamp_min(1e-300), mean


def _scale(hessian: Tensor) -> Tensor:
    """Square roots of the diagonal, one where it is zero."""
    d = hessian.diagonal().abs().sqrt()
    return torch.where(d > 0, d, torch.ones_like(d))


def _lbfgs(problem: Problem, start: Tensor, found: Derivatives) -> tuple[Tensor, int]:
    """A point near the minimum, and the number of iterations, whatever the units of the points."""
    unit, share = _unit(problem, found), _smallest_share(problem, found)
    d = _scale(found.hessian) / unit
    scaled = (start * d).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [scaled],
        max_iter=MAX_LBFGS,
        tolerance_grad=1e-5 * share,
        tolerance_change=1e-9 * share**2,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        value, gradient = problem.value_and_gradient(scaled.detach() / d)
        finite = bool(value.isfinite() & gradient.isfinite().all())
        scaled.grad = gradient / d / unit**2 if finite else torch.zeros_like(gradient)
        return float(value) / unit**2 if finite else 1e100  # so that the line search turns back

    optimiser.step(closure)
    return scaled.detach() / d, int(optimiser.state[scaled]["n_iter"])


def _sizes(problem: Problem, found: Derivatives) -> Tensor:
    """Sizes of one point's gradient in parameters ``d theta``, ``(P,)``."""
    return (problem.weights @ found.gradients.square()).sqrt() / _scale(found.hessian)


def _unit(problem: Problem, found: Derivatives) -> float:
    """Size of the whole gradient: the root of the unit of the loss."""
    return float(_sizes(problem, found).norm()) or 1.0


def _smallest_share(problem: Problem, found: Derivatives) -> float:
    """Of a parameter in the gradient; one unless columns are in very different units."""
    sizes = _sizes(problem, found)
    smallest = float(sizes[sizes > 0].min()) if bool((sizes > 0).any()) else 1.0
    return min(1.0, 10 * smallest / _unit(problem, found))


def _newton(problem: Problem, theta: Tensor, steps: int, before: str) -> Optimum:
    """Newton steps, halved until the loss falls, to a step of relative size zero.

    Args:
        problem: what to minimise.
        theta: where to begin.
        steps: how many have led there.
        before: what they were.
    """
    found = problem.derivatives(theta)
    for iteration in range(1, MAX_NEWTON + 1):
        _require_finite(problem, theta, found)
        require_regular(problem, found.hessian)
        step = solve(found.hessian, found.gradient)
        if _is_zero(problem, theta, step, found):
            return Optimum(theta, found, f"{before}, then Newton steps", steps + iteration)
        theta, found = _damped(problem, theta, step, iteration)
    raise _not_converged(problem, found, MAX_NEWTON)


def _require_finite(problem: Problem, theta: Tensor, found: Derivatives) -> None:
    """Refuse parameters at which derivatives overflow."""
    if all(bool(part.isfinite().all()) for part in found):
        return
    far = theta.abs().argsort(descending=True)[:4]
    values = ", ".join(f"{problem.model.names[i]} = {float(theta[i]):.3g}" for i in far)
    raise NotConvergedError(
        "the fit must converge to a minimum, got derivatives that are NaN or infinite at "
        f"{values}{_far_columns(problem, beyond=100)}; {NEARER}"
    )


def _is_zero(problem: Problem, theta: Tensor, step: Tensor, found: Derivatives) -> bool:
    """Whether a step is small beside all parameters together, and beside the error of each."""
    moved, size = (step * _scale(found.hessian)).abs(), _unit(problem, found)
    whole = (theta * _scale(found.hessian)).norm() + 1e-3 * size
    each = NEGLIGIBLE * _sizes(problem, found)
    return bool((moved.norm() <= TOLERANCE * whole) & (moved <= each).all())


def _damped(
    problem: Problem, theta: Tensor, step: Tensor, iteration: int
) -> tuple[Tensor, Derivatives]:
    """The first of the steps 1, 1/2, 1/4 ... that does not raise the loss beyond rounding."""
    value, _ = problem.value_and_gradient(theta)
    for halving in range(40):
        moved = theta - step / 2**halving
        lower, _ = problem.value_and_gradient(moved)
        if lower <= value + 1e-12 * value.abs():
            return moved, problem.derivatives(moved)
    raise _not_converged(problem, problem.derivatives(theta), iteration - 1)


def _not_converged(problem: Problem, found: Derivatives, steps: int) -> NotConvergedError:
    advice = NEARER
    size = (problem.weights @ found.gradients.square()).sqrt()
    if bool((found.gradient.abs() <= SINGLE * size).all()):
        advice = (
            "it is as small as rounding in single precision leaves it: write covariates and other "
            "numbers of the model in float64"
        )
    return NotConvergedError(
        "the fit must converge to a minimum, got a gradient of largest entry "
        f"{found.gradient.abs().max():.2g} after {steps} Newton step{'s' * (steps != 1)}"
        f"{_far_columns(problem, beyond=100)}; {advice}"
    )


def _require_squares(problem: Problem, found: Derivatives) -> None:
    """Refuse gradients whose squares overflow, beside which every step would be negligible."""
    squares = problem.weights @ found.gradients.square()
    if not bool(squares.isfinite().all()):
        worst = problem.model.names[int(squares.nan_to_num(torch.inf).argmax())]
        raise NotConvergedError(
            "squares of the gradients of points must be finite at the initial parameters, got "
            f"gradients of {float(found.gradients.abs().max()):.2g} in {worst}; divide the columns "
            "of X by their standard deviations"
        )


def _not_finite(problem: Problem, found: Derivatives) -> NotConvergedError:
    bad = (~found.gradients.isfinite()).any(1)
    rows = bad.nonzero()[:, 0].tolist()
    where = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
    advice = "choose another start, or move points away from where the log-density is infinite"
    if _is_finite_at(problem, bad):
        advice = (
            "the model itself is finite there, but derivatives of an operation in it are not, as "
            "those of torch.logaddexp of very different numbers (write torch.logsumexp of a "
            "stack), or of a norm at zero"
        )
    return NotConvergedError(
        "the loss and its gradient must be finite at the initial parameters, got NaN or infinity "
        f"in {len(rows)} of {len(found.gradients)} rows ({where}); {advice}"
    )


def _is_finite_at(problem: Problem, rows: Tensor) -> bool:
    """Whether the model has finite values at rows ``(N,)`` at the initial parameters."""
    model = problem.model.at(problem.model.start)
    values = [(part.view(model)(part.x), rows[part.rows]) for part in problem.parts]
    return all(bool(value[bad].isfinite().all()) for value, bad in values)
