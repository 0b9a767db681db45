"""Operations over axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.derivatives.ways.base import Way, constants


def distances(z: Any, p: Any) -> Any:
    return (z.unsqueeze(1) - p(5, 3)).square().sum(-1).sqrt()


REDUCTIONS = [
    Way("sum", lambda z, p: z.sum(1) * p(1)),
    Way("sum axes", lambda z, p: z.sum((1, 3)) * p(3), event=(2, 3, 2)),
    Way("sum keepdim", lambda z, p: z.sum(-1, keepdim=True) * z),
    Way("sum numpy axis", lambda z, p: z.sum(axis=1) * p(1)),
    Way("mean", lambda z, p: z.mean(1) * p(1)),
    Way("mean of images", lambda z, p: torch.mean(z, dim=(2, 3)) * p(2), event=(2, 2, 3)),
    Way("sum of the transpose", lambda z, p: torch.sin(z.T.sum(0)) * p(1)),
    Way("cumsum", lambda z, p: z.cumsum(1) * p(3)),
    Way("cumsum keyword", lambda z, p: torch.cumsum(z, dim=1) * p(3)),
    Way("cumprod", lambda z, p: z.cumprod(1) * p(3)),
    Way("prod", lambda z, p: z.prod(1) * p(1)),
    Way("prod keepdim", lambda z, p: torch.prod(z, -1, True) * p(1)),
    Way("maximum", lambda z, p: torch.maximum(z, p(3)), kinked=True),
    Way("minimum", lambda z, p: torch.minimum(z, torch.sin(z) * p(3)), kinked=True),
    Way("max of two", lambda z, p: torch.max(z, p(3)), kinked=True),
    Way("max along an axis", lambda z, p: z.max(1).values * p(1), kinked=True),
    Way("max keepdim", lambda z, p: torch.max(z, dim=1, keepdim=True)[0] * z, kinked=True),
    Way("amax", lambda z, p: z.amax(1) * p(1), kinked=True),
    Way("sort", lambda z, p: z.sort(1).values * p(3), kinked=True),
    Way("topk", lambda z, p: z.topk(2).values * p(2), kinked=True),
    Way("softmax", lambda z, p: torch.softmax(z * p(3), 1)),
    Way("softmax of images", lambda z, p: F.softmax(z * p(3), dim=1) * p(2, 1), event=(2, 3)),
    Way("log_softmax", lambda z, p: torch.log_softmax(z * p(3), -1)),
    Way("log_softmax module", lambda z, p: nn.LogSoftmax(dim=1)(z)),
    Way("logsumexp", lambda z, p: torch.logsumexp(z * p(3), 1)),
    Way("logsumexp axes", lambda z, p: z.logsumexp((1, 2)), event=(2, 3)),
    Way("logsumexp keepdim", lambda z, p: z - torch.logsumexp(z, dim=1, keepdim=True)),
    Way("softmin", lambda z, p: F.softmin(z, dim=1)),
    Way("mixture", lambda z, p: torch.logsumexp(-(z[:, None] - p(4, 3)).square().sum(2), 1)),
    Way("var", lambda z, p: z.var(1) * p(1)),
    Way("var biased", lambda z, p: torch.var(z, dim=1, unbiased=False) * p(1)),
    Way("var correction", lambda z, p: torch.var(z, dim=(1, 2), correction=0), event=(2, 3)),
    Way("std", lambda z, p: z.std(1, keepdim=True) * z),
    Way("norm", lambda z, p: z.norm(dim=1) * p(1)),
    Way("vector_norm", lambda z, p: torch.linalg.vector_norm(z, dim=1, keepdim=True) * z),
    Way("linalg.norm", lambda z, p: torch.linalg.norm(z, dim=1)),
    Way("norm of order 3", lambda z, p: torch.linalg.vector_norm(z, 3, dim=1)),
    Way("distances", distances),
    Way("sum of a precision", lambda z, p: z.sum(1, dtype=torch.float64) * p(1)),
    Way("mean numpy axis", lambda z, p: z.mean(axis=1, keepdims=True) * z),
    Way("min along an axis", lambda z, p: z.min(1).values * p(1), kinked=True),
    Way("amin", lambda z, p: z.amin(1, keepdim=True) * z, kinked=True),
    Way(
        "amax over two axes",
        lambda z, p: z.amax((1, 2)) * p(1),
        event=(2, 3),
        kinked=True,
        traced=None,
    ),
    Way("aminmax", lambda z, p: torch.mul(*z.aminmax(dim=1)), kinked=True),
    Way("median", lambda z, p: z.median(1).values * p(1), kinked=True),
    Way("nanmedian", lambda z, p: z.nanmedian(1, True).values * z, kinked=True),
    Way("mode", lambda z, p: z.mode(1).values * p(1), kinked=True),
    Way("kthvalue", lambda z, p: z.kthvalue(2, 1).values * p(1), kinked=True),
    Way("quantile", lambda z, p: z.quantile(0.3, dim=1), kinked=True, traced=None),
    Way("cummin", lambda z, p: torch.cummin(z, 1)[0] * p(3), kinked=True),
    Way("msort", lambda z, p: torch.msort(z.T).T * p(3), kinked=True),
    Way(
        "sort descending", lambda z, p: torch.sort(z, dim=1, descending=True)[0] * p(3), kinked=True
    ),
    Way(
        "topk smallest",
        lambda z, p: torch.topk(z, 2, dim=1, largest=False).values * p(2),
        kinked=True,
    ),
    Way("cumprod of zeros", lambda z, p: (z * constants(3).clamp(min=0)).cumprod(1) * p(3)),
    Way("prod of zeros", lambda z, p: (torch.sin(z) * constants(3).clamp(min=0)).prod(1) * p(1)),
    Way("prod of seven", lambda z, p: (1 + 0.3 * torch.sin(z)).prod(1) * p(1), event=(7,)),
    Way("cumprod of five", lambda z, p: (1 + 0.3 * torch.sin(z)).cumprod(1) * p(5), event=(5,)),
    Way(
        "logcumsumexp",
        lambda z, p: torch.logcumsumexp(z, 1) * p(3),
        written_out=lambda z, p: z.exp().cumsum(1).log() * p(3),
    ),
    Way("softmax of a precision", lambda z, p: F.softmax(z * p(3), -1, dtype=torch.float64)),
    Way("special.softmax", lambda z, p: torch.special.softmax(z * p(3), 1)),
    Way("special.log_softmax", lambda z, p: torch.special.log_softmax(z * p(3), 1)),
    Way("special.logsumexp", lambda z, p: torch.special.logsumexp(z * p(3), 1)),
    Way(
        "cross_entropy",
        lambda z, p: F.cross_entropy(
            z * p(3), torch.zeros(len(z), dtype=torch.long), reduction="none"
        ),
    ),
    Way(
        "nll_loss",
        lambda z, p: F.nll_loss(
            F.log_softmax(z * p(3), 1), torch.ones(len(z), dtype=torch.long), reduction="none"
        ),
    ),
    Way("kl_div", lambda z, p: F.kl_div(z, torch.sigmoid(z * p(3)), reduction="none")),
    Way("logaddexp2", lambda z, p: torch.logaddexp2(z, p(3))),
    Way("var_mean", lambda z, p: torch.mul(*torch.var_mean(z, 1)) * p(1)),
    Way("std_mean", lambda z, p: torch.add(*torch.std_mean(z, dim=1, keepdim=True)) * z),
    Way("norm of order 1", lambda z, p: z.norm(p=1, dim=1) * p(1), kinked=True),
    Way(
        "norm of order infinity",
        lambda z, p: z.norm(p=float("inf"), dim=1),
        kinked=True,
        traced=None,
    ),
    Way("cumulative_trapezoid", lambda z, p: torch.cumulative_trapezoid(z, dim=1) * p(2)),
    Way("trapezoid", lambda z, p: torch.trapezoid(z, dx=0.3, dim=1) * p(1)),
    Way("trapz", lambda z, p: torch.trapz(z, constants(3), dim=1) * p(1)),
    Way("nansum", lambda z, p: torch.nansum(z, 1) * p(1)),
    Way(
        "cov", lambda z, p: torch.stack([torch.cov(r) for r in z]) * p(2), event=(2, 3), traced=None
    ),
    Way("dist", lambda z, p: torch.stack([torch.dist(r, p(3)) for r in z]), traced=None),
    Way("renorm", lambda z, p: torch.renorm(z, 2, 0, 0.5), kinked=True),
]
