"""Eigenpairs of kernel matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from reproduction.autoencoders.eigen import _by_rotations, _orthogonal_rows, eigenpairs
from scorematching._triton import is_available
from scorematching.kernels import kernel_for
from tests.tolerances import ROUTES

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def matrices(num: int, n: int, dim: int, device: str = "cpu") -> Tensor:
    noise = torch.Generator().manual_seed(n)
    x = torch.randn(num, n, dim, generator=noise, dtype=torch.float64).to(device)
    return kernel_for(x)(x, x)


def check(K: Tensor, tolerance: float, overlap: float) -> None:
    values, vectors = eigenpairs(K)
    truth = torch.linalg.eigvalsh(K.cpu()).flip(-1).to(K)
    scale = truth.max()
    assert (values - truth).abs().max() < tolerance * scale
    assert (K @ vectors - vectors * values[..., None, :]).abs().max() < tolerance * scale
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    firm = truth > 1e-6 * truth[..., :1]
    products = (vectors.mT @ vectors - eye).abs() * firm[..., None] * firm[..., None, :]
    assert products.max() < overlap


def test_pairs_belong_together_largest_first() -> None:
    check(matrices(3, 12, 4), ROUTES, ROUTES)
    check(matrices(1, 7, 2)[0], ROUTES, ROUTES)


def test_what_follows_the_rotations() -> None:
    """With rows from eigenvectors in their place, in single precision."""
    K = matrices(3, 12, 4)
    values, vectors = _by_rotations(K)
    truth, _ = eigenpairs(K)
    assert (values - truth).abs().max() < 1e-5 * truth.max()
    assert (K @ vectors - vectors * values[..., None, :]).abs().max() < 1e-5 * truth.max()


def test_the_operator_can_be_compiled() -> None:
    K = matrices(3, 12, 4)
    torch.library.opcheck(_orthogonal_rows, (K,))
    graph = make_fx(_by_rotations)(K)
    assert any("orthogonal_rows" in str(node.target) for node in graph.graph.nodes)
    other = matrices(3, 12, 2)
    for found, expected in zip(graph(other), _by_rotations(other)):
        assert torch.equal(found, expected)


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize(
    ("num", "n", "dim"), [(128, 100, 8), (128, 100, 32), (1, 128, 8), (3, 21, 2)]
)
def test_rotations_on_a_gpu(num: int, n: int, dim: int) -> None:
    assert is_available(), "Triton comes with torch for GPUs"
    # Rows as short as 1e-3 of the longest were rotated in single precision.
    check(matrices(num, n, dim, "cuda"), 1e-5, overlap=1e-4)


@pytest.mark.gpu
@GPU
def test_rotations_can_be_compiled() -> None:
    K = matrices(16, 100, 8, "cuda")
    values, vectors = torch.compile(_by_rotations)(K)
    truth, _ = _by_rotations(K)
    assert (values - truth).abs().max() < 1e-6 * truth.max()
    assert (K @ vectors - vectors * values[..., None, :]).abs().max() < 1e-5 * truth.max()


@pytest.mark.gpu
@GPU
def test_rotations_can_be_recorded() -> None:
    K = matrices(16, 100, 8, "cuda")
    plain = eigenpairs(K)
    graph, static = torch.cuda.CUDAGraph(), torch.zeros_like(K)
    with torch.cuda.graph(graph):
        recorded = eigenpairs(static)
    static.copy_(K)
    graph.replay()
    assert torch.equal(recorded[0], plain[0]) and torch.equal(recorded[1], plain[1])
