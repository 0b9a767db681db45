"""DKEF on UCI tables: data, the grid of DSM, likelihood, figures and notes."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduction.dkef import uci as dkef_uci
from reproduction.dkef import uci_report
from reproduction.dkef.uci import EXPERIMENT, SIGMAS, Config
from reproduction.experiment import Job, Run
from reproduction.objectives import METHODS
from scorematching.distributions import Gaussian
from scorematching.errors import DivergedError
from scorematching.models import DKEF
from scorematching.training.lock import locked
from tests.tolerances import ROUTES

CPU = torch.device("cpu")
SMOKE = replace(Config(), **EXPERIMENT.smoke)


def job(folder: Path, seed: int = 0, variant: str = "redwine/SM") -> Job:
    return Job(variant, seed, CPU, folder / f"seed-{seed}")


def finished(variant: str, seed: int, **metrics: Any) -> Run:
    table, method = variant.split("/")
    settings = {"dataset": table, "objective": method}
    return Run("figure-dkef", variant, seed, settings, metrics, 1.0, "cpu", {}, None, "", "")


class TestData:
    def test_sizes_and_whitening(self, tmp_path: Path) -> None:
        config = Config(noise=0.0, precision="float64")
        x = dkef_uci.prepare(config, job(tmp_path))
        assert [len(part) for part in x] == [1296, 144, 159]
        identity = torch.eye(11, dtype=torch.float64)
        torch.testing.assert_close(x.train.mT.cov(correction=0), identity, atol=ROUTES, rtol=0)
        seen = dkef_uci.prepare(replace(config, whiten_on="all"), job(tmp_path))
        table = torch.cat(seen)
        torch.testing.assert_close(table.mT.cov(correction=0), identity, atol=ROUTES, rtol=0)
        assert not torch.allclose(seen.train.mT.cov(correction=0), identity, atol=1e-3)

    def test_noise_has_the_standard_deviation_asked_for(self, tmp_path: Path) -> None:
        with_noise, without = (
            dkef_uci.prepare(Config(noise=noise, precision="float64"), job(tmp_path))
            for noise in (0.05, 0.0)
        )
        for a, b in zip(with_noise, without):
            assert (a - b).std().item() == pytest.approx(0.05, rel=0.1)

    def test_a_seed_is_the_same_data_for_every_objective(self, tmp_path: Path) -> None:
        parts = [
            torch.cat(dkef_uci.prepare(Config(objective=method, sigma="0.1"), job(tmp_path)))
            for method in METHODS
        ]
        assert all(torch.equal(part, parts[0]) for part in parts)

    def test_another_seed_is_other_noise_on_the_same_rows(self, tmp_path: Path) -> None:
        config = Config(precision="float64")
        a, b = (dkef_uci.prepare(config, job(tmp_path, seed)).test[:, 0] for seed in (0, 1))
        assert not torch.equal(a, b)
        assert torch.corrcoef(torch.stack([a, b]))[0, 1] > 0.99
        c = dkef_uci.prepare(replace(config, split_seed=1), job(tmp_path)).test[:, 0]
        assert torch.corrcoef(torch.stack([a, c]))[0, 1].abs() < 0.5

    def test_bad_words(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="whiten_on must be"):
            dkef_uci.prepare(replace(SMOKE, whiten_on="test"), job(tmp_path))
        with pytest.raises(ValueError, match="proposal must be"):
            dkef_uci.make_proposal(
                replace(SMOKE, proposal="uniform"), job(tmp_path), torch.zeros(30, 2)
            )


class TestVariants:
    def test_three_tables_by_six_objectives(self) -> None:
        assert len(EXPERIMENT.variants) == 18
        for name, settings in EXPERIMENT.variants.items():
            assert name == f"{settings['dataset']}/{settings['objective']}"
            written = EXPERIMENT.settings(name, {}).distances
            layerwise = settings["objective"] in ("CP", "approximate BP")
            assert written == ("differences" if layerwise else "products")
        # Only the one that explodes is cut short.
        cut = {n for n in EXPERIMENT.variants if EXPERIMENT.settings(n, {}).steps is not None}
        assert {name.split("/")[1] for name in cut} == {"approximate BP"}

    @pytest.mark.parametrize("method", METHODS)
    def test_a_rehearsal_from_end_to_end(self, method: str, tmp_path: Path) -> None:
        config = EXPERIMENT.settings(f"redwine/{method}", {}, smoke=True)
        metrics = EXPERIMENT.run(config, job(tmp_path, variant=f"redwine/{method}"))
        assert metrics == json.loads(json.dumps(metrics, allow_nan=False))
        assert metrics["steps"] == 4
        assert metrics["test_sm_se"] > 0
        assert (metrics["sigma"] in SIGMAS) == (method == "DSM")
        assert set(EXPERIMENT.columns) <= set(metrics)
        again = EXPERIMENT.run(config, job(tmp_path, variant=f"redwine/{method}"))
        times = {"training_seconds": None}
        assert metrics | times == again | times  # read from the checkpoint, to the same digits

    def test_products_are_not_rounded_to_tf32(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen, real = [], dkef_uci.fit_dkef

        def fit(*arguments: Any, **settings: Any) -> Any:
            seen.append(torch.get_float32_matmul_precision())
            return real(*arguments, **settings)

        monkeypatch.setattr(dkef_uci, "fit_dkef", fit)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")  # as processes on a GPU have it
        try:
            EXPERIMENT.run(SMOKE, job(tmp_path))
            assert (seen, torch.get_float32_matmul_precision()) == (["highest"], "high")
        finally:
            torch.set_float32_matmul_precision(before)

    def test_divergence_is_recorded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def diverge(*_: Any, **__: Any) -> None:
            raise DivergedError(step=3, last_finite_loss=1e9)

        monkeypatch.setattr(dkef_uci, "fit_dkef", diverge)
        metrics = EXPERIMENT.run(replace(SMOKE, objective="approximate BP"), job(tmp_path))
        assert metrics["diverged"]
        assert metrics["steps"] is None
        json.dumps(metrics, allow_nan=False)


class TestGrid:
    def plant(self, folder: Path, config: Config, losses: dict[tuple[float, int], float]) -> None:
        settings = {**config.__dict__}
        for (sigma, seed), loss in losses.items():
            path = folder / "sigma" / f"sigma-{sigma}-seed-{seed}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"valid_sm": loss, "config": settings}))

    def test_the_best_mean_is_chosen_and_nothing_is_trained_twice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = Config(objective="DSM")
        losses = {(sigma, seed): -1.0 for sigma in SIGMAS for seed in (0, 1)}
        losses[0.16, 0] = -9.0  # the best single model
        losses[0.16, 1] = 3.0
        losses[0.32, 0] = losses[0.32, 1] = -4.0  # the best mean
        self.plant(tmp_path, config, losses)
        monkeypatch.setattr(dkef_uci, "train_model", None)  # would fail if it were called
        assert dkef_uci.choose_sigma(config, job(tmp_path)) == 0.32
        assert json.loads((tmp_path / "sigma.json").read_text())["sigma"] == 0.32
        assert dkef_uci.choose_sigma(config, job(tmp_path, seed=4)) == 0.32
        with pytest.raises(TypeError):  # results of other settings are no use
            dkef_uci.choose_sigma(replace(config, lr=0.1), job(tmp_path))

    def test_runs_of_all_seeds_share_one_grid(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls, real = [], dkef_uci.train_model

        def count(*arguments: Any) -> Any:
            calls.append(arguments)
            return real(*arguments)

        monkeypatch.setattr(dkef_uci, "train_model", count)
        config = replace(SMOKE, objective="DSM")
        found = {dkef_uci.choose_sigma(config, job(tmp_path, seed)) for seed in (0, 1, 2)}
        assert len(found) == 1
        assert len(calls) == len(SIGMAS)
        assert {arguments[1].seed for arguments in calls} == {0}

    def test_a_diverged_model_is_never_chosen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = dkef_uci.train_model

        def train_model(config: Config, at: Job, x: Any, sigma: float, folder: Any) -> Any:
            model, fit = real(config, at, x, sigma, folder)
            return (model, fit) if sigma == 1.28 else (model, None)

        monkeypatch.setattr(dkef_uci, "train_model", train_model)
        assert dkef_uci.choose_sigma(replace(SMOKE, objective="DSM"), job(tmp_path)) == 1.28

    def test_a_model_that_another_process_trains_is_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other process writes its loss, the least of all, while this one waits."""
        config = Config(objective="DSM")
        cells = [(sigma, seed) for sigma in SIGMAS for seed in (0, 1)]
        self.plant(tmp_path, config, {cell: -1.0 for cell in cells if cell != (0.24, 1)})
        monkeypatch.setattr(dkef_uci, "train_model", None)  # would fail if it were called
        other = ExitStack()
        other.enter_context(locked(tmp_path / "sigma", "sigma-0.24-seed-1.lock"))

        def finish(_: float) -> None:
            self.plant(tmp_path, config, {(0.24, 1): -5.0})
            other.close()

        monkeypatch.setattr(dkef_uci.time, "sleep", finish)
        assert dkef_uci.choose_sigma(config, job(tmp_path)) == 0.24

    def test_a_number_needs_no_grid(self, tmp_path: Path) -> None:
        assert dkef_uci.choose_sigma(Config(sigma="0.16"), job(tmp_path)) == 0.16
        assert not list(tmp_path.iterdir())


