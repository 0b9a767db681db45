"""Kernels: every sum of derivatives against autograd on one pair of points at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.func import grad, jacrev

from scorematching import kernels
from scorematching._rows import some_rows
from scorematching.kernels import IMQ, RBF, median_bandwidth, squared_distances
from tests.kernels import oracles
from tests.tolerances import FLOAT32, IDENTITY, ROUTES

KERNELS = [RBF(1.3), IMQ(0.7)]


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def at_pairs(function, x, y):
    """A function of two points, at every pair."""
    return torch.stack([torch.stack([function(a, b) for b in y]) for a in x])


def of_pair(radial):
    return lambda a, b: radial(a[None], b[None])[0, 0]


def close(found, wanted, tolerance=ROUTES):
    scale = wanted.abs().max().clamp(min=1e-3)
    assert ((found - wanted).abs().max() / scale).item() < tolerance


@pytest.fixture(params=KERNELS, ids=["rbf", "imq"])
def kernel(request):
    return request.param


@pytest.mark.parametrize("name", ["rbf", "imq"])
def test_values_are_the_definition(name):
    x, y = points(4, 3), points(5, 3, seed=1)
    wanted = at_pairs(oracles.torch_kernel(name, 0.8), x, y)
    close(kernels.KERNELS[name](0.8)(x, y), wanted, IDENTITY)


def test_gradients(kernel):
    x, y = points(4, 3), points(5, 3, seed=1)
    wanted = at_pairs(grad(of_pair(kernel)), x, y)
    close(kernel.grad_x(x, y), wanted)
    close(kernel.grad_y(x, y), at_pairs(grad(of_pair(kernel), argnums=1), x, y))
    weights = points(4, 5, seed=2)
    close(kernel.grad_sum(x, y), wanted.sum(1))
    close(kernel.grad_sum(x, y, weights), (weights[..., None] * wanted).sum(1))
    c = points(5, 3, seed=3)
    close(kernel.directed_sum(x, y, c), -(wanted * c).sum((1, 2)))


def test_second_derivatives(kernel):
    x, y = points(4, 3), points(5, 3, seed=1)
    wanted = at_pairs(jacrev(jacrev(of_pair(kernel)), argnums=1), x, y)
    close(kernel.mixed(x, y), wanted.movedim(-2, -3))
    c = points(5, 3, seed=2)
    close(kernel.mixed_sum(x, y, c), torch.einsum("mnij,nj->mi", wanted, c))


def test_laplacians(kernel):
    x, y = points(4, 3), points(5, 3, seed=1)
    once = kernel.laplacian(3)
    close(once(x, y), at_pairs(lambda a, b: jacrev(jacrev(of_pair(kernel)))(a, b).trace(), x, y))
    twice = at_pairs(lambda a, b: jacrev(jacrev(of_pair(once)))(a, b).trace(), x, y)
    close(once.laplacian(3)(x, y), twice)
    close(once.grad_sum(x, y), at_pairs(grad(of_pair(once)), x, y).sum(1))


def test_a_wrong_dimension_is_another_laplacian(kernel):
    x, y = points(4, 3), points(5, 3, seed=1)
    assert (kernel.laplacian(2)(x, y) - kernel.laplacian(3)(x, y)).abs().max() > 0.1


def test_sets_are_independent(kernel):
    """Batched over two axes, each set with its own bandwidth, equals one set at a time."""
    x, y, c = points(2, 3, 4, 2), points(2, 3, 5, 2, seed=1), points(2, 3, 5, 2, seed=2)
    h = points(2, 3, seed=3).exp()
    batched = type(kernel)(h)
    for i in range(2):
        for j in range(3):
            alone = type(kernel)(h[i, j].item())
            close(batched(x, y)[i, j], alone(x[i, j], y[i, j]), IDENTITY)
            close(batched.grad_sum(x, y)[i, j], alone.grad_sum(x[i, j], y[i, j]), IDENTITY)
            close(batched.mixed(x, y)[i, j], alone.mixed(x[i, j], y[i, j]), IDENTITY)
            sums = alone.mixed_sum(x[i, j], y[i, j], c[i, j])
            close(batched.mixed_sum(x, y, c)[i, j], sums, IDENTITY)
            flat = alone.laplacian(2)(x[i, j], y[i, j])
            close(batched.laplacian(2)(x, y)[i, j], flat, IDENTITY)


def test_near_zero_distance_all_kernels_are_alike(kernel):
    x = torch.zeros(1, 2, dtype=torch.float64)
    y = torch.full((1, 2), 1e-4, dtype=torch.float64)
    fall = (1 - kernel(x, y)).item()
    assert fall == pytest.approx(2e-8 / (2 * kernel.bandwidth**2), rel=1e-6)
    assert torch.allclose(kernel.mixed(x, x)[0, :, 0], kernel.curvature * torch.eye(2).double())


def test_distances_of_clusters_far_apart_in_single_precision():
    """Distances within clusters are exact although clusters are a thousand bandwidths apart."""
    near = points(20, 3)
    x = torch.cat([near, near + 1000.0, near - 1e4]).float()
    wanted = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2
    assert torch.allclose(squared_distances(x, x).double(), wanted, rtol=FLOAT32, atol=FLOAT32)
    a = x.square().sum(-1)
    naive = a[:, None] + a[None] - 2 * x @ x.T
    assert (naive - wanted).abs().max() > 1  # the textbook formula


def test_kernels_are_compiled_for_any_number_of_points():
    """With the number of points unknown, as `torch.compile` has it when batches differ in size."""
    kernel = RBF(1.3)
    compiled = torch.compile(kernel.grad_sum, backend="eager", fullgraph=True, dynamic=True)
    for num in (40, 70):
        x = points(num, 3)
        close(compiled(x, x), kernel.grad_sum(x, x), IDENTITY)


@pytest.mark.parametrize("num", [2, 3, 6, 7])
@pytest.mark.parametrize("include_diagonal", [False, True])
def test_median(num, include_diagonal):
    x = points(3, num, 2)
    found = median_bandwidth(x, include_diagonal)
    wanted = [oracles.median_distance(s.numpy(), include_diagonal) for s in x]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=ROUTES)


def test_median_of_many_samples_is_that_of_a_part():
    x = points(1000, 2)
    found = median_bandwidth(x, max_points=100)
    assert found == median_bandwidth(some_rows(x, 100))
    # Of two far sets that take turns, every tenth sample belonged to one of them.
    x[::2] += 1000
    assert 500 < median_bandwidth(x, max_points=100) < 1500


def test_median_leaves_its_samples_alone():
    x = points(5, 2).requires_grad_()
    before = x.detach().clone()
    assert not median_bandwidth(x, include_diagonal=True).requires_grad
    assert torch.equal(x, before)


@pytest.mark.parametrize("bandwidth", [100_000, np.int64(100_000), np.float16(300.0)])
def test_bandwidths_of_other_types_are_numbers(bandwidth):
    """The fourth power of numpy's 100,000 was a wrong number, that of Python's an OverflowError."""
    x, y, c = points(4, 3), points(5, 3, seed=1), points(5, 3, seed=2)
    for made, wanted in (
        (RBF(bandwidth), RBF(float(bandwidth))),
        (IMQ(bandwidth), IMQ(float(bandwidth))),
    ):
        assert torch.equal(made.mixed_sum(x, y, c), wanted.mixed_sum(x, y, c))
        assert made.curvature == float(bandwidth) ** -2


def test_in_chunks_does_not_change_the_answer(kernel):
    x, y = points(2, 7, 3), points(2, 5, 3, seed=1)
    whole = kernel(x, y)
    for size in (1, 3, 7, 100):
        found = kernels.in_chunks(lambda part: kernel(part, y), x, 5, size)
        close(found, whole, IDENTITY)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: RBF(0.0), ValueError, r"bandwidth must be positive, got 0\.0; None takes"),
        (lambda: RBF("wide"), TypeError, "bandwidth must be a positive number, got 'wide'"),
        (lambda: IMQ(torch.tensor([1.0, -2.0])), ValueError, "got -2.0 in one set"),
        (lambda: kernels.kernel_for(points(3, 2), "linear"), ValueError, 'must be "rbf" or "imq"'),
        (
            lambda: kernels.kernel_for(points(4, 3, 2), bandwidth=torch.ones(3)),
            ValueError,
            r"one for each set, shape \(4,\), got \(3,\)",
        ),
        (lambda: RBF(1.0)(points(3, 2), points(3, 4)), ValueError, "as many as y, got 2"),
        (lambda: median_bandwidth(torch.ones(4, 2)), ValueError, "half of the distances are zero"),
        (lambda: median_bandwidth(1e25 * points(4, 2).float()), ValueError, "divide them by"),
        (lambda: RBF(1e200), ValueError, r"between 1e-150 and 1e\+150, got 1e\+200, whose"),
        (lambda: IMQ(1e-160), ValueError, r"bandwidth must lie between .* got 1e-160, whose"),
        (
            lambda: kernels.fit_kernel_exp_family(1e-120 * points(9, 2)),
            ValueError,
            "zero or infinite; divide the samples by their standard deviation",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: median_bandwidth([[0.0], [1.0]]), TypeError, "samples must be .*, got list"),
        (lambda: median_bandwidth(torch.tensor([[0], [1], [4]])), TypeError, "got torch.int64"),
        (lambda: median_bandwidth(torch.zeros(3)), ValueError, r"M >= 2, got \(3,\)"),
        (lambda: median_bandwidth(torch.zeros(1, 2)), ValueError, r"M >= 2, got \(1, 2\)"),
        (lambda: median_bandwidth(torch.zeros(0, 2)), ValueError, r"M >= 2, got \(0, 2\)"),
        (lambda: median_bandwidth(points(3, 0)), ValueError, r"M >= 2, got \(3, 0\)"),
        (lambda: median_bandwidth(points(3, 2) * math.nan), ValueError, "NaN or infinity in 3"),
        (lambda: median_bandwidth(1e200 * points(3, 2)), ValueError, "squared distances within"),
        (lambda: median_bandwidth(points(3, 2), "no"), TypeError, "include_diagonal must be True"),
        (lambda: kernels.kernel_for([[0.0]], bandwidth=1.0), TypeError, "samples must be a torch"),
        (lambda: squared_distances(points(2), points(2)), ValueError, r"x must have shape \(\*B"),
        (lambda: squared_distances(points(2, 1).int(), points(2, 1)), TypeError, "torch.int32"),
        (lambda: squared_distances(points(2, 1), points(2, 1).half()), TypeError, "torch.float16"),
        (lambda: squared_distances(points(2, 3, 1), points(4, 3, 1)), ValueError, "as many sets"),
        (lambda: RBF(1.0).grad_sum(points(2, 1), points(0, 1)), ValueError, "at least one point"),
        (lambda: RBF(torch.ones(2))(points(5, 2), points(5, 2)), ValueError, "got (2,)"),
        (lambda: kernels.in_chunks(torch.exp, [1.0], 3), TypeError, "x must be a torch.Tensor"),
        (lambda: kernels.in_chunks(None, points(2, 1), 3), TypeError, "function must be callable"),
    ],
)  # fmt: skip
def test_sets_of_points_are_checked(call, error, message):
    """They ended in errors of torch, or in other numbers: |0 - 1.5|^2 was 2 for integers."""
    with pytest.raises(error, match=message.replace("(2,)", r"\(2,\)")):
        call()


def test_a_point_far_out_costs_the_others_no_digits():
    """The median of 61 points was wrong in the third digit, since it moved their mean by 2e7."""
    x = torch.cat([points(60, 2), torch.full((1, 2), 1e9, dtype=torch.float64)])
    squares = (x[:, None] - x).square().sum(-1)
    torch.testing.assert_close(squared_distances(x, x), squares, rtol=1e-9, atol=1e-12)
    sides = squares[*torch.triu_indices(61, 61, 1)].sqrt().sort().values
    torch.testing.assert_close(median_bandwidth(x), sides[(len(sides) - 1) // 2])


def test_bandwidths_of_sets_have_the_precision_of_the_samples():
    """The fourth power of 1e-11 is no number of single precision."""
    x = 1e-11 * points(2, 20, 1)
    h = torch.full((2,), 1e-11, dtype=torch.float64)
    wide, single = (kernels.fit_kernel_exp_family(x, bandwidth=b).score(x) for b in (h, h.float()))
    torch.testing.assert_close(single, wide, rtol=1e-4, atol=0.0)
