"""Standard errors that cannot be had: too few points or clusters that count, gradients of zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from scorematching.errors import SingularInformationError
from scorematching.inference import fit, models


def points(n: int, d: int = 2) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_points_of_weight_zero_do_not_count() -> None:
    """Three points do not determine the errors of five parameters."""
    x = points(100)
    with pytest.raises(ValueError, match=r"more points than .* \(5\), got 3 rows"):
        fit(models.Gaussian(2), x, weights=[1.0] * 3 + [0.0] * 97)
    some = fit(models.Gaussian(2), x, weights=[1.0] * 40 + [0.0] * 60)
    alone = fit(models.Gaussian(2), x[:40])
    np.testing.assert_allclose(some.cov_params(), alone.cov_params(), rtol=1e-9)


def test_clusters_of_weight_zero_do_not_count() -> None:
    """The errors of one cluster were those of rounding."""
    x, cluster = points(100), torch.arange(100) % 2
    with pytest.raises(ValueError, match="cluster must name at least two clusters"):
        fit(models.Gaussian(2), x, cluster=cluster, weights=cluster.double())
    three = torch.arange(99) % 3
    some = fit(models.Gaussian(2), x[:99], cluster=three, weights=(three != 2).double())
    alone = fit(models.Gaussian(2), x[:99][three != 2], cluster=three[three != 2])
    np.testing.assert_allclose(some.cov_params(), alone.cov_params(), rtol=1e-9)


@pytest.mark.parametrize("label", [math.nan, None, pd.NA, pd.NaT])
def test_missing_labels_are_refused(label: Any) -> None:
    """Rows without a label are no cluster."""
    labels: list[Any] = [label] * 10 + [0.0] * 40 + [1.0] * 50
    with pytest.raises(ValueError, match="cluster must have a label for every row, got none in 10"):
        fit(models.Gaussian(2), points(100), cluster=labels)


@pytest.mark.parametrize("label", [math.nan, None, pd.NA])
def test_missing_labels_among_text_are_refused(label: Any) -> None:
    """In a list of text, NaN became a cluster called "nan"."""
    labels: list[Any] = [label] * 10 + ["a"] * 40 + ["b"] * 50
    with pytest.raises(ValueError, match="cluster must have a label for every row, got none in 10"):
        fit(models.Gaussian(2), points(100), cluster=labels)


def test_labels_in_a_list_are_told_apart() -> None:
    """Beside text, the number 1 was taken for the text "1"."""
    x, labels = points(90), [(1, "1", "a")[i % 3] for i in range(90)]
    found = fit(models.Gaussian(2), x, cluster=labels)
    numbers = fit(models.Gaussian(2), x, cluster=np.arange(90) % 3)
    np.testing.assert_allclose(found.cov_params(), numbers.cov_params(), rtol=1e-12)


def test_labels_of_any_kind() -> None:
    x = points(90)
    numbers = fit(models.Gaussian(2), x, cluster=np.arange(90) % 3)
    mixed = np.array([(1, "b", (2, 3))[i % 3] for i in range(90)], dtype=object)
    found = fit(models.Gaussian(2), x, cluster=mixed)
    np.testing.assert_allclose(found.cov_params(), numbers.cov_params(), rtol=1e-12)


@pytest.mark.parametrize("cluster", [None, torch.arange(100) % 7])
def test_h_and_k_give_the_covariance(cluster: Any) -> None:
    """K was that of independent rows although its parts, and the errors, were of clusters."""
    weights = 1 + torch.arange(100) % 3
    found = fit(models.Gaussian(2), points(100), weights=weights, cluster=cluster)
    inverse = np.linalg.inv(found.H)
    np.testing.assert_allclose(inverse @ found.K @ inverse / 100, found.cov_params(), rtol=1e-8)


def test_few_clusters_are_said() -> None:
    x = points(400)
    few = str(fit(models.Gaussian(2), x, cluster=torch.arange(400) % 5).summary())
    assert "Only 5 clusters" in few
    assert "Only" not in str(fit(models.Gaussian(2), x, cluster=torch.arange(400) % 50).summary())


def test_a_parameter_on_its_boundary_has_no_error() -> None:
    """The precision ``2 + a^2`` cannot be one: a is zero, and so is the derivative in a."""
    x = points(300)

    def bounded(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -0.5 * (2 + theta["a"] ** 2) * x.square().sum(-1) + theta["b"] * x.sum(-1)

    with pytest.raises(SingularInformationError, match=r"zero at the estimates of a: .* boundary"):
        fit(bounded, x, start={"a": 1.0, "b": 0.0})
    inside = fit(bounded, 0.2 * x, start={"a": 1.0, "b": 0.0})
    assert inside.bse["a"] > 1e-3


@pytest.mark.parametrize("units", [[1.0, 1e8], [1e6, 1e6], [1e-6, 1.0]])
def test_errors_in_other_units_are_rescaled(units: list[float]) -> None:
    """Small estimates of a fit by Newton steps are not taken for zeros."""
    x, u = points(300), torch.tensor(units, dtype=torch.float64)

    def rates(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -0.5 * (theta["log_precision"].exp() * x.square()).sum(-1)

    plain = fit(rates, x, start={"log_precision": torch.zeros(2)})
    scaled = fit(rates, x * u, start={"log_precision": 0.3 - 2 * u.log()})
    np.testing.assert_allclose([*scaled.bse.values()], [*plain.bse.values()], rtol=1e-6)


def test_errors_of_incomplete_rows_in_other_units_are_rescaled() -> None:
    """The start is a precision of one, which is 1e12 times the estimate."""
    x, unit = points(300), 1e6
    x[::10, 1] = torch.nan
    a, b = (
        fit(models.Gaussian(2), y, missing="weighted", generator=torch.Generator().manual_seed(1))
        for y in (x, unit * x)
    )
    name = "precision[1,1]"
    assert math.isclose(b.bse[name] * unit**2, a.bse[name], rel_tol=1e-5)
