"""Normalising constants: exact weights, Gaussian closed forms, coverage and errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scorematching.distributions import Distribution, Gaussian, GaussianMixture
from scorematching.evaluation import (
    AnnealedLogZ,
    LogLikelihood,
    LogZEstimate,
    ais_log_z,
    importance_log_z,
    log_likelihood,
)
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY

F64 = torch.float64


def normal(dim: int, variance: float = 1.0, mean: float = 0.0) -> Gaussian:
    """An isotropic Gaussian."""
    return Gaussian(torch.full((dim,), mean, dtype=F64), variance * torch.eye(dim, dtype=F64))


def unnormalised(law: Distribution, log_z: float) -> Callable[[Tensor], Tensor]:
    """A log-density whose normalising constant is known."""
    return lambda x: law.log_density(x) + log_z


class Table(Distribution):
    """A Gaussian whose samples are the rows of a table, in order."""

    def __init__(self, law: Gaussian, rows: Tensor) -> None:
        super().__init__(law.dim, like=rows)
        self.law, self.rows, self.position = law, rows, 0

    def _log_density(self, x: Tensor) -> Tensor:
        return self.law.log_density(x)

    def _score(self, x: Tensor) -> Tensor:
        return self.law.score(x)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        self.position += n
        return self.rows[self.position - n : self.position]


# Weights.


def test_estimate_is_the_textbook_formula(generator: torch.Generator) -> None:
    log_weights = torch.randn(50, generator=generator, dtype=F64)
    w = log_weights.exp()
    estimate = LogZEstimate.of(log_weights)
    assert estimate.log_z == pytest.approx(w.mean().log().item(), rel=IDENTITY)
    error = (w.std() / (w.mean() * 50**0.5)).item()
    assert estimate.standard_error == pytest.approx(error, rel=IDENTITY)
    effective = (w.sum() ** 2 / w.square().sum()).item()
    assert estimate.effective_sample_size == pytest.approx(effective, rel=IDENTITY)
    assert estimate.count == 50


def test_standard_error_covers_and_the_mean_is_right(generator: torch.Generator) -> None:
    """400 estimates with a proposal twice as wide: their spread is their standard error."""
    target, proposal = unnormalised(normal(2), -1.5), normal(2, variance=4.0)
    estimates = [importance_log_z(target, proposal, 2000, generator=generator) for _ in range(400)]
    scaled = torch.tensor([(e.log_z + 1.5) / e.standard_error for e in estimates])
    assert_mean(scaled, 0.0, detect=0.5)
    assert_mean(scaled.square(), 1.0, detect=0.65)
    # E[w^2] / E[w]^2 = s^2 / sqrt(2 s^2 - 1) for each coordinate, s = 2.
    error = math.sqrt((16 / 7 - 1) / 2000)
    assert_mean([e.standard_error for e in estimates], error, detect=0.05 * error)


def test_weights_are_unbiased(generator: torch.Generator) -> None:
    target, proposal = unnormalised(normal(1, 0.5, 0.3), 2.0), normal(1)
    estimates = [importance_log_z(target, proposal, 50, generator=generator) for _ in range(2000)]
    assert_mean([math.exp(e.log_z - 2.0) for e in estimates], 1.0, detect=0.05)


@pytest.mark.parametrize("log_z", [-1e5, -3.25, 0.0, 1e5])
def test_exact_where_the_proposal_is_the_target(log_z: float, generator: torch.Generator) -> None:
    law = normal(3, 0.7, 1.0)
    estimate = importance_log_z(unnormalised(law, log_z), law, 1000, 300, generator)
    assert estimate.log_z == pytest.approx(log_z, rel=IDENTITY, abs=IDENTITY)
    assert estimate.effective_sample_size == pytest.approx(1000, rel=1e-9)
    assert estimate.standard_error == 0


@pytest.mark.parametrize("batch_size", [1, 7, 64, 100, 1000])
def test_batches_do_not_matter(batch_size: int, generator: torch.Generator) -> None:
    law, rows = normal(2, 4.0), 2 * torch.randn(100, 2, generator=generator, dtype=F64)
    target = unnormalised(normal(2), 1.0)
    batched = importance_log_z(target, Table(law, rows), 100, batch_size)
    whole = LogZEstimate.of(target(rows) - law(rows))
    assert batched.count == whole.count == 100
    for name in ("log_z", "standard_error", "effective_sample_size"):
        assert getattr(batched, name) == pytest.approx(getattr(whole, name), rel=IDENTITY)


@pytest.mark.parametrize("shift", [-1e5, 1e5])
def test_nothing_overflows(shift: float, generator: torch.Generator) -> None:
    """A shift of the log-density shifts log Z and does not change the errors."""
    law, rows = normal(2, 4.0), 2 * torch.randn(500, 2, generator=generator, dtype=F64)
    near, far = (
        importance_log_z(unnormalised(normal(2), c), Table(law, rows), 500, 90) for c in (0, shift)
    )
    assert far.log_z - shift == pytest.approx(near.log_z, abs=1e-9)
    assert far.standard_error == pytest.approx(near.standard_error, rel=1e-9)
    assert far.effective_sample_size == pytest.approx(near.effective_sample_size, rel=1e-9)


def test_spread_over_many_magnitudes() -> None:
    estimate = LogZEstimate.of(torch.tensor([1e5, -1e5, 0.0, -math.inf], dtype=F64))
    assert estimate.log_z == pytest.approx(1e5 - math.log(4), rel=IDENTITY)
    assert estimate.effective_sample_size == pytest.approx(1, rel=IDENTITY)
    assert estimate.standard_error == pytest.approx(1, rel=IDENTITY)


def test_a_density_that_is_nowhere() -> None:
    estimate = LogZEstimate.of(torch.full((10,), -math.inf))
    assert estimate.log_z == -math.inf and estimate.effective_sample_size == 0
    assert estimate.standard_error == math.inf


def test_float32_models_are_summed_in_double(generator: torch.Generator) -> None:
    law = normal(2).to(dtype=torch.float32)
    estimate = importance_log_z(lambda x: law(x) + 5.0, law, 10_000, 1000, generator)
    assert estimate.log_z == pytest.approx(5.0, abs=1e-5)


# Annealing.


@pytest.mark.parametrize("schedule", ["linear", "sigmoid", torch.tensor([0.0, 0.3, 0.4, 1.0])])
def test_without_moves_annealing_telescopes(
    schedule: str | Tensor, generator: torch.Generator
) -> None:
    """The increments of every chain add up to its importance weight."""
    law, rows = normal(2, 4.0), 2 * torch.randn(60, 2, generator=generator, dtype=F64)
    target = unnormalised(normal(2, 0.5, 1.0), 1.0)
    annealed = ais_log_z(target, Table(law, rows), 60, 3, schedule, 0, step_size=0.1)
    expected = target(rows) - law(rows)
    scale = expected.abs().max().item()
    torch.testing.assert_close(annealed.log_weights, expected, rtol=0, atol=IDENTITY * scale)
    importance = importance_log_z(target, Table(law, rows), 60)
    assert annealed.log_z == pytest.approx(importance.log_z, rel=IDENTITY)
    assert annealed.standard_error == pytest.approx(importance.standard_error, rel=1e-9)


def test_one_step_is_importance_sampling(generator: torch.Generator) -> None:
    law, rows = normal(2, 4.0), 2 * torch.randn(60, 2, generator=generator, dtype=F64)
    target = unnormalised(normal(2), 1.0)
    annealed = ais_log_z(target, Table(law, torch.cat([rows, rows])), 60, 1)
    torch.testing.assert_close(annealed.log_weights, target(rows) - law(rows), rtol=0, atol=1e-12)


def test_a_flat_path_has_equal_weights(generator: torch.Generator) -> None:
    """If start and target agree up to a constant, all weights are equal."""
    law = normal(2)
    annealed = ais_log_z(unnormalised(law, 4.0), law, 20, 10, generator=generator)
    torch.testing.assert_close(annealed.log_weights, torch.full((20,), 4.0, dtype=F64))


def test_annealed_weights_are_unbiased(generator: torch.Generator) -> None:
    """E[w] = Z for moves of any quality, but not with step sizes adapted on the same chains."""
    target = unnormalised(normal(1, 0.25, 1.0), -2.0)
    annealed = ais_log_z(target, normal(1), 20_000, 5, num_leapfrog=2, generator=generator)
    assert annealed.acceptance.shape == annealed.step_sizes.shape == (4,)
    assert (annealed.acceptance < 0.9).any(), "too few rejections to test them"
    assert_mean((annealed.log_weights + 2.0).exp(), 1.0, detect=0.08)


def test_two_modes(generator: torch.Generator) -> None:
    """A start wide enough to cover both modes."""
    means = torch.tensor([[-4.0, 0.0], [4.0, 0.0]], dtype=F64)
    mixture = GaussianMixture(torch.tensor([0.2, 0.8], dtype=F64), means, 0.5)
    target = unnormalised(mixture, 1.0)
    annealed = ais_log_z(target, normal(2, 9.0), 6000, 20, generator=generator)
    assert_mean((annealed.log_weights - 1.0).exp(), 1.0, detect=0.3)


def test_annealing_beats_importance_sampling(generator: torch.Generator) -> None:
    """A narrow target far from the start, at the same number of evaluations."""
    target, start = unnormalised(normal(3, 0.04, 2.0), 0.0), normal(3)
    annealed = ais_log_z(target, start, 300, 60, num_leapfrog=5, generator=generator)
    importance = importance_log_z(target, start, 300 * 60 * 6, generator=generator)
    assert annealed.effective_sample_size > 2 * importance.effective_sample_size
    assert annealed.standard_error < 0.75 * importance.standard_error
    assert abs(annealed.log_z) < 5 * annealed.standard_error
    with pytest.raises(ValueError, match="effective sample size"):
        log_likelihood(target, torch.zeros(5, 3, dtype=F64), importance)


@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20])
def test_annealing_does_not_depend_on_the_units(unit: float) -> None:
    """Up to rounding, which few steps amplify little; step sizes began near one in any units."""

    def annealed(unit: float) -> tuple[Tensor, Tensor]:
        start = Gaussian(torch.zeros(3, dtype=F64), unit**2 * torch.eye(3, dtype=F64))
        narrow = lambda x: -0.5 * ((x / unit - 1.5) / 0.3).square().sum(-1)  # noqa: E731
        g = torch.Generator().manual_seed(0)
        found = ais_log_z(narrow, start, num_chains=20, num_steps=3, generator=g)
        return found.log_weights - 3 * math.log(unit), found.step_sizes / unit

    for found, expected in zip(annealed(unit), annealed(1.0)):
        assert torch.allclose(found, expected, rtol=0, atol=1e-6)


def test_schedules() -> None:
    law = normal(1)
    linear, sigmoid = (
        ais_log_z(law, law, 2, 4, schedule, 0).betas for schedule in ("linear", "sigmoid")
    )
    assert linear.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert sigmoid[0] == 0 and sigmoid[-1] == 1 and sigmoid[2].item() == pytest.approx(0.5)
    assert sigmoid[1] < linear[1] and (sigmoid.diff() > 0).all()


def test_reproducible_and_global_randomness_untouched() -> None:
    law, before = normal(2, 2.0), torch.get_rng_state()
    target = unnormalised(normal(2), 0.0)
    first, again, other = (
        ais_log_z(target, law, 5, 4, generator=torch.Generator().manual_seed(k)) for k in (1, 1, 2)
    )
    assert torch.equal(first.log_weights, again.log_weights)
    assert not torch.equal(first.log_weights, other.log_weights)
    assert torch.equal(torch.get_rng_state(), before)


# Likelihoods.


def test_log_likelihood_and_its_two_errors(generator: torch.Generator) -> None:
    law, x = normal(2), torch.randn(50, 2, generator=generator, dtype=F64)
    log_z = importance_log_z(unnormalised(law, 3.0), normal(2, 2.0), 5000, generator=generator)
    result = log_likelihood(unnormalised(law, 3.0), x, log_z, batch_size=7)
    values = law(x)
    assert result.mean == pytest.approx(values.mean().item() + 3.0 - log_z.log_z, rel=IDENTITY)
    assert result.data_error == pytest.approx(values.std().item() / 50**0.5, rel=IDENTITY)
    assert result.log_z_error == log_z.standard_error
    both = math.hypot(result.data_error, result.log_z_error)
    assert result.standard_error == pytest.approx(both, rel=IDENTITY) and result.count == 50
    assert isinstance(result, LogLikelihood)


def test_log_likelihood_refuses_meaningless_constants() -> None:
    x, law = torch.zeros(3, 2, dtype=F64), normal(2)
    poor = LogZEstimate(0.0, 0.1, effective_sample_size=99.0, count=1000)
    diluted = LogZEstimate(0.0, 0.1, effective_sample_size=999.0, count=1_000_000)
    good = LogZEstimate(0.0, 0.1, effective_sample_size=1000.0, count=1_000_000)
    pattern = r"log_z must have an effective sample size of at least {}, got {} of .*ais_log_z"
    with pytest.raises(ValueError, match=pattern.format(100, 99)):
        log_likelihood(law, x, poor)
    with pytest.raises(ValueError, match=pattern.format(1000, 999)):
        log_likelihood(law, x, diluted)
    assert log_likelihood(law, x, good).count == 3
    assert log_likelihood(law, x, poor, min_effective=50).count == 3
    with pytest.raises(ValueError, match="min_effective must be a number"):
        log_likelihood(law, x, poor, min_effective=-1)


def test_annealed_estimates_print_and_serve_as_constants() -> None:
    law = normal(2)
    annealed = ais_log_z(unnormalised(law, 1.0), law, 200, 2)
    assert isinstance(annealed, AnnealedLogZ)
    assert str(annealed) == "1.0000 +- 0.0000 (n=200), effective sample size 200"
    result = log_likelihood(unnormalised(law, 1.0), torch.zeros(2, 2, dtype=F64), annealed)
    assert result.mean == pytest.approx(-math.log(2 * math.pi), rel=1e-9)
    assert str(result) == "-1.8379 +- 0.0000 (n=2)"


# Errors.


def call(**changed: object) -> AnnealedLogZ:
    """A small annealing run with some arguments changed."""
    law = normal(2)
    arguments: dict[str, object] = {"log_density": law, "start": law, "num_chains": 2}
    return ais_log_z(**{**arguments, "num_steps": 3, **changed})  # type: ignore[arg-type]


BAD = [
    ({"start": torch.zeros(2)}, TypeError, "start must be a Distribution, got Tensor; use"),
    ({"num_chains": 0}, ValueError, "num_chains must be at least 1"),
    ({"num_steps": 0}, ValueError, "num_steps must be at least 1"),
    ({"num_leapfrog": -1}, ValueError, "num_leapfrog must be at least 1"),
    ({"schedule": "cosine"}, ValueError, 'schedule must be "sigmoid", "linear" or a tensor'),
    ({"schedule": torch.linspace(0, 1, 3)}, ValueError, r"\(num_steps \+ 1,\) = \(4,\), got \(3,"),
    ({"schedule": torch.tensor([0.0, 0.5, 0.4, 1.0])}, ValueError, "must increase from 0 to 1"),
    ({"schedule": torch.tensor([0.1, 0.5, 0.6, 1.0])}, ValueError, "must increase from 0 to 1"),
    ({"step_size": 0.0}, ValueError, "step_size must be positive, got 0.0"),
    ({"step_size": torch.ones(3)}, ValueError, r"= \(2,\), got shape \(3,\)"),
    ({"step_size": torch.tensor(0.1)}, ValueError, r"= \(2,\), got shape \(\)"),
    ({"log_density": lambda x: x}, ValueError, "one log-density per point"),
    ({"log_density": lambda x: x[:, 0] * math.nan}, ValueError, "log_density must be a number"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_arguments(changed: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(**changed)


def test_bad_importance_arguments() -> None:
    law = normal(2)
    with pytest.raises(TypeError, match="proposal must be a Distribution, got NoneType"):
        importance_log_z(law, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num must be at least 1"):
        importance_log_z(law, law, 0)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        importance_log_z(law, law, 10, 0)
    with pytest.raises(ValueError, match="got NaN or infinity at 10 of 10 samples"):
        importance_log_z(lambda x: torch.full((len(x),), math.inf), law, 10)
    with pytest.raises(ValueError, match=r"log_weights must have shape \(n,\)"):
        LogZEstimate.of(torch.zeros(0))
