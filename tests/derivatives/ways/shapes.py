"""Axes moved, joined, split and repeated."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.derivatives.ways.base import Way, constants


def batch_moved(z: Any, p: Any) -> Any:
    h = torch.sin(p(4, 3) @ z.T)
    return (h * p(4, 1)).T


def batch_last(z: Any, p: Any) -> Any:
    h = torch.exp(0.3 * z.permute(2, 1, 0))
    return (h * p(4, 2, 1)).movedim(-1, 0)


def square_transpose(z: Any, p: Any) -> Any:
    # With as many points as coordinates no shape tells the two axes apart.
    h = torch.sin(z.T)
    return (h * p(3, 1)).T.square()


def folded(z: Any, p: Any) -> Any:
    rows = z.reshape(-1, 1)
    return torch.sin(rows @ p(1, 4)).reshape(len(z), -1)


def folded_images(z: Any, p: Any) -> Any:
    n, a, b = z.shape
    h = torch.sin(z.reshape(n * a, b) @ p(b, 2))
    return h.unflatten(0, (n, a)).sum(1)


SHAPES = [
    Way("reshape", lambda z, p: z.reshape(-1, 2, 3) * p(2, 1), event=(6,)),
    Way("reshape tuple", lambda z, p: torch.reshape(z, (len(z), 3, 2)) * p(3, 1), event=(6,)),
    Way("reshape square", lambda z, p: (z.reshape(len(z), 3, 3) * p(3)).sum(2), event=(9,)),
    Way("view", lambda z, p: z.view(z.size(0), -1) * p(6), event=(2, 3)),
    Way("flatten", lambda z, p: z.flatten(1) * p(6), event=(2, 3)),
    Way("flatten module", lambda z, p: nn.Flatten()(z) * p(6), event=(2, 3)),
    Way("unflatten", lambda z, p: z.unflatten(1, (2, 3)) * p(2, 1), event=(6,)),
    Way("unflatten module", lambda z, p: nn.Unflatten(1, (2, 3))(z) * p(2, 1), event=(6,)),
    Way("squeeze", lambda z, p: z.squeeze(1) * p(3), event=(1, 3)),
    Way("squeeze last", lambda z, p: (z @ p(3, 1)).squeeze(-1)),
    Way("unsqueeze", lambda z, p: z.unsqueeze(0).unsqueeze(-1)[0] * p(3, 1)),
    Way("expand", lambda z, p: z.unsqueeze(1).expand(-1, 3, -1) * p(3, 1)),
    Way("expand batch", lambda z, p: (z.unsqueeze(0).expand(3, -1, -1) * p(3, 1, 1)).sum(0)),
    Way("expand batch square", lambda z, p: (z.expand(3, -1, -1) * p(3, 1, 1)).transpose(0, 1)),
    Way("expand_as", lambda z, p: z.sum(1, keepdim=True).expand_as(z) * p(3)),
    Way("expand_as of constant", lambda z, p: p(3).expand_as(z) * z),
    Way("broadcast_to", lambda z, p: torch.broadcast_to(z[:, :1], z.shape) * p(3)),
    Way("repeat", lambda z, p: z.repeat(1, 2) * p(6)),
    Way("repeat more axes", lambda z, p: (z.repeat(3, 1, 1) * p(3, 1, 1)).sum(0)),
    Way("tile", lambda z, p: z.tile(2) * p(6)),
    Way("repeat_interleave", lambda z, p: z.repeat_interleave(2, dim=1) * p(6)),
    Way(
        "repeat_interleave batch",
        lambda z, p: torch.sin(z.repeat_interleave(2, dim=0)).reshape(len(z), -1),
    ),
    Way("permute", lambda z, p: z.permute(0, 2, 1) * p(2), event=(2, 3)),
    Way("permute square", lambda z, p: z.permute(0, 2, 1) * p(3), event=(3, 3)),
    Way("transpose", lambda z, p: torch.transpose(z, 1, 2) * p(2), event=(2, 3)),
    Way("swapaxes", lambda z, p: z.swapaxes(1, 2) * p(2), event=(2, 3)),
    Way("movedim", lambda z, p: z.movedim(1, -1) * p(2), event=(2, 3)),
    Way("mT", lambda z, p: z.mT * p(2), event=(2, 3)),
    Way("mH", lambda z, p: z.mH * p(2), event=(2, 3)),
    Way("H", lambda z, p: (z.H.square() * p(3, 1)).T),
    Way("real", lambda z, p: z.real * p(3)),
    Way("t", lambda z, p: (z.t() * p(3, 1)).t()),
    Way("T square", square_transpose),
    Way("batch axis moved", batch_moved),
    Way("batch axis last", batch_last, event=(2, 4)),
    Way(
        "batch axis last square",
        lambda z, p: torch.exp(0.3 * z.permute(2, 1, 0)).permute(2, 1, 0) * p(3, 1),
        event=(3, 3),
    ),
    Way("batch axis folded", folded),
    Way("batch axis folded, images", folded_images, event=(2, 3)),
    Way("batch axis folded, square", folded_images, event=(3, 3)),
    Way("chunk", lambda z, p: (lambda a, b: a * torch.sin(b))(*z.chunk(2, 1)), event=(4,)),
    Way("split", lambda z, p: (lambda a, b: a.sum(1) * b[:, 0])(*z.split([2, 1], dim=1))),
    Way("split of one size", lambda z, p: (lambda a, b: a * b)(*torch.split(z, 2, -1)), event=(4,)),
    Way("tensor_split", lambda z, p: z.tensor_split(2, dim=1)[0] * p(2)),
    Way("unbind", lambda z, p: (lambda a, b, c: a * b + torch.sin(c))(*z.unbind(1))),
    Way("unbind square", lambda z, p: torch.stack(z.unbind(2), 1) * p(3), event=(3, 3)),
    Way("stack", lambda z, p: torch.stack([z, torch.sin(z), z * p(3)], 1)),
    Way("stack first", lambda z, p: torch.stack([z, torch.sin(z)]).movedim(0, 1) * p(2, 1)),
    Way("stack last with constants", lambda z, p: torch.stack([z, p(3).expand_as(z)], -1)),
    Way("cat", lambda z, p: torch.cat([z, torch.sin(z)], 1) * p(6)),
    Way("cat with constants", lambda z, p: torch.cat([p(1, 2).expand(len(z), 2), z], -1) ** 2),
    Way("cat tuple keyword", lambda z, p: torch.cat((z, z), dim=1) * p(6)),
    Way("hstack", lambda z, p: torch.hstack([z, torch.sin(z)])),
    Way("T of three axes", lambda z, p: z.permute(2, 1, 0).mT.movedim(0, 2).mT, event=(2, 3)),
    Way("diag_embed", lambda z, p: torch.diag_embed(z) @ p(3, 2)),
    Way(
        "diag_embed squared",
        lambda z, p: (torch.diag_embed(z) + 0.2).square().flatten(1) @ p(9),
    ),
    Way("diagonal", lambda z, p: torch.diagonal(z, dim1=1, dim2=2) * p(3), event=(3, 3)),
    Way("rot90", lambda z, p: torch.rot90(z, 1, (1, 2)) * p(2), event=(2, 3)),
    Way("tril", lambda z, p: z.tril() * p(3), event=(3, 3)),
    Way("triu", lambda z, p: torch.triu(z, 1) + z.square() * p(3), event=(3, 3)),
    Way("contiguous clone", lambda z, p: z.mT.contiguous().clone() * p(2), event=(2, 3)),
    Way("to", lambda z, p: z.to(torch.float64).double() * p(3)),
    Way("type_as", lambda z, p: z.type_as(p(3)) * p(3)),
    Way("view_as", lambda z, p: z.view_as(torch.zeros(len(z), 3, 2)) * p(3, 1), event=(6,)),
    Way("atleast_2d", lambda z, p: torch.atleast_2d(z) * p(3)),
    Way("ravel", lambda z, p: z.ravel().reshape(len(z), -1) * p(3)),
    Way("reshape_as", lambda z, p: z.reshape_as(constants(len(z), 3, 2)) * p(3, 1), event=(6,)),
    Way("swapdims", lambda z, p: z.swapdims(1, 2) * p(2), event=(2, 3)),
    Way("moveaxis", lambda z, p: z.moveaxis(1, -1) * p(2), event=(2, 3)),
    Way("adjoint", lambda z, p: z.adjoint() * p(2), event=(2, 3)),
    Way("atleast_3d", lambda z, p: torch.atleast_3d(z) * p(3, 1)),
    Way("concat", lambda z, p: torch.concat([z, torch.sin(z)], 1) * p(6)),
    Way("concatenate", lambda z, p: torch.concatenate([z, torch.sin(z)], dim=1) * p(6)),
    Way(
        "cat with an empty tensor", lambda z, p: torch.cat([torch.tensor([]).double(), z], 1) * p(3)
    ),
    Way("dstack", lambda z, p: torch.dstack([z, torch.sin(z) * p(3)])),
    Way("column_stack", lambda z, p: torch.column_stack([z, torch.sin(z)]) * p(6)),
    Way("vstack of rows", lambda z, p: torch.vstack([torch.sin(r) * p(3) for r in z])),
    Way("hsplit", lambda z, p: torch.mul(*z.hsplit(2)), event=(4,)),
    Way("vsplit", lambda z, p: torch.mul(*z.T.vsplit(2)).T, event=(4,)),
    Way("dsplit", lambda z, p: torch.mul(*z.dsplit(2)), event=(2, 4)),
    Way("diag", lambda z, p: torch.stack([torch.diag(r) for r in z]) * p(3)),
    Way("trace", lambda z, p: torch.stack([torch.trace(r) for r in z]) * p(1), event=(3, 3)),
    Way("linalg.diagonal", lambda z, p: torch.linalg.diagonal(z) * p(3), event=(3, 3)),
    Way("diff", lambda z, p: torch.diff(z, dim=1) * p(2)),
    Way("flipud of the transpose", lambda z, p: torch.flipud(z.T).T * p(3)),
    Way("as_strided", lambda z, p: (z * 1).as_strided((len(z), 2), (3, 2)) * p(2)),
    Way("unsafe_chunk", lambda z, p: torch.mul(*torch.unsafe_chunk(z, 2, 1)), event=(4,)),
    Way("unsafe_split", lambda z, p: torch.mul(*torch.unsafe_split(z, 2, 1)), event=(4,)),
    Way(
        "meshgrid",
        lambda z, p: torch.stack([torch.mul(*torch.meshgrid(r, p(2), indexing="ij")) for r in z]),
    ),
    Way(
        "cartesian_prod",
        lambda z, p: torch.stack([torch.cartesian_prod(r, p(2)).prod(1) for r in z]),
    ),
    Way("tril_indices", lambda z, p: z[:, *torch.tril_indices(3, 3)] * p(6), event=(3, 3)),
    Way(
        "to another precision",
        lambda z, p: z.to(torch.float32).to(torch.float64) * p(3),
        tolerance=1e-5,
    ),
    Way("float and double", lambda z, p: z.float().double() * p(3), tolerance=1e-5),
    Way("type", lambda z, p: z.type(torch.float64) * p(3)),
    Way("cpu", lambda z, p: z.cpu() * p(3)),
    Way("to a device", lambda z, p: z.to(device="cpu", non_blocking=True) * p(3)),
]
