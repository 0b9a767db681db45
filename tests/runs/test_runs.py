"""The space of the losses, samples and tests of fit, against analytic truths."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from scorematching.datasets import Standardise, Whiten
from scorematching.distributions import Gaussian, standard_normal_log_density
from scorematching.errors import ScoreMatchingError
from scorematching.estimators import DensityEstimator
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.evaluation import Estimate, score_matching_losses
from scorematching.runs import HeldOut, MethodScore, hold_out_scores, open_run
from scorematching.runs.directions import direction_variance
from scorematching.runs.drawing import draw
from scorematching.runs.goodness import stein_test, two_sample, whitened_score
from scorematching.runs.held_out import log_densities, loss_rows, model_losses
from scorematching.runs.modelled import ModelledDensity, modelled
from scorematching.runs.space import Space
from scorematching.runs.split import add_noise, held_out_rows
from tests.statistics import assert_mean
from tests.two_sample import assert_same_law


@pytest.fixture
def gaussian() -> Transformed:
    scaling = Standardise(torch.tensor([1.0, -2.0]).double(), torch.tensor([3.0, 0.5]).double())
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.9]]).double()
    return Transformed(Gaussian(torch.tensor([0.2, 0.1]).double(), covariance), scaling)


@pytest.fixture
def space(gaussian: Transformed) -> Space:
    return Space.of(["a", "b"], gaussian)


@pytest.fixture(scope="module")
def fitted() -> DensityEstimator:
    X = np.random.default_rng(0).normal(size=(200, 2)) @ [[1.0, 0.7], [0.0, 0.5]]
    frame = pd.DataFrame(X, columns=["a", "b"])
    return DensityEstimator("none", base="gaussian", random_state=0).fit(frame)


def of(model: DensityEstimator) -> Space:
    """The space of a Gaussian that is the model itself, up to shrinkage."""
    stack = model.density_.parts[0]
    return Space.of(["a", "b"], Transformed(stack, model.scaling_))


def test_gaussian_is_standard_in_its_space(
    gaussian: Transformed, space: Space, generator: torch.Generator
) -> None:
    x = gaussian.sample(50, generator)
    z = space.z(x)
    torch.testing.assert_close(space.x(z), x)
    torch.testing.assert_close(space.density(gaussian.inner)(z), standard_normal_log_density(z))
    torch.testing.assert_close(space.field(gaussian.inner.score).score(z), -z)


def test_losses_do_not_depend_on_how_a_model_standardises(
    gaussian: Transformed, space: Space, generator: torch.Generator
) -> None:
    """One density, written in two scalings, has one loss in the whitened space of the first."""
    other = Standardise(torch.tensor([0.0, 5.0]).double(), torch.tensor([0.1, 7.0]).double())
    x = gaussian.sample(20, generator)
    seen = space.like(Space(space.columns, other, Whiten.fit(other(x))))
    torch.testing.assert_close(seen.z(x), space.z(x))

    back = Transformed(gaussian, inverse(other))  # the Gaussian, of the other scaling's points
    a = score_matching_losses(space.density(gaussian.inner), space.z(x))
    b = score_matching_losses(seen.density(back), seen.z(x))
    torch.testing.assert_close(a, b)


def inverse(scaling: Standardise) -> Standardise:
    """The inverse of a standardisation, which is one again."""
    return Standardise(-scaling.mean / scaling.std, 1 / scaling.std)


def test_modelled_columns_give_the_numbers_of_the_estimator(small_run: Path) -> None:
    run = open_run(small_run)
    frame = run.parts(run.prepared(run.read_table())).test
    x = frame[list(run.space.columns)].to_numpy()
    adapter = modelled(run.model, run.space)
    assert isinstance(adapter, ModelledDensity)
    np.testing.assert_allclose(adapter.score_samples(x), log_densities(run.model, frame))
    places = [run.columns.index(name) for name in run.space.columns]
    gradient = run.model.grad_log_density(frame)[:, places]
    np.testing.assert_allclose(adapter.grad_log_density(x), gradient, rtol=1e-9, atol=1e-9)
    losses = model_losses(run.model, run.space, torch.tensor(x))
    assert losses.mean().item() == pytest.approx(run.held_out.methods[0].loss.mean)  # type: ignore[union-attr]


def test_baselines_are_loaded_to_the_numbers_of_the_fit(small_run: Path) -> None:
    run = open_run(small_run)
    x = run.space.rows(run.parts(run.prepared(run.read_table())).test)
    for method in run.held_out.methods[1:]:
        assert method.log_likelihood is not None
        assert run.baselines[method.name](x).mean().item() == pytest.approx(
            method.log_likelihood.mean
        )


def test_a_baseline_without_a_loss_does_not_cost_the_fit(
    fitted: DensityEstimator, gaussian: Transformed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a kernel estimate of values over many orders of magnitude ended the command."""

    def fail(*arguments: object, **options: object) -> None:
        raise ScoreMatchingError("a kink near the points")

    monkeypatch.setattr("scorematching.runs.held_out.held_out_losses", fail)
    frame = pd.DataFrame({"a": [0.0, 0.5, 1.0], "b": [0.0, 1.0, -1.0]})
    found = hold_out_scores(fitted, {"KDE": gaussian}, Space.of(["a", "b"], gaussian), frame)
    assert found.methods[1].loss is None and found.methods[1].loss_gain is None
    assert found.methods[1].gain is not None
    assert "no score-matching loss of KDE: a kink near the points" in found.notes


