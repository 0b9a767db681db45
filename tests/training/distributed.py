"""Cases that several processes compute together, and how they are started.

Run as a module it is one such group of processes, forked after one import of torch:
``python -m tests.training.distributed MODULE NAME COUNT FOLDER``, where NAME is a dictionary of
functions in a module of tests. Every process writes their results to ``FOLDER/rank-R.json``.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching.training import Callback, TrainConfig, TrainState, train
from scorematching.training.weights import whole
from tests.training.problems import ROOT, density, seeded

FOLDER = "SCOREMATCHING_TEST_FOLDER"
"""Environment variable with the folder that processes write to."""

# Models of four kinds, with points for each.


class Convolutional(nn.Module):
    """A log-density of images ``(N, 1, 5, 5)``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 3, 3), nn.Linear(27, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.softplus(self.conv(x)).flatten(1)
        return self.last(hidden).squeeze(-1) - 0.5 * x.square().flatten(1).sum(1)


class Attention(nn.Module):
    """A log-density of sets ``(N, 3, 4)``."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found, _ = self.attend(x, x, x, need_weights=False)
        return self.last(torch.tanh(found)).sum((1, 2)) - 0.5 * x.square().sum((1, 2))


def seeded_module(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "density": density,
    "score network": partial(seeded_module, partial(sm.models.ScoreNetwork, dim=2, hidden=(8,))),
    "convolution": partial(seeded_module, Convolutional),
    "attention": partial(seeded_module, Attention),
}
EVENTS = {"density": (2,), "score network": (2,), "convolution": (1, 5, 5), "attention": (3, 4)}
OBJECTIVES: dict[str, sm.Objective] = {
    "SM": sm.ScoreMatching(),
    "SSM": sm.SlicedScoreMatching(),
    "SSM-VR": sm.SlicedScoreMatchingVR(num_projections=2),
    "DSM": sm.DenoisingScoreMatching(sigma=0.5),
}
PARALLEL = ("ddp", "fsdp")
STEPS, BATCH = 20, 8


class Gradients(Callback):
    """Keeps the gradients of the first step and the last."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def on_step(self, state: TrainState) -> None:
        grads = [p.grad for p in state.parameters]
        found = [torch.zeros(1) if g is None else whole(g).flatten() for g in grads]
        if state.step in (1, STEPS):
            self.kept.append([g.tolist() for g in found])


def trained(
    model: str,
    objective: str,
    parallel: str = "ddp",
    seed: int = 2,
    split_layers: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Gradients and weights of a run; the batch is that of all processes together."""
    module = MODELS[model]()
    if split_layers:
        split_modules(module)
    field = sm.VectorField(module) if model == "score network" else sm.LogDensityField(module)
    x = torch.randn(3 * BATCH, *EVENTS[model], generator=seeded(1), dtype=torch.float64)
    common: dict[str, Any] = {"steps": STEPS, "batch_size": BATCH, "lr": 0.02, "max_norm": 5.0}
    config = TrainConfig(**{**common, "parallel": parallel, **settings})
    gradients = Gradients()
    adam = partial(torch.optim.Adam, eps=1e-4)
    generator = seeded(seed)
    options: Any = {"optimizer": adam, "callbacks": [gradients], "generator": generator}
    result = train(field, OBJECTIVES[objective], 0.5 * x, config, **options)
    return {
        "gradients": gradients.kept,
        "weights": torch.cat([whole(p).detach().flatten() for p in module.parameters()]).tolist(),
        "losses": [record.loss for record in result.history],
        "next": torch.rand(1, generator=generator).item(),
    }


def split_modules(module: nn.Module, kinds: tuple[type, ...] = (nn.Linear,)) -> list[nn.Module]:
    """Split modules of some kinds over the processes, inner ones first; returns them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    chosen = [m for m in reversed([*module.modules()]) if isinstance(m, kinds)]
    return [fully_shard(m, mesh=mesh) for m in chosen]


EQUAL = {
    f"{parallel} {objective} {model}": partial(trained, model, objective, parallel)
    for parallel in PARALLEL
    for objective in OBJECTIVES
    for model in MODELS
}
"""Every objective and model, in every way."""

DIAGONAL = {
    f"{parallel} {objective} {model}": EQUAL[f"{parallel} {objective} {model}"]
    for parallel in PARALLEL
    for objective, model in zip(OBJECTIVES, MODELS)
}
"""One model for every objective."""

CORNER = {name: EQUAL[name] for name in ("ddp DSM density", "fsdp SSM-VR density")}
"""Those that four processes compute in the quick tests."""

# Processes.


def start(
    module: str, name: str, count: int, folder: Path, timeout: float = 110
) -> list[dict[str, Any]]:
    """What every process of a group found."""
    command = [sys.executable, "-m", __name__, module, name, str(count), str(folder)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", FOLDER: str(folder)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(count)]


def fork(count: int) -> tuple[int, list[int]]:
    """Fork a group of processes; returns the rank of this one, and the children of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    children: list[int] = []
    rank = 0
    for other in range(1, count):
        child = os.fork()
        if child == 0:
            rank, children = other, []
            break
        children.append(child)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ.update(WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
    return rank, children


def main(module: str, name: str, count: int, folder: Path) -> None:
    torch.set_num_threads(1)
    cases = getattr(importlib.import_module(module), name)
    rank, children = fork(count)
    results = {case: compute() for case, compute in cases.items()}
    (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()
    failed = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(any(failed))


def vectors(found: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Names and numbers of a result."""
    for step, gradient in zip(("first", "last"), found["gradients"]):
        flat = [number for part in gradient for number in part]
        yield f"{step} gradient", torch.tensor(flat, dtype=torch.float64)
    yield "weights", torch.tensor(found["weights"], dtype=torch.float64)
    yield "losses", torch.tensor(found["losses"], dtype=torch.float64)


if __name__ == "__main__":
    main(*sys.argv[1:3], int(sys.argv[3]), Path(sys.argv[4]))
