"""Runs are done once, written whole, and the same whoever does them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reproduction import EXPERIMENTS
from reproduction.run import Request, command, plan, read_all, reproduce
from reproduction.workers import attempt
from tests.reproduction.toy import TOY, Config

SOUND = ("low", "high/*")


def request(out: Path, **changes: object) -> Request:
    return replace(Request(seeds=(0, 1), only=SOUND, out=out, device="cpu"), **changes)  # type: ignore[arg-type]


def calls(out: Path) -> int:
    return sum(len(path.read_text()) for path in out.rglob("calls"))


def test_metrics_are_those_of_the_seed(tmp_path: Path) -> None:
    runs = reproduce(TOY, request(tmp_path))
    names = [("low", 0), ("low", 1), ("high/more", 0), ("high/more", 1)]
    assert [(run.variant, run.seed) for run in runs] == names
    for run in runs:
        generator = torch.Generator().manual_seed(run.seed << 16)
        shift = 10.0 if run.variant == "high/more" else 0.0
        assert run.metrics["mean"] == torch.randn(4, generator=generator).mean().item() + shift


def test_finished_runs_are_not_done_again(tmp_path: Path) -> None:
    first = reproduce(TOY, request(tmp_path))
    assert calls(tmp_path) == 4
    said: list[str] = []
    assert reproduce(TOY, request(tmp_path, seeds=(0, 1, 2)), said.append)[:2] == first[:2]
    assert calls(tmp_path) == 6
    assert said[0] == "4 of 6 runs are there already"


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"variant": "low"}'])
def test_a_damaged_run_is_named(text: str, tmp_path: Path) -> None:
    reproduce(TOY, request(tmp_path))
    damaged = next(tmp_path.rglob("run.json"))
    damaged.write_text(text)
    for act in (lambda: read_all(tmp_path), lambda: reproduce(TOY, request(tmp_path))):
        with pytest.raises(ValueError, match="must hold a finished run") as caught:
            act()
        assert str(damaged) in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_variants_that_need_a_gpu_are_left_out(tmp_path: Path) -> None:
    lines: list[str] = []
    scaling = EXPERIMENTS["figure-scaling"]
    runs = reproduce(scaling, Request(smoke=True, out=tmp_path, device="cpu"), lines.append)
    assert [run.variant for run in runs] == ["cpu"]
    assert "cuda is left out: it needs a GPU" in lines


def test_a_run_is_written_last_and_whole(tmp_path: Path) -> None:
    reproduce(TOY, request(tmp_path))
    paths = sorted(tmp_path.rglob("run.json"))
    assert len(paths) == 4 and len(read_all(tmp_path)) == 4
    found = json.loads(paths[0].read_text())
    assert found["config"] == {"num": 4, "shift": 10.0, "name": "plain", "limit": None}
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert "--only 'high/more' --seeds 0 --device cpu" in found["command"]


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    reproduce(TOY, request(tmp_path))
    with pytest.raises(ValueError, match=r"other settings \(num\).*choose another --out"):
        reproduce(TOY, request(tmp_path, overrides={"num": "8"}))


def test_settings_that_change_only_the_time_need_no_other_folder(tmp_path: Path) -> None:
    """Also if the run is older than the setting."""
    experiment = replace(TOY, interchangeable=("limit",))
    first = reproduce(experiment, request(tmp_path))
    path = next(tmp_path.rglob("run.json"))
    older = json.loads(path.read_text())
    del older["config"]["limit"]
    path.write_text(json.dumps(older))
    again = reproduce(experiment, request(tmp_path, overrides={"limit": "2.0"}))
    assert [run.metrics for run in again] == [run.metrics for run in first]
    assert {run.config.get("limit") for run in again} == {None}
    with pytest.raises(ValueError, match=r"other settings \(num\)"):
        reproduce(experiment, request(tmp_path, overrides={"num": "8"}))


def test_rehearsals_are_kept_apart(tmp_path: Path) -> None:
    real = reproduce(TOY, request(tmp_path))
    smoke = reproduce(TOY, request(tmp_path, smoke=True))
    assert [run.config["num"] for run in real + smoke] == [4] * 4 + [2] * 4
    assert all(run.smoke for run in smoke) and not any(run.smoke for run in real)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_stops_nothing_else(workers: int, tmp_path: Path) -> None:
    """Any error, and by the same rule in this process and in others."""
    asked = request(tmp_path, seeds=(0,), only=("broken", *SOUND), workers=workers)
    with pytest.raises(
        RuntimeError, match=r"1 of 3 runs failed.*broken seed 0: KeyError: 'broken on"
    ) as caught:
        reproduce(TOY, asked)
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(read_all(tmp_path)) == 2


def test_an_interruption_is_none() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(interrupt)


def test_processes_give_the_same_numbers(tmp_path: Path) -> None:
    alone = reproduce(TOY, request(tmp_path / "alone"))
    together = reproduce(TOY, request(tmp_path / "together", workers=2))
    assert [run.metrics for run in alone] == [run.metrics for run in together]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"nim": "3"}, "settings must be among num, shift, name, limit, got 'nim'"),
        ({"num": "many"}, "num must be a number like 4, got 'many'"),
    ],
)
def test_settings_are_checked(overrides: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        plan(TOY, request(tmp_path, overrides=overrides))


def test_settings_are_read() -> None:
    words = {"num": "3", "shift": "1e-2", "name": "3", "limit": "none"}
    assert TOY.settings("low", words) == Config(3, 0.01, "3", None)
    assert TOY.settings("low", {"limit": "2.5"}).limit == 2.5


def test_unknown_variants_and_devices(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--only must match a variant of toy, got x; they are low"):
        plan(TOY, request(tmp_path, only=("x",)))
    with pytest.raises(ValueError, match='device must be "auto", "cpu" or "cuda", got \'tpu\''):
        plan(TOY, request(tmp_path, device="tpu"))


def test_the_command_says_what_differs(tmp_path: Path) -> None:
    (task,) = plan(TOY, request(tmp_path, seeds=(3,), only=("low",), overrides={"num": 9}))
    expected = "python -m reproduction toy --only 'low' --seeds 3 --device cpu --set num=9"
    assert command(task) == expected


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_sound_variants(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for variant in experiment.variants:
        for smoke in (False, True):
            experiment.settings(variant, {}, smoke)
