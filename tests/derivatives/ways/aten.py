"""Names of operations that only decompositions, or the operators of ``torch.ops``, arrive by."""

from __future__ import annotations

from typing import Any

import torch

from tests.derivatives.ways.base import EVEN, INDEX, Way
from tests.derivatives.ways.linalg import column, general, positive

aten = torch.ops.aten


def spectrum(z: Any, p: Any) -> Any:
    """Through the complex transforms and back to real numbers."""
    h = aten._fft_c2c(aten._fft_r2c(z, [1], 0, True) * p(2), [1], 0, True)
    return aten._fft_c2r(aten._conj(h) + h, [1], 0, 3)


ATEN = [
    Way("aten alias", lambda z, p: aten.alias(z) * p(3)),
    Way("aten _unsafe_view", lambda z, p: aten._unsafe_view(z, [len(z), 3, 2]) * p(2), event=(6,)),
    Way("aten _reshape_alias", lambda z, p: aten._reshape_alias(z * 1, [len(z), 3], [3, 1]) * p(3)),
    Way("aten lift_fresh", lambda z, p: aten.lift_fresh(aten.lift_fresh_copy(z)) * p(3)),
    Way("aten _to_copy", lambda z, p: aten._to_copy(z, dtype=torch.float64) * p(3)),
    Way("aten transpose_copy", lambda z, p: aten.transpose_copy(z, 1, 2) * p(2), event=(2, 3)),
    Way("aten permute_copy", lambda z, p: aten.permute_copy(z, [0, 2, 1]) * p(2), event=(2, 3)),
    Way("aten numpy_T", lambda z, p: (aten.numpy_T(z) * p(3, 1)).T),
    Way("aten slice", lambda z, p: aten.slice(z, 1, 1, 3) * p(2)),
    Way("aten narrow_copy", lambda z, p: torch.narrow_copy(z, 1, 1, 2) * p(2)),
    Way("aten select_copy", lambda z, p: torch.select_copy(z, 1, 1) * p(1)),
    Way("aten split_with_sizes", lambda z, p: torch.split_with_sizes(z, [1, 2], 1)[1] * p(2)),
    Way("aten constant_pad_nd", lambda z, p: aten.constant_pad_nd(z, [1, 1], 0.3)),
    Way("aten reflection_pad", lambda z, p: aten.reflection_pad1d(z, [1, 1]), event=(2, 3)),
    Way(
        "aten reflection_pad2d",
        lambda z, p: aten.reflection_pad2d(z, [1, 0, 0, 1]),
        event=(1, 2, 2),
    ),
    Way(
        "aten reflection_pad3d",
        lambda z, p: aten.reflection_pad3d(z, [1, 0, 0, 0, 0, 1]),
        event=(1, 2, 2, 2),
    ),
    Way("aten replication_pad", lambda z, p: aten.replication_pad1d(z, [1, 1]), event=(2, 3)),
    Way(
        "aten replication_pad2d",
        lambda z, p: aten.replication_pad2d(z, [1, 0, 0, 1]),
        event=(1, 2, 2),
    ),
    Way(
        "aten replication_pad3d",
        lambda z, p: aten.replication_pad3d(z, [1, 0, 0, 0, 0, 1]),
        event=(1, 2, 2, 2),
    ),
    Way("aten _pad_circular", lambda z, p: aten._pad_circular(z, [1, 1]), event=(2, 3)),
    Way("aten index", lambda z, p: aten.index(z, [None, INDEX]) * p(3)),
    Way("aten _unsafe_index", lambda z, p: aten._unsafe_index(z, [None, INDEX]) * p(3)),
    Way(
        "aten _unsafe_index_put",
        lambda z, p: aten._unsafe_index_put(z, [None, INDEX[:2]], torch.sin(z[:, :2]) * p(2)),
    ),
    Way("aten _softmax", lambda z, p: aten._softmax(z * p(3), 1, False)),
    Way("aten _safe_softmax", lambda z, p: aten._safe_softmax(z * p(3), 1)),
    Way(
        "aten _safe_softmax of an empty row",
        lambda z, p: aten._safe_softmax(
            torch.where(torch.tensor([True, False])[:, None], z[:, None] * p(3), -torch.inf), 2
        ).flatten(1),
    ),
    Way("aten _log_softmax", lambda z, p: aten._log_softmax(z * p(3), 1, False)),
    Way(
        "aten _adaptive_avg_pool2d",
        lambda z, p: aten._adaptive_avg_pool2d(z, [1, 2]),
        event=(1, 2, 3),
    ),
    Way(
        "aten _adaptive_avg_pool3d",
        lambda z, p: aten._adaptive_avg_pool3d(z, [1, 1, 2]),
        event=(1, 2, 2, 2),
    ),
    Way(
        "aten im2col",
        lambda z, p: aten.im2col(z, [2, 2], [1, 1], [0, 0], [1, 1]) * p(4, 1),
        event=(1, 3, 2),
    ),
    Way(
        "aten col2im",
        lambda z, p: aten.col2im(z, [2, 3], [2, 2], [1, 1], [0, 0], [1, 1]) * p(3),
        event=(4, 2),
    ),
    Way("aten upsample_nearest1d", lambda z, p: aten.upsample_nearest1d(z, [4]), event=(2, 2)),
    Way(
        "aten upsample_nearest2d", lambda z, p: aten.upsample_nearest2d(z, [3, 4]), event=(1, 2, 2)
    ),
    Way(
        "aten upsample_nearest3d",
        lambda z, p: aten.upsample_nearest3d(z, [3, 2, 2]),
        event=(1, 2, 2, 1),
    ),
    Way("aten upsample_linear1d", lambda z, p: aten.upsample_linear1d(z, [5], False), event=(2, 2)),
    Way(
        "aten upsample_bilinear2d",
        lambda z, p: aten.upsample_bilinear2d(z, [3, 3], True),
        event=(1, 2, 2),
    ),
    Way(
        "aten upsample_bicubic2d",
        lambda z, p: aten.upsample_bicubic2d(z, [3, 3], True),
        event=(1, 2, 2),
    ),
    Way(
        "aten upsample_trilinear3d",
        lambda z, p: aten.upsample_trilinear3d(z, [3, 2, 2], True),
        event=(1, 2, 2, 1),
    ),
    Way(
        "aten _upsample_nearest_exact2d",
        lambda z, p: aten._upsample_nearest_exact2d(z, [3, 4]),
        event=(1, 2, 2),
    ),
    Way(
        "aten _upsample_bilinear2d_aa",
        lambda z, p: aten._upsample_bilinear2d_aa(z, [2, 2], False),
        event=(1, 3, 3),
    ),
    Way(
        "aten convolution",
        lambda z, p: aten.convolution(z, p(3, 2, 2), p(3), [1], [1], [1], False, [0], 1),
        event=(2, 4),
    ),
    Way("aten conjugate spectrum", spectrum),
    Way("aten _linalg_det", lambda z, p: aten._linalg_det(general(z, p))[0] / 9),
    Way("aten _linalg_slogdet", lambda z, p: aten._linalg_slogdet(general(z, p))[1]),
    Way(
        "aten _linalg_solve_ex", lambda z, p: aten._linalg_solve_ex(general(z, p), column(z, p))[0]
    ),
    Way("aten linalg_cholesky_ex", lambda z, p: aten.linalg_cholesky_ex(positive(z, p))[0]),
    Way("aten linalg_cholesky", lambda z, p: aten.linalg_cholesky(positive(z, p))),
    Way("aten where", lambda z, p: aten.where(EVEN, z, torch.sin(z) * p(3))),
    Way("aten diagonal", lambda z, p: aten.diagonal(z, 0, 1, 2) * p(3), event=(3, 3)),
]
