"""DensityEstimator: scikit-learn's checks, change of variables, normalisation, errors."""

from __future__ import annotations

import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

import scorematching as sm
from scorematching.datasets import Whiten
from scorematching.distributions import Gaussian, GaussianMixture
from scorematching.estimators.density import DensityEstimator
from scorematching.estimators.density.calibration import DiagonalBase, calibrate, widest_base
from scorematching.estimators.density.sampling import KernelProposal, resample_and_move
from scorematching.evaluation import LogZEstimate, importance_log_z
from scorematching.models import DKEF
from tests import oracles
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

F64 = torch.float64
QUICK = {"num_inducing": 10, "hidden": (8,), "max_steps": 5, "num_importance": 5000}
MODELS = ["dkef", "nice"]


def quick(model="dkef", **settings):
    return DensityEstimator(model, random_state=0, **{**QUICK, **settings})


def table(n=60, d=2, seed=0):
    """Correlated columns of very different scale."""
    x = np.random.default_rng(seed).normal(size=(n, d)) @ (np.eye(d) + 0.5)
    return x * np.logspace(-2, 2, d) + np.arange(d)


def normal(d, scale):
    return Gaussian(torch.zeros(d, dtype=F64), scale**2 * torch.eye(d, dtype=F64))


@pytest.fixture(scope="module", params=MODELS)
def fitted(request):
    return quick(request.param).fit(table())


# Conventions.


@pytest.mark.parametrize("model", MODELS)
def test_scikit_learn_conventions(model):
    with warnings.catch_warnings():
        # One check is skipped with a warning, because it needs an environment variable of scipy.
        warnings.simplefilter("ignore", SkipTestWarning)
        results = check_estimator(quick(model, max_steps=2, num_inducing=5), on_fail=None)
    failed = [(r["check_name"], r["exception"]) for r in results if r["status"] == "failed"]
    assert not failed and len(results) > 30


def test_the_constructor_stores_and_nothing_else():
    given = {"model": "nonsense", "objective": object(), "hidden": [3], "noise": -1.0}
    estimator = DensityEstimator(**given)
    assert {name: estimator.get_params()[name] for name in given} == given
    assert clone(quick(noise=0.25)).noise == 0.25
    for ask in ("score", "score_samples", "grad_log_density"):
        with pytest.raises(NotFittedError):
            getattr(quick(), ask)(table())
    with pytest.raises(NotFittedError):
        quick().sample()
    assert not hasattr(quick(), "log_z_")


def test_pickled_and_whole(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.score_samples(table()), fitted.score_samples(table()))
    np.testing.assert_array_equal(again.sample(3, 1), fitted.sample(3, 1))
    assert again.log_z_ == fitted.log_z_


def test_data_frames():
    frame = pd.DataFrame(table(), columns=["a", "b"])
    estimator = quick().fit(frame)
    assert estimator.feature_names_in_.tolist() == ["a", "b"]
    # Another memory order changes the order of some sums.
    expected = quick().fit(table()).score_samples(table())
    np.testing.assert_allclose(estimator.score_samples(frame), expected, rtol=ROUTES)
    with pytest.raises(ValueError, match="feature names"):
        estimator.score_samples(frame[["b", "a"]])


def test_grid_search():
    search = GridSearchCV(quick(), {"num_inducing": [2, 8]}, cv=2).fit(table())
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all() and scores[0] != scores[1]


@pytest.mark.parametrize("model", MODELS)
def test_random_state_decides_everything(model):
    state = torch.get_rng_state()
    x = table()
    copy = x.copy()
    a, b = (quick(model).fit(x).score_samples(x) for _ in range(2))
    other = quick(model).set_params(random_state=1).fit(x).score_samples(x)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, other)
    np.testing.assert_array_equal(x, copy)
    assert torch.equal(state, torch.get_rng_state())


# One density in two spaces.


@pytest.mark.parametrize("model", MODELS)
def test_units_change_the_density_by_their_jacobian(model):
    """Powers of two are exact: the same whitened points, hence ``log p - sum log units``."""
    units = np.array([2.0**-7, 2.0**5])
    a, b = quick(model).fit(table()), quick(model).fit(table() * units)
    expected = a.score_samples(table()) - np.log(units).sum()
    np.testing.assert_allclose(b.score_samples(table() * units), expected, rtol=IDENTITY)
    expected = a.grad_log_density(table()) / units
    np.testing.assert_allclose(b.grad_log_density(table() * units), expected, rtol=IDENTITY)
    assert b.score(table() * units) == pytest.approx(a.score(table()), rel=IDENTITY)


