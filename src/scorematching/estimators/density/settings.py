"""Checks of the arguments of `DensityEstimator`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scorematching._checks import (
    check_choice,
    check_count,
    check_flag,
    check_positive,
    check_share,
    is_number,
)
from scorematching.estimators.time_limit import check_max_seconds
from scorematching.objectives import MaximumLikelihood, Objective, ScoreMatching
from scorematching.objectives.names import NAMES
from scorematching.objectives.sliced import Sliced

_MAX_NOISE = 1e6
MODELS = ("mlp", "dkef", "none", "nice")
OBJECTIVES = {name.lower(): NAMES[name] for name in ("SSM-VR", "SSM", "SM", "MLE")}


def check_settings(estimator: Any) -> None:
    """Check every argument but the objective and the base."""
    check_choice(estimator.model, "model", MODELS, '"mlp" is the default')
    if not is_number(estimator.noise) or not 0 <= estimator.noise <= _MAX_NOISE:
        raise ValueError(
            f"noise must be zero or a positive number, at most {_MAX_NOISE:g}, got "
            f"{estimator.noise!r}; try 0"
        )
    check_flag(estimator.calibrate, "calibrate", "True is the default")
    check_flag(estimator.dequantise, "dequantise", "True adds noise to rounded columns")
    for name in ("num_inducing", "max_steps", "batch_size", "patience", "num_importance"):
        check_count(getattr(estimator, name), name, "it counts points or steps")
    if isinstance(estimator.hidden, str) or not isinstance(estimator.hidden, Iterable):
        raise ValueError(
            f"hidden must be a sequence of widths, got {estimator.hidden!r}; "
            "(64, 64) is the default"
        )
    for width in estimator.hidden:
        check_count(width, "every width of hidden", "(64, 64) is the default")
    if estimator.batch_size < 2:
        raise ValueError(
            "batch_size must be at least 2, got 1; DKEF solves on one half and learns on the other"
        )
    if estimator.learning_rate is not None:
        check_positive(estimator.learning_rate, "learning_rate", "None is the model's default")
    check_share(estimator.validation_fraction, "validation_fraction", "0.1 suits most data")
    check_max_seconds(estimator.max_seconds)
    if not is_number(estimator.contamination) or not 0 < estimator.contamination <= 0.5:
        raise ValueError(
            f"contamination must be above 0 and at most 0.5, got {estimator.contamination!r}; "
            "it is the share of unusual rows"
        )


def objective_of(value: Any, model: str) -> Objective:
    """The objective of a name, or the one that was given."""
    named = isinstance(value, str) and value.lower() in OBJECTIVES
    objective = OBJECTIVES[value.lower()]() if named else value
    if not isinstance(objective, Objective):
        raise ValueError(
            f"objective must be one of {', '.join(OBJECTIVES)} or an Objective, got {value!r}; "
            '"ssm-vr" is a good default'
        )
    if model == "nice":
        return objective
    if isinstance(objective, MaximumLikelihood):
        raise ValueError(
            f"objective must be one for unnormalised models with model={model!r}, got maximum "
            'likelihood; use "ssm-vr", or model="nice"'
        )
    if not isinstance(objective, ScoreMatching | Sliced):
        raise ValueError(
            f"objective must be exact or sliced score matching with model={model!r}, got "
            f'{type(objective).__name__}; use "ssm-vr", or model="nice"'
        )
    return objective