class TestLikelihood:
    @pytest.mark.parametrize("proposal", ["mixture", "normal"])
    def test_of_the_base_alone_it_is_that_of_a_normal(self, proposal: str, tmp_path: Path) -> None:
        config = replace(SMOKE, proposal=proposal, precision="float64", log_z_samples=20_000)
        x = dkef_uci.prepare(config, job(tmp_path))
        model = DKEF(2, num_inducing=5).double()  # alpha is zero: N(0, 4 I)
        found = dkef_uci._likelihood(config, job(tmp_path), model, x)
        # Under the proposal "normal" weights are all equal, and the error is zero.
        wanted = math.log(8 * math.pi)
        assert found["log_z"] == pytest.approx(wanted, abs=5 * found["log_z_se"] + ROUTES)
        normal = Gaussian(torch.zeros(2), 4 * torch.eye(2)).to(dtype=torch.float64)
        truth = normal(x.test).mean().item()
        assert found["test_ll"] == pytest.approx(truth, abs=5 * found["log_z_se"] + ROUTES)

    def test_a_refusal_is_recorded_with_its_reason(self, tmp_path: Path) -> None:
        config = replace(SMOKE, log_z_samples=50)
        x = dkef_uci.prepare(config, job(tmp_path))
        found = dkef_uci._likelihood(config, job(tmp_path), DKEF(2, num_inducing=5), x)
        assert found["test_ll"] is None
        assert "effective sample size" in found["test_ll_refused"]

    def test_the_mixture_is_nearer_to_the_data_than_the_normal(self, tmp_path: Path) -> None:
        x = dkef_uci.prepare(Config(), job(tmp_path))
        means = [
            dkef_uci.make_proposal(Config(proposal=name), job(tmp_path), x.train)(x.valid).mean()
            for name in ("mixture", "normal")
        ]
        assert means[0] > means[1] + 3


