"""Entries chosen, moved and written."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.derivatives.ways.base import EVEN, GATHER, INDEX, Way, constants


def where_twice(z: Any, p: Any) -> Any:
    up = z > 0
    return torch.where(up, torch.log(torch.where(up, z, 1.0)), z * p(3))


def bag(z: Any, p: Any, **options: Any) -> Any:
    rows = INDEX.expand(len(z), 3)
    return F.embedding_bag(rows, p(4, 3), mode="sum", per_sample_weights=z, **options)


def bag_by_offsets(z: Any, p: Any) -> Any:
    rows, starts, weights = INDEX.repeat(len(z)), 3 * torch.arange(len(z)), z.reshape(-1)
    return F.embedding_bag(rows, p(4, 3), starts, mode="sum", per_sample_weights=weights)


INDEXING = [
    Way("slice", lambda z, p: z[:, 1:] * p(2)),
    Way("slice step", lambda z, p: z[:, ::2] * p(2)),
    Way("column", lambda z, p: z[:, 1] * torch.sin(z[:, -1])),
    Way("Ellipsis", lambda z, p: z[..., 0] * p(2), event=(2, 3)),
    Way("None", lambda z, p: z[:, None] * p(4, 1)),
    Way("None first", lambda z, p: torch.sin(z[None])[0] * p(3)),
    Way("index list", lambda z, p: z[:, [2, 0]] * p(2)),
    Way("index tensor", lambda z, p: z[:, INDEX] * p(3)),
    Way("index matrix", lambda z, p: z[:, INDEX.expand(2, 3)] * p(3)),
    Way("index array", lambda z, p: z[:, INDEX.numpy()] * p(3)),
    Way("two index tensors", lambda z, p: z[:, INDEX, INDEX - 1] * p(3), event=(3, 3)),
    Way("two index tensors, quadratic", lambda z, p: z[:, INDEX] * z[:, INDEX - 1]),
    Way("index of a number", lambda z, p: z[:, torch.tensor(1)] * torch.sin(z[:, 0])),
    Way("boolean mask", lambda z, p: z[:, EVEN] * p(2)),
    Way("boolean matrix", lambda z, p: z[:, torch.eye(3, dtype=torch.bool)] * p(3), event=(3, 3)),
    Way("rows of the transpose", lambda z, p: torch.sin(z.T[INDEX]).T * p(3)),
    Way(
        "rows of the transpose, array",
        lambda z, p: torch.sin(z.T[INDEX.numpy()]).T * p(3),
    ),
    Way("rows of the transpose, tuple", lambda z, p: torch.sin(z.T[(0, 2), :]).T * p(2)),
    Way("rows of the transpose, number", lambda z, p: torch.sin(z.T[1]) * p(1)),
    Way("rows of the transpose, mask", lambda z, p: torch.sin(z.T[EVEN]).T * p(2)),
    Way(
        "a mask of two axes before the batch",
        lambda z, p: (
            torch.sin(
                z.permute(1, 2, 0)
                .unsqueeze(-1)
                .unsqueeze(-1)
                .expand(2, 3, len(z), 1, 3)[
                    torch.tensor([[True, False, True], [False, True, False]])
                ]
            ).transpose(0, 1)
            * p(3)
        ),
        event=(2, 3),
    ),
    Way(
        "a number and an index tensor around the batch",
        lambda z, p: torch.sin(z.transpose(0, 1)[0, :, INDEX]) * p(3),
        event=(2, 3),
    ),
    Way("narrow", lambda z, p: z.narrow(1, 1, 2) * p(2)),
    Way("select", lambda z, p: z.select(1, 1) * torch.sin(z.select(1, 0))),
    Way("index_select", lambda z, p: torch.index_select(z, 1, INDEX) * p(3)),
    Way("index_select keywords", lambda z, p: torch.index_select(z, dim=1, index=INDEX) * p(3)),
    Way(
        "gather keywords",
        lambda z, p: torch.gather(z, dim=1, index=GATHER.expand(len(z), 4)) * p(4),
    ),
    Way("gather", lambda z, p: z.gather(1, GATHER.expand(len(z), 4)) * p(4)),
    Way("take_along_dim", lambda z, p: torch.take_along_dim(z, GATHER.expand(len(z), 4), 1) * p(4)),
    Way("where", lambda z, p: torch.where(EVEN, z, torch.sin(z) * p(3))),
    Way("where constant", lambda z, p: torch.where(EVEN, z, p(3))),
    Way("where number", lambda z, p: torch.where(EVEN, 0.5, z)),
    Way("where twice", where_twice, kinked=True),
    Way("where method", lambda z, p: z.where(EVEN, torch.sin(z) * p(3))),
    Way(
        "where more axes",
        lambda z, p: torch.where(EVEN.reshape(3, 1, 1), z, z.square()).movedim(0, 1) * p(3),
    ),
    Way("masked_fill", lambda z, p: z.masked_fill(EVEN, 0.7) * p(3)),
    Way("masked_fill keyword", lambda z, p: z.masked_fill(EVEN, value=0.7) * p(3)),
    Way("flip", lambda z, p: z.flip(1) * p(3)),
    Way("flip dims", lambda z, p: torch.flip(z, dims=(1, 2)) * p(3), event=(2, 3)),
    Way("fliplr", lambda z, p: torch.fliplr(z) * p(3)),
    Way("roll", lambda z, p: torch.roll(z, 1, dims=1) * z * p(3)),
    Way("roll method", lambda z, p: z.roll(1, 1) * p(3)),
    Way("Tensor.unfold", lambda z, p: z.unfold(1, 2, 1) * p(2)),
    Way("masked_select", lambda z, p: torch.masked_select(z, EVEN).reshape(len(z), 2) * p(2)),
    Way("take", lambda z, p: torch.stack([torch.take(r, INDEX) for r in z]) * p(3)),
    Way("fmax", lambda z, p: torch.fmax(z, p(3)), kinked=True),
    Way("fmin", lambda z, p: torch.fmin(z, p(3)), kinked=True),
    Way("embedding beside", lambda z, p: z * F.embedding(INDEX, p(4, 3)).sum(0)),
    Way("embedding_bag", bag, written_out=lambda z, p: z @ p(4, 3)[INDEX]),
    Way(
        "embedding_bag with padding",
        lambda z, p: bag(z, p, padding_idx=0),
        written_out=lambda z, p: (z * (INDEX != 0)) @ p(4, 3)[INDEX],
    ),
    Way("embedding_bag by offsets", bag_by_offsets, written_out=lambda z, p: z @ p(4, 3)[INDEX]),
    Way("bucketize", lambda z, p: z * p(4)[torch.bucketize(z, constants(3))], kinked=True),
    Way("cumulative maximum", lambda z, p: z.cummax(1).values * p(3), kinked=True),
    Way(
        "searchsorted",
        lambda z, p: z * p(4)[torch.searchsorted(constants(3), z.detach())],
        kinked=True,
    ),
    Way("index of a row", lambda z, p: torch.stack([z[i] * p(3) for i in range(len(z))])),
    Way("numpy mask", lambda z, p: z[:, EVEN.numpy()] * p(2)),
    Way("negative step by flip", lambda z, p: z[:, range(2, -1, -1)] * p(3)),
]
