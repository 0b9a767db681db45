"""Selection, stacking, calibration, log Z, samples and tables, against slow or known answers."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from scorematching.distributions import Gaussian, GaussianMixture
from scorematching.estimators.density.calibration import calibrate
from scorematching.estimators.density.normaliser import bracket, normalise
from scorematching.estimators.density.scaling import robust_standardise, robust_whiten
from scorematching.estimators.density.selection import Candidate, attempt, make_folds, walk
from scorematching.estimators.density.stacking import Stack, stacking_weights
from scorematching.estimators.density.table import inspect
from scorematching.estimators.density.tilt import KernelTilt, NetworkTilt, _along
from scorematching.estimators.density.tilted import sample_tilted
from scorematching.models import DKEF
from scorematching.objectives import ScoreMatching
from tests import oracles
from tests.estimators.density.tables import F64, normal, quick
from tests.statistics import assert_mean

# Selection and stacking.


def test_copies_of_a_row_are_in_the_same_fold(generator):
    x = torch.randn(20, 2, generator=generator, dtype=F64).repeat(5, 1)
    folds = make_folds(x, generator)
    for fold in range(len(folds)):
        train, held = folds.split(fold)
        both = torch.cat([train.unique(dim=0), held.unique(dim=0)])
        assert len(train) + len(held) == 100 and len(both.unique(dim=0)) == 20
    assert sum(len(held) for held in folds.held) == 100


@pytest.mark.parametrize(("n", "count"), [(4, 4), (100, 5), (4000, 3), (20_000, 1)])
def test_number_of_folds(n, count, generator):
    folds = make_folds(torch.randn(n, 1, generator=generator), generator)
    assert len(folds) == count
    assert n < 10_000 or len(folds.held[0]) == 2000


def wide(scale):
    return Candidate(f"{scale}", lambda x, held, g: normal(1, scale))


def test_trials_are_of_points_not_seen(generator):
    """A fit that remembers its points would have a density of infinity there."""

    def memory(x, held, g):
        seen = {value.item() for value in x}
        assert not any(value.item() in seen for value in held)
        return normal(1)

    trial = attempt(
        Candidate("memory", memory), make_folds(torch.randn(30, 1).double(), generator), generator
    )
    assert trial is not None and len(trial.fits) == 5 and len(trial.log_densities) == 30


def test_failures_are_left_out(generator):
    def fails(x, held, g):
        raise ValueError("no")

    folds = make_folds(torch.randn(30, 1).double(), generator)
    assert attempt(Candidate("fails", fails), folds, generator) is None
    assert not list(walk([Candidate("fails", fails), wide(1.0)], folds, generator))


def test_a_walk_ends_where_the_likelihood_falls(generator):
    folds = make_folds(normal(1).sample(100, generator), generator)
    scales = (3.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1)
    tried = [trial.candidate.name for trial in walk([wide(s) for s in scales], folds, generator)]
    assert tried == ["3.0", "2.0", "1.0", "0.5", "0.3"]


def test_stacking_finds_the_weights_of_a_mixture(generator):
    """Against a search over a fine grid, and the truth 0.3."""
    left, right = Gaussian([-1.0], [[1.0]]), Gaussian([1.5], [[0.5]])
    left, right = left.to(dtype=F64), right.to(dtype=F64)
    x = Stack([left, right], torch.tensor([0.3, 0.7])).sample(5000, generator)
    log_p = torch.stack([left(x), right(x)], 1)
    grid = torch.linspace(0.001, 0.999, 999, dtype=F64)
    mixed = torch.stack([grid, 1 - grid], 1).log()
    best = grid[(log_p[:, None] + mixed).logsumexp(-1).mean(0).argmax()].item()
    found = stacking_weights(log_p)
    assert found[0].item() == pytest.approx(best, abs=0.005)
    assert best == pytest.approx(0.3, abs=0.05)


def test_imagined_points_guarantee_a_weight():
    log_p = torch.tensor([[0.0, -50.0]] * 8, dtype=F64)
    weights = stacking_weights(log_p, prior=torch.tensor([0.0, 2.0]))
    assert weights.tolist() == pytest.approx([0.8, 0.2])


def test_a_stack_is_the_mixture_it_says(generator):
    whole = GaussianMixture([0.3, 0.7], [[-3.0, 0.0], [3.0, 0.0]], 0.25).to(dtype=F64)
    parts = [Gaussian(m, 0.25 * torch.eye(2, dtype=F64)) for m in whole.means]
    stack = Stack(parts, torch.tensor([0.3, 0.7], dtype=F64))
    x = whole.sample(50, generator)
    torch.testing.assert_close(stack(x), whole(x))
    torch.testing.assert_close(stack.score(x), whole.score(x))
    assert_mean((stack.sample(4000, generator)[:, 0] > 0).double(), 0.7, detect=0.06)


# Tilts.


def test_a_loss_by_the_score_of_the_base_is_the_loss_of_the_sum(generator):
    """Up to the loss of the base alone, for a network and as a quadratic of a kernel's weights."""
    z = torch.randn(12, 2, generator=generator, dtype=F64)
    base = GaussianMixture([0.4, 0.6], [[-1.0, 0.0], [1.0, 0.0]], 0.5).to(dtype=F64)
    tilt = NetworkTilt(2, (8,), generator).double()
    whole = oracles.score_matching(lambda z: base(z) + tilt(z), z)
    expected = (whole - oracles.score_matching(base, z)).mean()
    found = ScoreMatching()(tilt, z) + _along(tilt, z, base.score(z))
    torch.testing.assert_close(found.mean(), expected)
    model = DKEF(2, num_inducing=3, width=4, generator=generator).double()
    kernel = KernelTilt(model)
    model.alpha.copy_(torch.tensor([1.0, -2.0, 0.5]))
    form = kernel.form(ScoreMatching(), torch.cat([z, base.score(z)], 1), generator)
    whole = oracles.score_matching(lambda z: base(z) + kernel(z), z)
    expected = (whole - oracles.score_matching(base, z)).mean()
    torch.testing.assert_close(form(model.alpha), expected)