class TestReport:
    RUNS = tuple(
        finished(f"redwine/{method}", seed, test_sm=sm + 0.1 * seed, test_ll=ll, sigma=None)
        for seed in (0, 1, 2)
        for method, sm, ll in (
            ("SM", -30.0, -9.0),
            ("SSM-VR", -29.0 - 0.1 * seed, -9.5),
            ("SSM", -20.0, -11.0),
            ("CP", -15.0, None),
            ("approximate BP", 1e9, -1e6),
        )
    )

    def test_differences_are_taken_seed_by_seed(self) -> None:
        notes = "\n".join(uci_report.write_notes(self.RUNS))
        # 1, 0.9 and 0.8: the mean, and 0.1 / sqrt 3.
        assert "SM loss of SSM-VR minus SM: 0.9 ± 0.0577 (3 seeds)" in notes
        assert "SM loss of SSM-VR minus SSM: -9.1 ± 0.0577 (3 seeds)" in notes
        assert "log-likelihood of SSM-VR minus CP" not in notes  # it has none

    def test_what_is_far_off_does_not_set_the_scale(self) -> None:
        means = (-30.0, -29.1, -20.0, -15.0, 1e9)
        low, high = uci_report._scale([(mean, 2.0) for mean in means])
        assert low < -32  # with its error
        assert -13 < high < 100
        low, high = uci_report._scale([(-102.1, 3.2), (-102.4, 3.0), (-107.0, 14.0)])
        assert low < -121  # two that agree do not make a stranger of a third within its error
        low, high = uci_report._scale([(1.0, None)])
        assert low < 1 < high
        assert uci_report._scale([]) == (0.0, 1.0)

    def test_the_figure_is_written(self, tmp_path: Path) -> None:
        (path,) = uci_report.draw_figures(self.RUNS, tmp_path)
        assert path.read_bytes().startswith(b"\x89PNG")
