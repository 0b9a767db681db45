"""Log-likelihoods and score-matching losses of held-out rows, for a model and the baselines."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching._tables import text_table
from scorematching.distributions import Distribution
from scorematching.errors import ScoreMatchingError
from scorematching.estimators.density.losses import held_out_losses
from scorematching.evaluation import Estimate, paired_difference, score_matching_losses
from scorematching.runs.modelled import standardised_score
from scorematching.runs.space import Space

OURS = "this model"

_LOSS_ENTRIES, _MIN_LOSS_ROWS = 20_000, 100
_CLEAR, _LEAST, _ROUNDING = 2.0, 1e-4, 1e-9
"""Standard errors and size from which a difference is called one, and size of rounding errors."""


@dataclass(frozen=True)
class MethodScore:
    """One method on held-out rows.

    Attributes:
        name: of the method.
        log_likelihood: mean log-density per row, in the units of the table; None without one.
        gain: mean of this model's log-density less that of the method; positive if this model is
            better.
        loss: mean score-matching loss, in the space where the Gaussian is standard.
        loss_gain: mean of the method's loss less this model's; positive if this model is better.
    """

    name: str
    log_likelihood: Estimate | None
    gain: Estimate | None
    loss: Estimate | None
    loss_gain: Estimate | None


@dataclass(frozen=True)
class HeldOut:
    """Scores of all methods, this model first.

    Attributes:
        rows: number of held-out rows.
        methods: their scores.
        notes: why numbers are missing.
    """

    rows: int
    methods: tuple[MethodScore, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> HeldOut:
        """What `as_dict` returned, back."""

        def number(value: Any) -> Any:
            found: dict[str, Any] = {k: math.nan if v is None else v for k, v in value.items()}
            return Estimate(**found)

        def score(row: dict[str, Any]) -> MethodScore:
            return MethodScore(
                **{k: number(v) if isinstance(v, dict) else v for k, v in row.items()}
            )

        return cls(values["rows"], tuple(map(score, values["methods"])), tuple(values["notes"]))

    def table(self) -> str:
        """The scores as a text table; a positive gain is one of this model over the method."""
        headings = ["", "log-likelihood", "gain", "loss", "gain"]
        rows = [
            [m.name, *map(_cell, (m.log_likelihood, m.gain, m.loss, m.loss_gain))]
            for m in self.methods
        ]
        return text_table(headings, rows, align_right=True)

    def verdicts(self) -> list[str]:
        """In plain words, for each baseline, which is better."""
        return [f"{name}: {verdict(gain)}" for name, gain in self.gains().items()]

    def gains(self) -> dict[str, Estimate]:
        """Gains over the baselines in log-likelihood, or else in loss."""
        each = {method.name: method.gain or method.loss_gain for method in self.methods[1:]}
        return {name: gain for name, gain in each.items() if gain is not None}

    def sentence(self) -> str:
        """All verdicts in one sentence.

        Example:
            >>> gain = Estimate(-0.5, 0.1, 50)
            >>> ours = MethodScore("this model", None, None, None, None)
            >>> kde = MethodScore("KDE", None, gain, None, None)
            >>> HeldOut(50, (ours, kde)).sentence()
            'On 50 held-out rows this model is worse than KDE (-0.50 +- 0.10 per row).'
        """
        words = {1: "better than", 0: "not clearly different from", -1: "worse than"}
        found = [
            f"{word} {_joined(names)}"
            for sign, word in words.items()
            if (names := [_named(n, g) for n, g in self.gains().items() if clear_sign(g) == sign])
        ]
        return f"On {self.rows} held-out rows this model is {', '.join(found)}." if found else ""


def _joined(names: list[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _named(name: str, gain: Estimate) -> str:
    return f"{name} ({short(gain)} per row)"


def clear_sign(gain: Estimate) -> int:
    """1 or -1 for a clear difference, 0 for none.

    Example:
        >>> clear_sign(Estimate(-0.5, 0.1, 50)), clear_sign(Estimate(1e-7, 0.0, 50))
        (-1, 0)
    """
    clear = abs(gain.mean) > max(_CLEAR * gain.standard_error, _LEAST)
    return int(np.sign(gain.mean)) if clear else 0


def verdict(gain: Estimate) -> str:
    """A difference in words.

    Example:
        >>> verdict(Estimate(-0.5, 0.1, 50))
        'better than this model, by 0.50 +- 0.10 per row'
        >>> verdict(Estimate(0.1, 0.1, 50))
        'no clear difference (0.10 +- 0.10 per row)'
    """
    size = short(Estimate(abs(gain.mean), gain.standard_error, gain.count))
    if clear_sign(gain) == 0:
        return f"no clear difference ({short(gain)} per row)"
    if gain.mean < 0:
        return f"better than this model, by {size} per row"
    return f"this model is better, by {size} per row"


def short(estimate: Estimate) -> str:
    """An estimate without its count; a difference of rounding errors is zero."""
    if max(abs(estimate.mean), estimate.standard_error) < _ROUNDING:
        return "0 +- 0"
    return str(estimate).split(" (")[0]


def _cell(estimate: Estimate | None) -> str:
    return "" if estimate is None else short(estimate)


def hold_out_scores(
    model: Any, baselines: Mapping[str, Distribution], space: Space, frame: Any
) -> HeldOut:
    """Evaluate a model and the baselines at the same held-out rows.

    Args:
        model: a fitted `DensityEstimator` or `SlicedScoreEstimator`.
        baselines: distributions of the modelled columns, by name.
        space: of the losses.
        frame: rows that none was fitted to, with noise where columns are rounded.
    """
    x = space.rows(frame)
    some = loss_rows(x)
    likelihoods, losses, notes = {}, {}, []
    if len(some) < len(x):
        notes.append(f"losses are those of {len(some)} of the {len(x)} rows, to save time")
    try:
        likelihoods[OURS] = log_densities(model, frame)
    except (AttributeError, ValueError) as error:
        notes.append(_reason("log-likelihood", error))
    try:
        losses[OURS] = model_losses(model, space, some)
    except (ScoreMatchingError, ValueError) as error:
        notes.append(_reason("score-matching loss", error))
    for name, baseline in baselines.items():
        with torch.no_grad():
            likelihoods[name] = baseline(x)
        inner: Any = baseline
        try:
            losses[name] = held_out_losses(space.density(inner.inner), space.z(some))
        except (ScoreMatchingError, ValueError) as error:  # which must not cost the fit
            notes.append(_reason(f"score-matching loss of {name}", error))
    methods = [_score(name, likelihoods, losses) for name in (OURS, *baselines)]
    return HeldOut(len(x), tuple(methods), tuple(notes))


def loss_rows(x: Tensor) -> Tensor:
    """Some rows, as many as there is time to take second derivatives at."""
    return some_rows(x, max(_MIN_LOSS_ROWS, _LOSS_ENTRIES // x.shape[1]))


def log_densities(model: Any, frame: Any) -> Tensor:
    """The model's log-densities at rows, ``(N,)``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # noise moves rows off constants
        return torch.as_tensor(model.score_samples(frame))


def model_losses(model: Any, space: Space, x: Tensor) -> Tensor:
    """The model's score-matching losses at rows ``(N, K)``, in the space of the baselines."""
    z = space.z(x)
    if hasattr(model, "density_"):
        return held_out_losses(space.density(model.density_), z, scale=space.least_scale)
    return score_matching_losses(space.field(standardised_score(model)), z)


def _score(name: str, likelihoods: dict[str, Tensor], losses: dict[str, Tensor]) -> MethodScore:
    def gain(values: dict[str, Tensor], sign: float) -> Estimate | None:
        if name == OURS or OURS not in values or name not in values:
            return None
        return paired_difference(sign * values[OURS], sign * values[name])

    def mean(values: dict[str, Tensor]) -> Estimate | None:
        return Estimate.of(values[name]) if name in values else None

    return MethodScore(
        name, mean(likelihoods), gain(likelihoods, 1), mean(losses), gain(losses, -1)
    )


def _reason(what: str, error: Exception) -> str:
    if isinstance(error, AttributeError):
        return f"no {what}: the model is a score, which has no normalised log-density"
    # The first sentence; what follows is advice about models of one's own.
    return f"no {what}: {str(error).splitlines()[0].split('. ')[0]}"
