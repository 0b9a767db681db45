"""Measurement of variances and times."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_count, check_generator, check_points
from scorematching._graphs import generator_or_default
from scorematching._shapes import dimension
from scorematching.derivatives.speed import now
from scorematching.diagnostics.variance.report import VarianceReport, VarianceRow, ratio
from scorematching.fields import Field, as_field
from scorematching.objectives import SlicedScoreMatching, SlicedScoreMatchingVR
from scorematching.objectives.sliced import Sliced
from scorematching.projections import Gaussian, Projection, Rademacher, Sphere, SplitRademacher

PROJECTIONS: tuple[Projection, ...] = (
    Rademacher(balanced=False),
    Rademacher(),
    SplitRademacher(),
    Gaussian(),
    Sphere(),
)
"""Distributions of directions that are compared by default; the first is the reference."""

_CHUNKS = 32
_CHUNK_REPEATS = 4
_ROUNDING = 32.0  # rounding error of such a sum, in units of the last place


def variance_report(
    model: Any,
    x: Tensor,
    objective: Sliced,
    num_projections: Sequence[int] = (1, 2, 4, 8),
    repeats: int = 32,
    generator: torch.Generator | None = None,
    show: bool = True,
    *,
    parameters: Iterable[Tensor] | None = None,
    projections: Sequence[Projection] | None = None,
) -> VarianceReport:
    """Variance of a sliced objective due to its directions, and what lowering it costs.

    `scorematching.diagnostics.variance` says how variances are measured. Plain SSM and SSM-VR are
    shown beside the objective, with its own projection and the first M. Cost: about ``repeats``
    evaluations per distribution and M. Nothing is changed: no parameter's ``grad``, not x, and not
    torch's global random state.

    Args:
        model: a log-density ``(N, *event) -> (N,)`` or a `Field`.
        x: a batch of points ``(N, *event)``, of the size used in training.
        objective: `SlicedScoreMatching`, `SlicedScoreMatchingVR` or `FiniteDifferenceSSM`.
        num_projections: the M to compare.
        repeats: draws of the directions, at least 2.
        generator: source of randomness; None is a copy of torch's default generator.
        show: whether to print the table.
        parameters: what the gradient is taken in; None is ``model.parameters()`` of a module and
            nothing for any other model, a `Field` included: give those of the network it wraps.
        projections: distributions to compare, beside the objective's own; None is those of
            `PROJECTIONS` that the objective accepts.

    Example:
        Along random signs a diagonal Hessian has no variance; all of it is due to data.

        >>> diagonal = lambda x: -0.5 * (x.square() * torch.tensor([1.0, 2.0, 3.0])).sum(-1)
        >>> x = torch.randn(8, 3)
        >>> report = variance_report(diagonal, x, SlicedScoreMatchingVR(), show=False)
        >>> report.reference.loss_variance, report.data_loss_variance > 0
        (0.0, True)
    """
    _check_arguments(objective, x, num_projections, repeats)
    check_generator(generator, x)
    with torch.inference_mode(False), torch.enable_grad():
        source = generator_or_default(generator, x.device)
        source = source.clone_state() if generator is None else source
        if parameters is None:
            found = model.parameters() if isinstance(model, nn.Module) else ()
            parameters = [p for p in found if p.requires_grad]
        probe = _Probe(as_field(model), x.detach().clone(), tuple(parameters), repeats, source)
        variants = _variants(objective, tuple(num_projections), projections)
        report = _assemble(probe, objective, variants)
    if show:
        report.show()
    return report


@dataclass(frozen=True)
class _Measured:
    """Variances of the batch's mean loss and of its gradient, and the time of one evaluation."""

    loss: float
    gradient: float | None
    seconds: float = math.nan

    @property
    def variance(self) -> float:
        """That of the gradient, where there is one: it is what training sees."""
        return self.loss if self.gradient is None else self.gradient


class _Spread:
    """Running mean and variance of vectors, relative to the first one to limit rounding errors."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, value: Tensor) -> None:
        """Add one vector ``(K,)``."""
        if self.count == 0:
            self.first = value
            self.total, self.squares = torch.zeros_like(value), torch.zeros_like(value)
        self.count += 1
        self.total += value - self.first
        self.squares += (value - self.first).square()

    @property
    def mean(self) -> Tensor:
        return self.first + self.total / self.count

    @property
    def variance(self) -> Tensor:
        """Unbiased variance of every entry, ``(K,)``."""
        return (self.squares - self.total.square() / self.count) / (self.count - 1)


@dataclass(frozen=True, eq=False)
class _Probe:
    """The field, points, parameters and source of randomness of all measurements."""

    field: Field
    x: Tensor
    parameters: tuple[Tensor, ...]
    repeats: int
    generator: torch.Generator

    def evaluate(self, objective: Sliced, x: Tensor) -> list[Tensor]:
        """Mean loss and its gradient, for directions drawn now."""
        v = objective.draw(x, self.generator)
        with torch.set_grad_enabled(bool(self.parameters)):
            loss = objective.loss(self.field, x, v).mean()
        if not self.parameters:
            return [loss]
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        used = [gradient for gradient in gradients if gradient is not None]
        if not used:
            raise ValueError(
                "parameters must be used by the model, got a loss that depends on none of them; "
                "pass those of the network inside it"
            )
        return [loss.detach(), *used]

    def measure(self, objective: Sliced, scale: Tensor) -> _Measured:
        """Variance over directions, and the median time."""
        spread, seconds = _Spread(), []
        self.evaluate(objective, self.x)  # the first call includes one-time work
        for _ in range(self.repeats):
            start = now(self.x)
            value = self.evaluate(objective, self.x)
            seconds.append(now(self.x) - start)
            spread.add(_vector(value))
        # A variance of the size of rounding errors counts as zero.
        floor = (_ROUNDING * torch.finfo(self.x.dtype).eps) ** 2 * scale
        return self._summarise(spread.variance, floor, median(seconds))

    def data(self, objective: Sliced) -> tuple[_Measured, Tensor]:
        """Variance over data, and the mean square of one point's loss and gradient, ``(2,)``."""
        # Chunks must be independent of each other, so their directions are not balanced.
        projection = replace(objective.projection, balanced=False)
        objective = replace(objective, projection=projection)
        n, size = len(self.x), len(self.x) // min(_CHUNKS, len(self.x))
        order = torch.randperm(n, generator=self.generator, device=self.x.device)
        between, within = _Spread(), torch.zeros(())
        chunks = [rows for rows in order.split(size) if len(rows) == size]
        for rows in chunks:
            chunk = _Spread()
            for _ in range(_CHUNK_REPEATS):
                chunk.add(_vector(self.evaluate(objective, self.x[rows])))
            between.add(chunk.mean)
            within = within + chunk.variance / len(chunks)
        per_chunk = between.variance - within / _CHUNK_REPEATS
        total = size * between.variance + between.mean.square()
        measured = self._summarise(per_chunk * size / n, torch.zeros(2), math.nan)
        return measured, torch.stack([total[0], total[1:].sum()])

    def _summarise(self, variance: Tensor, floor: Tensor, seconds: float) -> _Measured:
        """Variances of the loss and, in total, of the gradient; zero up to the floor ``(2,)``."""
        parts = torch.stack([variance[0], variance[1:].sum()])
        loss, gradient = torch.where(parts > floor, parts, torch.zeros_like(parts)).tolist()
        return _Measured(loss, gradient if self.parameters else None, seconds)


