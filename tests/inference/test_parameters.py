"""Arguments of a fit that are refused, with what is wrong and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from scorematching.errors import SingularInformationError
from scorematching.inference import fit, fit_robust, models

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_complex_numbers_are_refused() -> None:
    """Their imaginary part was dropped."""
    for x in (X.numpy() + 1j, X + 1j, [[complex(a), 1.0] for a in range(60)]):
        with pytest.raises(TypeError, match="X must be real numbers, got complex ones"):
            fit(models.Gaussian(2), x)


@pytest.mark.parametrize(
    "model",
    [
        models.Gaussian(3),
        models.Gaussian(1, centred=True),
        models.ICA(3),
        models.StudentTExperts(1),
        models.VonMisesFisher(3),
        models.PPI(3),
        models.PairwiseInteraction.gamma(1),
    ],
)
def test_the_number_of_columns(model: Any) -> None:
    wanted = rf"X must have {model.dim} columns? for {type(model).__name__}, got 2"
    for call in (lambda: fit(model, X), lambda: fit_robust(model, X, power=0.1)):
        with pytest.raises(ValueError, match=wanted):
            call()


@pytest.mark.parametrize("points", [X[:2, :1], X[0], X[:, :, None]])
def test_points_of_a_prediction(points: Any) -> None:
    result = fit(models.Gaussian(2), X)
    for which in ("log_density", "score"):
        with pytest.raises(ValueError, match=r"X must have shape \(N, 2\), got "):
            result.predict(points, which)


def test_start_is_a_dict() -> None:
    with pytest.raises(TypeError, match=r"start must be a dict .* got list"):
        fit(models.Gaussian(2), X, start=[1.0, 2.0])


def test_columns_far_from_zero_are_named() -> None:
    with pytest.raises(SingularInformationError, match=r"columns \[1\] of X vary little"):
        fit(models.Gaussian(2), X + torch.tensor([0.0, 1e7]))
    with pytest.raises(SingularInformationError, match="collinear, or constant"):
        fit(models.Gaussian(2), X * torch.tensor([1.0, 0.0]) + torch.tensor([0.0, 1e7]))


def test_a_saddle_is_no_lack_of_data() -> None:
    """The loss is even in a, so a fit that starts at zero cannot leave it."""
    with pytest.raises(SingularInformationError, match=r"falls along \+1 a; choose another start"):
        fit(lambda t, x: -(t["a"] ** 2) * x.square().sum(-1), X, start={"a": 0.0})


def test_tables_of_pandas_and_whole_numbers() -> None:
    x = (100 * X).round()
    expected = fit(models.Gaussian(2), x)
    for same in (x.int(), x.numpy().astype(np.int64), x.float().requires_grad_(), x.mT.clone().mT):
        found = fit(models.Gaussian(2), same)
        np.testing.assert_allclose(found.cov_params(), expected.cov_params(), rtol=1e-12)
