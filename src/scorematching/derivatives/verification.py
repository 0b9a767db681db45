"""Checks of the engine's answers on the user's own model and points.

At the 1st, 2nd, 4th, 8th ... use of a model the score and the curvature at a few points are
computed again by another route: the traced answer is compared with double backward, and what
disagrees with that, or was not traced, with central differences of the score. Where parameters
are trained, the gradient of a scalar of both along one random direction of the parameters is
compared with central differences at the first two uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_initialised
from scorematching._shapes import event_axes, inner
from scorematching.derivatives.memory import owner_of
from scorematching.derivatives.smoothness.probe import Probe

Answer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(x, v) -> (score (N, *F, *event), curvature (N, *F))``."""

Slack = tuple[float, float]
"""Differences of a score and of a curvature that rounding explains."""

NO_SLACK: Slack = (0.0, 0.0)

NUM_POINTS = 4
"""Points at which answers are compared, where the model takes a batch of that size."""

TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-2}
"""Largest difference between right answers, relative to their size, by precision."""

_EXPONENTS = {torch.float64: (14, 12, 10), torch.float32: (8, 6, 4)}
"""Steps of differences, as powers of a half, in standard deviations of the points."""


class Comparison(NamedTuple):
    """How far two answers differ, relative to their size; more than one is a disagreement."""

    excess: float
    conclusive: bool = True

    @property
    def agree(self) -> bool:
        """Whether the answers agree, or nothing can be said."""
        return not self.conclusive or self.excess <= 1


def is_due(uses: int) -> bool:
    """Whether an answer is checked at this use: the 1st, 2nd, 4th, 8th ..."""
    return uses & (uses - 1) == 0


def rounding(answer: Answer, found: tuple[Tensor, Tensor], x: Tensor, v: Tensor) -> Slack:
    """How far rounding may have moved a score and a curvature, at most.

    Measured by the change of the answer when the points move by a few units of rounding, which
    also rounds everything after them anew. A model whose terms cancel, or products in tf32 after
    long training, lose more digits than the tolerances allow for.
    """
    units = 2.0**-11 if x.is_cuda and x.dtype == torch.float32 else 32 * torch.finfo(x.dtype).eps
    moved = answer(x.detach() * (1 + units * fixed_signs(x, seed=2)), v)
    score, curvature = (4 * float((p - q).abs().max()) for p, q in zip(moved, found))
    return score, curvature


def fixed_signs(x: Tensor, seed: int) -> Tensor:
    """Random signs of the shape of x, the same at every check."""
    bits = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(seed))
    return (bits * 2 - 1).to(x)


def compare(
    a: tuple[Tensor, ...], b: tuple[Tensor, ...], x: Tensor, v: Tensor, slack: Slack = NO_SLACK
) -> Comparison:
    """Compare scores and curvatures of two routes."""
    tolerance = TOLERANCES.get(x.dtype)
    if tolerance is None:
        return Comparison(0.0, conclusive=False)
    floors = _floors(b[0], x, v, tolerance)
    excess = [
        float((p - q).abs().max() / (tolerance * q.abs().max() + floor + more))
        for p, q, floor, more in zip(a, b, floors, slack)
        if bool(q.isfinite().all())
    ]
    worst = max(excess, default=0.0, key=lambda e: (e != e, e))  # NaN, if there is one
    return Comparison(worst, conclusive=bool(excess))


def differ(a: Tensor, b: Tensor, slack: float = 0.0, share: float = 1.0) -> bool:
    """Whether two evaluations of a model differ by more than rounding; no values do not.

    ``share`` is that of the tolerance, less than one for batches of one size, rounded alike.
    """
    tolerance = TOLERANCES.get(a.dtype)
    if tolerance is None or not b.numel() or not bool(b.isfinite().all()):
        return False
    size = b.abs().max() + torch.finfo(b.dtype).tiny
    return bool((a - b).abs().max() > share * tolerance * size + slack)