def test_gradient_is_that_of_the_log_density(fitted):
    """Differences of fourth order, in the units of each column."""
    x = table(5, seed=1)
    for column, unit in enumerate(x.std(0)):
        step = np.zeros(2)
        step[column] = 1e-3 * unit
        near = fitted.score_samples(x + step) - fitted.score_samples(x - step)
        far = fitted.score_samples(x + 2 * step) - fitted.score_samples(x - 2 * step)
        slope = (8 * near - far) / 12e-3
        found = fitted.grad_log_density(x)[:, column] * unit
        np.testing.assert_allclose(found, slope, rtol=1e-7, atol=1e-7)


def test_score_is_minus_the_exact_loss_of_whitened_points(fitted):
    x = table(4, seed=1)
    z = fitted.whitening_(torch.tensor(x))
    loss = oracles.score_matching(fitted.model_, z).mean().item()
    assert fitted.score(x) == pytest.approx(-loss, rel=ROUTES)


def test_whitening_gives_the_identity(fitted):
    x = torch.tensor(table())
    z = fitted.whitening_(x)
    torch.testing.assert_close(z.T @ z / len(x), torch.eye(2, dtype=F64), rtol=0, atol=1e-10)
    torch.testing.assert_close(fitted.whitening_.inverse(z), x)


@pytest.mark.parametrize("model", MODELS)
def test_integrates_to_one(model):
    """A sum over a fine grid against importance sampling."""
    estimator = quick(model).fit(table())
    z = torch.linspace(-14, 14, 281, dtype=F64)
    x = estimator.whitening_.inverse(torch.cartesian_prod(z, z))
    volume = math.exp(-estimator.whitening_.log_abs_det(x[:1]).item()) * 0.1**2
    total = np.exp(estimator.score_samples(x.numpy())).sum() * volume
    error = estimator.log_z_standard_error_
    assert abs(math.log(total)) < 5 * error + 1e-6
    assert error < 0.05  # a missing Jacobian is off by 4.6 here, a missing 2 pi by 1.8


def test_nice_knows_its_constant():
    estimator = quick("nice").fit(table())
    assert (estimator.log_z_, estimator.log_z_standard_error_) == (0.0, 0.0)


# Learning.


@pytest.mark.parametrize(
    "objective", ["ssm-vr", "SSM-VR", "ssm", "sm", sm.DenoisingScoreMatching(0.3)]
)
@pytest.mark.parametrize("model", MODELS)
def test_every_objective_learns_a_gaussian(model, objective):
    """The true model scores D / 2; one with a standard deviation wrong by half at most D / 3."""
    x, held_out = table(400), table(400, seed=1)
    steps = 60 if model == "dkef" else 300
    estimator = quick(model, objective=objective, max_steps=steps, num_inducing=20, noise=0.0)
    assert estimator.fit(x).score(held_out) > 0.85


def test_nice_by_maximum_likelihood():
    estimator = quick("nice", objective="mle", max_steps=100).fit(table(400))
    assert estimator.score(table(400, seed=1)) > 0.85


def test_noise_is_in_whitened_units():
    """With noise of standard deviation 1 a variance of 1 becomes 2."""
    x = 100 * np.random.default_rng(0).normal(size=(800, 1))
    estimator = quick(noise=1.0, max_steps=20, num_inducing=30).fit(x)
    slope = np.polyfit(x[:, 0], estimator.grad_log_density(x)[:, 0], 1)[0]
    assert slope * 100**2 == pytest.approx(-0.5, abs=0.1)


@pytest.mark.parametrize("n", [4, 7, 30])
def test_fewer_points_than_inducing_points(n):
    x = np.random.default_rng(0).normal(size=(n, 2))
    estimator = quick(num_inducing=200).fit(x)
    assert estimator.model_.num_inducing == n - max(1, round(0.1 * n))
    assert np.isfinite(estimator.score_samples(x)).all()


@pytest.mark.parametrize("fraction", [1e-9, 0.999])
def test_something_is_left_on_both_sides(fraction):
    x = torch.tensor(table(5))
    train, valid = quick(validation_fraction=fraction)._split(x, torch.Generator())
    assert len(train) >= 2 and len(valid) >= 1 and len(train) + len(valid) == 5