def _assemble(probe: _Probe, objective: Sliced, variants: list[Sliced]) -> VarianceReport:
    """Measure the variants of an objective and the variance due to data."""
    data, scale = probe.data(objective)
    first = replace(objective, projection=PROJECTIONS[0], num_projections=1)
    reference = probe.measure(first, scale)
    measured = [reference if v == first else probe.measure(v, scale) for v in variants]
    rows = tuple(_row(v, m, reference, data) for v, m in zip(variants, measured, strict=True))
    kind = (type(objective), objective.projection)
    own = [r for v, r in zip(variants, rows, strict=True) if (type(v), v.projection) == kind]
    enough = 1.05 * min(row.total_cost for row in own)
    return VarianceReport(
        objective=type(objective).__name__,
        projection=_label(objective.projection),
        points=len(probe.x),
        dim=dimension(probe.x),
        repeats=probe.repeats,
        reference=_row(first, reference, reference, data),
        data_loss_variance=data.loss,
        data_gradient_variance=data.gradient,
        rows=rows,
        suggested=min(row.num_projections for row in own if row.total_cost <= enough),
    )


def _variants(
    objective: Sliced, counts: tuple[int, ...], projections: Sequence[Projection] | None
) -> list[Sliced]:
    """The objective with every projection and M, then plain SSM and SSM-VR with its own."""
    own = objective.projection
    if projections is None:
        projections = [p for p in PROJECTIONS if objective.quadratic or not p.quadratic_only]
    every = [*projections] if own in projections else [*projections, own]
    related = [
        kind(projection=own, num_projections=counts[0])
        for kind in (SlicedScoreMatching, SlicedScoreMatchingVR)
        if kind is not type(objective)
    ]
    return [
        *(replace(objective, projection=p, num_projections=m) for p in every for m in counts),
        *related,
    ]


def _row(objective: Sliced, got: _Measured, reference: _Measured, data: _Measured) -> VarianceRow:
    return VarianceRow(
        objective=type(objective).__name__,
        projection=_label(objective.projection),
        num_projections=objective.num_projections,
        loss_variance=got.loss,
        loss_relative=ratio(got.loss, reference.loss),
        gradient_variance=got.gradient,
        gradient_relative=ratio(got.gradient, reference.gradient),
        seconds=got.seconds,
        cost=got.seconds * got.variance,
        total_cost=got.seconds * (data.variance + got.variance),
    )


def _vector(value: list[Tensor]) -> Tensor:
    """Loss and gradient in one vector ``(1 + P,)``, in double precision on the CPU."""
    return torch.cat([part.reshape(-1).to("cpu", torch.float64) for part in value])


def _label(projection: Projection) -> str:
    """A short name, such as "Rademacher balanced"; with both options "Rademacher both"."""
    options = [f.name for f in fields(projection) if f.init and getattr(projection, f.name) is True]
    none = "unbalanced" if projection.quadratic_only else "iid"
    return f"{type(projection).__name__} {'both' if len(options) > 1 else [*options, none][0]}"


def _check_arguments(objective: Any, x: Any, num_projections: Any, repeats: Any) -> None:
    if not isinstance(objective, Sliced):
        raise TypeError(
            f"objective must be sliced, got {type(objective).__name__}, which draws no directions; "
            "call variance_report(model, x, SlicedScoreMatchingVR())"
        )
    check_points(x)
    if len(x) < 2:
        raise ValueError(
            f"x must hold at least two points, got {len(x)}; pass a batch as large as in training"
        )
    if not isinstance(num_projections, Collection) or len(num_projections) == 0:
        raise ValueError(
            f"num_projections must be a non-empty sequence, got {num_projections!r}; "
            "use (1, 2, 4, 8)"
        )
    for num in num_projections:
        check_count(num, "every entry of num_projections", "use (1, 2, 4, 8)")
    check_count(repeats, "repeats", "32 give a rough answer, 1000 a sharp one")
    if repeats < 2:
        raise ValueError(f"repeats must be at least 2, got {repeats}; 32 give a rough answer")
