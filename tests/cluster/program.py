"""What the tests run on a Ray cluster of their own: ``python -m tests.cluster.program FOLDER``.

One process with one cluster does it all, since starting one takes seconds. What it finds is in
``FOLDER/found.json``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import scorematching as sm
from reproduction.run import Request, reproduce
from scorematching.cluster import Resources, connect, grid, sweep, train_on_ray
from scorematching.training import TrainConfig, train
from tests.reproduction.toy import TOY
from tests.training.distributed import trained


def fit(settings: dict[str, Any]) -> dict[str, Any]:
    """A short run; its process may be killed, or it may be wrong."""
    mark = Path(settings["marks"]) / f"{settings['kind']}-{settings['seed']}"
    mark.write_text(mark.read_text() + "x" if mark.exists() else "x")
    begun = len(mark.read_text())
    if settings["kind"] == "killed" or (settings["kind"] == "killed once" and begun == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if settings["kind"] == "broken":
        raise KeyError("broken on purpose")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(settings["seed"])
    x = torch.randn(64, 2, generator=generator, dtype=torch.float64)
    density = sm.models.MLPDensity(dim=2, hidden=(8,), generator=generator).double()
    config = TrainConfig(steps=5, batch_size=16, lr=settings["lr"])
    result = train(density, sm.SlicedScoreMatchingVR(), x, config, generator=generator)
    return {"loss": result.history[-1].loss}


def settings(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    marks = folder / "marks"
    marks.mkdir(parents=True, exist_ok=True)
    return grid({"kind": kinds, "lr": [0.01], "seed": [0, 1], "marks": [str(marks)]})


def joined(given: dict[str, Any]) -> dict[str, Any]:
    """The run of `tests.training.distributed`, in the workers of Ray Train."""
    torch.set_num_threads(1)
    found = trained("density", "SSM-VR", given["parallel"])
    return {**found, "world": torch.distributed.get_world_size()}


def main(folder: Path) -> None:
    """Everything on one cluster, and the same runs in this process."""
    torch.set_num_threads(1)
    local = sweep(fit, settings(folder / "a", "sound"), folder / "local")
    found: dict[str, Any] = {"local": [run.metrics for run in local]}
    asked = Request(seeds=(0, 1), only=("low", "high/*"), device="cpu", out=folder / "toy-local")
    found["toy local"] = [run.metrics for run in reproduce(TOY, asked)]
    with connect() as ray:
        kinds = settings(folder / "b", "sound", "killed once", "killed", "broken")
        runs = sweep(fit, kinds, folder / "ray", "ray", Resources(cpus=0.5, retries=1))
        found["ray"] = [[run.settings["kind"], run.metrics, run.error] for run in runs]
        said: list[str] = []
        every = Request(seeds=(0, 1), device="cpu", out=folder / "toy-ray", executor="ray")
        try:
            reproduce(TOY, every, said.append)
        except RuntimeError as error:
            found["toy error"] = str(error)
        found["toy said"] = said
        found["train"] = train_on_ray(joined, {"parallel": "fsdp"}, folder / "train")
        found["still connected"] = ray.is_initialized()
    found["disconnected"] = not ray.is_initialized()
    again = Request(seeds=(0, 1), only=("low", "high/*"), device="cpu", out=folder / "toy-ray")
    found["toy ray"] = [run.metrics for run in reproduce(TOY, again)]
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
