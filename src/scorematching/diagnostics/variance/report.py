"""The results of a variance report, and how they are printed."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from scorematching._tables import text_table


@dataclass(frozen=True)
class VarianceRow:
    """One distribution of directions with one M.

    Attributes:
        objective: name of the objective.
        projection: name of the distribution.
        num_projections: M, directions per point.
        loss_variance: variance over directions of the batch's mean loss.
        loss_relative: the same, relative to independent Rademacher directions with M = 1.
        gradient_variance: total variance over directions (trace of the covariance) of the
            gradient of the mean loss; None without parameters.
        gradient_relative: the same, relative to independent Rademacher directions with M = 1.
        seconds: median time of drawing directions, loss and gradient.
        cost: seconds times projection variance (of the gradient, if there is one).
        total_cost: seconds times the sum of data and projection variance.
    """

    objective: str
    projection: str
    num_projections: int
    loss_variance: float
    loss_relative: float
    gradient_variance: float | None
    gradient_relative: float | None
    seconds: float
    cost: float
    total_cost: float


@dataclass(frozen=True)
class VarianceReport:
    """The results of `variance_report`; prints as a table.

    Attributes:
        objective: name of the objective.
        projection: name of the objective's own projection.
        points: N, the size of the batch that all variances belong to.
        dim: D, coordinates of one point.
        repeats: independent draws of the directions behind each row.
        reference: the row of independent Rademacher directions with M = 1.
        data_loss_variance: variance of the batch's mean loss over draws of the data.
        data_gradient_variance: the same of its gradient; None without parameters.
        rows: one for each projection and M, and one for each related objective.
        suggested: the smallest M whose `VarianceRow.total_cost` is within 5%, about the
            uncertainty of times, of the least for the objective's own projection.

    Example:
        >>> import torch
        >>> from scorematching import SlicedScoreMatchingVR, variance_report
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> report = variance_report(normal, torch.ones(4, 2), SlicedScoreMatchingVR(), show=False)
        >>> {row["projection"] for row in report.as_rows() if row["loss_variance"] > 0}
        {'Gaussian iid'}
    """

    objective: str
    projection: str
    points: int
    dim: int
    repeats: int
    reference: VarianceRow
    data_loss_variance: float
    data_gradient_variance: float | None
    rows: tuple[VarianceRow, ...]
    suggested: int

    def as_rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries, ready for `pandas.DataFrame`."""
        return [asdict(row) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """All results as numbers, strings, lists and dictionaries."""
        return {**asdict(self), "rows": self.as_rows()}

    def __str__(self) -> str:
        cells = [line for name, lines in self._sections() for line in ([name], *lines)]
        table = text_table(_HEADINGS, cells, align_right=True)
        return "\n".join([self._title(), "", table, "", self._conclusion()])

    def __repr__(self) -> str:
        """Short, because `variance_report` has printed the table."""
        return f"VarianceReport({len(self.rows)} rows: suggested num_projections={self.suggested})"

    def show(self) -> None:
        """Print the table."""
        print(self)

    def _title(self) -> str:
        of = f"loss {self.reference.loss_variance:.3g}"
        if self.reference.gradient_variance is not None:
            of += f", gradient {self.reference.gradient_variance:.3g}"
        return (
            f"Variance due to projections: {self.objective}, N = {self.points}, D = {self.dim}, "
            f"{self.repeats} repeats.\n"
            f"Variances and costs are relative to {self.reference.projection}, M = 1: {of}."
        )

    def _sections(self) -> list[tuple[str, list[list[str]]]]:
        """Cells to print, grouped by objective; variance due to data comes last."""
        names = list(dict.fromkeys(row.objective for row in self.rows))
        sections = [
            (name, [self._cells(row) for row in self.rows if row.objective == name])
            for name in names
        ]
        loss = ratio(self.data_loss_variance, self.reference.loss_variance)
        gradient = ratio(self.data_gradient_variance, self.reference.gradient_variance)
        return [*sections, ("Data", [["", "", _number(loss), _number(gradient), "", "", ""]])]

    def _cells(self, row: VarianceRow) -> list[str]:
        own = (row.objective, row.projection) == (self.objective, self.projection)
        mark = "*" if own and row.num_projections == self.suggested else ""
        return [
            f"{row.projection}",
            f"{mark}{row.num_projections}",
            _number(row.loss_relative),
            _number(row.gradient_relative),
            f"{1e3 * row.seconds:.2f}",
            _number(ratio(row.cost, self.reference.cost)),
            _number(ratio(row.total_cost, self.reference.total_cost)),
        ]

    def _conclusion(self) -> str:
        what = "gradient" if self.data_gradient_variance is not None else "loss"
        chosen = (
            f"* Suggested for {self.projection}: num_projections={self.suggested}, "
            f"the least time x (data + projection) variance of the {what}."
        )
        if what == "gradient":
            return chosen
        return f"{chosen}\nWithout parameters there is no gradient to measure; see parameters=."


def ratio(a: Any, b: Any) -> Any:
    """``a / b``, with infinity and NaN where b is zero; None where a number is missing."""
    if a is None or b is None:
        return None
    if b == 0:
        return math.nan if a == 0 else math.inf
    return a / b


_HEADINGS = (
    "\nprojection",
    "\nM",
    "loss\nvariance",
    "gradient\nvariance",
    "time\n(ms)",
    "time x\nvariance",
    "time x (data\n+ variance)",
)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
