"""Langevin steps: exact moments for Gaussians, the Metropolis test, adaptation, annealing."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching.distributions import Banana, Gaussian
from scorematching.samplers import (
    Adaptation,
    State,
    Target,
    adapt,
    adapt_step_size,
    anneal,
    annealed,
    begin_adaptation,
    hmc,
    langevin,
    mala,
    noise_levels,
    start,
    target_of,
)
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

F64 = torch.float64
BANANA = Banana(curvature=0.5).to(dtype=F64)
PRECISION = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=F64)
EYE = torch.eye(2, dtype=F64)


def gaussian_score(x: Tensor) -> Tensor:
    return -x @ PRECISION


def exact(x: Tensor) -> tuple[Tensor, Tensor]:
    """The banana by its formulas."""
    return BANANA.log_density(x), BANANA.score(x)


def stationary(h: float) -> Tensor:
    """Stationary covariance of unadjusted steps: ``P^-1 (I - h^2 P / 4)^-1``."""
    return torch.linalg.inv(PRECISION @ (EYE - 0.25 * h**2 * PRECISION))


def outer(x: Tensor) -> Tensor:
    return (x[:, :, None] * x[:, None, :]).flatten(1)


# Unadjusted.


def test_one_step_by_hand(generator: torch.Generator) -> None:
    x, eps = torch.randn(2, 5, 2, generator=generator, dtype=F64)
    after, info = langevin.move(x, gaussian_score, eps, 0.3)
    expected = x + 0.5 * 0.3**2 * gaussian_score(x) + 0.3 * eps
    torch.testing.assert_close(after, expected, rtol=0, atol=IDENTITY)
    assert torch.equal(info.score, gaussian_score(x))


@pytest.mark.parametrize("h", [0.2, 0.7, 1.2])
def test_stationary_covariance_of_a_gaussian(h: float) -> None:
    """The step is linear, x' = A x + B eps, and S = A S A' + B B' has the formula's solution."""
    zeros = torch.zeros_like(EYE)
    a, b = (langevin.move(x, gaussian_score, e, h)[0].T for x, e in [(EYE, zeros), (zeros, EYE)])
    s = stationary(h)
    torch.testing.assert_close(a @ s @ a.T + b @ b.T, s, rtol=ROUTES, atol=0)
    target = torch.linalg.inv(PRECISION)
    assert (a @ target @ a.T + b @ b.T - target).abs().max() > 1e-3 * h**4


def test_chains_keep_the_stationary_covariance(generator: torch.Generator) -> None:
    h, s = 1.2, stationary(1.2)
    x = torch.randn(20_000, 2, generator=generator, dtype=F64) @ torch.linalg.cholesky(s).T
    for _ in range(5):
        x, _ = langevin.step(x, gaussian_score, h, generator)
    assert_mean(outer(x), s.flatten(), detect=0.6)
    with pytest.raises(AssertionError):
        assert_mean(outer(x), torch.linalg.inv(PRECISION).flatten(), detect=0.6)


def test_a_step_size_per_chain_and_any_event(generator: torch.Generator) -> None:
    x, eps = torch.randn(2, 3, 2, 2, generator=generator, dtype=F64)
    sizes = torch.tensor([0.1, 0.2, 0.3], dtype=F64)
    together, _ = langevin.move(x, torch.neg, eps, sizes)
    for i, size in enumerate(sizes.tolist()):
        alone, _ = langevin.move(x[i : i + 1], torch.neg, eps[i : i + 1], size)
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=IDENTITY)


def test_no_graph_grows(generator: torch.Generator) -> None:
    scale = torch.ones((), dtype=F64, requires_grad=True)
    x = torch.zeros(3, 1, dtype=F64)
    for _ in range(3):
        x, info = langevin.step(x, lambda y: -scale * y, 0.1, generator)
    assert not x.requires_grad and not info.score.requires_grad


# Metropolis-adjusted.


def log_proposal(x: Tensor, y: Tensor, h: float) -> Tensor:
    """``log q(y | x)`` up to a constant: normal around ``x + (h^2 / 2) s(x)``, deviation h."""
    return -0.5 * ((y - x - 0.5 * h**2 * BANANA.score(x)) / h).square().sum(-1)


def moved(x: Tensor, eps: Tensor, h: float) -> tuple[State, hmc.HMCInfo]:
    """A step that is always accepted."""
    noise = hmc.HMCNoise(eps, torch.zeros(len(x), dtype=F64))
    return mala.move(start(exact, x), exact, noise, h)


@pytest.mark.parametrize("h", [0.3, 0.8])
def test_acceptance_is_the_metropolis_hastings_ratio(h: float, generator: torch.Generator) -> None:
    x, eps = torch.randn(2, 50, 2, generator=generator, dtype=F64)
    state, info = moved(x, eps, h)
    y = x + 0.5 * h**2 * BANANA.score(x) + h * eps
    accepted = info.accepted
    torch.testing.assert_close(state.x[accepted], y[accepted], rtol=0, atol=IDENTITY)
    log_ratio = BANANA(y) + log_proposal(y, x, h) - BANANA(x) - log_proposal(x, y, h)
    torch.testing.assert_close(info.energy_error, -log_ratio, rtol=0, atol=1e-10)
    expected = log_ratio.clamp(max=0).exp()
    torch.testing.assert_close(info.acceptance, expected, rtol=0, atol=1e-10)
    assert (expected < 0.999).any()


def test_detailed_balance(generator: torch.Generator) -> None:
    """``p(x) q(y | x) a(x, y) = p(y) q(x | y) a(y, x)``, there and back."""
    h = 0.8
    x, eps = torch.randn(2, 50, 2, generator=generator, dtype=F64)
    y = x + 0.5 * h**2 * BANANA.score(x) + h * eps
    back = (x - y - 0.5 * h**2 * BANANA.score(y)) / h
    flows = [
        BANANA(a) + log_proposal(a, b, h) + moved(a, e, h)[1].acceptance.log()
        for a, b, e in [(x, y, eps), (y, x, back)]
    ]
    torch.testing.assert_close(*flows, rtol=0, atol=1e-10)
    without = [BANANA(a) + log_proposal(a, b, h) for a, b in [(x, y), (y, x)]]
    assert (without[0] - without[1]).abs().max() > 0.1


def test_detailed_balance_of_hamiltonian_paths(generator: torch.Generator) -> None:
    """From the end of a path with the momentum negated: the same path, the inverse ratio."""
    x, p = torch.randn(2, 50, 2, generator=generator, dtype=F64)
    state = start(exact, x)
    there, q = hmc.leapfrog(exact, state, p, 0.4, 5)
    never = torch.ones(50, dtype=F64)
    _, out = hmc.move(state, exact, hmc.HMCNoise(p, never), 0.4, 5)
    _, home = hmc.move(there, exact, hmc.HMCNoise(-q, never), 0.4, 5)
    torch.testing.assert_close(out.energy_error, -home.energy_error, rtol=0, atol=1e-10)
    joint = [BANANA(a) - 0.5 * b.square().sum(-1) for a, b in [(x, p), (there.x, q)]]
    flows = [joint[0] + out.acceptance.log(), joint[1] + home.acceptance.log()]
    torch.testing.assert_close(*flows, rtol=0, atol=1e-10)


def test_adjusted_chains_keep_the_law_where_unadjusted_ones_do_not(
    generator: torch.Generator,
) -> None:
    truth = torch.linalg.inv(PRECISION)
    law = Gaussian(torch.zeros(2, dtype=F64), truth)
    target = target_of(law.log_density)
    state = start(target, law.sample(20_000, generator))
    for _ in range(5):
        state, info = mala.step(state, target, 1.2, generator)
    assert info.accepted.double().mean() < 0.95, "too few rejections to test them"
    assert_mean(outer(state.x), truth.flatten(), detect=0.5)


# Adaptation.


def dual_averaging_by_hand(first: float, acceptances: list[float], wanted: float) -> list[float]:
    """The recursion of the reference, one number at a time."""
    mu, h_bar, log_avg, steps = math.log(10 * first), 0.0, math.log(first), []
    for m, a in enumerate(acceptances, 1):
        h_bar = (1 - 1 / (m + 10)) * h_bar + (wanted - a) / (m + 10)
        log_h = mu - math.sqrt(m) / 0.05 * h_bar
        log_avg = m**-0.75 * log_h + (1 - m**-0.75) * log_avg
        steps.append(math.exp(log_h))
    return [*steps, math.exp(log_avg)]


def test_adaptation_is_the_recursion() -> None:
    rates = [0.9, 0.1, 0.65, 1.0, 0.0, 0.4]
    state, steps = begin_adaptation(0.3), []
    for rate in rates:
        before = state
        state = adapt(state, torch.tensor(rate), wanted=0.6)
        assert adapt(before, torch.tensor(rate), wanted=0.6) == state, "not a pure function"
        steps.append(state.step_size.item())
    expected = dual_averaging_by_hand(0.3, [torch.tensor(r).item() for r in rates], 0.6)
    assert [*steps, state.average.item()] == pytest.approx(expected, rel=1e-6)


def test_adaptation_finds_the_wanted_acceptance(generator: torch.Generator) -> None:
    """Two groups of chains with targets of different scale get different step sizes."""
    scale = torch.tensor([1.0, 0.1], dtype=F64).repeat(1000)[:, None]
    target: Target = target_of(lambda x: -0.5 * (x / scale).square().sum(-1))
    x = scale * torch.randn(2000, 5, generator=generator, dtype=F64)
    state, adaptation = start(target, x), begin_adaptation(torch.tensor([0.3, 0.3], dtype=F64))
    for _ in range(150):
        state, info = mala.step(state, target, adaptation.step_size.repeat(1000), generator)
        adaptation = adapt(adaptation, info.acceptance.reshape(-1, 2).mean(0), wanted=0.574)
    assert isinstance(adaptation, Adaptation)
    _, info = mala.step(state, target, adaptation.average.repeat(1000), generator)
    rates = info.acceptance.reshape(-1, 2).mean(0).tolist()
    assert rates == pytest.approx([0.574, 0.574], abs=0.06)
    assert (adaptation.average[0] / adaptation.average[1]).item() == pytest.approx(10, rel=0.15)


# Annealed.


def test_noise_levels() -> None:
    levels = noise_levels(8.0, 0.5, 5)
    assert levels == pytest.approx([8, 4, 2, 1, 0.5], rel=IDENTITY)
    assert noise_levels(8.0, 0.5, 1) == [0.5]


def test_levels_may_be_a_tensor() -> None:
    x = torch.zeros(2, 3)
    _, info = anneal(lambda x, sigma: -x / sigma**2, x, torch.tensor([2.0, 1.0]), 0.1, 2)
    assert info.step_sizes.tolist() == [0.2, 0.1]


def test_annealed_chains_have_the_law_of_their_recursion(generator: torch.Generator) -> None:
    """Gaussian data: every step is affine, so mean and variance follow two recursions."""
    centre, width, h, steps = 3.0, 0.5, 0.2, 4
    sigmas = noise_levels(4.0, 0.5, 4)

    def score(x: Tensor, sigma: float) -> Tensor:
        return -(x - centre) / (width**2 + sigma**2)

    x, info = anneal(score, torch.zeros(20_000, 1, dtype=F64), sigmas, h, steps, generator)
    mean, variance = 0.0, 0.0
    for sigma in sigmas:
        size = h * sigma / sigmas[-1]
        keep = 1 - 0.5 * size**2 / (width**2 + sigma**2)
        for _ in range(steps):
            mean, variance = centre + keep * (mean - centre), keep**2 * variance + size**2
    assert_mean(x[:, 0], mean, detect=0.12)
    assert_mean((x[:, 0] - mean).square(), variance, detect=0.1 * variance)
    assert info.step_sizes.tolist() == pytest.approx([h * s / sigmas[-1] for s in sigmas])
    assert isinstance(info, annealed.AnnealedInfo) and info.score_norms.shape == (4,)


def test_score_networks_take_levels_of_noise(generator: torch.Generator) -> None:
    """As a column from a ladder of levels, and as a number from `anneal`."""
    network, x = sm.models.ScoreNetwork(2, hidden=(4,), context_dim=1), torch.zeros(3, 2)
    ladder = sm.DenoisingScoreMatching(sm.NoiseLadder((1.0, 0.5)))
    assert ladder(sm.VectorField(network), x, generator=generator).shape == (3,)
    assert torch.equal(network(x, 0.5), network(x, torch.full((3, 1), 0.5)))
    assert anneal(network, x, [1.0, 0.5], 0.1, 2, generator)[0].shape == (3, 2)


def test_annealing_finds_modes_in_their_proportions(generator: torch.Generator) -> None:
    """Two distant modes of unequal weight, between which chains at the last level do not move."""
    modes, weights = torch.tensor([-10.0, 10.0], dtype=F64), torch.tensor([0.2, 0.8], dtype=F64)

    def score(x: Tensor, sigma: float) -> Tensor:
        share = (-0.5 * ((x - modes) / sigma).square() + weights.log()).softmax(-1)
        return (share * (modes - x)).sum(-1, keepdim=True) / sigma**2

    begin = 20 * torch.randn(4000, 1, generator=generator, dtype=F64)
    sigmas = noise_levels(20.0, 1.0, 12)
    x, _ = anneal(score, begin, sigmas, 0.5, 40, generator)
    assert_mean((x[:, 0] > 0).double(), 0.8, detect=0.06)
    alone, _ = anneal(score, begin, [1.0], 0.5, 40, generator)
    assert (alone[:, 0] > 0).double().mean() < 0.6


# Randomness and errors.


def test_generator_decides(generator: torch.Generator) -> None:
    target, before = exact, torch.get_rng_state()
    state = start(target, BANANA.sample(5, generator))
    runs = {
        "langevin": lambda g: langevin.step(state.x, BANANA.score, 0.3, g)[0],
        "mala": lambda g: mala.step(state, target, 0.3, g)[0].x,
        "annealed": lambda g: anneal(lambda x, _: -x, state.x, [1.0], 0.1, 2, g)[0],
    }
    for name, run in runs.items():
        first, again, other = (run(torch.Generator().manual_seed(k)) for k in (1, 1, 2))
        assert torch.equal(first, again) and not torch.equal(first, other), name
    assert torch.equal(torch.get_rng_state(), before)


X = torch.zeros(3, 2)
NORMAL = target_of(lambda x: -0.5 * x.square().sum(-1))
BAD = [
    (lambda: langevin.step(X, torch.neg, 0.0), ValueError, "step_size must be positive, got 0.0"),
    (lambda: langevin.step(X, torch.neg, "1"), TypeError, "step_size must be a number or a tensor"),
    (
        lambda: langevin.step(X, torch.neg, torch.ones(2)),
        ValueError,
        r"one for each chain, shape \(3,\), got \(2,\); repeat",
    ),
    (lambda: langevin.step(X[0], torch.neg, 0.1), ValueError, r"x must have shape \(N, \*event\)"),
    (
        lambda: langevin.step(X, lambda x: x.sum(-1), 0.1),
        ValueError,
        r"one vector per point, shape \(3, 2\) like x, got \(3,\)",
    ),
    (lambda: mala.step(start(NORMAL, X), NORMAL, -1.0), ValueError, "step_size must be positive"),
    (lambda: start(NORMAL, X.long()), TypeError, "x must have a floating-point dtype"),
    (lambda: begin_adaptation(0.0), ValueError, "step_size must be positive"),
    (lambda: noise_levels(0.0, 1.0, 3), ValueError, "largest must be positive"),
    (lambda: noise_levels(1.0, 0.1, 0), ValueError, "num must be at least 1"),
    (lambda: noise_levels(0.1, 1.0, 3), ValueError, "exchange them: levels decrease"),
    (lambda: anneal(lambda x, _: -x, X, [0.1, 1.0], 0.1), ValueError, "the largest first"),
    (lambda: anneal(lambda x, _: -x, X, [], 0.1), ValueError, "sigmas must be positive"),
    (lambda: anneal(lambda x, _: -x, X, [1.0], 0.1, 0), ValueError, "num_steps must be at least"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_arguments(call: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("kind", [mala, hmc])
def test_chains_keep_their_dtype_with_adapted_steps(kind: ModuleType) -> None:
    """`begin_adaptation` works in double precision, chains in their own."""
    size = begin_adaptation(0.1).step_size
    target = target_of(lambda x: -0.5 * x.square().sum(-1))
    state, info = kind.step(start(target, torch.ones(3, 2)), target, size)
    assert state.x.dtype == state.score.dtype == info.acceptance.dtype == torch.float32
    assert langevin.step(torch.ones(3, 2), torch.neg, size)[0].dtype == torch.float32


def shifted_in_place(x: Tensor) -> Tensor:
    """The score of N(5, I), which changes its points as numpy users often write it."""
    x -= 5.0
    return -x


def test_chains_that_share_a_step_size_share_their_mean_acceptance() -> None:
    """A state for all chains became one state for each of them, by broadcasting."""
    state, rates = begin_adaptation(0.1), torch.tensor([0.2, 0.9, 0.4])
    each = begin_adaptation(torch.full((3,), 0.1))
    assert adapt(state, rates) == adapt(state, rates.double().mean())
    assert adapt(each, rates).step_size.shape == (3,)
    with pytest.raises(ValueError, match=r"acceptance must have the shape .* \(3,\), got \(2,\)"):
        adapt(each, rates[:2])
    with pytest.raises(ValueError, match=r"of the step size, \(3,\), got \(3, 1\)"):
        adapt_step_size(torch.full((3,), 0.1), rates[:, None])
    shared = adapt_step_size(torch.tensor(0.1), rates)
    assert shared.shape == () and abs(float(shared) - adapt_step_size(0.1, rates)) < 1e-7
    assert adapt(state, torch.tensor(True)).step_size == adapt(state, 1.0).step_size


def test_step_sizes_that_are_whole_numbers_keep_the_digits_of_acceptances() -> None:
    """An acceptance of 0.9 became that of an integer, 0."""
    found = adapt_step_size(torch.tensor([1, 2]), torch.tensor([0.9, 0.4]))
    torch.testing.assert_close(
        found, adapt_step_size(torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.4]))
    )
    assert adapt_step_size(torch.tensor(1), 0.9) == adapt_step_size(torch.tensor(1.0), 0.9)


def test_noise_of_another_shape_is_refused() -> None:
    """One number for both coordinates moved all chains along the diagonal."""
    target, x = target_of(lambda x: -0.5 * x.square().sum(-1)), torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"noise must have the shape of x, \(3, 2\), got \(3, 1\)"):
        langevin.move(x, torch.neg, torch.ones(3, 1), 0.1)
    noise = hmc.HMCNoise(torch.ones(3, 1), torch.zeros(3))
    with pytest.raises(ValueError, match=r"momenta must have the shape of x, \(3, 2\)"):
        mala.move(start(target, x), target, noise, 0.1)
    noise = hmc.HMCNoise(torch.ones(3, 2), torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"uniform numbers must have shape \(3,\)"):
        hmc.move(start(target, x), target, noise, 0.1, 3)


def test_functions_that_change_their_points_move_no_chains() -> None:
    x = torch.zeros(3, 2, dtype=torch.float64)
    moved, _ = sm.samplers.langevin.move(x, shifted_in_place, torch.zeros_like(x), 1.0)
    target = sm.samplers.ForcedTarget(lambda x: shifted_in_place(x).sum(-1), shifted_in_place)
    value, force = target(x)
    assert torch.equal(moved, torch.full_like(x, 2.5))
    assert torch.equal(value, torch.full((3,), 10.0).double())
    assert torch.equal(force, torch.full_like(x, 5.0))
    assert not x.any()

    def by_hand(x: Tensor) -> tuple[Tensor, Tensor]:
        return -0.5 * (x - 5.0).square().sum(-1), shifted_in_place(x)

    state, _ = hmc.leapfrog(by_hand, start(by_hand, x), torch.zeros_like(x), 1.0, 1)
    assert torch.equal(state.x, torch.full_like(x, 2.5)) and not x.any()
