"""Convolutions 5 x 5 with stride 2 as convolutions 3 x 3 of blocks of four pixels.

A pixel is in row ``2 (i + p) + q`` of the image and in row ``i + p`` of the blocks, with q in
{0, 1}: a kernel that moves by two pixels meets a block always with the same weights. So the four
pixels of a block become four channels, which the kernel's weights follow, with zeros for a sixth
row and column. That is more arithmetic, 36 terms for 25, but a GPU takes less time for it: the one
to four channels of an image do not fill its matrix units otherwise.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``conv2d(x, weight, bias, stride=2, padding=2)``, ``(N, C, S, S) -> (N, K, S / 2, S / 2)``.

    Args:
        x: images of even size.
        weight: ``(K, C, 5, 5)``.
        bias: ``(K,)``.
    """
    return F.conv2d(F.pixel_unshuffle(x, 2), _of_blocks(weight), bias, padding=1)


def convolve_transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The transposed convolution, to images of twice the size.

    ``conv_transpose2d(x, weight, bias, stride=2, padding=2, output_padding=1)``,
    ``(N, K, S, S) -> (N, C, 2 S, 2 S)``.

    Args:
        x: maps.
        weight: ``(K, C, 5, 5)``.
        bias: ``(C,)``.
    """
    of_blocks = None if bias is None else bias.repeat_interleave(4)
    return F.pixel_shuffle(F.conv_transpose2d(x, _of_blocks(weight), of_blocks, padding=1), 2)


def _of_blocks(weight: Tensor) -> Tensor:
    """Weights of blocks, ``(K, C, 5, 5) -> (K, 4 C, 3, 3)``."""
    return F.pixel_unshuffle(F.pad(weight, (0, 1, 0, 1)), 2)


class BlockConv(nn.Conv2d):
    """A convolution 5 x 5 with stride 2 and padding 2, by blocks."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps of half the size."""
        return convolve(x, self.weight, self.bias)


class BlockConvTranspose(nn.ConvTranspose2d):
    """A transposed convolution 5 x 5 with stride, padding, output padding 2, 2, 1, by blocks."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Maps of twice the size; another size is not computed by blocks."""
        if output_size is not None:
            return super().forward(x, output_size)
        return convolve_transposed(x, self.weight, self.bias)
