"""Small training problems, and the processes that some tests need beside their own.

Run as a module it is such a process: ``python -m tests.training.problems kill FOLDER``.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scorematching as sm
from scorematching.training import TrainConfig, TrainResult, train

ROOT = Path(__file__).parents[2]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def density(seed: int = 0) -> sm.models.MLPDensity:
    return sm.models.MLPDensity(dim=2, hidden=(8, 8), generator=seeded(seed)).double()


def points(count: int = 40, seed: int = 1) -> Tensor:
    noise = torch.randn(count, 2, generator=seeded(seed), dtype=torch.float64)
    # Narrower than a density at its start, so that there is something to learn to the last step.
    return noise @ torch.tensor([[0.5, 0.2], [0.0, 0.4]], dtype=torch.float64)


def parameters(module: torch.nn.Module) -> Tensor:
    """All weights, in one vector."""
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def noisy(batch: Tensor, generator: torch.Generator) -> Tensor:
    return batch + 0.05 * torch.randn(batch.shape, generator=generator, dtype=batch.dtype)


class Interrupted(Exception):
    """Raised in the middle of a run."""


def interrupted(batches: int, transform: Callable[..., Tensor] = noisy) -> Callable[..., Tensor]:
    """The transform, until so many batches were drawn; held-out points are more than eight."""
    left = batches

    def counted(batch: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal left
        left -= len(batch) <= 8
        if left < 0:
            raise Interrupted
        return transform(batch, generator)

    return counted


# Everything at once: noise in batches and objective, cosine, warm-up, clipping, average,
# validation, an epoch that does not divide the run.
EVERYTHING = TrainConfig(
    steps=37,
    batch_size=8,
    lr=0.02,
    schedule="cosine",
    warmup=3,
    max_norm=1.0,
    ema_decay=0.8,
    validate_every=4,
    checkpoint_every=5,
    log_every=3,
)


def run_everything(
    folder: Path | None,
    resume: bool = False,
    config: TrainConfig = EVERYTHING,
    transform: Callable[..., Tensor] = noisy,
    objective: Any = None,
    seed: int = 2,
    executor: str = "auto",
) -> tuple[sm.models.MLPDensity, TrainResult]:
    model = density()
    result = train(
        model,
        objective or sm.SlicedScoreMatchingVR(),
        points(),
        config,
        validation=points(30, seed=3),
        transform=transform,
        generator=seeded(seed),
        folder=folder,
        resume=resume,
        executor=executor,
    )
    return model, result


def digits(run: tuple[torch.nn.Module, TrainResult]) -> Any:
    """All numbers of a run except times."""
    model, result = run
    history = [(r.step, r.loss, r.lr, r.validation) for r in result.history]
    return parameters(model).tolist(), history, result.best_step, result.best_loss, result.points


# Processes.


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this module in a process of its own."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        # Warnings are errors, but for Python's own about forking where there are threads.
        [
            sys.executable,
            "-Werror",
            "-Wignore:This process:DeprecationWarning",
            "-m",
            "tests.training.problems",
            *arguments,
        ],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def slowly(batch: Tensor, generator: torch.Generator) -> Tensor:
    time.sleep(0.002)
    return noisy(batch, generator)


def be_killed(folder: Path, times: int) -> None:
    """Train in a forked process, kill -9 it at a random moment, and again; never finish."""
    chance = random.Random()
    importlib.import_module("safetensors.torch")  # once, not in every process
    for _ in range(times):
        before = checkpointed(folder)
        child = os.fork()
        if child == 0:
            run_everything(folder, resume=True, transform=slowly)
            os._exit(1)  # it must not come to this
        while checkpointed(folder) <= before and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        time.sleep(0.03 * chance.random())
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print(int(os.WIFSIGNALED(status)), checkpointed(folder))


def checkpointed(folder: Path) -> int:
    """The step of the checkpoint in a folder, which can be read at any moment."""
    index = folder / "checkpoint.json"
    return int(json.loads(index.read_text())["step"]) if index.exists() else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    be_killed(Path(sys.argv[2]), times=4)
