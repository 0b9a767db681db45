"""Estimators survive a folder to the last digit, and what they cannot take along is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture

import scorematching as sm
from scorematching.saving.classes import ESTIMATORS as LISTED
from tests.saving.examples import ESTIMATORS, answers, assert_refused, estimator


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_loaded_estimator_is_the_saved_one(name: str, tmp_path: Path) -> None:
    saved = estimator(name)
    loaded = sm.load(sm.save(saved, tmp_path / "e"))
    assert type(loaded) is type(saved) and repr(loaded) == repr(saved)
    assert set(vars(loaded)) == set(vars(saved))
    found = answers(loaded)
    for key, value in answers(saved).items():
        np.testing.assert_array_equal(found[key], value)


def test_saving_again_writes_the_same_numbers(tmp_path: Path) -> None:
    first = sm.save(estimator("dkef"), tmp_path / "first")
    second = sm.save(sm.load(first), tmp_path / "second")
    for name in ("config.json", "model.safetensors", "README.md"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_use_before_saving_changes_nothing(tmp_path: Path) -> None:
    """Derivatives leave findings on a model, which are no part of it."""
    saved = estimator("mlp")
    x = np.random.default_rng(2).normal(size=(9, 3))
    loss = saved.score(x)
    assert sm.load(sm.save(saved, tmp_path / "e")).score(x) == loss


def test_attributes_of_a_density(tmp_path: Path) -> None:
    saved = estimator("mlp")
    loaded = sm.load(sm.save(saved, tmp_path / "e"))
    for name in ("log_z_", "log_z_standard_error_", "weights_", "tilt_size_", "offset_"):
        assert getattr(loaded, name) == getattr(saved, name)
    assert loaded.log_z_ != 0
    assert loaded.log_z_bracket(0) == saved.log_z_bracket(0)


def test_data_frames_come_back(tmp_path: Path) -> None:
    folder = sm.save(estimator("frame"), tmp_path / "e")
    loaded = sm.load(folder)
    sample = loaded.sample(4, random_state=0)
    assert isinstance(sample, pd.DataFrame) and list(sample) == ["a", "b", "both", "one"]
    np.testing.assert_allclose(sample["both"], sample["a"] + sample["b"])
    assert loaded.objective == sm.SlicedScoreMatching(sm.Gaussian())
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "a, b, both, one" in card and "| constant columns | 'one' |" in card
    assert f"{loaded.held_out_log_likelihood_:.6g}" in card
    assert all(f"| {part} | {share:.6g} |" in card for part, share in loaded.weights_.items())


def test_training_is_in_the_card(tmp_path: Path) -> None:
    folder = sm.save(estimator("sliced"), tmp_path / "e")
    loaded = sm.load(folder)
    assert loaded.result_ == estimator("sliced").result_
    assert f"{loaded.result_.best_loss:.6g}" in (folder / "README.md").read_text(encoding="utf-8")


def test_tensors_in_two_places_are_stored_once(tmp_path: Path) -> None:
    saved = estimator("exp-family")
    assert saved.fitted_.points is saved.fitted_.samples
    folder = sm.save(saved, tmp_path / "e")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    nodes = config["model"]["fitted"]["fitted_"]["attributes"]
    assert nodes["points"] == nodes["samples"]


def test_an_estimator_before_fit(tmp_path: Path) -> None:
    saved = sm.SteinScoreEstimator(eta=0.5)
    loaded = sm.load(sm.save(saved, tmp_path / "e"))
    assert loaded.get_params() == saved.get_params()
    with pytest.raises(NotFittedError):
        loaded.grad_log_density([[0.0]])


def test_every_estimator_is_listed() -> None:
    public = [getattr(sm.estimators, name) for name in sm.estimators.__all__]
    classes = [
        c for c in public if isinstance(c, type) and issubclass(c, sm.estimators.ScoreEstimator)
    ]
    assert {c.__name__ for c in classes} - {"ScoreEstimator"} == set(LISTED)


class Own(sm.SteinScoreEstimator):
    """A subclass, whose code would be lost."""


def _given() -> Any:
    x = np.random.default_rng(0).normal(size=(60, 2))
    return sm.DensityEstimator("none", base=GaussianMixture()).fit(x)


def _seeded() -> Any:
    return sm.SlicedScoreEstimator(random_state=np.random.RandomState(0))


def _fit_result() -> Any:
    x = np.random.default_rng(0).normal(size=(20, 1))
    return sm.inference.fit(
        lambda theta, x: -0.5 * theta["p"] * x.square().sum(-1), x, start={"p": 1.0}
    )


REFUSED = {
    "a subclass": (Own, "Own"),
    "a base of another package": (_given, "base must be.*GaussianMixture"),
    "a random state": (_seeded, "random_state must be.*RandomState"),
    "a result with a function": (_fit_result, "FitResult"),
    "another estimator": (GaussianMixture, "GaussianMixture"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_saved_is_refused(name: str, tmp_path: Path) -> None:
    assert_refused(*REFUSED[name], tmp_path)
