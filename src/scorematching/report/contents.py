"""What a report says, before it becomes a page."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scorematching.evaluation import KSDTest
from scorematching.runs import HeldOut, Run
from scorematching.runs.directions import Directions, direction_variance
from scorematching.runs.drawing import Drawn, draw
from scorematching.runs.goodness import TwoSample, stein_test, two_sample
from scorematching.runs.modelled import ModelledScore, modelled
from scorematching.runs.space import Space
from scorematching.runs.split import Parts
from scorematching.runs.unusual import score_rows
from scorematching.tables import Prepared

_SAMPLES, _UNUSUAL, _MAX_COLUMNS, _CLEAR, _LEVEL = 1000, 10, 12, 3.0, 0.05


@dataclass(frozen=True, eq=False)
class Contents:
    """Everything that a report of a run needs.

    Attributes:
        run: the run.
        table: that it was fitted to, prepared as for the fit.
    """

    run: Run
    table: Prepared

    @property
    def model(self) -> Any:
        """The fitted estimator."""
        return self.run.model

    @property
    def held_out(self) -> HeldOut:
        """The held-out numbers of the fit."""
        return self.run.held_out

    @property
    def space(self) -> Space:
        """Of the modelled columns."""
        return self.run.space

    @property
    def seed(self) -> int:
        """Of everything random in the report."""
        return self.run.seed

    @cached_property
    def parts(self) -> Parts:
        """Training and test rows."""
        return self.run.parts(self.table)

    @cached_property
    def train(self) -> Any:
        """Training rows with noise, modelled columns."""
        return self.parts.train_noisy[list(self.space.columns)]

    @cached_property
    def test(self) -> Any:
        """Held-out rows with noise, modelled columns."""
        return self.parts.test[list(self.space.columns)]

    @cached_property
    def modelled(self) -> ModelledScore:
        """The model of the modelled columns."""
        return modelled(self.model, self.space)

    @cached_property
    def drawn(self) -> Drawn:
        """Samples of the model."""
        rows = self.train.to_numpy(np.float64)
        return draw(self.model, self.space, _SAMPLES, seed=self.seed, start=rows)

    @cached_property
    def samples(self) -> Any:
        """Samples, ``(n, K)``; None if they are not finite."""
        x = self.drawn.x.numpy()
        return x if np.isfinite(x).all() else None

    @cached_property
    def two_sample(self) -> TwoSample | None:
        """A classifier of rows and samples."""
        if self.samples is None:
            return None
        return two_sample(self.test.to_numpy(np.float64), self.samples, self.seed)

    @cached_property
    def stein(self) -> KSDTest | None:
        """A test of the score at held-out rows."""
        return stein_test(self.model, self.space, self.space.rows(self.test), self.seed)

    @cached_property
    def directions(self) -> Directions:
        """Variance due to directions."""
        return direction_variance(self.model, self.space, self.space.rows(self.train), self.seed)

    def unusual(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of a table of the most unusual rows, the first of many columns."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            scores = score_rows(self.model, self.space, self.table.frame[self.run.columns])
        order = np.argsort(scores.rank)[:_UNUSUAL]
        columns = list(self.space.columns[:_MAX_COLUMNS])
        density = not np.isnan(scores.log_density).all()
        headings = ["row", *(["log-density"] if density else []), "because of", *columns]
        rows = []
        for i in order:
            value = [f"{scores.log_density[i]:.1f}"] if density else []
            numbers = [f"{v:.5g}" for v in self.table.frame.iloc[i][columns]]
            rows.append([str(self.table.rows[i] + 1), *value, scores.column[i], *numbers])
        return headings, rows

    def goodness(self) -> list[str]:
        """Sentences about the fit at held-out rows."""
        said = []
        if self.two_sample is not None:
            able = "can" if self.two_sample.z > _CLEAR else "cannot"
            said.append(
                f"A random forest {able} tell rows from samples. {_sentence(self.two_sample)}"
            )
        if self.stein is not None:
            verdict = "differs" if self.stein.p_value < _LEVEL else "does not visibly differ"
            said.append(
                f"By the kernel Stein discrepancy, the score {verdict} from that of the held-out "
                f"rows. {_sentence(self.stein)}"
            )
        return said

    def command(self) -> str:
        """The command that was given."""
        return shlex.join(self.run.about["command"])


def _sentence(value: object) -> str:
    text = str(value)
    return text[0].upper() + text[1:] + "."