def test_chains_have_the_distribution_of_exact_samples(
    fitted: DensityEstimator, generator: torch.Generator
) -> None:
    space = of(fitted)
    exact = draw(fitted, space, 400, "exact", seed=1)
    chains = draw(fitted, space, 400, "hmc", seed=2)
    assert exact.method == "exact" and "R-hat" in chains.notes[1]
    assert_same_law(space.z(exact.x), space.z(chains.x)[::2], generator)


def test_methods_that_a_model_lacks_are_refused(fitted: DensityEstimator) -> None:
    with pytest.raises(ValueError, match="method must be one of"):
        draw(fitted, of(fitted), 3, "gibbs")


def test_classifier_finds_differences_and_no_others() -> None:
    x = np.random.default_rng(0).normal(size=(300, 2))
    same, other = two_sample(x[:150], x[150:], 0), two_sample(x[:150], 1.5 + x[150:], 0)
    assert same is not None and other is not None
    assert abs(same.z) < 5 and other.z > 8  # five standard errors: one in a million
    assert two_sample(x[:5], x[5:], 0) is None
    far = two_sample(1e9 + x[:150], 1e9 + 1.5 + x[150:], 0)  # in single precision all are equal
    assert far is not None and abs(far.auc - other.auc) < 0.02
    large = two_sample(1e60 * x[:150], 1e60 * (1.5 + x[150:]), 0)
    assert large is not None and abs(large.auc - other.auc) < 0.02
    x[:, 1] = 3.0
    constant = two_sample(x[:150], x[150:], 0)  # a column that is constant among these rows
    assert constant is not None and abs(constant.z) < 5


def test_classifier_null_error_is_that_of_random_ranks() -> None:
    """The AUC of random numbers has Mann and Whitney's variance."""
    found = two_sample(np.random.default_rng(0).normal(size=(40, 1)), np.zeros((40, 1)), 0)
    assert found is not None
    draws = np.random.default_rng(1).random((2000, 80))
    wins = draws[:, :40, None] > draws[:, None, 40:]
    aucs = torch.tensor(wins.mean((1, 2)))
    assert_mean((aucs - 0.5).square() / found.null_error**2, torch.tensor(1.0), detect=0.3)


