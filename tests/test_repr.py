"""What results look like in a console and in a notebook."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import scorematching as sm
from scorematching.training import Record, TrainResult


def test_training_result_is_short_and_says_what_matters() -> None:
    records = [Record(step, 1.5, 1e-3, 0.1, 2.0) for step in range(500)]
    result = TrainResult(records, 500, 120, -2.25, True, 4.0, 64_000, "captured")
    assert len(repr(result)) < 200
    for words in ("500, stopped early", "-2.25 at step 120", "16,000 points", "captured"):
        assert words in repr(result) and words in result._repr_html_()
    assert "last training loss: 1.5" in repr(TrainResult(records, 500))


def test_fits_show_their_table_in_notebooks() -> None:
    x = torch.randn(30, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = sm.inference.fit(sm.inference.models.Gaussian(1), x)
    sd = result.function(lambda theta: theta["precision"].reshape(-1) ** -0.5, ["sd"])
    for found, name in ((result, "precision"), (sd, "sd")):
        assert found._repr_html_() == found.summary().as_html()
        assert name in found._repr_html_() and "<table>" in found._repr_html_()


@pytest.mark.parametrize("name", [n for n in sm.__all__ if n.endswith("Estimator")])
def test_estimators_show_their_settings(name: str) -> None:
    estimator = getattr(sm, name)()
    assert repr(estimator) == f"{name}()"
    assert name in estimator._repr_html_()


def test_path_of_a_graph_is_one_line() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    path = sm.inference.GraphicalModel().fit(x).path_
    assert "\n" not in repr(path) and f"{len(path.lambdas)} penalties" in repr(path)
