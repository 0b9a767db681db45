"""Values written into tensors: by index, by scatter, in place."""

from __future__ import annotations

from typing import Any

import torch

from tests.derivatives.ways.base import EVEN, GATHER, INDEX, Way, constants

ORDER = torch.tensor([2, 0, 1])


def written(write: Any) -> Any:
    """A way that fills a tensor of zeros like z and returns it."""

    def op(z: Any, p: Any) -> Any:
        buffer = torch.zeros_like(z)
        write(buffer, z * p(3))
        return buffer

    return op


def changed(change: Any) -> Any:
    """A way that changes a value of its own in place."""

    def op(z: Any, p: Any) -> Any:
        h = torch.sin(z) * p(3)
        change(h, z)
        return h

    return op


def into_plain(z: Any, p: Any) -> Any:
    buffer = torch.zeros(len(z), 4, dtype=torch.float64)
    buffer[:, 1:] = z * p(3)
    return buffer.square()


def row_by_row(z: Any, p: Any) -> Any:
    buffer = torch.empty(z.shape, dtype=torch.float64)
    for i in range(len(z)):
        buffer[i] = torch.sin(z[i]) * p(3)
    return buffer


def column_by_column(z: Any, p: Any) -> Any:
    buffer = torch.zeros_like(z)
    for i in range(3):
        buffer[:, i] = z[:, i] * p(3)[i] + buffer[:, :i].sum(1)
    return buffer


def autoregressive(z: Any, p: Any) -> Any:
    """The inverse of an autoregressive flow, one coordinate after the other."""
    y = torch.zeros_like(z)
    for i in range(3):
        shift = torch.tanh(y @ p(3, 3).tril(-1).T)
        y = y.clone()
        y[:, i] = z[:, i] * torch.exp(-0.3 * shift[:, i]) - shift[:, i]
    return y


def through_a_view(z: Any, p: Any) -> Any:
    h = torch.sin(z) * p(3)
    h[:, :2].mul_(2.0)
    return h


def accumulated(z: Any, p: Any) -> Any:
    total = torch.zeros(len(z), dtype=torch.float64)
    for i in range(3):
        total += torch.sin(z[:, i]) * p(3)[i]
    return total.square()


def augmented_alias(z: Any, p: Any) -> Any:
    h = z * p(3)
    before = h
    h += torch.sin(z)
    return h * before  # both names are the sum


def augmented_view(z: Any, p: Any) -> Any:
    buffer = constants(1, 3).repeat(len(z), 1)
    column = buffer[:, 0]
    column += z[:, 0]
    return buffer * z * p(3)


def scattered(name: str, *extra: Any) -> Any:
    """A scatter method of zeros, by name; where entries meet, all but `scatter` add them."""
    columns = [2, 0, 3] if name == "scatter" else [2, 0, 2]

    def op(z: Any, p: Any) -> Any:
        base = torch.zeros(len(z), 4, dtype=torch.float64)
        index = torch.tensor([columns]).expand(len(z), 3)
        return getattr(base, name)(1, index, z * p(3), *extra)

    return op