def test_size_of_a_tilt_by_likelihood(generator):
    """The tilt from N(0, 1) to N(1, 1) is x; half of it needs size 2, noise needs none."""
    x, held = normal(1).sample(20_000, generator)[:, 0], 1 + normal(1).sample(500, generator)[:, 0]
    found = calibrate(0.5 * held, 0.5 * x)
    assert found.size == pytest.approx(2.0, abs=0.25)
    assert found.gain == pytest.approx(0.5, abs=0.15)  # half the squared shift
    noise = torch.randn(500, generator=generator, dtype=F64)
    assert calibrate(noise - noise.mean(), x).size == 0.0


def test_log_z_by_importance_sampling_and_its_bracket(generator):
    """``E exp(x) = exp(1/2)`` under N(0, 1)."""

    def tilt(x):
        return x[:, 0]

    found = normalise(tilt, normal(1), 20_000, generator)
    assert found.method == "importance sampling" and found.failure is None
    assert abs(found.log_z - 0.5) < 5 * found.standard_error < 0.1
    low, high = bracket(tilt, normal(1), 1 + normal(1).sample(300, generator), generator)
    assert low - 0.1 < 0.5 < high + 0.1 and high - low < 0.3


def test_log_z_by_annealing_where_importance_sampling_is_thin(generator):
    """A tilt to N(0, 0.01 I) in six dimensions: ``Z = 0.1^6``."""

    def tilt(x):
        return -49.5 * x.square().sum(-1)

    found = normalise(tilt, normal(6), 2000, generator)
    assert found.method == "annealed importance sampling" and found.failure is None
    assert found.log_z == pytest.approx(6 * math.log(0.1), abs=5 * found.standard_error + 0.2)


def test_log_z_says_when_both_fail(generator):
    """A needle far away in forty dimensions."""

    def tilt(x):
        return -1e5 * (x - 30).square().sum(-1)

    failure = normalise(tilt, normal(40), 200, generator).failure
    assert failure is not None and "annealed importance sampling of" in failure


