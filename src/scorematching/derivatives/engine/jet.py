"""Second-order jets: value, tangents and mean second derivative, all carried forward."""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching.derivatives.engine.pairing import Tangents
from scorematching.derivatives.engine.tape import Axis, Inputs, Push, Second
from scorematching.derivatives.engine.trace import Traced


class Jet(Tangents):
    """Carries the mean second derivative forward.

    It serves models with many outputs, exact traces, and models whose batch axis is not known:
    ``second(y) = phi'[second(x)] + phi''[u, u]``, with no reverse pass.
    """

    curves = True

    def emit(self, inputs: Inputs, y: Tensor, push: Push, second: Second, axis: Axis) -> Traced:
        """Push the tangents and the second derivative forward."""
        z = super().emit(inputs, y, push, second, axis)
        if any(x.s is not None for x in inputs):
            seconds = [torch.zeros_like(x.p) if x.s is None else x.s for x in inputs]
            z.s = push(*[s[None] for s in seconds])[0]
        if second is not None:
            z.s = second() if z.s is None else z.s + second()
        return z


def second_derivative(y: Traced) -> Tensor:
    """The mean second derivative of a jet's output, at its full shape."""
    return torch.zeros_like(y.p) if y.s is None else y.s.expand_as(y.p)
