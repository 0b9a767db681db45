"""How the derivatives of a model are taken."""

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points, check_type
from scorematching._tables import Table
from scorematching.derivatives.memory import Findings
from scorematching.derivatives.ops.registry import kink_of
from scorematching.derivatives.trust import require_smooth
from scorematching.errors import PerformanceWarning, SmoothnessError, WrongDerivativeError
from scorematching.fields import as_field
from scorematching.objectives import Objective

ROUTES = {"elementwise": "rule", "structural": "rule", "constant buffer": "constant"}
"""Words of the table for kinds of operations; other kinds are printed as they are."""


def explain(model: Any, x: Tensor, objective: Objective | None = None, show: bool = True) -> Table:
    """How an objective differentiates a model, operation by operation.

    The objective is evaluated and differentiated as in training, and the table shows what was
    done. Routes: "rule", a closed form of the library; "linear", nothing to differentiate twice;
    "composed", written in simpler operations, which are listed too; "decomposed", the same by
    torch's own decomposition; "nested jvp", torch's forward mode through that operation alone. The
    conclusion says whether the model was traced, or what stood in the way, and how smooth it is.

    Args:
        model: a log-density ``(N, *event) -> (N,)`` or a `Field`.
        x: a few points ``(N, *event)``.
        objective: what the model is to be trained with; None is a sliced objective.
        show: whether to print the table.

    Example:
        >>> table = explain(lambda x: -x.square().sum(-1), torch.ones(1, 2), show=False)
        >>> [row[:3] for row in table.rows]
        [('square', '1', 'rule'), ('sum', '1', 'rule'), ('neg', '1', 'rule')]
    """
    check_points(x)
    if objective is not None:
        advice = "pass one such as ScoreMatching()"
        check_type(objective, Callable, "objective must be an objective or None", advice)
    field = as_field(model)
    refusal = ""
    unchecked = copy(field)  # lists the operations of a model that is refused, too
    unchecked.model = replace(field.model, check_smoothness=False)
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore", PerformanceWarning)
        if objective is None:
            unchecked.score_and_curvature(x, torch.ones_like(x))
        else:
            objective(unchecked, x, torch.Generator(x.device))
        try:
            require_smooth(field.model, x, order=1, what="curvature")
        except (SmoothnessError, WrongDerivativeError) as error:
            refusal = str(error)
    findings = field.model.findings
    table = Table(
        ("operation", "count", "route", "smoothness"),
        tuple(
            (name, str(count), ROUTES.get(kind, kind), _smoothness(name))
            for (name, kind), count in findings.operations.items()
        ),
        _conclusion(findings, field.model.route, refusal),
    )
    if show:
        print(table)
    return table


def _conclusion(findings: Findings, route: str, refusal: str) -> str:
    """Which way the derivatives were taken, and how smooth the model is."""
    slow = findings.routes.get("curvature") == "reverse" or route == "reverse"
    if slow:
        asked = 'route="reverse"' if route == "reverse" else "measured to be faster than the trace"
        reason = findings.obstacle or findings.reason or asked
        way = f"not traced, double backward instead ({reason})"
    elif findings.lost_axis:
        way = "traced: derivatives carried forward, since the batch axis cannot be followed"
    else:
        way = "traced: one reverse pass for all directions"
    if refusal:
        return f"{way}\nrefused: {refusal}"
    return way if findings.smoothness is None else f"{way}\n{findings.smoothness}"


def _smoothness(name: str) -> str:
    """The smoothness of an operation by itself, from the registry."""
    order = kink_of(name)
    return "smooth" if order is None else f"C{order}" if order >= 0 else "may jump"
