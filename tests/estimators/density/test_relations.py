"""Columns that are exact nonlinear functions of others are found, and no others are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import datasets

import scorematching as sm
from benchmarks.density.tables import TABLES
from scorematching.estimators.density.table import inspect
from tests.estimators.density.tables import quick

FUNCTIONS = {
    "product": lambda a, b: a * b,
    "ratio": lambda a, b: a / b,
    "power": lambda a, b: a / b**2,
    "norm": lambda a, b: np.sqrt(a**2 + b**2),
    "sum of squares": lambda a, b: a**2 + 3 * b**2,
    "product of shifted columns": lambda a, b: (a - 1) * (b + 2) + a,
    "in single precision": lambda a, b: (a * b).astype(np.float32),
}
OF_ONE = {"log": np.log, "exp": np.exp, "inverse": np.reciprocal, "square": np.square}


def found(x):
    table = inspect(torch.as_tensor(np.asarray(x, dtype=np.float64)))
    return table.related(table.reduce(torch.as_tensor(np.asarray(x, dtype=np.float64))))


def columns(rows, count, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 2, size=(rows, count))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("rows", "count"), [(60, 2), (300, 5), (600, 12)])
def test_functions_of_two_columns(function, rows, count):
    x = columns(rows, count)
    c = FUNCTIONS[function](x[:, 0], x[:, 1])
    assert found(np.c_[x, c]) == [[0, 1, count]]
    assert found(np.c_[x, c * (1 + 1e-4 * columns(rows, 1, seed=1)[:, 0])]) == []


@pytest.mark.parametrize("function", OF_ONE)
def test_functions_of_one_column(function):
    x = columns(100, 3)
    assert found(np.c_[OF_ONE[function](x[:, 1]), x]) == [[0, 2]]


def test_products_and_norms_of_many_columns_in_wide_tables():
    x = columns(500, 100)
    assert found(np.c_[x, x[:, :5].prod(1)]) == [[0, 1, 2, 3, 4, 100]]
    assert found(np.c_[x, np.linalg.norm(x[:, :5], axis=1)]) == [[0, 1, 2, 3, 4, 100]]


def test_two_functions_and_a_discrete_argument():
    x, number = columns(300, 3), np.random.default_rng(1).integers(1, 9, 300)
    wide = np.c_[x, number, x[:, 0] * number, np.exp(x[:, 1])]
    assert sorted(found(wide)) == [[0, 3, 4], [1, 5]]


def test_points_on_a_circle():
    x = np.random.default_rng(0).normal(size=(100, 2))
    assert found(x / np.linalg.norm(x, axis=1, keepdims=True)) == [[0, 1]]


@pytest.mark.parametrize("name", TABLES)
def test_no_alarm_on_tables_of_the_benchmark(name):
    assert found(TABLES[name](0)) == []


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "diabetes", "digits"])
def test_no_alarm_on_tables_as_they_are(name):
    assert found(getattr(datasets, f"load_{name}")().data) == []


@pytest.mark.parametrize("seed", range(20))
def test_no_alarm_on_smooth_tables(seed):
    """Nearly collinear, lognormal, far from zero, curved, or a product with little noise."""
    rng = np.random.default_rng(seed)
    rows, count = int(rng.choice([30, 100, 1500])), int(rng.choice([2, 5, 10, 30]))
    x = rng.normal(size=(rows, count)) @ rng.normal(size=(count, count))
    noise = 1e-3 * rng.normal(size=(rows, count))
    kinds = [
        x[:, [0] * count] + noise,
        np.exp(x / count**0.5),
        1e3 + 1e-3 * x,
        np.sin(x[:, [0] * count] * np.arange(1, count + 1)) + noise,
        np.c_[x, x[:, 0] * x[:, 1] + noise[:, 0]],
    ]
    assert found(kinds[seed % 5]) == []


def test_no_alarm_where_few_rows_or_values_are_different():
    rng = np.random.default_rng(0)
    assert found(np.repeat(rng.normal(size=(30, 8)), 20, axis=0)) == []
    assert found(np.c_[np.eye(5)[rng.integers(0, 5, 300)], rng.normal(size=(300, 3))]) == []
    either = np.where(rng.random(300) < 0.5, [[1], [0]], [[0], [1]]) * rng.normal(size=(2, 300))
    assert found(either.T) == []  # one of two columns is zero in every row
    codes = rng.normal(size=(300, 3))
    codes[3] = -1e9
    assert found(codes) == []


def test_estimator_names_the_columns():
    frame = pytest.importorskip("pandas").DataFrame(columns(100, 2), columns=["mass", "height"])
    with pytest.warns(UserWarning, match="columns 'mass', 'height', 'bmi': functions of each"):
        quick().fit(frame.assign(bmi=frame["mass"] / frame["height"] ** 2))


def test_estimator_does_not_warn_of_wine(recwarn):
    sm.DensityEstimator("none", base="gaussian", dequantise=True).fit(datasets.load_wine().data)
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]
