"""Errors and brackets of log Z are honest: against many repetitions and a long run."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scorematching.datasets import Standardise
from scorematching.estimators.density import DensityEstimator
from scorematching.estimators.density.bases.student_t import MultivariateT
from scorematching.estimators.density.calibration import calibrate
from scorematching.estimators.density.learning import _nearby
from scorematching.estimators.density.nearby import (
    far_out,
    less_nearby,
    near_points,
    with_nearby,
)
from scorematching.estimators.density.normaliser import normalise, tilt_at_samples
from scorematching.estimators.density.stacking import Stack
from scorematching.estimators.density.tilt import NetworkTilt
from scorematching.estimators.density.tilted import Tilted
from tests.estimators.density.tables import normal


def clusters(n, rng):
    """Two clusters in ten dimensions, whose log-density has mean -11.42."""
    return np.r_[rng.normal(-2, 1, (n // 2, 10)), rng.normal(2, 0.5, (n // 2, 10))]


@pytest.fixture(scope="module")
def tilted():
    """A tilt of its full size on a single Gaussian, which it has a lot to add to."""
    settings = {"base": "gaussian", "calibrate": False, "hidden": (32,), "random_state": 0}
    x = clusters(600, np.random.default_rng(0))
    return DensityEstimator("mlp", max_steps=60, **settings).fit(x)


def long_run(estimator, num=200_000):
    """Log Z from many samples of the base, and its standard error."""
    density, generator = estimator.density_, torch.Generator().manual_seed(99)
    weights = tilt_at_samples(density.tilt_at, density.base, num, generator)
    relative = (weights - weights.max()).exp()
    log_z = weights.logsumexp(0).item() - math.log(num)
    return log_z, (relative.std() / relative.mean()).item() / num**0.5


def test_the_error_of_log_z_covers_the_truth(tilted):
    """Within four standard errors, one fit in 16,000 by chance; and the error says something."""
    truth, error = long_run(tilted)
    assert abs(truth) > 0.05  # the tilt does something
    assert abs(tilted.log_z_ - truth) < 4 * math.hypot(error, tilted.log_z_standard_error_)
    assert 0 < tilted.log_z_standard_error_ < 0.2
    x = clusters(20, np.random.default_rng(1))
    values, errors = tilted.score_samples(x, return_error=True)
    assert (errors == tilted.log_z_standard_error_).all() and errors.shape == values.shape


def test_the_bracket_of_log_z_holds_the_truth(tilted):
    """Up to the noise of 200 chains."""
    truth, error = long_run(tilted)
    low, high = tilted.log_z_bracket(random_state=0)
    slack = 0.1 + 4 * error
    assert low - slack < truth < high + slack
    assert high - low < 1.0


def test_errors_of_log_z_are_those_of_repetitions():
    """The spread of 30 estimates is the stated error, within a factor of 2.

    A chi-square of 29 degrees of freedom leaves that range less than once in 50,000 times.
    """
    found = [
        normalise(lambda x: x[:, 0], normal(1), 2000, torch.Generator().manual_seed(seed))
        for seed in range(30)
    ]
    spread = np.std([one.log_z for one in found], ddof=1)
    stated = np.mean([one.standard_error for one in found])
    assert 0.5 < spread / stated < 2


def test_more_samples_are_never_refused_where_fewer_are_accepted(generator):
    """The bar used to rise with their number: a million were refused where 10,000 were not."""

    def tilt(x):
        return 1.5 * x[:, 0]

    for num in (2000, 20_000, 200_000):
        found = normalise(tilt, normal(1), num, generator)
        assert found.failure is None and found.method == "importance sampling"
        assert found.log_z == pytest.approx(1.125, abs=5 * found.standard_error)


def test_a_thin_log_z_does_not_depend_on_the_seed_of_samples(tilted):
    """`sample` used to refuse some seeds of one fitted model."""
    for seed in range(6):
        x = tilted.sample(50, seed)
        assert np.isfinite(x).all() and np.abs(x).max() < 12


# Tilts that are not bounded, with peaks where the base has no sample.


def peak(x):
    """A peak of height exp(30) at 7, where N(0, 1) has a density of exp(-25.4)."""
    return 30 * torch.exp(-2 * (x[:, 0] - 7).square())


def grid_log_z(tilt):
    """By quadrature under N(0, 1)."""
    grid = torch.linspace(-9, 12, 21_001, dtype=torch.float64)[:, None]
    return float((normal(1)(grid) + tilt(grid)).logsumexp(0) + math.log(21 / 21_000))


def points_with_some_far_out(generator):
    far = torch.linspace(6.7, 7.3, 30, dtype=torch.float64)[:, None]
    return torch.cat([normal(1).sample(270, generator), far])


def identity():
    return Standardise(*torch.tensor([[0.0], [1.0]], dtype=torch.float64))


def test_a_peak_at_points_far_out_counts(generator):
    """The base has no sample there: log Z was zero, with an error of zero, and is 3.4."""
    nearby = near_points(points_with_some_far_out(generator), identity())
    density = Tilted(normal(1), peak, identity(), 1.0, nearby)
    found = normalise(density.log_weight, density.proposal, 10_000, generator)
    truth = grid_log_z(peak)
    assert truth > 3
    assert abs(found.log_z - truth) < 5 * found.standard_error < 1
    density.normaliser = found
    x = density.sample(500, generator)[:, 0]
    share = 1 - math.exp(-truth)  # of the peak, where the rest has its mass of one
    assert abs(float((x > 4).double().mean()) - share) < 5 * (share * (1 - share) / 500) ** 0.5


def test_the_size_of_a_tilt_is_that_of_a_known_log_z(generator):
    """For sizes at which the base sees no peak, the gain is that by quadrature."""
    x = points_with_some_far_out(generator)
    nearby = near_points(x, identity())
    samples = with_nearby(normal(1), nearby).sample(20_000, generator)
    size = calibrate(peak(x), peak(samples), less_nearby(normal(1), nearby, samples))
    truth = float(size.size * peak(x).mean()) - grid_log_z(lambda z: size.size * peak(z))
    assert 0 < size.size < 1
    assert abs(size.gain - truth) < 5 * size.error
    seen = peak(normal(1).sample(20_000, generator))
    assert calibrate(peak(x), seen).size == 2.0  # the largest one that is tried


def test_weights_are_densities_over_those_of_the_proposal(generator):
    x = points_with_some_far_out(generator)
    for nearby in (None, near_points(x, identity())):
        density = Tilted(normal(1), peak, identity(), 0.5, nearby)
        whole = density.proposal(x) + density.log_weight(x)
        torch.testing.assert_close(whole, normal(1)(x) + 0.5 * peak(x))


@pytest.mark.parametrize("seed", [1, 7])
def test_the_density_of_a_kernel_tilt_has_an_integral_of_one(seed):
    """It was 1e15 and 10, where the stated standard error of log Z was 0.005 and 0.03."""
    x = np.r_[np.random.default_rng(seed).normal(size=(300, 1)), [[7.0], [7.2], [7.3]]]
    settings = {"base": "gaussian", "max_steps": 40, "num_inducing": 30, "random_state": 0}
    estimator = DensityEstimator("dkef", **settings).fit(x)
    grid = np.linspace(x.min() - 5, x.max() + 5, 20_001)
    whole = np.exp(estimator.score_samples(grid[:, None])).sum() * (grid[1] - grid[0])
    assert abs(np.log(whole)) < 5 * estimator.log_z_standard_error_ + 1e-3 < 0.1


def rising(x):
    """A bounded tilt that is small near zero and 10 far to the left."""
    return 10 * torch.tanh(0.0002 * x[:, 0].square() * (x[:, 0] < 0))


def heavy():
    """A base of which 1% has heavy tails."""
    cauchy = MultivariateT(torch.zeros(1).double(), torch.eye(1).double(), df=1)
    return Stack([normal(1), cauchy], torch.tensor([0.99, 0.01]))


def test_a_tilt_that_rises_in_heavy_tails_counts(generator):
    """Of 10,000 samples of the base none may be there: log Z was far too small, and its error."""
    far = torch.logspace(-3, 8, 40_001, dtype=torch.float64)
    grid = torch.cat([-far.flip(0), far])[:, None]
    whole = torch.trapezoid((heavy()(grid) + rising(grid)).exp(), grid[:, 0]).log()
    density = Tilted(heavy(), rising, identity(), 1.0, far_out(identity(), 1, grid))
    found = normalise(density.log_weight, density.proposal, 10_000, generator)
    assert whole > 0.5 and abs(found.log_z - whole) < 4 * found.standard_error < 1
    held, samples = heavy().sample(50, generator), density.proposal.sample(10_000, generator)
    weights = less_nearby(heavy(), density.nearby, samples)
    assert calibrate(rising(held), rising(samples), weights).size == 0


@pytest.mark.parametrize("parts", [["kde"], ["kde", "student-t"]])
def test_tails_are_looked_at_where_the_base_has_heavy_ones(parts):
    base = SimpleNamespace(folds=SimpleNamespace(x=torch.zeros(9, 2)), weights=parts)
    assert (_nearby(NetworkTilt(2, (4,)), base, identity()) is None) == (len(parts) == 1)
