"""Datasets: embedded data, readers, and the errors for missing or wrong files."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from scorematching.datasets import Dataset, drop_correlated, load, names, paper_split, split
from scorematching.datasets.files import ENVIRONMENT_VARIABLE, DataFile, find
from scorematching.datasets.readers import read_idx_images, read_mosaics, read_table
from scorematching.datasets.registry import SOURCES
from scorematching.distributions import DISTRIBUTIONS
from scorematching.errors import DataNotFoundError, DivergedError, ScoreMatchingError
from tests.stored import STORED


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


pytestmark = pytest.mark.usefixtures("only_named_folders")


def load_stored(name: str, dtype: torch.dtype = torch.float64) -> Dataset:
    """A stored dataset; skips the test if its file is missing."""
    try:
        return load(name, STORED, dtype=dtype)
    except DataNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def file() -> DataFile:
    return DataFile("points.csv", "uci", hashlib.sha256(b"a,b\n1,2\n").hexdigest())


def write(path: Path, content: bytes = b"a,b\n1,2\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# Red wine, which is part of the package


def test_redwine_is_the_uci_table() -> None:
    wine = load("redwine")
    assert wine.x.shape == (1599, 11)
    assert wine.x.dtype == torch.float64
    assert (wine.columns[0], wine.columns[8]) == ("fixed acidity", "pH")
    # First and last row of the UCI file.
    first = [7.4, 0.7, 0, 1.9, 0.076, 11, 34, 0.9978, 3.51, 0.56, 9.4]
    last = [6, 0.31, 0.47, 3.6, 0.067, 18, 42, 0.99549, 3.39, 0.66, 11]
    assert wine.x[[0, -1]].tolist() == [first, last]
    assert "Cortez" in wine.citation
    assert wine.licence == "CC BY 4.0"
    assert "tensor" not in repr(wine)


@pytest.mark.data
def test_redwine_equals_every_value_of_the_uci_file() -> None:
    path = STORED / "uci" / "winequality-red.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    columns, rows = read_table(path, delimiter=";", columns=slice(0, -1))
    wine = load("redwine")
    assert wine.columns == columns
    assert np.array_equal(wine.x.numpy(), rows)


# Names and arguments


def test_names_are_the_files_and_the_toy_distributions() -> None:
    assert set(names()) == set(SOURCES) | set(DISTRIBUTIONS)
    assert set(SOURCES) >= {"redwine", "whitewine", "parkinsons", "mnist", "celeba"}
    assert not set(SOURCES) & set(DISTRIBUTIONS)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_toy_distributions_are_drawn_by_their_generator(name: str) -> None:
    a, b = (load(name, num=7, generator=generator(3)).x for _ in range(2))
    assert a.shape[0] == 7
    assert a.dtype == torch.float64
    assert torch.equal(a, b)
    assert not torch.equal(a, load(name, num=7, generator=generator(4)).x)


def test_toy_distributions_draw_a_thousand_points_by_default() -> None:
    drawn = load("banana", dtype=torch.float32, generator=generator())
    assert drawn.x.shape == (1000, 2)
    assert drawn.x.dtype == torch.float32


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="got 'rose'; choose one of redwine, "):
        load("rose")
    with pytest.raises(ValueError, match="must be left out for 'redwine'"):
        load("redwine", num=3)
    with pytest.raises(ValueError, match="num must be at least 1, got 0"):
        load("banana", num=0)


# Where files are searched for


@pytest.mark.parametrize("folder", ["", "uci"])
@pytest.mark.parametrize("place", ["data_dir", "environment", "cache"])
def test_a_file_is_found_in_every_place(
    place: str, folder: str, file: DataFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "environment"))
    root = tmp_path / place / ("scorematching" if place == "cache" else "")
    path = write(root / folder / file.name)
    assert find(file, tmp_path / "data_dir") == path


def test_data_dir_comes_before_the_environment_and_the_cache(
    file: DataFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "environment"))
    cached = write(tmp_path / "cache" / "scorematching" / file.name)
    assert find(file, tmp_path / "data_dir") == cached
    named = write(tmp_path / "environment" / file.name)
    assert find(file, tmp_path / "data_dir") == named
    given = write(tmp_path / "data_dir" / "uci" / file.name)
    assert find(file, tmp_path / "data_dir") == given


def test_the_default_cache_is_in_the_home_folder(
    file: DataFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path / ".cache" / "scorematching" / "uci" / file.name)
    assert find(file) == path


def test_a_missing_file_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "environment"))
    with pytest.raises(DataNotFoundError) as caught:
        load("whitewine", tmp_path / "given")
    message = str(caught.value)
    for part in (
        "winequality-white.csv",
        SOURCES["whitewine"].file.sha256,
        f"put it in {tmp_path / 'given' / 'uci'}",
        str(tmp_path / "environment"),
        str(tmp_path / "cache" / "scorematching"),
        "SCOREMATCHING_DATA",
        "download=True",
    ):
        assert part in message
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ScoreMatchingError)


def test_a_wrong_checksum_is_an_error_and_not_a_dataset(tmp_path: Path) -> None:
    path = write(tmp_path / "winequality-white.csv", b"not wine")
    got = hashlib.sha256(b"not wine").hexdigest()
    with pytest.raises(ValueError, match=rf"{path} must have sha256 76c3.*, got {got}; "):
        load("whitewine", tmp_path)


# Downloads, from file:// addresses


def test_a_download_is_checked_and_kept(file: DataFile, tmp_path: Path) -> None:
    origin = write(tmp_path / "origin.csv")
    absent = (tmp_path / "absent.csv").as_uri()
    remote = dataclasses.replace(file, urls=(absent, origin.as_uri()))
    path = find(remote, tmp_path / "data", download=True)
    assert path == tmp_path / "data" / "uci" / file.name
    assert path.read_bytes() == origin.read_bytes()
    assert os.listdir(path.parent) == [file.name]
    origin.unlink()
    assert find(remote, tmp_path / "data", download=True) == path


def test_a_damaged_download_leaves_nothing_behind(file: DataFile, tmp_path: Path) -> None:
    remote = dataclasses.replace(file, urls=(write(tmp_path / "o.csv", b"cut").as_uri(),))
    with pytest.raises(ValueError, match="must have sha256"):
        find(remote, tmp_path / "data", download=True)
    assert os.listdir(tmp_path / "data" / "uci") == []


def test_a_failed_download_names_the_address(file: DataFile, tmp_path: Path) -> None:
    url = (tmp_path / "absent.csv").as_uri()
    with pytest.raises(DataNotFoundError, match=url):
        find(dataclasses.replace(file, urls=(url,)), tmp_path, download=True)
    with pytest.raises(DataNotFoundError, match="no public address"):
        find(file, tmp_path, download=True)


# Readers


def test_tables_keep_the_columns_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", b'"a";"b b";"c"\r\n1;2;3\r\n4;5e-1;6\r\n')
    columns, rows = read_table(path, delimiter=";", columns=slice(1, None))
    assert columns == ("b b", "c")
    assert rows.tolist() == [[2, 3], [0.5, 6]]


def idx(images: np.ndarray, magic: bytes = b"\0\0\x08\x03") -> bytes:
    return gzip.compress(magic + np.array(images.shape, ">u4").tobytes() + images.tobytes())


def test_idx_images(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    read = read_idx_images(write(tmp_path / "i.gz", idx(images)))
    assert read.shape == (4, 1, 2, 3)
    assert np.array_equal(read[:, 0], images)


def test_idx_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    images = np.zeros((4, 2, 3), np.uint8)
    with pytest.raises(ValueError, match="got 00 00 08 01; labels are not images"):
        read_idx_images(write(tmp_path / "l.gz", idx(images, b"\0\0\x08\x01")))
    short = gzip.compress(gzip.decompress(idx(images))[:-1])
    with pytest.raises(ValueError, match="4 images of 2 x 3 bytes, got 23 bytes"):
        read_idx_images(write(tmp_path / "s.gz", short))


def mosaic_pack(path: Path, colours: list[list[int]], n: int) -> Path:
    """One mosaic of 2 x 2 tiles, each of one colour, that holds n images."""
    image = pytest.importorskip("PIL.Image")
    tiles = np.array(colours, np.uint8).reshape(2, 2, 3)
    picture = io.BytesIO()
    pixels = tiles.repeat(64, axis=0).repeat(64, axis=1)
    image.fromarray(pixels).save(picture, format="AVIF", quality=100, subsampling="4:4:4")
    ids = io.BytesIO()
    np.save(ids, np.arange(n, dtype=np.int32))
    with zipfile.ZipFile(path, "w") as pack:
        pack.writestr("ids.npy", ids.getvalue())
        pack.writestr("mosaic_000.avif", picture.getvalue())
    return path


def test_mosaics_are_cut_row_by_row_and_padding_is_dropped(tmp_path: Path) -> None:
    colours = [[250, 10, 10], [10, 250, 10], [10, 10, 250], [0, 0, 0]]
    images = read_mosaics(mosaic_pack(tmp_path / "m.zip", colours, n=3))
    assert images.shape == (3, 3, 64, 64)
    centres = images[:, :, 16:48, 16:48].mean((2, 3))
    np.testing.assert_allclose(centres, colours[:3], atol=4)  # AVIF is not lossless


def test_mosaics_with_too_few_tiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold 5 images, got 4 tiles"):
        read_mosaics(mosaic_pack(tmp_path / "m.zip", [[0, 0, 0]] * 4, n=5))


# The published files, if they are stored


@pytest.mark.data
def test_whitewine() -> None:
    wine = load_stored("whitewine")
    assert wine.x.shape == (4898, 11)
    assert wine.columns == load("redwine").columns


@pytest.mark.data
def test_parkinsons_keeps_the_fifteen_columns_of_the_paper() -> None:
    voices = load_stored("parkinsons")
    assert voices.x.shape == (5875, 19)
    paper = (
        "test_time motor_UPDRS total_UPDRS Jitter(Abs) Jitter:PPQ5 Jitter:DDP Shimmer(dB) "
        "Shimmer:APQ5 Shimmer:APQ11 Shimmer:DDA NHR HNR RPDE DFA PPE"
    )
    for as_released in (False, True):
        kept = drop_correlated(voices.x, as_released=as_released)
        assert [voices.columns[i] for i in kept] == paper.split()


@pytest.mark.data
def test_mnist() -> None:
    digits = load_stored("mnist-test", dtype=torch.float32)
    assert digits.x.shape == (10_000, 1, 28, 28)
    assert (digits.x.min().item(), digits.x.max().item()) == (0.0, 1.0)
    train = load_stored("mnist", dtype=torch.float32).x
    assert train.shape == (60_000, 1, 28, 28)
    # Published mean and standard deviation of the training pixels.
    assert round(train.mean().item(), 4) == 0.1307
    assert round(train.std().item(), 4) == 0.3081


@pytest.mark.data
@pytest.mark.slow
def test_celeba() -> None:
    faces = load_stored("celeba", dtype=torch.float32)
    assert faces.x.shape == (29_055, 3, 64, 64)
    # Skin is red before it is blue, and the middle of a face is skin.
    red, _, blue = faces.x[:, :, 24:40, 24:40].mean((0, 2, 3))
    assert red > blue + 0.1


# Splits


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(1599, (1296, 144, 159)), (4898, (3969, 440, 489)), (5875, (4760, 528, 587))],
)
def test_paper_split_has_the_sizes_of_the_paper(n: int, sizes: tuple[int, ...]) -> None:
    x = torch.arange(float(n))[:, None]
    parts = paper_split(x, generator())
    assert tuple(map(len, parts)) == sizes
    assert torch.equal(torch.cat(parts).sort(0).values, x)


def test_paper_split_holds_out_a_thousand_at_most() -> None:
    assert [len(part) for part in paper_split(torch.zeros(20_000, 1))] == [18_000, 1000, 1000]


def test_split_takes_counts_of_numpy() -> None:
    counts = np.array([6, 3, 1])
    for sizes in (counts, (*counts,)):
        assert [len(part) for part in split(torch.zeros(10, 1), sizes)] == [6, 3, 1]


def test_split_obeys_its_generator() -> None:
    x = torch.arange(50.0)[:, None]
    first, again, other = (split(x, (30, 10, 10), generator(k)) for k in (0, 0, 1))
    assert torch.equal(first.test, again.test)
    assert not torch.equal(first.test, other.test)
    assert not torch.equal(first.train, x[:30])


@pytest.mark.parametrize("n", [10, 30, 70, 99, 100])
def test_fractions_are_rounded_down_and_lose_no_row(n: int) -> None:
    x = torch.arange(float(n))[:, None]
    parts = split(x, (0.7, 0.2, 0.1), generator())
    assert (len(parts.valid), len(parts.test)) == (n // 5, n // 10)
    assert torch.equal(torch.cat(parts).sort(0).values, x)


def test_fractions_are_not_cut_by_rounding_errors() -> None:
    assert 0.29 * 100 < 29
    assert len(split(torch.zeros(100, 1), (0.42, 0.29, 0.29)).test) == 29


@pytest.mark.parametrize("sizes", [(5, 5), (5, 4, 2), (0.5, 0.2, 0.2), (12, -1, -1)])
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="sizes must"):
        split(torch.zeros(10, 1), sizes)


# Errors


def test_diverged_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(DivergedError(step=7, last_finite_loss=-1.5)))
    assert (error.step, error.last_finite_loss) == (7, -1.5)
    assert str(error).startswith("the loss is not finite at step 7 (last finite loss -1.5); the")