WRITES = [
    Way("write all", written(lambda b, h: b.__setitem__(slice(None), h))),
    Way("write Ellipsis", written(lambda b, h: b.__setitem__(Ellipsis, h))),
    Way("write a column", written(lambda b, h: b.__setitem__((slice(None), 0), h[:, 2]))),
    Way("write columns", written(lambda b, h: b.__setitem__((Ellipsis, slice(1, None)), h[:, :2]))),
    Way("write reversed", written(lambda b, h: b.__setitem__((slice(None), ORDER), h))),
    Way("write where", written(lambda b, h: b.__setitem__((slice(None), EVEN), h[:, :2]))),
    Way(
        "write a column of a column",
        written(lambda b, h: b.__setitem__((slice(None), slice(0, 1)), h[:, 1:2])),
    ),
    Way("write broadcast", written(lambda b, h: b.__setitem__(slice(None), h[:, :1]))),
    Way(
        "write twice",
        written(
            lambda b, h: (
                b.__setitem__(slice(None), h),
                b.__setitem__((slice(None), 1), torch.sin(h[:, 0])),
            )
        ),
    ),
    Way("write into a plain tensor", into_plain),
    Way("write row by row", row_by_row),
    Way("write column by column", column_by_column),
    Way("autoregressive inverse", autoregressive),
    Way("write a number", changed(lambda h, z: h.__setitem__((slice(None), 0), 0.5))),
    Way("write a constant", changed(lambda h, z: h.__setitem__((slice(None), 0), constants(1)))),
    Way("write where positive", changed(lambda h, z: h.__setitem__(h > 9, 0.0))),
    Way("augmented column", changed(lambda h, z: h[:, 0].add_(z[:, 1])), traced=None),
    Way("add_", changed(lambda h, z: h.add_(z))),
    Way("sub_ alpha", changed(lambda h, z: h.sub_(z, alpha=0.3))),
    Way("mul_", changed(lambda h, z: h.mul_(torch.sin(z)))),
    Way("div_", changed(lambda h, z: h.div_(2 + torch.sin(z)))),
    Way("pow_", changed(lambda h, z: h.pow_(2))),
    Way("exp_", changed(lambda h, z: h.exp_())),
    Way("sigmoid_", changed(lambda h, z: h.sigmoid_())),
    Way("neg_", changed(lambda h, z: h.neg_())),
    Way("addcmul_", changed(lambda h, z: h.addcmul_(z, torch.sin(z), value=0.3))),
    Way("masked_fill_", changed(lambda h, z: h.masked_fill_(EVEN, 0.3))),
    Way("copy_", changed(lambda h, z: h.copy_(z.square()))),
    Way("copy_ broadcast", changed(lambda h, z: h.copy_(z[:, :1]))),
    Way("index_fill_", changed(lambda h, z: h.index_fill_(1, ORDER[:1], 0.3))),
    Way("index_add_", changed(lambda h, z: h.index_add_(1, INDEX, z))),
    Way("scatter_", changed(lambda h, z: h.scatter_(1, ORDER.expand(len(z), 3), z))),
    Way("zero_", changed(lambda h, z: (h.zero_(), h.add_(z))), traced=None),
    Way("fill_", changed(lambda h, z: (h.fill_(0.5), h.add_(z))), traced=None),
    Way("augmented assignment", accumulated),
    Way("augmented assignment to two names", augmented_alias),
    Way("augmented assignment to a view", augmented_view, traced=None),
    Way("in place on a view", through_a_view, traced=None),
    Way("add_ of a constant", lambda z, p: z.clone().add_(p(3)).square()),
    Way("scatter", lambda z, p: torch.scatter(z, 1, GATHER[:, :2].expand(len(z), 2), 0.3) * p(3)),
    Way("scatter values", scattered("scatter")),
    Way("scatter_add", scattered("scatter_add")),
    Way("scatter_reduce", scattered("scatter_reduce", "sum"), traced=None),
    Way("scatter_add_", scattered("scatter_add_")),
    Way("index_add", lambda z, p: torch.index_add(z, 1, INDEX, torch.sin(z)) * p(3)),
    Way(
        "index_add to zeros",
        lambda z, p: torch.zeros(len(z), 2, dtype=torch.float64).index_add(
            1, torch.tensor([0, 1, 0]), torch.sin(z * p(3))
        ),
    ),
    Way("index_copy", lambda z, p: torch.index_copy(z, 1, ORDER, torch.sin(z) * p(3))),
    Way("index_fill", lambda z, p: torch.index_fill(z, 1, ORDER[:1], 0.3) * p(3)),
    Way(
        "index_put",
        lambda z, p: torch.index_put(
            z, (torch.arange(len(z))[:, None], ORDER[:2]), torch.sin(z[:, :2]) * p(2)
        ),
    ),
    Way(
        "index_put accumulate",
        lambda z, p: torch.index_put(
            z, (torch.arange(len(z))[:, None], INDEX), torch.sin(z) * p(3), accumulate=True
        ),
        traced=None,
    ),
    Way("select_scatter", lambda z, p: torch.select_scatter(z, torch.sin(z[:, 0]) * p(1), 1, 2)),
    Way("slice_scatter", lambda z, p: torch.slice_scatter(z, torch.sin(z[:, :2]) * p(2), 1, 1, 3)),
    Way(
        "diagonal_scatter",
        lambda z, p: torch.diagonal_scatter(
            z, torch.sin(z.diagonal(dim1=1, dim2=2)) * p(3), dim1=1, dim2=2
        ),
        event=(3, 3),
    ),
    Way(
        "masked_scatter",
        lambda z, p: torch.masked_scatter(z, EVEN.expand(len(z), 3), torch.sin(z[:, :2]) * p(2)),
    ),
    Way(
        "fill_diagonal_",
        lambda z, p: torch.stack([(r * p(3)).fill_diagonal_(0.2) for r in z]),
        event=(3, 3),
        traced=None,
    ),
]
