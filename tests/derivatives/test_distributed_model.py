"""A model wrapped in DistributedDataParallel, on two real processes joined by gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import scorematching as sm
from tests.tolerances import IDENTITY

ROOT = Path(__file__).parents[2]
WORLD, EACH = 2, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "find_unused_parameters": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
}
OBJECTIVES: dict[str, sm.Objective] = {
    "VR": sm.SlicedScoreMatchingVR(),
    "SM": sm.ScoreMatching(),
}


class Density(nn.Module):
    """A log-density whose output bias, if it has one, has no gradient in any score."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


def density(bias: bool) -> Density:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Density(bias).double()


def gradient(
    model: Any, module: nn.Module, objective: sm.Objective, route: str, rows: slice
) -> list[float]:
    """The gradient after three steps without an update, in one vector."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(WORLD * EACH, 3, dtype=torch.float64, generator=g)
    noise = objective.draw(x, torch.Generator().manual_seed(1))
    mine = None if noise is None else noise[:, rows]
    field = sm.LogDensityField(model, route=route)
    for _ in range(3):
        module.zero_grad()
        objective.loss(field, x[rows], mine).mean().backward()
    pairs = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
    return torch.cat([p.flatten() for p in pairs]).tolist()


def cases() -> list[tuple[str, bool, str, str]]:
    return [
        (options, bias, objective, route)
        for options in OPTIONS
        for bias in (False, True)
        for objective in OBJECTIVES
        for route in ("auto", "reverse")
    ]


def work(rank: int, port: str, folder: Path) -> None:
    """One process: the gradient of every case, or the text of what it raised."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD
    )
    rows, found = slice(EACH * rank, EACH * (rank + 1)), {}
    for options, bias, objective, route in cases():
        module = density(bias)
        wrapped = DistributedDataParallel(module, **OPTIONS[options])
        try:
            result: Any = gradient(wrapped, module, OBJECTIVES[objective], route, rows)
        except ValueError as error:
            result = str(error)
        found[f"{options} {bias} {objective} {route}"] = result
        dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.derivatives.test_distributed_model"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), port, str(folder)],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=100)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("route", ["auto", "reverse"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bias", [False, True], ids=["no output bias", "output bias"])
@pytest.mark.parametrize("options", ["plain", "find_unused_parameters"])
def test_gradient_is_that_of_one_process(
    ranks: list[dict[str, Any]], options: str, bias: bool, objective: str, route: str
) -> None:
    module = density(bias)
    alone = gradient(module, module, OBJECTIVES[objective], "reverse", slice(None))
    for rank in ranks:
        found = torch.tensor(rank[f"{options} {bias} {objective} {route}"], dtype=torch.float64)
        assert torch.allclose(
            found, torch.tensor(alone, dtype=torch.float64), rtol=0, atol=IDENTITY
        )


@pytest.mark.parametrize("route", ["auto", "reverse"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_static_graph_is_refused(ranks: list[dict[str, Any]], objective: str, route: str) -> None:
    """Its hooks count gradient passes, and give wrong gradients for derivatives of derivatives."""
    for rank in ranks:
        text = rank[f"static_graph True {objective} {route}"]
        assert "must not have static_graph=True" in text
        assert "training.LossModule" in text


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
