"""Fit a model to most rows of a table, and evaluate it at the others."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scorematching.datasets import Standardise
from scorematching.distributions import Distribution
from scorematching.estimators import DensityEstimator, SlicedScoreEstimator
from scorematching.runs.baselines import fit_baselines
from scorematching.runs.held_out import HeldOut, hold_out_scores
from scorematching.runs.space import Space
from scorematching.runs.split import Parts, split_table
from scorematching.tables import Prepared

MODELS = ("auto", "mlp", "dkef", "nice", "score")
"""Models by name; see `FitOptions`."""

_FIT_SHARE = 0.8
"""Of the time, for the fit; the rest is for baselines, evaluation and report."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class FitOptions:
    """How to fit.

    Attributes:
        model: "auto", the stack of estimates of `DensityEstimator` with a tilt; "mlp" or "dkef", a
            tilt of a Gaussian, by a network or a deep kernel; "nice", a flow; "score", a network
            for the score alone.
        objective: of score matching: "ssm-vr", "ssm", "sm", or with "nice" "mle".
        seed: of the split, of noise and of training.
        device: where tensors live.
        max_minutes: for everything, approximately; None has no limit.

    Example:
        >>> FitOptions().model
        'auto'
    """

    model: str = "auto"
    objective: str = "ssm-vr"
    seed: int = 0
    device: str = "cpu"
    max_minutes: float | None = None

    @property
    def max_seconds(self) -> float | None:
        """For the fit alone."""
        return None if self.max_minutes is None else _FIT_SHARE * 60 * self.max_minutes


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model, baselines, and what held-out rows say about them.

    Attributes:
        model: fitted to the rows that were not held out.
        baselines: distributions of the modelled columns, by name.
        space: in which losses are compared.
        held_out: the scores.
        held_out_rows: which rows of the prepared table they are.
        noise: "width" of the noise in rounded columns, and values that are "common", by name.
        seconds: that each part took.
        warnings: that the fit gave.
    """

    model: Any
    baselines: dict[str, Distribution]
    space: Space
    held_out: HeldOut
    held_out_rows: NDArray[np.int64]
    noise: dict[str, Any]
    seconds: dict[str, float]
    warnings: list[str] = field(default_factory=list)


def fit_table(table: Prepared, options: FitOptions, progress: Progress = print) -> Fitted:
    """Fit a model to four fifths of the rows of a table, and evaluate it at the rest.

    Args:
        table: from `prepare`.
        options: how.
        progress: receives lines about the search of `DensityEstimator`.

    Raises:
        ValueError: if an option is unknown, or does not fit the others.

    Example:
        >>> from scorematching.tables import prepare, read
        >>> table = prepare(read("redwine"), columns=["alcohol", "pH"])
        >>> fitted = fit_table(table, FitOptions("dkef"), progress=lambda line: None)
        >>> [method.name for method in fitted.held_out.methods]
        ['this model', 'Gaussian', 'KDE', 'mixture']
    """
    table, held = split_table(table, options.seed)
    columns = [table.frame.columns[c] for c in table.table.kept]
    frame = table.frame[columns] if options.model == "score" else table.frame
    width = dict(zip(columns, table.width.tolist()))
    parts = Parts(frame, held, width, options.seed, table.common)
    estimator = make_estimator(options, table.dequantised, progress)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # DensityEstimator adds noise itself, after it has seen which rows are copies.
        model = estimator.fit(parts.train_noisy if options.model == "score" else parts.train)
    fit_seconds = time.perf_counter() - start
    _forget_progress(model)
    baselines, space = _baselines(model, parts)
    found = hold_out_scores(model, baselines, space, parts.test)
    seconds = {"fit": fit_seconds, "evaluation": time.perf_counter() - start - fit_seconds}
    # Columns without a density, or over many orders of magnitude, are among the findings.
    known = "X has columns "
    said = sorted({str(w.message) for w in caught if not str(w.message).startswith(known)})
    noise = {"width": parts.width, "common": parts.common}
    return Fitted(model, dict(baselines), space, found, held, noise, seconds, said)


def make_estimator(options: FitOptions, dequantise: bool, progress: Progress) -> Any:
    """The estimator of the options, before its fit."""
    if options.model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {options.model!r}")
    shared: dict[str, Any] = {"random_state": options.seed, "max_seconds": options.max_seconds}
    if options.model == "score":
        if options.objective != "ssm-vr":
            raise ValueError(
                f'objective must be "ssm-vr" with model "score", got {options.objective!r}; other '
                "models take other objectives"
            )
        device = None if options.device == "cpu" else options.device
        return SlicedScoreEstimator(device=device, verbose=True, **shared)
    tilt = "mlp" if options.model == "auto" else options.model
    base = "gaussian" if options.model in ("mlp", "dkef") else "auto"
    more: dict[str, Any] = {"dequantise": dequantise, "device": options.device, "verbose": progress}
    return DensityEstimator(tilt, options.objective, base=base, **more, **shared)


def _forget_progress(model: Any) -> None:
    """Arguments that concern this process only; a saved model has the defaults."""
    model.set_params(verbose=type(model)().verbose, max_seconds=None)


def _baselines(model: Any, parts: Parts) -> tuple[dict[str, Any], Space]:
    """Baselines in the scaling of the model, and the space of their Gaussian."""
    if hasattr(model, "scaling_"):
        scaling = Standardise(model.scaling_.mean.cpu(), model.scaling_.std.cpu())
    else:
        scaling = Standardise(model.mean_.cpu().double(), model.scale_.cpu().double())
    columns = list(parts.width)
    s = scaling(torch.tensor(parts.train_noisy[columns].to_numpy(np.float64)))
    first = torch.tensor(~(parts.train.duplicated().to_numpy() & parts.copies))
    baselines = fit_baselines(s, scaling, parts.seed, first)
    return baselines, Space.of(columns, baselines["Gaussian"])
