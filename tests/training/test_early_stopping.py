"""Early stopping: improvements are compared with their standard errors, point by point."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import scorematching as sm
from scorematching.training import EarlyStopping, TrainConfig, train
from scorematching.training.early_stopping import mean_and_error
from tests.tolerances import IDENTITY
from tests.training.problems import (
    EVERYTHING,
    Interrupted,
    density,
    digits,
    interrupted,
    points,
    run_everything,
    seeded,
)


def losses(mean: float, seed: int = 0, spread: float = 1.0) -> Tensor:
    """Losses of 100 points with a given mean."""
    noise = torch.randn(100, generator=seeded(seed), dtype=torch.float64)
    return mean + spread * (noise - noise.mean())


def test_mean_and_error_are_those_of_scipy() -> None:
    x = losses(0.3)
    mean, error = mean_and_error(x)
    assert mean == pytest.approx(0.3, abs=IDENTITY)
    assert error == pytest.approx(float(stats.sem(x.numpy())), rel=IDENTITY)
    assert mean_and_error(2.0) == mean_and_error(torch.tensor(2.0)) == (2.0, None)


@pytest.mark.parametrize("margin", [1.0, 2.5])
def test_improvements_count_by_the_paired_statistic(margin: float) -> None:
    """Restarting patience is the decision of a paired t statistic at the margin."""
    decided = set()
    for seed in range(40):
        first, then = losses(1.0), losses(0.97, seed=1) + 0.1 * losses(0.0, seed=2 + seed)
        then = first + 0.15 * (then - then.mean()) - 0.015 - 0.001 * seed
        statistic = float(stats.ttest_rel(first.numpy(), then.numpy()).statistic)
        stopping = EarlyStopping(patience=3, min_improvement=margin)
        assert stopping.update(1, first)
        assert stopping.update(2, then)  # the least loss so far in any case
        assert (stopping.waited == 0) == (statistic > margin)
        decided.add(statistic > margin)
    assert decided == {False, True}


def test_an_improvement_of_all_points_counts_though_losses_are_noisy() -> None:
    """The error of the difference decides, not that of the losses."""
    noisy = losses(1.0, spread=50.0)
    stopping = EarlyStopping(patience=1, min_improvement=2.0)
    stopping.update(1, noisy)
    stopping.update(2, noisy - 0.01 + losses(0.0, seed=1, spread=0.001))
    assert stopping.waited == 0 and mean_and_error(noisy)[1] > 1


def test_small_improvements_count_together() -> None:
    """Losses are compared with those of the last one that counted, not with the last ones."""
    stopping = EarlyStopping(patience=100, min_improvement=2.0)
    start, waits = losses(1.0), []
    for step in range(30):
        wiggle = losses(0.0, seed=1 + step, spread=0.3)
        stopping.update(step, start - 0.02 * step + wiggle)
        waits.append(stopping.waited)
    assert max(waits) > 3 and waits.count(0) > 2
    assert stopping.best_step is not None and stopping.best_step >= 28


def test_nan_is_no_improvement() -> None:
    stopping = EarlyStopping(patience=2, min_improvement=1.0)
    assert not stopping.update(1, torch.tensor([math.nan, 1.0]))
    assert stopping.update(2, losses(1.0)) and stopping.waited == 0
    assert not stopping.update(3, torch.full((100,), math.nan))
    assert stopping.waited == 1 and stopping.best_step == 2


def test_zero_counts_every_new_least_loss() -> None:
    with_points, with_means = EarlyStopping(patience=2), EarlyStopping(patience=2)
    for step, mean in enumerate([3.0, 1.0, 2.0, 0.9999, 1.0, 1.0]):
        assert with_points.update(step, losses(mean)) == with_means.update(step, mean)
        assert with_points.waited == with_means.waited
    assert with_points.stop


# In training.


def stopped(min_improvement: float, validation: Any = None) -> Any:
    config = TrainConfig(
        steps=150, batch_size=8, lr=1e-2, validate_every=5, patience=3,
        min_improvement=min_improvement,
    )  # fmt: skip
    held_out = points(30, seed=3) if validation is None else validation
    options: Any = {"validation": held_out, "generator": seeded(2)}
    return train(density(), sm.SlicedScoreMatchingVR(), points(), config, **options)


def test_runs_that_improve_by_noise_stop_earlier() -> None:
    assert stopped(min_improvement=3.0).steps < stopped(min_improvement=0.0).steps


def test_records_have_the_standard_error() -> None:
    held_out, objective = points(30, seed=3), sm.ScoreMatching()
    result = stopped(0.0, validation=lambda model: objective(model, held_out))
    last = [r for r in result.history if r.validation is not None][-1]
    assert last.validation_error is not None and last.validation_error > 0
    by_mean = stopped(0.0, validation=lambda model: float(objective(model, held_out).mean()))
    means = [r.validation for r in by_mean.history if r.validation is not None]
    assert means == pytest.approx(
        [r.validation for r in result.history if r.validation is not None], rel=IDENTITY
    )
    assert all(r.validation_error is None for r in by_mean.history)


def test_resumed_runs_compare_with_the_same_losses(tmp_path: Path) -> None:
    config = replace(EVERYTHING, patience=3, min_improvement=1.5)
    alone = digits(run_everything(None, config=config))
    with pytest.raises(Interrupted):
        run_everything(tmp_path, config=config, transform=interrupted(18))
    assert digits(run_everything(tmp_path, resume=True, config=config, seed=99)) == alone


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="min_improvement must be positive, got -1"):
        TrainConfig(steps=1, min_improvement=-1.0)
