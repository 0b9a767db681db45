"""Runs on a real Ray cluster, on this machine: the numbers of local runs, whatever happens."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.distributed import trained, vectors
from tests.training.problems import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `program` wrote, in a process of its own."""
    folder = tmp_path_factory.mktemp("ray")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.program", str(folder)],
        env={**environment, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return result


def test_a_sweep_has_the_numbers_of_local_runs(found: dict[str, Any]) -> None:
    sound = [metrics for kind, metrics, _ in found["ray"] if kind == "sound"]
    assert sound == found["local"] and all("loss" in metrics for metrics in sound)


def test_a_killed_worker_is_replaced(found: dict[str, Any], folder: Path) -> None:
    survived = [metrics for kind, metrics, _ in found["ray"] if kind == "killed once"]
    assert survived == found["local"]
    begun = [len(path.read_text()) for path in (folder / "b" / "marks").glob("killed once-*")]
    assert begun == [2, 2]


def test_workers_that_die_again_are_reported(found: dict[str, Any]) -> None:
    errors = [error for kind, _, error in found["ray"] if kind == "killed"]
    assert len(errors) == 2 and all("its process died 2 times" in error for error in errors)


def test_errors_of_the_function_are_not_repeated(found: dict[str, Any], folder: Path) -> None:
    errors = [error for kind, _, error in found["ray"] if kind == "broken"]
    assert errors == ["KeyError: 'broken on purpose'"] * 2
    assert {path.read_text() for path in (folder / "b" / "marks").glob("broken-*")} == {"x"}


def test_results_are_files(found: dict[str, Any], folder: Path) -> None:
    files = sorted((folder / "ray").rglob("run.json"))
    assert [path.parent.name for path in files] == ["0000", "0001", "0002", "0003"]
    assert not (folder / "ray" / "ray").exists()  # what Ray Tune wrote for itself


def test_an_experiment_has_the_numbers_of_local_runs(found: dict[str, Any]) -> None:
    """Whose broken runs are named, with the others done all the same."""
    assert found["toy ray"] == found["toy local"]
    assert "2 of 6 runs failed" in found["toy error"]
    assert "broken on purpose" in found["toy error"]
    assert sum("broken seed" in line for line in found["toy said"]) == 2
    assert len(found["toy said"]) == 6


def test_two_workers_train_like_one_process(found: dict[str, Any], folder: Path) -> None:
    """And so like two processes of torchrun, which are compared with it elsewhere."""
    assert found["train"]["world"] == 2
    for (name, mine), (_, alone) in zip(
        vectors(found["train"]), vectors(trained("density", "SSM-VR")), strict=True
    ):
        assert torch.allclose(mine, alone, rtol=0, atol=1e-10), name
    run = json.loads((folder / "train" / "run.json").read_text())
    assert run["metrics"] == found["train"] and run["workers"] == 2


def test_connections_are_left_as_found(found: dict[str, Any]) -> None:
    assert found["still connected"] and found["disconnected"]
