"""Hamiltonian Monte Carlo: leapfrog paths, and the stationary distribution of chains."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

import scorematching as sm
from scorematching.distributions import Banana, Distribution, Gaussian, GaussianMixture
from scorematching.samplers import (
    adapt,
    adapt_step_size,
    begin_adaptation,
    hmc,
    langevin,
    mala,
    start,
    target_of,
)
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

BANANA = Banana(curvature=0.5).to(dtype=torch.float64)
MIXTURE = GaussianMixture(
    weights=torch.tensor([0.3, 0.7], dtype=torch.float64),
    means=torch.tensor([[-1.0, 0.0], [1.5, 0.5]], dtype=torch.float64),
    covariances=torch.tensor([0.5, 1.0], dtype=torch.float64),
)


def exact(law: Distribution) -> hmc.Target:
    """A target by its formulas, which can be differentiated further."""
    return lambda x: (law.log_density(x), law.score(x))


def energy(state: hmc.HMCState, momentum: Tensor) -> Tensor:
    """``|p|^2 / 2 - log p(x)``."""
    return 0.5 * momentum.square().sum(-1) - state.log_density


def beginning(n: int, generator: torch.Generator) -> tuple[hmc.HMCState, Tensor]:
    """Chains at samples of the banana, and momenta."""
    state = hmc.start(exact(BANANA), BANANA.sample(n, generator))
    return state, hmc.draw(state.x, generator).momentum


# Paths.


def test_leapfrog_leads_back(generator: torch.Generator) -> None:
    state, momentum = beginning(20, generator)
    there, p = hmc.leapfrog(exact(BANANA), state, momentum, 0.2, 13)
    back, q = hmc.leapfrog(exact(BANANA), there, -p, 0.2, 13)
    assert (there.x - state.x).abs().amax() > 1
    for a, b in [(back.x, state.x), (q, -momentum), (back.score, state.score)]:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_leapfrog_preserves_volume(generator: torch.Generator) -> None:
    def path(xp: Tensor) -> Tensor:
        x, p = xp[None, :2], xp[None, 2:]
        end, p = hmc.leapfrog(exact(BANANA), hmc.start(exact(BANANA), x), p, 0.3, 7)
        return torch.cat([end.x, p], -1)[0]

    for xp in torch.randn(5, 4, generator=generator, dtype=torch.float64):
        dense = jacobian(path, xp)
        assert torch.linalg.det(dense).item() == pytest.approx(1, abs=1e-10)
        assert (dense - torch.eye(4)).abs().max() > 0.1


def test_energy_error_is_of_second_order(generator: torch.Generator) -> None:
    """Over a path of fixed length, half the step size leaves a quarter of the error."""
    state, momentum = beginning(200, generator)
    errors = []
    for num in (64, 128, 256):
        end, p = hmc.leapfrog(exact(BANANA), state, momentum, 1.0 / num, num)
        errors.append((energy(end, p) - energy(state, momentum)).square().mean().sqrt())
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders == pytest.approx([2, 2], abs=0.02)


def test_one_step_by_hand() -> None:
    """The standard normal from x = 1 with p = 0 and h = 1: p = -1/2, x = 1/2, p = -3/4."""
    normal = hmc.target_of(lambda x: -0.5 * x.square().sum(-1))
    state = hmc.start(normal, torch.ones(2, 1, dtype=torch.float64))
    noise = hmc.HMCNoise(torch.zeros(2, 1).double(), torch.tensor([0.9, 1.0]).double())
    after, info = hmc.move(state, normal, noise, 1.0, 1)
    change = 0.5 * (0.75**2 + 0.5**2) - 0.5
    assert info.energy_error.tolist() == pytest.approx([change] * 2, rel=IDENTITY)
    assert info.acceptance.tolist() == pytest.approx([min(1, math.exp(-change))] * 2, rel=IDENTITY)
    assert after.x.flatten().tolist() == [0.5, 1.0]
    assert info.accepted.tolist() == [True, False]


def test_a_step_size_per_chain(generator: torch.Generator) -> None:
    state, momentum = beginning(3, generator)
    sizes = [0.1, 0.2, 0.3]
    per_chain = torch.tensor(sizes, dtype=torch.float64)
    together, _ = hmc.leapfrog(exact(BANANA), state, momentum, per_chain, 4)
    for i, size in enumerate(sizes):
        one = hmc.HMCState(*(value[i : i + 1] for value in state))
        alone, _ = hmc.leapfrog(exact(BANANA), one, momentum[i : i + 1], size, 4)
        torch.testing.assert_close(together.x[i : i + 1], alone.x, rtol=0, atol=IDENTITY)


# Chains.


def moments(x: Tensor) -> Tensor:
    """First and second moments of two coordinates, ``(C, 2) -> (C, 5)``."""
    return torch.stack([x[:, 0], x[:, 1], x[:, 0] * x[:, 1], *x.square().T], 1)


TRUTHS = {
    "banana": (BANANA, [0.0, 0.0, 0.0, 1.0, 1.5]),
    # Means 0.75 and 0.35; second moments 0.3 (m m' + 0.5 I) + 0.7 (m m' + I).
    "mixture": (MIXTURE, [0.75, 0.35, 0.525, 2.725, 1.025]),
}


def run(law: Distribution, x: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """Positions of chains after some steps of a size with many rejections."""
    target = hmc.target_of(law.log_density)
    state = hmc.start(target, x)
    rates = []
    for _ in range(steps):
        state, info = hmc.step(state, target, 0.9, 2, generator)
        rates.append(info.accepted.double().mean().item())
    assert sum(rates) < 0.97 * steps, "too few rejections to test them"
    return state.x


@pytest.mark.parametrize("law", TRUTHS)
def test_stationary_moments(law: str, generator: torch.Generator) -> None:
    """Chains that start at samples of the target keep its moments, for any step size."""
    target, truth = TRUTHS[law]
    x = run(target, target.sample(20_000, generator), 4, generator)
    assert_mean(moments(x), torch.tensor(truth), detect=0.2)


def test_chains_forget_where_they_began(generator: torch.Generator) -> None:
    x = run(MIXTURE, torch.full((20_000, 2), 3.0, dtype=torch.float64), 25, generator)
    assert_mean(moments(x), torch.tensor(TRUTHS["mixture"][1]), detect=0.2)


def test_paths_that_are_always_accepted_are_found_out(generator: torch.Generator) -> None:
    target = exact(BANANA)
    state = hmc.start(target, BANANA.sample(20_000, generator))
    for _ in range(4):
        noise = hmc.draw(state.x, generator)._replace(uniform=torch.zeros(20_000))
        state, _ = hmc.move(state, target, noise, 0.9, 2)
    with pytest.raises(AssertionError):
        assert_mean(moments(state.x), torch.tensor(TRUTHS["banana"][1]), detect=0.2)


def test_paths_to_nowhere_are_rejected(generator: torch.Generator) -> None:
    """If the density is zero or NaN, the state of the chain does not change."""
    target = hmc.target_of(lambda x: torch.log(1 - x.square().sum(-1)))
    state = hmc.start(target, torch.zeros(50, 2, dtype=torch.float64))
    after, info = hmc.step(state, target, 5.0, 1, generator)
    assert not info.accepted.all() and info.acceptance.isfinite().all()
    assert after.score.isfinite().all() and (after.x.square().sum(-1) < 1).all()


# Randomness, step sizes and the score.


def test_generator_decides(generator: torch.Generator) -> None:
    target, before = exact(BANANA), torch.get_rng_state()
    state = hmc.start(target, BANANA.sample(5, generator))
    first, again, other = (
        hmc.step(state, target, 0.3, 3, torch.Generator().manual_seed(k))[0].x for k in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_adaptation_finds_the_wanted_acceptance(generator: torch.Generator) -> None:
    """From a step size that is far too large."""
    law = Gaussian(torch.zeros(10).double(), torch.eye(10).double())
    target, size = exact(law), 10.0
    state = hmc.start(target, law.sample(2000, generator))
    for _ in range(150):
        state, info = hmc.step(state, target, size, 1, generator)
        size = hmc.adapt_step_size(size, info.acceptance, rate=0.1)
    assert info.acceptance.mean().item() == pytest.approx(0.65, abs=0.05)


def test_adaptation_chain_by_chain() -> None:
    sizes, rates = torch.tensor([[0.1, 0.2, 0.4], [0.65, 1.0, 0.0]], dtype=torch.float64)
    adapted = hmc.adapt_step_size(sizes, rates, rate=1.0)
    expected = [0.1, 0.2 * math.exp(0.35), 0.4 * math.exp(-0.65)]
    assert adapted.tolist() == pytest.approx(expected, rel=IDENTITY)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_target_of_a_log_density(generator: torch.Generator, mode: type) -> None:
    x = MIXTURE.sample(6, generator)
    with mode():
        value, score = hmc.target_of(MIXTURE.log_density)(x)
    torch.testing.assert_close(value, MIXTURE.log_density(x), rtol=0, atol=IDENTITY)
    torch.testing.assert_close(score, MIXTURE.score(x), rtol=0, atol=ROUTES)
    assert not value.requires_grad and not score.requires_grad and not x.requires_grad


def test_target_that_ignores_its_points() -> None:
    weight = torch.ones((), requires_grad=True)
    for constant in (lambda x: torch.zeros(len(x)), lambda x: weight.expand(len(x))):
        with pytest.raises(ValueError, match="the log-density must depend on x"):
            hmc.target_of(constant)(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"one log-density per point, shape \(3,\), got \(3, 2\)"):
        hmc.target_of(lambda x: x)(torch.zeros(3, 2))
    target = exact(BANANA)
    with pytest.raises(ValueError, match="num_leapfrog must be at least 1"):
        hmc.step(hmc.start(target, torch.zeros(1, 2).double()), target, 0.1, 0)


@pytest.mark.parametrize("what", ["log-density", "score"])
def test_chains_that_could_never_move_are_refused(what: str) -> None:
    """Steps from NaN are never accepted: the samples were the starting points."""

    def density(x: Tensor) -> Tensor:
        gamma = (x.log() - x).sum(-1) if what == "log-density" else x.square().sum(-1).sqrt()
        return gamma - x.square().sum(-1)

    x = torch.ones(5, 2, dtype=torch.float64)
    x[3] = -1.0 if what == "log-density" else 0.0
    with pytest.raises(ValueError, match="must be numbers where chains start, got NaN at 1 of 5"):
        hmc.start(hmc.target_of(density), x)
    hmc.start(hmc.target_of(density), x[:3])


@pytest.mark.parametrize("count", [2, 5])
def test_a_log_density_is_no_target(count: int, generator: torch.Generator) -> None:
    """The log-densities of two chains, unpacked, passed as a log-density and a score."""
    x = torch.randn(count, 3, generator=generator)
    normal = lambda x: -0.5 * x.square().sum(-1)  # noqa: E731
    target = target_of(normal)
    state = start(target, x)
    wrong: Any = normal
    for step in (
        lambda: start(wrong, x),
        lambda: hmc.step(state, wrong, 0.1),
        lambda: mala.step(state, wrong, 0.1),
    ):
        with pytest.raises(TypeError, match=r"and scores .*; pass samplers.target_of"):
            step()
    points: Any = x
    for step in (lambda: hmc.step(points, target, 0.1), lambda: mala.step(points, target, 0.1)):
        with pytest.raises(TypeError, match=r"state must be a State .* samplers\.start"):
            step()


def test_fields_are_no_functions() -> None:
    field: Any = sm.LogDensityField(lambda x: -0.5 * x.square().sum(-1))
    with pytest.raises(TypeError, match="log_density must be callable, got LogDensityField"):
        target_of(field)
    assert target_of(field.log_density)(torch.ones(1, 2))[0].tolist() == [-1.0]
    with pytest.raises(TypeError, match=r"score must be callable, got .* the method score"):
        langevin.step(torch.ones(1, 2), field, 0.1)


def test_adaptation_takes_numbers_and_refuses_negative_steps() -> None:
    state, half = begin_adaptation(0.1), torch.tensor(0.5, dtype=torch.float64)
    assert adapt(state, 0.5).step_size == adapt(state, half).step_size
    assert adapt_step_size(0.1, 0.5) == adapt_step_size(0.1, half.expand(3))
    with pytest.raises(ValueError, match=r"step_size must be positive, got -1\.0"):
        begin_adaptation(torch.tensor([0.1, -1.0]))
    for follow in (lambda *a, **k: adapt(state, *a, **k), partial(adapt_step_size, 0.1)):
        for wrong in (math.nan, 1.5, "0.5", None):
            with pytest.raises(
                ValueError, match=r"acceptance must lie .*; take it from the second"
            ):
                follow(wrong)
            with pytest.raises(ValueError, match=r"wanted must lie between .*; 0\.65"):
                follow(0.5, wanted=wrong)
    with pytest.raises(ValueError, match="rate must be positive, got nan"):
        adapt_step_size(0.1, 0.5, rate=math.nan)
    with pytest.raises(TypeError, match="step_size must be a positive number, got None"):
        adapt_step_size(None, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", [hmc, mala])
def test_steps_keep_no_graph(sampler: Any) -> None:
    """Points of a network have one, which grew with every step of their chains."""
    x = torch.ones(3, 2, requires_grad=True)
    target = target_of(lambda x: -0.5 * x.square().sum(-1))
    state, _ = sampler.step(start(target, 2 * x), target, 0.1)
    assert not any(part.requires_grad for part in state)
