"""Whether the loss and its gradient are right: ours, by double backward, and by differences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import scorematching as sm
from benchmarks.networks.losses import field_of, signs, sliced
from benchmarks.networks.models import Case

STEP = 1e-5
"""Length of the steps of central differences; parameters have order one."""


def agreement(case: Case, seed: int, device: str) -> dict[str, Any]:
    """Errors of loss and gradient in float64, relative to the norm of our gradient.

    The gradient by double backward can be wrong: torch's third derivative of layer normalisation
    is. Where the two gradients differ, central differences of the loss along their difference
    tell which is right; the value of the loss needs no third derivative.

    Returns:
        The network; ``loss``, the relative difference of the two losses; ``gradients``, that of
        the two gradients; ``ours`` and ``bare``, the errors of each against differences.
    """
    model, x = case.make(seed, device)
    model, x = model.double(), x.double()
    v = signs(x, 2, torch.Generator(device).manual_seed(seed))
    mine = sm.SlicedScoreMatchingVR().loss(field_of(model, case.vector), x, v).mean()
    by_hand = sliced(model, x, v, case.vector).mean()
    ours, bare = (gradient(loss, model) for loss in (mine, by_hand))
    scale = ours.norm()
    apart = ours - bare
    directions = [ours / scale]
    if apart.norm() > 1e-8 * scale:
        directions.append(apart / apart.norm())
    slopes = [difference(model, x, v, case.vector, d) for d in directions]
    return {
        "network": case.name,
        "loss": ((mine - by_hand) / by_hand).abs().item(),
        "gradients": float(apart.norm() / scale),
        **{
            name: max(float((g @ d - slope).abs() / scale) for d, slope in zip(directions, slopes))
            for name, g in (("ours", ours), ("bare", bare))
        },
    }


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """The gradient in all parameters, as one vector."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found)]
    return torch.cat([g.flatten() for g in flat]).detach()


def difference(model: nn.Module, x: Tensor, v: Tensor, vector: bool, direction: Tensor) -> Tensor:
    """The slope of the loss along a direction of the parameters, by central differences."""
    parameters = list(model.parameters())
    start = nn.utils.parameters_to_vector(parameters).detach()
    losses = []
    for sign in (1, -1):
        nn.utils.vector_to_parameters(start + sign * STEP * direction, parameters)
        losses.append(sliced(model, x, v, vector).mean().detach())
    nn.utils.vector_to_parameters(start, parameters)
    return (losses[0] - losses[1]) / (2 * STEP)
