"""Double backward: the route that works for every differentiable model.

The first gradient is computed once and shared by all directions; every direction then costs one
more backward pass. Directions are taken in chunks, so that the memory of an evaluation does not
grow with their number, or one by one where torch cannot batch the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_map

from scorematching._checks import check_depends, refuse_transforms
from scorematching._shapes import dimension, event_axes, inner

Answer = TypeVar("Answer", Tensor, tuple[Tensor, Tensor])

CHUNK_NUMBERS = 1 << 20
"""Coordinates of directions that one batched backward pass carries at most."""


def ask(question: Callable[[Tensor], Answer], x: Tensor) -> Answer:
    """Answer a question at points that record derivatives, leaving the caller's as they are.

    Works under ``no_grad`` and ``inference_mode``, where the answer comes back detached. Where
    ``x`` itself is being differentiated (the output of an encoder, say), backwards or by
    forward-mode tangents, the answer stays connected to it.
    """
    if not torch.is_grad_enabled():
        with torch.inference_mode(False), torch.enable_grad():
            return tree_map(Tensor.detach, question(x.detach().clone().requires_grad_()))
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        if x.requires_grad:
            return question(x.view_as(x))
        moves = forward_ad.unpack_dual(x).tangent is not None
        own = x.clone() if x.is_inference() else x.view_as(x) if moves else x.detach()
        try:
            own.requires_grad_()
        except RuntimeError as error:
            refuse_transforms(error)
            raise
        return question(own.view_as(own) if moves else own)  # tangents of leaves may be dropped


def gradient(y: Tensor, x: Tensor) -> Tensor:
    """Gradients of ``y: (N, *F)`` at ``x: (N, *event)``, one point at a time: ``(N, *F, *event)``.

    Row i of ``y`` may depend on row i of ``x`` only, so the gradient of a sum over rows holds the
    gradient of every row.
    """
    check_depends(y.requires_grad, "log-density")
    if y.ndim > 1:
        return torch.stack([gradient(column, x) for column in y.unbind(1)], dim=1)
    (s,) = torch.autograd.grad(y.sum(), x, create_graph=True, allow_unused=True)
    check_depends(s is not None, "log-density")
    return s


def curvature(s: Tensor, x: Tensor, v: Tensor, create_graph: bool, may_be_constant: bool) -> Tensor:
    """Mean over directions of ``v' (ds/dx) v``, for ``s: (N, *F, *event)``: ``(N, *F)``.

    ``may_be_constant`` says whether a score that ignores x has zero curvature or is a mistake.
    """
    if s.ndim > x.ndim:
        columns = [curvature(c, x, v, create_graph, may_be_constant) for c in s.unbind(1)]
        return torch.stack(columns, dim=1)
    total = x.new_zeros(x.shape[0])
    for chunk in v.split(max(1, CHUNK_NUMBERS // x.numel())):
        product = _pull_back(s, x, chunk, create_graph)
        check_depends(may_be_constant or product is not None, "vector field")
        if product is not None:
            total = total + inner(chunk, product, event_axes(x)).sum(0)
    return total / v.shape[0]


def divergence(s: Tensor, x: Tensor, create_graph: bool, may_be_constant: bool) -> Tensor:
    """Exact trace of ``ds/dx``, for ``s: (N, *F, *event)``: ``(N, *F)``.

    Cost: D backward passes, ``CHUNK_NUMBERS`` coordinates at a time.
    """
    d = dimension(x)
    basis = torch.eye(d, dtype=x.dtype, device=x.device)
    basis = basis.reshape(d, 1, *x.shape[1:]).expand(d, *x.shape)
    return d * curvature(s, x, basis, create_graph, may_be_constant)


def _pull_back(s: Tensor, x: Tensor, v: Tensor, create_graph: bool) -> Tensor | None:
    """``v' (ds/dx)`` for every direction of ``v: (m, N, *event)``; None where s ignores x."""
    if not s.requires_grad:
        return None
    grad = partial(
        torch.autograd.grad, s, x, create_graph=create_graph, retain_graph=True, allow_unused=True
    )
    if v.shape[0] > 1 and not (create_graph and _has_custom_function(s)):
        try:
            return grad(grad_outputs=v, is_grads_batched=True)[0]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # a product with a sparse matrix, for example, which vmap refuses
            pass
    products = [grad(grad_outputs=w)[0] for w in v]
    return None if products[0] is None else torch.stack(products)


def _has_custom_function(s: Tensor) -> bool:
    """Whether a graph contains custom autograd functions, in Python or C++.

    Where their backward pass applies another one to a batch of gradients, torch computes the right
    product without a graph: its derivative is missing, with no error.
    """
    seen: set[Any] = set()
    waiting: list[Any] = [s.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction) or "CppNode" in node.name():
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False
