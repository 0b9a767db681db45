"""The scaling experiment: what a step is, what is recorded of it, and what is not."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness.timing import interleaved, seconds_of
from reproduction.dkef import scaling as dkef_scaling
from reproduction.dkef import scaling_report
from reproduction.dkef.scaling import EXPERIMENT, SMOKE, Config, prepare, run
from reproduction.dkef.scaling_report import UNIT
from reproduction.experiment import Job, Run
from reproduction.objectives import METHODS
from reproduction.report import write_report
from reproduction.run import Request, reproduce
from scorematching.models import DKEF

SMALL = replace(Config(), **SMOKE)


def job(folder: Path, seed: int = 0) -> Job:
    return Job("cpu", seed, torch.device("cpu"), folder)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[DKEF]:
    """Every model that is made."""
    made: list[DKEF] = []

    class Recorded(DKEF):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(dkef_scaling, "DKEF", Recorded)
    return made


def test_the_paper_is_the_default() -> None:
    config = EXPERIMENT.settings("cpu", {})
    assert (config.batch_size, config.num_inducing) == (100, 200)
    assert (config.num_kernels, config.width) == (3, 30)
    assert config.objectives.split(",") == list(METHODS)
    assert (config.refit, config.validate) == (0, 0)
    assert {10, 100, 784, 1000} < set(map(int, config.dims.split(",")))


def test_a_rehearsal_fills_every_cell(tmp_path: Path) -> None:
    request = Request(only=("cpu",), smoke=True, out=tmp_path, device="cpu")
    runs = reproduce(EXPERIMENT, request)
    (metrics,) = (each.metrics for each in runs)
    for key in ("seconds", "peak_bytes"):
        cells = [metrics[key][name][dim] for name in METHODS for dim in ("2", "5")]
        assert all(value > 0 for value in cells)
    assert metrics[f"{UNIT} / {UNIT}"] == 1
    assert not any(metrics["missing"].values())
    report, _, picture = write_report(EXPERIMENT, runs, tmp_path)
    assert "SSM-VR / DSM" in report.read_text()
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("name", METHODS)
def test_a_step_moves_every_parameter(name: str, tmp_path: Path, models: list[DKEF]) -> None:
    """The ridge penalty too, which the loss meets nowhere but in the solution for alpha."""
    (step,) = prepare(replace(SMALL, lr=0.01), job(tmp_path), 5, name)
    before = [p.detach().clone() for p in models[0].parameters()]
    step()
    for old, new in zip(before, models[0].parameters(), strict=True):
        assert not torch.equal(old, new)
    assert models[0].alpha.eq(0).all()


def test_a_captured_step_is_the_same_step(tmp_path: Path, models: list[DKEF]) -> None:
    """On a CPU nothing is captured, so the two ways can be compared to the last digit."""
    config = replace(SMALL, lr=0.01, capture=True)
    for kind in (0, 1):
        step = prepare(config, job(tmp_path), 5, "SSM-VR")[kind]
        step()
        step()
    eager, captured = (list(model.parameters()) for model in models)
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))


def test_the_released_step_solves_for_alpha_again(tmp_path: Path, models: list[DKEF]) -> None:
    (step,) = prepare(replace(SMALL, refit=20, validate=4), job(tmp_path), 5, "DSM")
    step()
    assert models[0].alpha.ne(0).all()


def test_out_of_memory_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = prepare, []

    def limited(config: Config, job: Job, dim: int, name: str) -> Any:
        asked.append((dim, name))
        return [_no_memory] if name == "SM" and dim >= 3 else real(config, job, dim, name)

    monkeypatch.setattr(dkef_scaling, "prepare", limited)
    metrics = run(replace(SMALL, dims="2,3,4,5", objectives="SM,DSM"), job(tmp_path))
    assert set(metrics["seconds"]["SM"]) == set(metrics["peak_bytes"]["SM"]) == {"2"}
    assert set(metrics["seconds"]["DSM"]) == {"2", "3", "4", "5"}
    reasons = metrics["missing"]["SM"]
    assert reasons["3"].startswith("out of memory")
    assert reasons["4"] == reasons["5"] == f"not tried after D = 3: {reasons['3']}"
    assert (4, "SM") not in asked
    json.dumps(metrics, allow_nan=False)


def _no_memory() -> None:
    raise torch.OutOfMemoryError("tried to allocate 1000 GiB")


def test_other_errors_are_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(dkef_scaling, "prepare", lambda *_: [broken])
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run(SMALL, job(tmp_path))


def test_steps_that_take_too_long_are_dropped(tmp_path: Path) -> None:
    metrics = run(replace(SMALL, step_seconds=0.0, objectives="DSM"), job(tmp_path))
    assert metrics["seconds"] == {"DSM": {}}
    assert "more than 0" in metrics["missing"]["DSM"]["2"]
    assert "compared_at" not in metrics


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = prepare, []

    def once(config: Config, job: Job, dim: int, name: str) -> Any:
        asked.append(dim)
        if asked == [2, 5]:
            raise KeyboardInterrupt
        return real(config, job, dim, name)

    monkeypatch.setattr(dkef_scaling, "prepare", once)
    config = replace(SMALL, objectives="DSM")
    with pytest.raises(KeyboardInterrupt):
        run(config, job(tmp_path))
    assert set(run(config, job(tmp_path))["seconds"]["DSM"]) == {"2", "5"}
    assert asked == [2, 5, 5]
    run(replace(config, width=4), job(tmp_path))  # other settings: nothing is kept
    assert asked == [2, 5, 5, 2, 5]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("variant", ["cuda", "cuda-captured"])
def test_without_a_gpu_its_variants_say_so(variant: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no GPU.*--only cpu"):
        run(EXPERIMENT.settings(variant, {}, smoke=True), job(tmp_path))


@pytest.mark.parametrize("setting", [{"device": "tpu"}, {"capture": True}])
def test_settings_that_contradict_each_other(setting: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        run(replace(SMALL, **setting), job(tmp_path))


def fake_run(seed: int, noise: float) -> Run:
    """Times that grow like D and not at all, with a factor that the mean over runs takes out."""
    dims = (10, 100, 200, 400, 784)
    seconds = {
        "SM": {str(d): noise * 1e-3 * d for d in dims[:-1]},
        "SSM-VR": {str(d): 1.5 for d in dims},
        "DSM": {str(d): 1.0 for d in dims},
    }
    metrics = {
        "seconds": seconds,
        "peak_bytes": seconds,
        "missing": {"SM": {"784": "out of memory"}},
        "processor": "an abacus",
    }
    config = {"objectives": "SM,SSM-VR,DSM", "batch_size": 100}
    return Run("figure-scaling", "cpu", seed, config, metrics, 1.0, "cpu", {}, None, "", "")


def test_notes_hold_the_fitted_figures(tmp_path: Path) -> None:
    runs = [fake_run(0, 2.0), fake_run(1, 0.5)]
    slopes, ratios, memory, missing = scaling_report.notes(runs)
    assert "from D = 100 to 784" in slopes
    assert "1.00 (SM), 0.00 (SSM-VR) and 0.00 (DSM)" in slopes.replace("-0.00", "0.00")
    assert "D = 784" in ratios and "SSM-VR 1.50" in ratios and "SM " not in ratios
    assert "MB" in memory
    assert missing == "cpu: SM is missing at D = 784: out of memory."
    assert scaling_report.averages(runs, "seconds", "SM")[400] == pytest.approx(0.4)
    assert [p.name for p in scaling_report.plot(runs, tmp_path)] == ["figure-scaling-cpu.png"]


def test_clocks_tell_the_slow_from_the_quick() -> None:
    times = interleaved([lambda: None, lambda: time.sleep(0.02)], 3, 0, "cpu")
    assert times[0]["median"] < 0.02 <= times[1]["median"]
    assert seconds_of(lambda: time.sleep(0.02), "cpu") >= 0.02


def test_a_step_is_timed_after_itself() -> None:
    last: list[str] = []

    def cold(name: str) -> None:
        if last[-1:] != [name]:
            time.sleep(0.02)  # what another has left behind
        last.append(name)

    times = interleaved([lambda: cold("a"), lambda: cold("b")], 3, 1, "cpu")
    assert max(t["median"] for t in times) < 0.02
    assert len(last) == 2 * 2 * (3 + 1)
