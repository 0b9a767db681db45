"""Directions that share out one vector between them, each with its own part of the coordinates.

A loss reads M directions of a point only through the mean of ``v_j v_j'``. Let one vector w be
dealt out at random, every coordinate to one direction, and

    ``v_j = sqrt(M) w`` on the coordinates of direction j, zero elsewhere.

That mean is then ``w w'`` with the entries struck out whose coordinates went to different
directions: M - 1 in M of them, as for M orthogonal directions of any other kind. But a linear
layer that reads the points, ``W v_j``, costs all M of them together no more than one, because
each direction meets its own columns of W alone.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from scorematching._shapes import dimension

WORTH = 1 << 21
"""Products of a linear layer with M directions from which on it pays to look for their parts."""


@dataclass(frozen=True)
class Shares:
    """Who has which coordinate.

    Attributes:
        whole: the sum of all directions, ``(N, D)``.
        taken: the coordinates of every direction, ``(M, K)``; D stands for none.
    """

    whole: Tensor
    taken: Tensor

    def directions(self) -> Tensor:
        """All of them with their zeros, ``(M, N, D)``."""
        d = self.whole.shape[1]
        mine = self.whole.new_zeros(len(self.taken), d + 1).scatter_(1, self.taken, 1.0)
        return mine[:, None, :d] * self.whole

    def through(self, weight: Tensor) -> Tensor:
        """``W v_j`` for weights ``(out, D)``: ``(M, N, out)``, without a product by zero."""
        (n, d), (m, k) = self.whole.shape, self.taken.shape
        whole, flat = self.whole, self.taken.flatten()
        columns, place = flat, flat.argsort()
        if m * k > d:  # some have none in their last place
            whole, columns, place = F.pad(whole, (0, 1)), flat.clamp(max=d - 1), place[:d]
        parts = whole.index_select(1, flat).view(n, m, k).transpose(0, 1)
        result: Tensor = _ByParts.apply(weight, parts, columns, place)
        return result


class _ByParts(torch.autograd.Function):
    """Every direction's part of the coordinates times its own columns of the weights.

    Every column has one place where it counts, so its gradient is read from there: faster than
    adding up over all places, and in the same order every time.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, parts: Tensor, columns: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(parts, place)
        m, _, k = parts.shape
        return torch.bmm(parts, weight.index_select(1, columns).view(-1, m, k).permute(1, 2, 0))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        parts, place = ctx.saved_tensors
        gathered = torch.bmm(parts.transpose(1, 2), grads[0]).flatten(0, 1)
        return gathered.index_select(0, place).t(), None, None, None


def deal(w: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
    """Directions ``(M, N, *event)`` that share out ``w: (N, *event)``; M is at most D.

    Every direction gets D / M coordinates, rounded up or down; which of them get one more is
    drawn as well, so that they are all alike.
    """
    d = dimension(w)
    # Sorting random keys, unlike randperm, can be recorded in a CUDA graph.
    taken = torch.rand(d, generator=generator, device=w.device).argsort()
    if d % num == 0:
        taken = taken.view(num, -1)
    else:
        taken = F.pad(taken, (0, -d % num), value=d).view(-1, num).t()
        first = torch.rand(num, generator=generator, device=w.device).argsort()
        taken = taken.index_select(0, first)
    shares = Shares(num**0.5 * w.flatten(1), taken)
    return note(shares.directions().reshape(num, *w.shape), shares)


_notes: MutableMapping[Tensor, tuple[Shares, int]] = WeakIdKeyDictionary()


def note(v: Tensor, shares: Shares | None) -> Tensor:
    """The same tensor, with a note of what its directions share; it is lost in any operation."""
    if shares is not None and not v.is_inference():
        _notes[v] = shares, v._version
    return v


def noted(v: Tensor) -> Shares | None:
    """What directions share, if that is known and still true of them.

    Not so where they have been changed in place, or are differentiated themselves; and what is
    being compiled takes the directions as they come, this time and every other.
    """
    shares, version = _notes.get(v, (None, None))
    if shares is None or v._version != version or v.requires_grad or get_proxy_mode() is not None:
        return None
    return shares
