"""Scores of known distributions are recovered, with errors that fall with the number of samples.

Every measure of accuracy is a function of a score, and the true score must pass it too.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from scorematching import distributions
from scorematching.estimators import (
    SlicedScoreEstimator,
    fit_kernel_exp_family,
    fit_nu_method,
    fit_spectral,
    fit_stein,
    sliced,
)

SETS = 4
LAWS = {
    "standard normal": distributions.Gaussian(torch.zeros(2), torch.eye(2)),
    "correlated": distributions.Gaussian([1.0, -2.0], [[2.0, 0.8], [0.8, 1.0]]),
}
ESTIMATORS = {
    # The bandwidth is twice the median, which suits normal distributions.
    "stein": lambda x, h: fit_stein(x, bandwidth=2 * h),
    "spectral": lambda x, h: fit_spectral(x, bandwidth=2 * h),
    "tikhonov": lambda x, h: fit_kernel_exp_family(x, bandwidth=2 * h),
    "nystrom": lambda x, h: fit_kernel_exp_family(x, bandwidth=2 * h, inducing=x[..., :40, :]),
    "nu": lambda x, h: fit_nu_method(x, bandwidth=2 * h),
}


def relative_error(score, law, num=500, sets=SETS):
    """Fisher divergence to the truth over that of a score of zero: ``E|s - s_d|^2 / E|s_d|^2``.

    The score takes ``(SETS, num, D)``, fresh points for each set of samples; their mean is taken.
    """
    generator = torch.Generator().manual_seed(99)
    q = law.sample(sets * num, generator)
    truth = law.score(q).reshape(sets, num, law.dim)
    error = score(q.reshape(sets, num, law.dim)) - truth
    return (error.square().sum() / truth.square().sum()).item()


def samples(law, num, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return law.sample(SETS * num, generator).reshape(SETS, num, law.dim)


def width(law):
    """The median distance of two samples of the distribution."""
    return 1.665 * law.covariance.diagonal().mean().sqrt().item()  # sqrt(4 log 2) for N(0, I)


def falls(errors):
    """Whether errors decrease to at most half of the first, or are zero."""
    downward = all(b <= a for a, b in pairwise(errors))
    return downward and (errors[-1] < 0.5 * errors[0] or errors[0] < 1e-20)


@pytest.fixture(params=LAWS, scope="module")
def law(request):
    return LAWS[request.param].to(dtype=torch.float64)


@pytest.fixture(params=[*ESTIMATORS, "truth"])
def scores_by_num(request, law):
    """Estimates from 40, 120 and 360 samples, or three times the true score."""
    if request.param == "truth":
        return [lambda x: law.score(x.reshape(-1, law.dim)).reshape(x.shape)] * 3
    fit, h = ESTIMATORS[request.param], width(law)
    return [fit(samples(law, num), h).score for num in (40, 120, 360)]


def test_error_falls_with_the_number_of_samples(scores_by_num, law):
    """Nine times the samples at least halve the mean error of four sets, to 10 % or less."""
    errors = [relative_error(score, law) for score in scores_by_num]
    assert falls(errors)
    assert errors[-1] < 0.1


@pytest.mark.parametrize("bug", [lambda s: -s, lambda s: 0.5 * s, lambda s: s + 0.5])
def test_wrong_scores_are_not_let_through(law, bug):
    """A wrong sign, factor or constant is an error of more than 10 %."""
    wrong = lambda x: bug(law.score(x.reshape(-1, law.dim)).reshape(x.shape))  # noqa: E731
    assert relative_error(wrong, law) > 0.1
    assert not falls([relative_error(wrong, law)] * 2)


def of_estimator(estimator):
    return lambda q: torch.as_tensor(estimator.grad_log_density(q[0].numpy()))[None]


def test_score_network_recovers_a_score(law):
    """From 400 points to 10 %."""
    x = samples(law, 100).reshape(-1, law.dim)
    estimator = SlicedScoreEstimator(hidden=(32,), lr=5e-3, max_steps=500, random_state=0)
    for score in (of_estimator(estimator.fit(x.numpy())), lambda q: law.score(q[0])[None]):
        assert relative_error(score, law, sets=1) < 0.1


def test_score_network_survives_few_points(monkeypatch):
    """A hundred points, ten of them held out: no single one decides when to stop.

    Otherwise the score of least mean loss on those ten has spikes.
    """
    law = LAWS["standard normal"].to(dtype=torch.float64)
    x = law.sample(100, torch.Generator().manual_seed(2)).numpy()
    estimator = SlicedScoreEstimator(hidden=(64, 64), max_steps=900, random_state=0)
    assert relative_error(of_estimator(estimator.fit(x)), law, sets=1) < 0.3
    monkeypatch.setattr(sliced, "_LEFT_OUT", 0)
    assert relative_error(of_estimator(estimator.fit(x)), law, sets=1) > 1
