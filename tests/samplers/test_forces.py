"""Steps that follow a force other than the score still leave the target invariant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scorematching.distributions import Banana, Gaussian
from scorematching.samplers import ForcedTarget, State, hmc, mala
from tests.statistics import assert_mean

F64 = torch.float64
BANANA = Banana(curvature=0.5).to(dtype=F64)
MEAN = torch.tensor([1.0, -0.5], dtype=F64)
NORMAL = Gaussian(MEAN, torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=F64))
MOMENTS = torch.tensor([1.0, -0.5, 0.1, 2.0, 1.05], dtype=F64)  # 0.6 - 0.5, 1 + 1, 0.8 + 0.25
FIELD = torch.tensor([0.3, -0.2], dtype=F64)


def wrong(law: Banana | Gaussian) -> ForcedTarget:
    """A target with 0.8 of its score, a constant and a rotation, which is no gradient."""

    def force(x: Tensor) -> Tensor:
        return 0.8 * law.score(x) + FIELD + 0.1 * torch.stack([-x[:, 1], x[:, 0]], 1)

    return ForcedTarget(law.log_density, force)


def moments(x: Tensor) -> Tensor:
    """First and second moments, ``(C, 2) -> (C, 5)``."""
    return torch.stack([x[:, 0], x[:, 1], x[:, 0] * x[:, 1], *x.square().T], 1)


def mixed(state: State) -> State:
    """The planted bug: the first update of the momentum takes the exact score."""
    return state._replace(score=NORMAL.score(state.x))


# Paths.


def forth_and_back(state: State, momentum: Tensor, bug: bool) -> tuple[Tensor, Tensor]:
    """Positions and momenta after a path and the path back from its end."""
    target = wrong(NORMAL)
    there, p = hmc.leapfrog(target, mixed(state) if bug else state, momentum, 0.2, 13)
    assert (there.x - state.x).abs().amax() > 0.5
    back, q = hmc.leapfrog(target, mixed(there) if bug else there, -p, 0.2, 13)
    return back.x, -q


def test_paths_lead_back(generator: torch.Generator) -> None:
    state = hmc.start(wrong(NORMAL), NORMAL.sample(20, generator))
    momentum = hmc.draw(state.x, generator).momentum
    x, p = forth_and_back(state, momentum, bug=False)
    torch.testing.assert_close(x, state.x, rtol=0, atol=1e-10)
    torch.testing.assert_close(p, momentum, rtol=0, atol=1e-10)
    x, p = forth_and_back(state, momentum, bug=True)
    assert (x - state.x).abs().amin() > 1e-4


def test_paths_preserve_volume(generator: torch.Generator) -> None:
    """The determinant of the Jacobian matrix, by central differences."""
    target, eps = wrong(BANANA), 1e-5

    def path(xp: Tensor) -> Tensor:
        end, p = hmc.leapfrog(target, hmc.start(target, xp[:, :2]), xp[:, 2:], 0.3, 7)
        return torch.cat([end.x, p], 1)

    xp, steps = torch.randn(1, 4, generator=generator, dtype=F64), eps * torch.eye(4, dtype=F64)
    dense = (path(xp + steps) - path(xp - steps)) / (2 * eps)
    assert torch.linalg.det(dense).item() == pytest.approx(1, abs=1e-6)
    assert (dense - torch.eye(4)).abs().max() > 0.1


def test_the_score_as_force_changes_nothing(generator: torch.Generator) -> None:
    """Digit for digit, and the log-density is evaluated at the end of a path only."""
    x, noise = BANANA.sample(30, generator), hmc.draw(torch.zeros(30, 2, dtype=F64), generator)
    calls = {"log_density": 0, "force": 0}

    def log_density(x: Tensor) -> Tensor:
        calls["log_density"] += 1
        assert not torch.is_grad_enabled()
        return BANANA.log_density(x)

    def force(x: Tensor) -> Tensor:
        calls["force"] += 1
        return BANANA.score(x)

    forced = ForcedTarget(log_density, force)
    plain = lambda x: (BANANA.log_density(x), BANANA.score(x))  # noqa: E731
    state = hmc.start(forced, x)
    calls |= {"log_density": 0, "force": 0}  # the start also checks that values repeat
    found, info = hmc.move(state, forced, noise, 0.7, 5)
    expected, _ = hmc.move(hmc.start(plain, x), plain, noise, 0.7, 5)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert calls == {"log_density": 1, "force": 5}
    assert info.accepted.any() and not info.accepted.all()


# Chains.


def run(x: Tensor, steps: int, generator: torch.Generator, bug: bool = False) -> Tensor:
    """Positions of chains after some steps with many rejections."""
    target, rates = wrong(NORMAL), []
    state = hmc.start(target, x)
    for _ in range(steps):
        begin = mixed(state) if bug else state
        state, info = hmc.step(begin, target, 0.7, 2, generator)
        if bug:
            state = hmc.start(target, state.x)
        rates.append(info.accepted.double().mean().item())
    assert sum(rates) < 0.95 * steps, "too few rejections to test them"
    return state.x


def test_a_wrong_force_samples_a_gaussian(generator: torch.Generator) -> None:
    """From one point, which the chains forget; false alarms have the rate of `assert_mean`."""
    x = run(torch.full((20_000, 2), 2.0, dtype=F64), 40, generator)
    assert_mean(moments(x), MOMENTS, detect=0.2)


def test_an_exact_first_update_is_found_out(generator: torch.Generator) -> None:
    x = run(NORMAL.sample(20_000, generator), 40, generator, bug=True)
    with pytest.raises(AssertionError, match="more than"):
        assert_mean(moments(x), MOMENTS, detect=0.2)


def test_langevin_steps_with_a_wrong_force(generator: torch.Generator) -> None:
    target = wrong(NORMAL)
    state = hmc.start(target, NORMAL.sample(20_000, generator))
    for _ in range(10):
        state, info = mala.step(state, target, 0.8, generator)
    assert info.accepted.double().mean() < 0.95
    assert_mean(moments(state.x), MOMENTS, detect=0.2)


def test_other_shapes_are_refused() -> None:
    x = torch.zeros(3, 2, dtype=F64)
    with pytest.raises(ValueError, match=r"force must return one vector per chain, shape \(3, 2\)"):
        hmc.start(ForcedTarget(NORMAL.log_density, NORMAL.log_density), x)
    with pytest.raises(ValueError, match=r"one log-density per point, shape \(3,\)"):
        hmc.start(ForcedTarget(NORMAL.score, NORMAL.score), x)
