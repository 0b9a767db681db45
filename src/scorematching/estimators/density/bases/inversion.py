"""Inverses of zuko's autoregressive flows, column by column."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def invert(transform: Any, z: Tensor) -> Tensor:
    """The points that a composed autoregressive transformation maps to z, ``(N, D) -> (N, D)``.

    zuko's own inverse evaluates all columns D times. Here the parameters of a column are computed
    when those before it are known, and only they.

    Args:
        transform: zuko's lazy composed transformation.
        z: values of the transformation, in the dtype of its parameters.
    """
    for layer in reversed(transform.transforms):
        # A flow of one column has layers without a network.
        z = _inverted(layer, z) if hasattr(layer, "hyper") else layer(None).inv(z)
    return z


def _inverted(layer: Any, y: Tensor) -> Tensor:
    x = torch.zeros_like(y)
    *first, last = layer.hyper
    hidden = nn.Sequential(*first)
    weights = (last.mask * last.weight).unflatten(0, (-1, layer.total))
    biases = last.bias.unflatten(0, (-1, layer.total))
    sizes = [math.prod(shape) for shape in layer.shapes]
    for j in layer.order.argsort().tolist():
        parts = F.linear(hidden(x), weights[j], biases[j]).split(sizes, -1)
        shaped = [p.reshape(len(y), *shape) for p, shape in zip(parts, layer.shapes)]
        x[:, j] = layer.univariate(*shaped).inv(y[:, j])
    return x
