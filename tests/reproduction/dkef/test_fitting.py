"""Training of deep kernel exponential families: the ridge penalty, validation, resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import scorematching as sm
from reproduction.dkef.fitting import DeepKernelConfig, choose_ridge, fit_dkef
from scorematching.closed_form import QuadraticForm
from scorematching.distributions import Banana, Gaussian
from scorematching.errors import DivergedError
from scorematching.estimators.density.ridge import RidgePath
from scorematching.evaluation import score_matching_loss, score_matching_losses
from scorematching.models import DKEF
from tests.tolerances import IDENTITY

OBJECTIVES = {
    "SM": sm.ScoreMatching(),
    "SSM-VR": sm.SlicedScoreMatchingVR(),
    "SSM": sm.SlicedScoreMatching(),
    "DSM": sm.DenoisingScoreMatching(sigma=0.3),
    "CP": sm.CurvaturePropagation(),
    "approximate BP": sm.ApproximateBackprop(),
}

STILL = 1e-30  # a learning rate at which no weight moves


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(count: int, seed: int = 1) -> Tensor:
    return Banana().to(dtype=torch.float64).sample(count, seeded(seed))


def small(seed: int = 0, num_inducing: int = 12) -> DKEF:
    return DKEF(2, num_inducing, num_kernels=2, width=4, generator=seeded(seed)).double()


def form(g: list[list[float]], b: list[float], constant: float = 0.0) -> QuadraticForm:
    return QuadraticForm(*(torch.tensor(v, dtype=torch.float64) for v in (g, b, constant)), 1)


def random_form(seed: int, size: int = 5) -> QuadraticForm:
    a = torch.randn(size, size, generator=seeded(seed), dtype=torch.float64)
    b = torch.randn(size, generator=seeded(seed + 1), dtype=torch.float64)
    return QuadraticForm(a @ a.mT, b, b.sum(), 1)


def few_steps(**changes: Any) -> DeepKernelConfig:
    base = DeepKernelConfig(steps=6, batch_size=40, validate_every=2, patience=None)
    return replace(base, **changes)


def state(model: DKEF) -> Tensor:
    return torch.cat([v.flatten() for v in model.state_dict().values()])


class TestRidgePath:
    def test_weights_are_those_of_the_solution(self) -> None:
        train, valid = random_form(0), random_form(10)
        path = RidgePath(train, valid)
        for lam in (1e-3, 0.1, 10.0):
            torch.testing.assert_close(path.alpha(lam), train.solve(lam), rtol=1e-9, atol=1e-9)
            assert path.loss(lam) == pytest.approx(valid(train.solve(lam)).item(), rel=1e-9)

    def test_the_best_penalty_in_one_dimension(self) -> None:
        # alpha(lam) = 1 / (1 + lam), and the held-out loss is least at alpha = 1 / 4.
        path = RidgePath(form([[1.0]], [-1.0]), form([[1.0]], [-0.25]))
        assert path.best() == pytest.approx(3.0, rel=1e-6)

    @pytest.mark.parametrize("seed", range(5))
    def test_no_penalty_of_a_fine_grid_is_better(self, seed: int) -> None:
        path = RidgePath(random_form(seed), random_form(seed + 50))
        least = min(path.loss(10**e) for e in torch.linspace(-15, 4, 2000).tolist())
        assert path.loss(path.best()) <= least + 1e-6 * abs(least)

    def test_a_singular_form_has_a_best_penalty_too(self) -> None:
        flat = form([[1.0, 1.0], [1.0, 1.0]], [-1.0, -1.0])
        with pytest.raises(ValueError, match="positive definite"):
            flat.solve(0.0)
        assert RidgePath(flat, flat).alpha(1e-9).sum().item() == pytest.approx(1.0, abs=1e-6)


class TestChooseRidge:
    @pytest.mark.parametrize("name", ["SM", "SSM", "approximate BP"])
    def test_no_other_penalty_has_less_validation_loss(self, name: str) -> None:
        model, objective = small(), OBJECTIVES[name]
        train, valid = points(80), points(40, seed=2)
        lam, loss = choose_ridge(model, objective, train, valid, seeded(3))
        g = seeded(3)
        forms = [model.alpha_form(x, objective, g) for x in (train, valid)]
        others = [forms[1](forms[0].solve(lam * 2.0**k)).item() for k in range(-6, 7)]
        assert loss == pytest.approx(min(others), rel=1e-6)
        assert others[6] == min(others)

    def test_alpha_and_penalty_are_stored(self) -> None:
        model, train, valid = small(), points(80), points(40, seed=2)
        lam, loss = choose_ridge(model, sm.ScoreMatching(), train, valid)
        expected = model.alpha_form(train, sm.ScoreMatching()).solve(lam)
        torch.testing.assert_close(model.alpha, expected, rtol=1e-6, atol=1e-8)
        assert model.lam.item() == pytest.approx(lam, rel=1e-12)
        assert score_matching_loss(model, valid).mean == pytest.approx(loss, abs=1e-8)

    def test_single_precision_without_a_solution_is_no_obstacle(self) -> None:
        model, x = small().float(), points(80).float()
        with torch.no_grad():
            model.inducing.copy_(x[:1].expand_as(model.inducing))  # twelve times one feature
            model.log10_lam.fill_(-20.0)
        with pytest.raises(ValueError, match="positive definite"):
            model.fit_alpha(x, sm.ScoreMatching())
        lam, loss = choose_ridge(model, sm.ScoreMatching(), x[:60], x[60:])
        assert lam > 0
        assert score_matching_loss(model, x[60:]).mean == pytest.approx(loss, abs=1e-3)


class TestValidation:
    def test_noise_is_the_same_every_time(self) -> None:
        fits = [
            fit_dkef(
                small(),
                sm.SlicedScoreMatching(),
                points(80),
                points(40, seed=2),
                few_steps(lr=STILL, alpha_points=50, initialise=False),
                generator=seeded(seed),
            )
            for seed in (3, 4)
        ]
        seen = [{r.validation for r in fit.training.history} - {None} for fit in fits]
        assert [len(values) for values in seen] == [1, 1]
        assert seen[0] != seen[1]  # another seed has another loss

    def test_patience_counts_steps(self) -> None:
        config = few_steps(steps=100, lr=STILL, validate_every=3, patience=7)
        fit = fit_dkef(
            small(), sm.ScoreMatching(), points(80), points(40, seed=2), config, generator=seeded(0)
        )
        # Best at step 3; the validations of steps 6, 9 and 12 are the three of seven steps.
        assert (fit.training.best_step, fit.training.steps) == (3, 12)

    def test_alpha_comes_from_training_points_and_the_loss_from_the_others(self) -> None:
        model, train, valid = small(), points(80), points(40, seed=2)
        config = few_steps(lr=STILL, select="score matching", initialise=False)
        fit = fit_dkef(model, sm.ScoreMatching(), train, valid, config, generator=seeded(0))
        fresh = small()
        fresh.fit_alpha(train, sm.ScoreMatching())
        assert fit.training.best_loss == pytest.approx(score_matching_loss(fresh, valid).mean)
        fresh.fit_alpha(valid, sm.ScoreMatching())  # the wrong points
        assert fit.training.best_loss != pytest.approx(score_matching_loss(fresh, valid).mean)

    def test_selection_by_exact_loss_differs_from_that_by_a_noisy_objective(self) -> None:
        losses = [
            fit_dkef(
                small(),
                sm.SlicedScoreMatching(),
                points(80),
                points(40, seed=2),
                few_steps(lr=STILL, select=select),
                generator=seeded(0),
            ).training.best_loss
            for select in ("objective", "score matching")
        ]
        assert losses[0] != losses[1]


class TestFit:
    @pytest.mark.parametrize("name", OBJECTIVES)
    def test_every_objective_trains_every_part(self, name: str) -> None:
        model = small()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        fit = fit_dkef(
            model,
            OBJECTIVES[name],
            points(60),
            points(30, seed=2),
            few_steps(steps=2, initialise=False),
            generator=seeded(0),
        )
        assert fit.training.steps == 2
        assert fit.trained_lam != pytest.approx(0.01)
        assert all(not torch.equal(v, before[k]) for k, v in model.state_dict().items())

    def test_a_step_solves_on_one_half_and_takes_the_loss_of_the_other(self) -> None:
        train = points(40)
        fit = fit_dkef(
            small(),
            sm.ScoreMatching(),
            train,
            points(30, seed=2),
            few_steps(steps=1, validate_every=1, initialise=False),
            generator=seeded(5),
        )
        order = torch.randperm(40, generator=seeded(5))
        halves = train[order[:20]], train[order[20:]]
        loss = small().two_stage_loss(*halves, sm.ScoreMatching()).mean().item()
        swapped = small().two_stage_loss(*reversed(halves), sm.ScoreMatching()).mean().item()
        assert fit.training.history[0].loss == pytest.approx(loss, abs=IDENTITY)
        assert loss != pytest.approx(swapped)

    def test_inducing_points_begin_on_training_points(self) -> None:
        model, train = small(), points(60)
        fit_dkef(model, sm.ScoreMatching(), train, points(30, seed=2), few_steps(lr=STILL))
        nearest = (model.inducing[:, None] - train).square().sum(-1).amin(1)
        assert nearest.max().item() == 0

    def test_it_beats_the_best_gaussian_on_a_banana(self) -> None:
        train, valid, test = points(600), points(200, seed=2), points(1000, seed=3)
        config = DeepKernelConfig(steps=80, batch_size=100, patience=None)
        model = DKEF(2, num_inducing=30, num_kernels=2, width=8, generator=seeded(0)).double()
        fit_dkef(model, sm.SlicedScoreMatchingVR(), train, valid, config, generator=seeded(1))
        gaussian = Gaussian(train.mean(0), train.mT.cov())
        difference = sm.evaluation.paired_difference(
            score_matching_losses(model, test), score_matching_losses(gaussian, test)
        )
        assert difference.mean < -5 * difference.standard_error

    @pytest.mark.parametrize("validate_every", [1, 100])
    def test_overflow_is_divergence(self, validate_every: int) -> None:
        config = few_steps(lr=1e200, max_norm=None, validate_every=validate_every)
        with pytest.raises(DivergedError):
            fit_dkef(small(), sm.ScoreMatching(), points(60), points(30, seed=2), config)

    def test_too_little_precision_is_not(self) -> None:
        model = small()
        with torch.no_grad():
            model.inducing.zero_()
            model.log10_lam.fill_(-20.0)
        config = few_steps(initialise=False)
        with pytest.raises(ValueError, match="double precision"):
            fit_dkef(model, sm.ScoreMatching(), points(60), points(30, seed=2), config)

    def test_a_run_goes_on_to_the_same_digits(self, tmp_path: Path) -> None:
        def go(folder: Path, steps: int, resume: bool = False) -> tuple[DKEF, Any]:
            model = small()
            config = few_steps(steps=steps)
            return model, fit_dkef(
                model,
                sm.SlicedScoreMatching(),
                points(80),
                points(40, seed=2),
                config,
                generator=seeded(9),
                folder=folder,
                resume=resume,
            )

        whole, fit = go(tmp_path / "whole", 8)
        go(tmp_path / "parts", 4)
        parts, again = go(tmp_path / "parts", 8, resume=True)
        assert torch.equal(state(whole), state(parts))
        assert (fit.lam, fit.valid_loss) == (again.lam, again.valid_loss)
        assert torch.equal(state(go(tmp_path / "whole", 8, resume=True)[0]), state(whole))


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"batch_size": 41}, ValueError, "batch_size must be even, got 41"),
            ({"select": "likelihood"}, ValueError, "select must be"),
            ({"patience": 0}, ValueError, "patience must be at least 1"),
            ({"validate_every": 2.5}, TypeError, "validate_every must be an integer"),
            ({"alpha_points": 0}, ValueError, "alpha_points must be at least 1"),
            ({"initialise": 1}, TypeError, "initialise must be True or False"),
            ({"lr": -1.0}, ValueError, "lr must be positive"),
        ],
    )
    def test_settings(self, changes: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            few_steps(**changes)

    def test_arguments(self) -> None:
        x, config = points(60), few_steps()
        with pytest.raises(TypeError, match="model must be a DKEF"):
            fit_dkef(sm.models.MLPDensity(2), sm.ScoreMatching(), x, x, config)  # type: ignore
        with pytest.raises(TypeError, match="config must be a DeepKernelConfig"):
            fit_dkef(small(), sm.ScoreMatching(), x, x, {"steps": 3})  # type: ignore
        with pytest.raises(ValueError, match="x_valid must have 2 coordinates"):
            fit_dkef(small(), sm.ScoreMatching(), x, x.float(), config)
        with pytest.raises(ValueError, match="x_train must have 2 coordinates"):
            fit_dkef(small(), sm.ScoreMatching(), x[:, :1], x, config)
