"""Deep kernel exponential families: the kernel, the solve, and training through it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import scorematching as sm
from scorematching.closed_form import solve_linear
from scorematching.distributions.bases import GaussianBase, GeneralisedGaussian
from scorematching.models.dkef import DKEF
from tests import oracles
from tests.tolerances import FLOAT32, IDENTITY, ROUTES

OBJECTIVES = [
    sm.ScoreMatching(),
    sm.SlicedScoreMatching(),
    sm.SlicedScoreMatchingVR(),
    sm.DenoisingScoreMatching(sigma=0.3),
    sm.ApproximateBackprop(),
    sm.CurvaturePropagation(),
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(num: int, dim: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(num, dim, generator=seeded(seed), dtype=torch.float64)


def small(**options: Any) -> DKEF:
    """Three coordinates, six inducing points, with changed mixture and bandwidths."""
    model = DKEF(3, num_inducing=6, width=4, generator=seeded(), **options).double()
    model.initialise(points(9), seeded())
    with torch.no_grad():
        model.mixture_logits.copy_(torch.linspace(-0.5, 0.5, len(model.mixture_logits)))
        model.alpha.copy_(points(6, 1, seed=2)[:, 0])
    return model


def kernel(model: DKEF, x: Tensor, z: Tensor) -> Tensor:
    """k(x, z) of two points ``(D,)`` as in the paper, one network at a time."""
    nets, (num, width) = model.networks, model.networks.shape
    rho = model.mixture_logits.softmax(0)
    total = torch.zeros((), dtype=x.dtype)

    def phi(r: int, x: Tensor) -> Tensor:
        own = slice(r * width, (r + 1) * width)
        h = F.softplus(nets.first[own] @ x + nets.first_bias[own])
        h = F.softplus(h @ nets.second[r] + nets.second_bias[r, 0])
        return h @ nets.third[r] + nets.third_bias[r, 0] + nets.skip[own] @ x

    for r in range(num):
        sigma = 10 ** model.log10_bandwidth[r]
        variance = sigma if model.as_released else sigma**2
        distance = (phi(r, x) - phi(r, z)).square().sum()
        total = total + rho[r] * torch.exp(-distance / (2 * variance))
    return total


# The kernel.


@pytest.mark.parametrize("distances", ["products", "differences"])
@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("num_kernels", [1, 3])
def test_features_are_the_kernel(distances: str, as_released: bool, num_kernels: int) -> None:
    model = small(distances=distances, as_released=as_released, num_kernels=num_kernels)
    x = points(4, seed=3)
    expected = torch.stack([torch.stack([kernel(model, a, z) for z in model.inducing]) for a in x])
    close(model.features(x), expected, IDENTITY)
    index = torch.tensor([5, 0, 0, 2])
    close(model.feature_at(x, index), expected[range(4), index], IDENTITY)


def test_log_density_is_the_weighted_kernel() -> None:
    model, x = small(), points(4, seed=3)
    expected = model.features(x) @ model.alpha - x.square().sum(-1) / 8
    close(model(x), expected, IDENTITY)
    assert model.normalised is False


def test_kernel_is_symmetric_and_one_on_the_diagonal() -> None:
    model = small()
    gram = model.features(model.inducing)
    close(gram, gram.mT, IDENTITY)
    close(gram.diagonal(), torch.ones(6, dtype=torch.float64), IDENTITY)
    assert torch.linalg.eigvalsh(gram).min() > 0


def test_rows_are_independent() -> None:
    model, x = small(), points(5, seed=3)
    close(model.features(x)[[3, 1]], model.features(x[[3, 1]]), IDENTITY)


def test_order_of_inducing_points_does_not_matter() -> None:
    model, other, x = small(), small(), points(5, seed=3)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    with torch.no_grad():
        other.inducing.copy_(model.inducing[order])
    close(other.features(x), model.features(x)[:, order], IDENTITY)
    for objective in (sm.ScoreMatching(), sm.SlicedScoreMatchingVR()):
        alphas = [m.solve_alpha(x, objective, seeded()) for m in (model, other)]
        close(alphas[1], alphas[0][order], ROUTES)


def test_networks_see_every_point_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small(), points(5, seed=3)
    rows = []
    forward = model.networks.forward
    monkeypatch.setattr(model.networks, "forward", lambda x: rows.append(len(x)) or forward(x))
    model.features(x)
    assert sorted(rows) == [5, 6]


# As in the paper.


@pytest.mark.parametrize(("dim", "parameters"), [(11, 9857), (15, 11377)])
def test_defaults_are_those_of_the_paper(dim: int, parameters: int) -> None:
    model = DKEF(dim, generator=seeded())
    assert sum(p.numel() for p in model.parameters()) == parameters
    close(10**model.log10_bandwidth, torch.tensor([1.0, 3.3, 10.0]), FLOAT32)
    assert model.lam.item() == pytest.approx(0.01)
    assert torch.equal(model.mixture_logits, torch.zeros(3))
    weights = torch.cat([p.flatten() for p in model.networks.parameters()])
    # The variance of n squared normals has relative error sqrt(2 / n): four of them.
    assert weights.square().mean().item() == pytest.approx(1 / 30, rel=4 * (2 / 7650) ** 0.5)


def test_released_bandwidths_are_variances() -> None:
    paper, released = small(), small(as_released=True, bandwidths=(1.0, 10.89, 100.0))
    x = points(4, seed=3)
    close(released.features(x), paper.features(x), FLOAT32)  # bandwidths begin as float32


def test_inducing_points_are_distinct_training_points() -> None:
    data = points(8)
    model = DKEF(3, num_inducing=8, width=4).double()
    before = torch.random.get_rng_state()
    model.initialise(data, seeded())
    assert torch.equal(torch.random.get_rng_state(), before)
    matches = (model.inducing[:, None] == data).all(-1)
    assert torch.equal(matches.sum(0), torch.ones(8, dtype=torch.int64))
    again = DKEF(3, num_inducing=8, width=4).double()
    again.initialise(data, seeded())
    assert torch.equal(again.inducing, model.inducing)


# Derivatives.


@pytest.mark.parametrize("what", ["features", "log-density", "generalised"])
def test_every_operation_has_a_rule(what: str) -> None:
    model = small(base=GeneralisedGaussian(3) if what == "generalised" else None)
    question: Any = sm.LogDensityField(model.features) if what == "features" else model
    table = sm.explain(question, points(4), show=False)
    assert table.conclusion.startswith("traced")
    assert {row[2] for row in table.rows} <= {"rule", "linear"}


def test_loss_is_that_of_the_oracle() -> None:
    model, x = small(base=GeneralisedGaussian(3).double()), points(3, seed=3)
    close(sm.ScoreMatching()(model, x), oracles.score_matching(model, x), ROUTES)


def test_generalised_gaussian_off_two() -> None:
    q0 = GeneralisedGaussian(2, scale=1.5).double()
    with torch.no_grad():
        q0.location.copy_(torch.tensor([0.5, -1.0]))
        q0.log_excess_power.copy_(torch.tensor([-1.0, 0.7]))
    x = points(4, 2)
    u = (x - q0.location).abs()
    smooth = (u.square() + 0.01).sqrt()
    close(q0(x), -0.5 * (smooth**q0.power / 1.5**2).sum(-1), 1e-7)
    assert (q0.power > 1).all()
    assert sum(p.requires_grad for p in DKEF(2, base=q0).base.parameters()) == 3


def test_approximate_backprop_depends_on_how_distances_are_written() -> None:
    x, objective = points(4, seed=3), sm.ApproximateBackprop()
    products, differences = (small(distances=d) for d in ("products", "differences"))
    close(products(x), differences(x), IDENTITY)
    assert (objective(products, x) - objective(differences, x)).abs().min() > 1e-3


def test_textbook_approximate_backprop() -> None:
    """One kernel on x itself: the diagonal of its Hessian is ``k (d^2 / s^2 - 1 / s)``."""
    model = small(distances="differences", num_kernels=1, bandwidths=(1.3,))
    with torch.no_grad():
        for parameter in model.networks.parameters():
            parameter.zero_()
        model.networks.skip[:3].copy_(torch.eye(3))
    x = points(4, seed=3)
    d = x[:, None] - model.inducing
    s = 10 ** (2 * model.log10_bandwidth)
    diagonal = model.features(x)[..., None] * (d.square() / s**2 - 1 / s)
    expected = (diagonal.sum(-1) * model.alpha).sum(1) - 3 / 4
    _, trace = sm.ApproximateBackprop().terms(sm.LogDensityField(model), x)
    close(trace, expected, ROUTES)


# Alpha.


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_fit_alpha_stores_the_solution(objective: sm.Objective) -> None:
    model, x = small(), points(12, seed=3)
    form = model.fit_alpha(x, objective, seeded(), chunk_size=12)
    expected = solve_linear(model.features, model.base, x, objective, model.lam, seeded())
    if isinstance(objective, sm.CurvaturePropagation):  # by `feature_at`, with fewer signs
        expected = model.solve_alpha(x, objective, seeded())
    assert not model.alpha.requires_grad
    close(model.alpha, expected, ROUTES)
    close(form.solve(model.lam), model.alpha, IDENTITY)


def test_fit_alpha_in_chunks() -> None:
    whole, chunks, x = small(), small(), points(12, seed=3)
    whole.fit_alpha(x, sm.ScoreMatching(), chunk_size=100)
    assert chunks.fit_alpha(x, sm.ScoreMatching(), chunk_size=5).count == 12
    close(chunks.alpha, whole.alpha, ROUTES)


def test_fitted_alpha_is_stationary() -> None:
    model, x = small(), points(12, seed=3)
    model.fit_alpha(x, sm.ScoreMatching())
    alpha = model.alpha.clone().requires_grad_()
    loss = sm.ScoreMatching()(model.log_density_with(alpha), x).mean()
    (slope,) = torch.autograd.grad(loss + 0.5 * model.lam * alpha.square().sum(), alpha)
    assert slope.abs().max() < 1e-8


def test_alpha_is_saved() -> None:
    model, x = small(), points(4, seed=3)
    model.fit_alpha(points(12), sm.ScoreMatching())
    other = DKEF(3, num_inducing=6, width=4).double()
    assert not torch.allclose(other(x), model(x))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


# Training.


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_two_stage_gradient_is_that_of_differences(objective: sm.Objective) -> None:
    base = GeneralisedGaussian(3).double()
    # Curvature propagation has infinite slopes where a curvature vanishes: u^1, beta = 2.
    base.log_excess_power.data.fill_(0.3)
    model, data = small(base=base), points(10, seed=3)
    before = model.alpha.clone()

    def loss() -> Tensor:
        return model.two_stage_loss(data[:6], data[6:], objective, seeded()).mean()

    assert model.two_stage_loss(data[:6], data[6:], objective, seeded()).shape == (4,)
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(loss(), parameters)
    assert torch.equal(model.alpha, before)
    for parameter, slope in zip(parameters, gradient):
        direction = torch.randn(parameter.shape, generator=seeded(4), dtype=torch.float64)
        close((slope * direction).sum(), _difference(loss, parameter, direction), 1e-5)


@torch.no_grad()
def _difference(loss: Any, parameter: Tensor, direction: Tensor, step: float = 1e-6) -> Tensor:
    """Fourth-order central difference of a loss along a direction of a parameter."""
    values = []
    start = parameter.clone()
    for k in (-2, -1, 1, 2):
        parameter.copy_(start + k * step * direction)
        values.append(loss())
    parameter.copy_(start)
    a, b, c, d = values
    return (a - 8 * b + 8 * c - d) / (12 * step)


def test_training_lowers_the_loss() -> None:
    data = points(60, 2).sign() + 0.3 * points(60, 2, seed=5)  # four clusters
    model = DKEF(2, num_inducing=10, width=6, generator=seeded()).double()
    model.initialise(data, seeded())
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        loss = model.two_stage_loss(data[:30], data[30:], sm.ScoreMatching()).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_float32(objective: sm.Objective) -> None:
    double = small()
    single = DKEF(3, num_inducing=6, width=4)
    single.load_state_dict(double.state_dict())
    x = points(20, seed=3)
    with torch.no_grad():
        double.load_state_dict(single.state_dict())  # the same numbers, to the last digit
    if isinstance(objective, (sm.ScoreMatching, sm.ApproximateBackprop)):  # no noise to differ
        losses = [
            m.two_stage_loss(y[:10], y[10:], objective)
            for m, y in ((double, x.float().double()), (single, x.float()))
        ]
        close(losses[1].double(), losses[0], FLOAT32)
    loss = single.two_stage_loss(x[:10].float(), x[10:].float(), objective, seeded())
    loss.mean().backward()
    assert loss.dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in single.parameters())


@pytest.mark.parametrize("part", ["inducing", "log10_lam"])
def test_losses_are_nan_where_parameters_overflow(part: str) -> None:
    """No error is raised, so that a training loop can report the divergence."""
    model, data = small(), points(20)
    with torch.no_grad():
        getattr(model, part).fill_(float("inf"))
    loss = model.two_stage_loss(data[:10], data[10:], sm.ScoreMatching())
    assert loss.shape == (10,) and loss.isnan().all()
    assert small().two_stage_loss(data[:10], data[10:], sm.ScoreMatching()).isfinite().all()


# Errors.


def test_arguments_are_checked() -> None:
    for wrong in ({"dim": 0}, {"num_inducing": 0}, {"num_kernels": -1}, {"width": 0}, {"lam": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DKEF(**{"dim": 2, **wrong})
    with pytest.raises(ValueError, match=r'distances must be "products" or "differences"'):
        DKEF(2, distances="cdist")
    with pytest.raises(ValueError, match="bandwidths must be num_kernels = 3 numbers, got 2"):
        DKEF(2, bandwidths=(1.0, 2.0))
    with pytest.raises(ValueError, match="every bandwidth must be positive"):
        DKEF(2, num_kernels=1, bandwidths=(-1.0,))
    with pytest.raises(ValueError, match="scale must be positive"):
        GaussianBase(0.0)


@pytest.mark.parametrize("shape", [(5, 3), (9, 2)])
def test_training_points_are_checked(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least num_inducing = 6 points of 3 coordinates"):
        small().initialise(points(*shape))


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal to a tolerance relative to the largest entry."""
    scale = max(1.0, expected.detach().abs().max().item())
    torch.testing.assert_close(actual, expected, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("distances", ["products", "differences"])
def test_points_far_from_zero_keep_their_digits(distances: str) -> None:
    """A thousand standard deviations from zero, in float32: the score was wrong by 10 %."""
    x = torch.randn(50, 2, generator=seeded()) + 1000
    model = DKEF(2, num_inducing=20, distances=distances, generator=seeded(1)).requires_grad_(False)
    model.initialise(x, seeded(2))
    model.alpha.normal_(generator=seeded(3))
    kernels = lambda x: model(x) - model.base(x)  # noqa: E731
    found = sm.LogDensityField(kernels).score(x).detach().double()
    model.double()
    expected = sm.LogDensityField(kernels).score(x.double()).detach()
    assert float((found - expected).norm()) < 1e-3 * float(expected.norm())