def test_copies_of_a_row_stay_together():
    x = torch.tensor(table(20)).repeat(5, 1)
    train, valid = quick()._split(x, torch.Generator().manual_seed(0))
    assert (len(train), len(valid)) == (90, 10)
    assert len(torch.cat([train.unique(dim=0), valid.unique(dim=0)]).unique(dim=0)) == 20
    assert np.isfinite(quick(num_inducing=50).fit(x.numpy()).score(x.numpy()))


def test_progress_when_asked(capsys):
    quick(verbose=1, max_steps=60).fit(table())
    assert "loss" in "".join(capsys.readouterr())
    quick(max_steps=60).fit(table())
    assert not any(capsys.readouterr())


# Calibration.


def calibrated_model(generator):
    """An untrained model with arbitrary weights, and whitened points."""
    x = torch.randn(300, 2, generator=generator, dtype=F64)
    z = Whiten.fit(x)(x)
    model = DKEF(2, num_inducing=5, width=4, base=DiagonalBase(2), generator=generator).double()
    model.initialise(z, generator)
    model.alpha.copy_(torch.tensor([3.0, -2.0, 1.0, -1.0, 2.0]))
    proposal = KernelProposal(z, widest_base(z))
    before = model.alpha.clone(), importance_log_z(model, proposal, 20_000, generator=generator)
    return model, z, proposal, before


def test_calibration_matches_the_moments_of_the_data(generator):
    """At the maximum of the likelihood, mean 0, variance 1, and the mean of ``alpha.k``."""
    model, z, proposal, (alpha, _) = calibrated_model(generator)
    assert calibrate(model, z, z[:100], proposal, generator)
    x = proposal.sample(100_000, generator)
    w = (model(x) - proposal(x)).softmax(0)
    for mean in (w @ x, w @ x.square() - 1):
        torch.testing.assert_close(mean, torch.zeros(2, dtype=F64), rtol=0, atol=0.05)
    kernel = model.features(x) @ alpha
    held_out = (model.features(z[:100]) @ alpha).mean().item()
    assert (w @ kernel).item() == pytest.approx(held_out, abs=0.05)
    size = model.alpha / alpha
    torch.testing.assert_close(size, size[:1].expand(5))


def test_calibration_raises_the_likelihood(generator):
    model, z, proposal, (_, log_z) = calibrated_model(generator)
    before = model(z).mean().item() - log_z.log_z
    calibrate(model, z, z, proposal, generator)
    after = importance_log_z(model, proposal, 20_000, generator=generator)
    gain = model(z).mean().item() - after.log_z - before
    assert gain > 0.1 > 10 * after.standard_error


def test_calibration_keeps_the_density_integrable(generator):
    """Points far wider than the base push the precision to its lower bound."""
    model, z, _, _ = calibrated_model(generator)
    model.alpha.zero_()
    assert calibrate(model, 5 * z, 5 * z, widest_base(z), generator)
    assert (model.base.precision > 1 / 9).all() and (model.base.precision < 1 / 9 + 0.01).all()


def test_calibration_knows_when_it_cannot(generator):
    model, z, proposal, _ = calibrated_model(generator)
    model.alpha.mul_(1e6)
    alpha = model.alpha.clone()
    assert not calibrate(model, z, z, proposal, generator)
    assert torch.equal(model.alpha, alpha) and (model.base.precision == 0.25).all()


# Samples.


def test_samples_of_both_models_have_the_density(fitted):
    """``E[grad log p] = 0`` over the samples, coordinate by coordinate."""
    x = fitted.sample(2000, random_state=3)
    assert x.shape == (2000, 2)
    assert_mean(fitted.grad_log_density(x) * table().std(0), 0.0, detect=0.3)
    np.testing.assert_array_equal(x[:5], fitted.sample(2000, random_state=3)[:5])


