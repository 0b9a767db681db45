"""Weights h that vanish at the boundary of a domain, by the formulas of the literature."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_positive

Weight = Callable[[Tensor], Tensor]
"""An elementwise function of distances to the boundary, zero at zero."""


def capped(h: Tensor, cap: float) -> Tensor:
    """``min(h, cap)``, with the mean of both slopes where the two are equal.

    Rounded points lie there often. They stand for points to either side.
    """
    return torch.minimum(h, torch.full_like(h, cap))


NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
FORMULAS: dict[str, Callable[..., Weight]] = {
    rf"min\(x,{NUMBER}\)": lambda c: lambda x: capped(x, c),
    rf"min\(log\(1\+x\),{NUMBER}\)": lambda c: lambda x: capped(x.log1p(), c),
    rf"min\(x\^{NUMBER},{NUMBER}\)": lambda a, c: lambda x: capped(x.pow(a), c),
}


def weight_function(h: str | Weight) -> Weight:
    """A weight by its formula, or any elementwise function of the distance to the boundary.

    Args:
        h: ``"min(x, c)"``, ``"min(log(1+x), c)"`` or ``"min(x^a, c)"`` with numbers a and c, or a
            function that is zero at zero, positive elsewhere and differentiable almost everywhere.

    Reference: Hyvarinen (2007), ``x^2``; Yu, Drton and Shojaie (2019), the others.

    Example:
        >>> weight_function("min(log(1+x), 2)")(torch.tensor([0.0, 100.0])).tolist()
        [0.0, 2.0]
    """
    if callable(h):
        return h
    for pattern, make in FORMULAS.items():
        found = re.fullmatch(pattern, str(h).replace(" ", ""))
        if found:
            numbers = [float(number) for number in found.groups()]
            for number in numbers:
                check_positive(number, "every number in h", "min(x, 1) is a start")
            return make(*numbers)
    raise ValueError(
        f'h must be "min(x, c)", "min(log(1+x), c)" or "min(x^a, c)" with numbers a and c, or a '
        f"function of the distance to the boundary, got {h!r}"
    )


def check_weight(h: str | Weight) -> None:
    """Refuse a weight that does not remove the boundary term.

    Raises:
        ValueError: if it is unknown, or not zero at the boundary.
    """
    edge = float(weight_function(h)(torch.zeros(1, dtype=torch.float64)))
    if not abs(edge) <= 1e-12:
        raise ValueError(
            f"h must be zero at distance zero, where it removes the boundary term, got {edge:g}; "
            '"min(x, 1)" is a start'
        )


def gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """A function's values and the gradient of their sum, connected to x where x is."""
    connected = torch.is_grad_enabled() and x.requires_grad
    with torch.inference_mode(False), torch.enable_grad():
        own = x.view_as(x) if connected else x.detach().clone().requires_grad_()
        value = function(own)
        slope = _slope(value, own, connected)
    return (value, slope) if connected else (value.detach(), slope.detach())


def _slope(value: Tensor, x: Tensor, connected: bool) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(x)
    found: Any = torch.autograd.grad(
        value.sum(), x, create_graph=connected, retain_graph=True, allow_unused=True
    )[0]
    return torch.zeros_like(x) if found is None else found