def test_stein_test_uses_the_whitened_score(fitted: DensityEstimator) -> None:
    space = of(fitted)
    x = draw(fitted, space, 150, seed=3).x
    z = space.z(x)
    torch.testing.assert_close(whitened_score(fitted, space, z), -z, atol=0.05, rtol=0.05)
    good, bad = stein_test(fitted, space, x, 0), stein_test(fitted, space, x + 2, 0)
    assert good is not None and bad is not None
    assert good.p_value > 0.001 and bad.p_value == 0.002  # 1 / 500, the least there is


def test_sorted_tables_are_tested_as_a_whole() -> None:
    """The first 1,000 of 4,000 sorted rows were compared with the model, which was then wrong."""
    x = torch.randn(4000, 20, generator=torch.Generator().manual_seed(0)).double()
    x = x[x[:, 0].argsort()]
    scaling = Standardise(torch.zeros(20).double(), torch.ones(20).double())
    exact = Gaussian(torch.zeros(20).double(), torch.eye(20).double())
    whole = Space.of(range(20), Transformed(exact, scaling))
    found = stein_test(SimpleNamespace(density_=exact), whole, x, seed=0)
    assert found is not None and found.p_value > 0.01
    assert abs(loss_rows(x)[:, 0].mean()) < 0.05
    rows = pd.DataFrame(x.numpy(), columns=range(20))
    exact_too = {"Gaussian": Transformed(exact, scaling)}
    model = SimpleNamespace(density_=exact, score_samples=lambda rows: np.zeros(len(rows)))
    notes = hold_out_scores(model, exact_too, whole, rows).notes
    assert notes == ("losses are those of 1000 of the 4000 rows, to save time",)


def test_more_directions_mean_less_variance(fitted: DensityEstimator) -> None:
    space = of(fitted)
    found = direction_variance(fitted, space, draw(fitted, space, 80, seed=0).x, seed=0)
    assert [row[0] for row in found.rows()] == [1, 2]
    assert "small network" in found.network and found.report.suggested in (1, 2)


def test_noise_is_as_wide_as_asked_and_repeatable() -> None:
    frame = pd.DataFrame({"a": np.zeros(50), "b": np.zeros(50)})
    noisy = add_noise(frame, {"a": 0.5, "b": 0.0}, seed=3)
    assert (noisy["b"] == 0).all() and noisy["a"].abs().max() <= 0.5 and noisy["a"].nunique() == 50
    pd.testing.assert_frame_equal(noisy, add_noise(frame, {"a": 0.5}, seed=3))
    assert (frame["a"] == 0).all()


def test_values_that_many_rows_share_have_noise_of_their_own() -> None:
    frame = pd.DataFrame({"a": np.repeat([0.0, 7.0], 50), "b": np.ones(100)})
    noisy = add_noise(frame, {"a": 0.0, "b": 0.0}, 3, {"a": {"values": [0.0], "width": 2.0}})
    assert (noisy["a"][50:] == 7).all() and (noisy["b"] == 1).all()
    assert 1.5 < noisy["a"][:50].abs().max() <= 2.0


def test_a_fifth_is_held_out_and_at_most_five_thousand() -> None:
    assert len(held_out_rows(np.arange(100.0)[:, None], 0)) == 20
    assert len(held_out_rows(np.arange(50_000.0)[:, None], 0)) == 5000
    assert len(held_out_rows(np.zeros((10, 1)) + np.arange(10)[:, None] // 2, 0)) == 4


def test_verdicts_are_plain() -> None:
    rows = [("Gaussian", 2.0, 0.1), ("KDE", 0.1, 0.2), ("mixture", -1.0, 0.2)]
    methods = [MethodScore(n, None, Estimate(m, e, 50), None, None) for n, m, e in rows]
    found = HeldOut(50, (MethodScore("this model", None, None, None, None), *methods))
    assert found.sentence() == (
        "On 50 held-out rows this model is better than Gaussian (2.00 +- 0.10 per row), not "
        "clearly different from KDE (0.10 +- 0.20 per row), worse than mixture "
        "(-1.00 +- 0.20 per row)."
    )
    assert HeldOut.from_dict(found.as_dict()) == found
