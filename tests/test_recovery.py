"""Every objective, trained on samples of a Gaussian, finds that Gaussian: the test of signs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scorematching import (
    ApproximateBackprop,
    CurvaturePropagation,
    DenoisingScoreMatching,
    FiniteDifferenceSSM,
    Gaussian,
    LogDensityField,
    MaximumLikelihood,
    NoiseContrastive,
    Objective,
    Rademacher,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    Sphere,
    VectorField,
)
from tests.laws import assert_close
from tests.recovery import (
    COVARIANCE,
    DIM,
    Fit,
    GaussianModel,
    LinearScoreModel,
    fit,
    gaussian_points,
    gaussian_truth,
    score_truth,
)

# Five standard errors: one false alarm in 300,000 of the 6 numbers of a fit, whose data are fixed.
CLOSE = 5.0

OBJECTIVES = [
    ScoreMatching(),
    SlicedScoreMatching(Rademacher(balanced=False)),
    SlicedScoreMatching(Gaussian(), num_projections=3),
    SlicedScoreMatchingVR(Rademacher(balanced=False)),
    SlicedScoreMatchingVR(Sphere(), beta=0.5),
    SlicedScoreMatchingVR(Gaussian(), beta="optimal"),
    FiniteDifferenceSSM(eps=0.5),
    NoiseContrastive(eps=1.0),
    ApproximateBackprop(),
    CurvaturePropagation(),
    MaximumLikelihood(),
]


def assert_recovers(found: Fit, truth: Tensor) -> None:
    """Every number within five standard errors."""
    deviations = found.deviations(truth)
    assert (deviations < CLOSE).all(), f"differs by {deviations.tolist()} standard errors"


def assert_excludes(found: Fit, truth: Tensor) -> None:
    """Some number more than ten standard errors away: the fit is sharp enough to tell."""
    deviations = found.deviations(truth)
    assert (deviations > 2 * CLOSE).any(), f"within {deviations.tolist()} standard errors"


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_recovers_the_gaussian_of_the_data(objective: Objective) -> None:
    found = fit(objective, GaussianModel(), LogDensityField)
    assert_recovers(found, gaussian_truth(COVARIANCE))
    for wrong in (0.8 * COVARIANCE, 1.25 * COVARIANCE, COVARIANCE.diagonal().diag()):
        assert_excludes(found, gaussian_truth(wrong))


@pytest.mark.parametrize(
    "objective", [ScoreMatching(), ApproximateBackprop(), MaximumLikelihood()], ids=repr
)
def test_the_minimum_is_the_sample_mean_and_covariance(objective: Objective) -> None:
    # For a Gaussian model the minimum of each is known in closed form, and they are the same.
    x = gaussian_points(20_000)
    covariance = torch.cov(x.T, correction=0)
    closed_form = torch.cat([x.mean(0), torch.linalg.inv(covariance).flatten()])
    found = fit(objective, GaussianModel(), LogDensityField)
    assert_close(found.estimate, closed_form, 1e-6)


@pytest.mark.parametrize("control_variate", [False, True])
def test_denoising_recovers_the_noisy_gaussian(control_variate: bool) -> None:
    sigma = 0.7
    noisy = COVARIANCE + sigma**2 * torch.eye(DIM, dtype=torch.float64)
    objective = DenoisingScoreMatching(sigma=sigma, control_variate=control_variate)
    found = fit(objective, GaussianModel(), LogDensityField)
    assert_recovers(found, gaussian_truth(noisy))
    assert_excludes(found, gaussian_truth(COVARIANCE))


@pytest.mark.parametrize(
    "objective",
    [
        ScoreMatching(),
        SlicedScoreMatching(),
        SlicedScoreMatchingVR(),
        FiniteDifferenceSSM(eps=0.5),
    ],
    ids=repr,
)
def test_score_network_recovers_the_score(objective: Objective) -> None:
    found = fit(objective, LinearScoreModel(), VectorField)
    assert_recovers(found, score_truth())
    for wrong in (0.8 * score_truth(), 1.25 * score_truth(), -score_truth()):
        assert_excludes(found, wrong)