def test_resampling_finds_both_modes(generator):
    """Modes with weights 0.3 and 0.7, far apart, from kernels with weights 0.5 and 0.5."""
    law = GaussianMixture([0.3, 0.7], [[-3.0, 0.0], [3.0, 0.0]], 0.25).to(dtype=F64)
    eps = torch.randn(100, 2, generator=generator, dtype=F64)
    centres = 0.3 * eps + torch.tensor([[-3.0, 0.0], [3.0, 0.0]]).repeat(50, 1)
    proposal = KernelProposal(centres, normal(2, 3.0))
    x, log_z = resample_and_move(lambda x: law(x) + 1.0, proposal, 4000, 20000, generator)
    assert abs(log_z.log_z - 1.0) < 5 * log_z.standard_error < 0.1
    assert_mean((x[:, 0] > 0).double(), 0.7, detect=0.08)
    assert_mean((x[:, 0].abs() - 3).square(), 0.25, detect=0.06)
    assert_mean(x[:, 1].square(), 0.25, detect=0.06)
    assert len(x.unique(dim=0)) > 3800  # moved apart


def test_proposal_is_a_normalised_law(generator):
    centres = torch.randn(5, 1, generator=generator, dtype=F64)
    law = KernelProposal(centres, normal(1, 2.0))
    grid = torch.linspace(-16, 16, 6401, dtype=F64)[:, None]
    density = law(grid).exp() * 0.005
    assert density.sum().item() == pytest.approx(1.0, abs=1e-9)
    x = law.sample(40000, generator)
    assert_mean(x, (density @ grid).item(), detect=0.1)
    assert_mean(x.square(), (density @ grid.square()).item(), detect=0.15)
    field = sm.LogDensityField(law)
    torch.testing.assert_close(law.score(grid[2000:4000:100]), field.score(grid[2000:4000:100]))


def test_kernels_have_the_covariance_of_whitened_points(generator):
    x = torch.randn(300, 3, generator=generator, dtype=F64)
    z = Whiten.fit(x)(x)
    law = KernelProposal(z, normal(3, 1.0))
    covariance = law.centres.T @ law.centres / 300 + law.bandwidth**2 * torch.eye(3, dtype=F64)
    torch.testing.assert_close(covariance, torch.eye(3, dtype=F64))


# Refusals.


def test_a_meaningless_constant_is_refused():
    estimator = quick(num_importance=90).fit(table())
    for ask in (estimator.score_samples, lambda x: estimator.sample(2)):
        with pytest.raises(ValueError, match=r"effective sample size of at least 100, got \d"):
            ask(table())
    assert np.isfinite(estimator.score(table()))
    assert np.isfinite(estimator.grad_log_density(table())).all()


def test_many_samples_need_more_effective_ones():
    estimator = quick().fit(table())
    estimator._log_z = LogZEstimate(0.0, 0.05, 400.0, 1_000_000)
    with pytest.raises(ValueError, match="effective sample size of at least 1000, got 400"):
        estimator.score_samples(table())


NORMAL = table(30, 3)
BAD_TABLES = {
    r"got a constant in \[1\]": np.insert(NORMAL, 1, 1e9, axis=1),
    "full rank 4 to be whitened, got rank 3": np.c_[NORMAL, NORMAL @ [1.0, 1.0, 1.0]],
    "got rank 3 from 30 points": np.c_[NORMAL, NORMAL[:, 0] + 1e-10 * NORMAL[:, 1]],
    "got rank 4 from 5 points": table(5, 5),
    "4 different points or more, got 3 with n_samples = 3": table(3, 1),
    "4 different points or more, got 3 with n_samples = 30": np.repeat(table(3, 1), 10, axis=0),
    "copies of one point": np.ones((10, 2)),
}


@pytest.mark.parametrize(("message", "x"), list(BAD_TABLES.items()), ids=list(BAD_TABLES))
def test_tables_without_a_density(message, x):
    with pytest.raises(ValueError, match=message):
        quick().fit(x)


def test_one_column():
    assert quick().fit(table(200, 1)).score_samples(table(5, 1)).shape == (5,)
    with pytest.raises(ValueError, match='n_features = 1; use model="dkef"'):
        quick("nice").fit(table(30, 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "flow"}, 'model must be "dkef" or "nice", got \'flow\''),
        ({"objective": "elbo"}, "objective must be one of ssm-vr, ssm, sm, mle"),
        ({"objective": "mle"}, 'objective must be one for unnormalised models with model="dkef"'),
        ({"noise": -0.1}, "noise must be zero or a positive number, got -0.1"),
        ({"validation_fraction": 1.0}, "validation_fraction must lie between 0 and 1, got 1.0"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"num_inducing": 0}, "num_inducing must be at least 1"),
        ({"num_importance": 0}, "num_importance must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        quick(**settings).fit(table())