def test_samples_of_a_tilted_base(generator):
    """N(0, 1) tilted by x is N(1, 1)."""
    x = sample_tilted(lambda x: x[:, 0].clamp(-3, 3), normal(1), 4000, generator)
    truth = torch.linspace(-8, 8, 8001, dtype=F64)
    weights = (normal(1)(truth[:, None]) + truth.clamp(-3, 3)).softmax(0)
    assert_mean(x, (weights @ truth).item(), detect=0.15)
    assert len(x.unique()) == 4000


class Unlucky(Gaussian):
    """Zero or one with equal chances, but for the first 4096 points, which are all zero."""

    calls = 0

    def _sample(self, n, generator):
        self.calls += 1
        return (torch.arange(n)[:, None] % 2 * float(self.calls > 1)).to(self._like)


def test_samples_before_the_largest_tilt_was_seen_are_thinned(generator):
    """All of the first 4096 stayed, where a quarter should: the share of ones was 0.64."""
    x = sample_tilted(lambda x: math.log(4) * x[:, 0], Unlucky([0.0], [[1.0]]), 20_000, generator)
    assert x.mean().item() == pytest.approx(0.8 * (1 - 4096 / 4 / 20_000), abs=0.02)


def test_copies_of_few_samples_are_refused(generator):
    """Where one sample of the base in a million would stay, five samples were drawn many times."""
    with pytest.raises(ValueError, match=r"an effective sample size of [\d.]+ in \d+ samples"):
        sample_tilted(lambda x: 5 * x[:, 0].clamp(-9, 9), normal(1), 1000, generator)


# Tables and scales.


def test_scales_are_those_of_the_bulk(generator):
    x = normal(2).sample(500, generator)
    plain = robust_standardise(x)
    torch.testing.assert_close(plain.std, x.std(0, correction=0), rtol=1e-6, atol=1e-6)
    spoiled = torch.cat([x, torch.tensor([[1e9, 0.0]], dtype=F64)])
    assert robust_standardise(spoiled).std.max() < 1.5


def test_whitening(generator):
    mixing = torch.tensor([[1.0, 0.9], [0.0, 0.3]], dtype=F64)
    x = normal(2).sample(500, generator).clamp(-2, 2) @ mixing
    z = robust_whiten(x)(x)
    torch.testing.assert_close(z.T @ z / 500, torch.eye(2, dtype=F64), rtol=0, atol=1e-6)
    torch.testing.assert_close(robust_whiten(x).inverse(z), x)


def test_dependent_columns_are_found_and_restored():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(100, 3)) * [1.0, 1e3, 1e-3])
    wide = torch.cat([x, (2 * x[:, :1] - x[:, 2:] + 7), x[:, 1:2]], 1)
    table = inspect(wide)
    assert table.kept == [0, 1, 2] and list(table.dependent) == [3, 4]
    torch.testing.assert_close(table.restore(table.reduce(wide)), wide)
    near = torch.cat([x, x[:, :1] + 1e-3 * torch.as_tensor(rng.normal(size=(100, 1)))], 1)
    assert inspect(near).kept == [0, 1, 2, 3]


def test_a_row_of_codes_does_not_make_columns_dependent():
    """A row of -1e9 in place of missing values set all columns aside but the first."""
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(200, 3)))
    x[3] = -1e9
    assert inspect(x).kept == [0, 1, 2]
    assert list(inspect(torch.cat([x, x[:, :1] - x[:, 1:2]], 1)).dependent) == [3]


def test_columns_over_many_orders_of_magnitude_are_named():
    logarithms = np.random.default_rng(0).normal(size=(200, 1))
    with pytest.warns(UserWarning, match="orders of magnitude: column 0: .* logarithms"):
        quick().fit(np.exp(10 * logarithms))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick().fit(np.exp(2 * logarithms))
        quick().fit(10 * logarithms)


def test_repeated_rows_are_counted_and_are_not_discrete():
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(20, 2))).repeat(20, 1)
    table = inspect(x)
    assert table.repeated == 380 and not table.discrete


def test_discrete_columns_are_found():
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=300), rng.integers(0, 2, 300), rng.normal(size=300).round(0)]
    assert list(inspect(torch.as_tensor(x)).discrete) == [1, 2]