def _floors(score: Tensor, x: Tensor, v: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Differences that rounding explains, for a score and for a curvature."""
    noise = torch.finfo(x.dtype).eps ** 0.5 * tolerance**0.5
    size = score.abs().max() + torch.finfo(x.dtype).tiny
    spread = x.std() if x.numel() > 1 else x.abs().max()
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    length = v.flatten(1).square().sum(1).max() if v.ndim else v.square()
    return noise * size, noise * size * length.sqrt() * (1 + 1 / spread)


def agrees_with_differences(
    score: Callable[[Tensor], Tensor],
    found: tuple[Tensor, Tensor],
    x: Tensor,
    v: Tensor,
    slack: Slack = NO_SLACK,
) -> bool:
    """Whether an answer agrees with a score and its central differences, where these can tell.

    The score is that of the plain model by autograd; directions are ``(1, N, *event)``.
    """
    if x.dtype not in TOLERANCES:
        return True
    if differ(found[0], score(x), slack[0]):
        return False
    near, error = differences(score, x, v[0])
    near = near.where(~_oscillates(found, x, v[0]), torch.nan)
    tolerance = TOLERANCES[x.dtype]
    floor = _floors(found[0], x, v, tolerance)[1]
    allowed = 3 * tolerance * (near.abs() + near.abs().mean()) + 3 * error + floor + slack[1]
    right = (found[1] - near).abs() <= allowed  # False for NaN
    return bool((right | ~near.isfinite()).all())


def _oscillates(found: tuple[Tensor, Tensor], x: Tensor, v: Tensor) -> Tensor:
    """Whether a score would change by more than its size within the shortest step, ``(N, *F)``.

    Differences over such steps, at a frequency times a spread in the hundreds, tell nothing.
    """
    step = _unit(x) * 2.0 ** -_EXPONENTS[x.dtype][0]
    axes = event_axes(x)
    w = v.reshape(v.shape[0], *[1] * (found[0].ndim - x.ndim), *v.shape[1:])
    size = inner(w.abs(), found[0].abs(), axes)
    return step * found[1].abs() > size.amax(0)


def agrees_between_kinks(
    call: Callable[[Tensor], Tensor], is_density: bool, found: Tensor, x: Tensor, v: Tensor
) -> bool:
    """Whether curvatures agree with differences at half of the points or more.

    For models that may have kinks. Steps of 1e-6 in double precision rarely meet one, while a
    second derivative that is missing in part of the model is missing at nearly every point.
    Where the model does not run in double precision the steps are longer, and points where two
    steps disagree tell nothing; neither do points where the score is not the slope of the
    log-density, because the model replaces its derivative on purpose (by ``no_grad``, say).
    Curvatures of several outputs are not compared. Directions are ``(1, N, *event)``.
    """
    if x.dtype not in TOLERANCES or found.ndim > 1:
        return True
    tolerance = max(TOLERANCES[x.dtype], 1e-3)
    for double in (True, False):
        with suppress(Exception):  # not every model runs in double precision
            near, far, tells = _short_differences(call, is_density, x, v, double, tolerance)
            allowed = tolerance * (near.abs() + near.abs().mean()) + 3 * (near - far).abs()
            right = (found - near).abs() <= allowed
            return bool((right | ~tells | ~near.isfinite()).double().mean() >= 0.5)
    return True


def _short_differences(
    call: Callable[[Tensor], Tensor],
    is_density: bool,
    x: Tensor,
    v: Tensor,
    double: bool,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differences of the score by a step and by twice that, and where the score is a slope."""
    generator, rows = torch.Generator().manual_seed(0), torch.arange(len(x), device=x.device)
    probe = Probe(call, x, is_density, double, generator)
    scale = float(x.std()) if x.numel() > 1 else float(x.abs().max())
    d, step = v[0].to(probe.x), (scale or 1.0) * (1e-6 if double else 5e-3)
    ends = [probe.levels(probe.x + k * step * d, rows, d) for k in (-2, -1, 1, 2)]
    near, far = ((ends[3 - i][-2] - ends[i][-2]) / (h * step) for i, h in ((1, 2), (0, 4)))
    slope = (ends[1][-2] + ends[2][-2]) / 2
    rise = (ends[2][0] - ends[1][0]) / (2 * step) if is_density else slope
    tells = (rise - slope).abs() <= tolerance * (slope.abs() + slope.abs().mean())
    return near.to(x), far.to(x), tells.to(x.device)


def best_difference(
    f: Callable[[float], Tensor], exponents: Sequence[int] = range(20, 2, -2)
) -> tuple[Tensor, Tensor]:
    """The derivative of f at 0 by central differences, and an estimate of its error.

    The step among ``2^-k`` whose values change least at the next larger one is taken, so that
    neither rounding nor curvature decides. The error is the next larger change: the smallest may
    be a coincidence of two rounding errors.
    """
    slopes = [(f(h) - f(-h)) / (2 * h) for h in (2.0**-k for k in exponents)]
    changes = [float((a - b).abs().nan_to_num(float("inf")).max()) for a, b in pairwise(slopes)]
    order = sorted(range(len(changes)), key=changes.__getitem__)
    error = changes[order[min(1, len(order) - 1)]]
    return slopes[order[0]], torch.full_like(slopes[0], error)


def differences(score: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """``v' (ds/dx) v`` by central differences of the score, and an estimate of its error."""
    unit = _unit(x)

    def along(h: float) -> Tensor:
        s = score(x + h * unit * v)
        w = v.reshape(v.shape[0], *[1] * (s.ndim - x.ndim), *v.shape[1:])
        return inner(w, s, event_axes(x)) / unit

    return best_difference(along, _EXPONENTS[x.dtype])


def _unit(x: Tensor) -> float:
    """The standard deviation of the points, or the size of a single number."""
    return (float(x.std()) if x.numel() > 1 else float(x.abs().max())) or 1.0


def leaves(value: Tensor, besides: Tensor, since: int) -> list[Tensor]:
    """The parameters that a value depends on, without the points.

    None where part of its graph is older than the number ``since``: it was computed before the
    model was called, and would not change with the parameters behind it.
    """
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    waiting = [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            if node.variable is not besides:
                found[id(node.variable)] = node.variable
        elif node._sequence_nr() < since:
            return []
        waiting += [following for following, _ in node.next_functions]
    return list(found.values())


def check_gradient(answer: Answer, x: Tensor, v: Tensor) -> Comparison:
    """Compare a directional parameter gradient with central differences.

    The scalar is ``sum(curvature) + 0.5 sum |score|^2``; the direction is random, of the size of
    each parameter. The parameters are moved by exchanging their data and are always put back. One
    step is enough where it agrees. Otherwise the shortest step decides that agrees with the next
    longer one, since deep networks need shorter steps than others. Steps on which the gradient says
    that the scalar changes by a tenth of its terms are too long to tell: models that oscillate
    change by little on them, whatever their length. What rounding adds to a
    difference is not held against a gradient: there may be hardly any dependence to see. Parameters
    with hooks are left as they are, because hooks change gradients on purpose (masks, clipping).
    """
    x = x.detach().clone().requires_grad_()

    def scalar() -> Tensor:
        score, curvature = answer(x, v)
        return curvature.sum() + 0.5 * score.square().sum()

    since = torch.autograd._get_sequence_nr()
    score, curvature = answer(x, v)
    value = curvature.sum() + 0.5 * score.square().sum()
    terms = float(curvature.detach().abs().sum() + 0.5 * score.detach().square().sum())
    found = leaves(value, x, since) if value.requires_grad else []
    parameters = [p for p in found if not p._backward_hooks]
    # The data of ordinary tensors alone can be exchanged.
    ordinary = all(type(p) in (Tensor, torch.nn.Parameter) for p in parameters)
    if not parameters or not ordinary or any(p.dtype not in TOLERANCES for p in parameters):
        return Comparison(0.0, conclusive=False)
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    steps = _steps(parameters)
    pairs = [(g, d) for g, d in zip(gradients, steps) if g is not None]
    exact = float(sum((g * d).sum() for g, d in pairs))
    size = float(sum((g * d).square().sum() for g, d in pairs)) ** 0.5
    precise = x.dtype == torch.float64
    tolerance, first, others = (
        (1e-3, 13, range(24, 9, -2)) if precise else (0.1, 6, range(14, 3, -2))
    )

    noise = 8 * torch.finfo(x.dtype).eps * abs(float(value.detach()))

    def excess(slope: float, h: float) -> float:
        return abs(exact - slope) / (tolerance * (size + abs(slope)) + noise / h + 1e-30)

    slope = _slope(scalar, parameters, steps, 2.0**-first)
    if (whole := excess(slope, 2.0**-first)) <= 1:
        return Comparison(whole)
    slopes = ((_slope(scalar, parameters, steps, 2.0**-k), 2.0**-k) for k in others)
    for (near, h), (far, longer) in pairwise(slopes):
        if longer * max(size, abs(exact)) > 0.1 * terms:
            break
        if abs(near - far) < 0.5 * tolerance * (size + abs(near)):
            return Comparison(excess(near, h))
    return Comparison(whole, conclusive=False)


def _slope(scalar: Any, parameters: list[Tensor], steps: list[Tensor], h: float) -> float:
    ends = []
    for sign in (h, -h):
        with moved(parameters, [sign * d for d in steps]):
            ends.append(float(scalar().detach()))
    return (ends[0] - ends[1]) / (2 * h)


def _steps(parameters: list[Tensor]) -> list[Tensor]:
    """A random direction, of the size of each parameter."""
    generator = torch.Generator().manual_seed(0)
    steps = []
    for p in parameters:
        size = float(p.detach().abs().square().mean()) ** 0.5 or 1.0
        noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        steps.append(size * noise.to(p.device))
    return steps


@contextmanager
def moved(parameters: list[Tensor], changes: list[Tensor]) -> Iterator[None]:
    """Parameters with changed data, put back afterwards; versions and graphs are not touched."""
    before = [p.data for p in parameters]
    try:
        for p, data, change in zip(parameters, before, changes):
            p.data = data + change
        yield
    finally:
        for p, data in zip(parameters, before):
            p.data = data


@contextmanager
def undone(call: Any, x: Tensor) -> Iterator[None]:
    """A region whose random numbers and changes of buffers leave no trace.

    Two such regions in a row begin alike, so that a random model repeats itself.
    """
    buffers = buffers_of(call)
    check_initialised(buffers)
    kept = [b.data for b in buffers]
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        try:
            for b, data in zip(buffers, kept):
                b.data = data.clone()
            yield
        finally:
            for b, data in zip(buffers, kept):
                b.data = data


def buffers_of(call: Any) -> list[Tensor]:
    """The buffers of a module, or of the module that a function, method or partial holds."""
    return _held_by(call, torch.nn.Module.buffers)


def parameters_of(call: Any) -> list[Tensor]:
    """The parameters of a module, or of the module that a function, method or partial holds."""
    return _held_by(call, torch.nn.Module.parameters)


def _held_by(call: Any, kind: Callable[[torch.nn.Module], Iterator[Tensor]]) -> list[Tensor]:
    module = owner_of(call)
    try:
        return list(kind(module)) if isinstance(module, torch.nn.Module) else []
    except TypeError:  # a module without a hash, such as a dataclass
        return []
