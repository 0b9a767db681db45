"""Rows that a mask leaves nothing of, and which a model drops: exact derivatives of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import scorematching as sm
from scorematching import LogDensityField
from tests.laws import assert_close
from tests.models_zoo import normal
from tests.tolerances import ROUTES

MASK = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 1], [0, 1, 0, 0, 0]]).bool()
LIVE = ~MASK.all(1)


def points(seed: int, *shape: int) -> Tensor:
    return normal(*shape, generator=torch.Generator().manual_seed(seed))


class Rows(nn.Module):
    """Four rows of five numbers for every point, the second of which is masked altogether.

    The truth is the same model of the other rows alone.
    """

    def __init__(self, how: str, head: Callable[..., Tensor], whole: bool) -> None:
        super().__init__()
        self.how, self.head, self.whole = how, head, whole
        self.weight, self.a, self.b = (nn.Parameter(points(k, *s)) for k, s in SHAPES)

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.weight.T
        z = z[:, None] + self.a[:, None] * torch.tanh(z)[:, None]
        if self.how == "fill":
            z = z.masked_fill(MASK, -torch.inf)
        else:
            z = z + torch.zeros_like(MASK, dtype=z.dtype).masked_fill(MASK, -torch.inf)
        a, mask = (self.a, MASK) if self.whole else (self.a[LIVE], MASK[LIVE])
        z = z if self.whole else z[:, LIVE]
        return self.head(z, a, self.b, mask) - 0.5 * x.square().sum(1)


SHAPES = tuple(enumerate([(5, 3), (4,), (5,)]))


def finite(z: Tensor) -> Tensor:
    return torch.nan_to_num(z, nan=0.0, neginf=0.0)


HEADS: dict[str, Callable[..., Tensor]] = {
    "a mixture of mixtures": lambda z, a, b, m: torch.logsumexp(torch.logsumexp(z, 2) + a, 1),
    "logsumexp": lambda z, a, b, m: (finite(torch.logsumexp(z, 2)) * a).sum(1),
    "logsumexp and where": lambda z, a, b, m: (
        torch.where(m.all(1), 0.0, torch.logsumexp(z, 2, keepdim=True)[..., 0]) * a
    ).sum(1),
    "logaddexp": lambda z, a, b, m: (finite(torch.logaddexp(z[..., 0], z[..., 2])) * a).sum(1),
    "softmax": lambda z, a, b, m: (finite(torch.softmax(z, 2)) @ b * a).sum(1),
    "softmax and where": lambda z, a, b, m: (
        torch.where(m.all(1)[:, None], 0.0, F.softmax(z, dim=-1)) @ b * a
    ).sum(1),
    "log_softmax": lambda z, a, b, m: (
        torch.where(m, 0.0, z.log_softmax(-1)) @ b * torch.sigmoid(a)
    ).sum(1),
}


@pytest.mark.parametrize("objective", [sm.SlicedScoreMatchingVR(), sm.ScoreMatching()], ids=repr)
@pytest.mark.parametrize("route", ["auto", "traced", "reverse"])
@pytest.mark.parametrize("how", ["fill", "add"])
@pytest.mark.parametrize("head", HEADS)
def test_rows_that_are_masked_altogether(
    head: str, how: str, route: str, objective: sm.Objective
) -> None:
    """Their second derivative was NaN where the model itself and its score are finite."""
    x = points(0, 8, 3)
    noise = objective.draw(x, torch.Generator().manual_seed(1))
    found, truth = (
        _loss_and_gradient(Rows(how, HEADS[head], whole), objective, x, noise, way)
        for whole, way in ((True, route), (False, "reverse"))
    )
    for a, b in zip(found, truth):
        assert_close(a, b, ROUTES)


def _loss_and_gradient(
    model: nn.Module, objective: sm.Objective, x: Tensor, noise: Tensor, route: str
) -> list[Tensor]:
    loss = objective.loss(LogDensityField(model, route=route), x, noise)
    gradients = torch.autograd.grad(
        loss.mean(), list(model.parameters()), allow_unused=True, materialize_grads=True
    )
    return [loss.detach(), *gradients]


@pytest.mark.parametrize("route", ["auto", "traced", "reverse"])
def test_attention_of_queries_without_keys(route: str) -> None:
    """Torch's fused attention returns zero there; the trace returned NaN."""
    tokens, past = points(1, 4, 3), torch.ones(4, 4, dtype=torch.bool).tril(-1)

    def model(x: Tensor, first: int = 0) -> Tensor:
        z = x[:, None] * tokens
        y = F.scaled_dot_product_attention(z[:, first:], z, z, attn_mask=past[first:])
        return y.square().sum((1, 2)) - x.square().sum(1)

    x = points(0, 8, 3)
    found = LogDensityField(model, route=route).score_and_divergence(x)
    truth = LogDensityField(lambda x: model(x, 1), route="reverse").score_and_divergence(x)
    for a, b in zip(found, truth):
        assert_close(a, b, ROUTES)


def test_layerwise_objectives_of_masked_rows() -> None:
    """They write logsumexp and softmax out."""
    x = points(0, 8, 3)
    for head in ("logsumexp", "softmax"):
        found, truth = (
            sm.ApproximateBackprop()(Rows("fill", HEADS[head], whole), x) for whole in (True, False)
        )
        assert_close(found, truth, ROUTES)
