"""Whole training steps, optimiser included: eager, compiled, and captured as a CUDA graph."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import scorematching as sm
from benchmarks.harness.timing import interleaved, peak_bytes
from benchmarks.objectives import contenders
from benchmarks.objectives.contenders import SIGMA
from benchmarks.objectives.models import PAPER_FLOW, Case, Flow
from scorematching.capture import CapturedStep, compile_step
from scorematching.fields import Field
from scorematching.objectives import Objective

Row = dict[str, Any]


class TiledDoubleBackward(Objective):
    """SSM-VR as it is usually written: nested gradients on the batch repeated M times."""

    def __init__(self, num: int) -> None:
        self.num = num

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Independent signs for every copy of the batch."""
        shape = (self.num * x.shape[0], *x.shape[1:])
        bits = torch.randint(0, 2, shape, generator=generator, dtype=x.dtype, device=x.device)
        return 2 * bits - 1

    def loss(self, field: Field, x: Tensor, noise: Tensor) -> Tensor:
        """Losses ``(N,)``."""
        tiled = x.repeat(self.num, 1).requires_grad_()
        (s,) = torch.autograd.grad(field.model.call(tiled).sum(), tiled, create_graph=True)
        (h,) = torch.autograd.grad((s * noise).sum(), tiled, create_graph=True)
        loss = 0.5 * s.square().sum(-1) + (h * noise).sum(-1)
        return loss.reshape(self.num, -1).mean(0)


def objectives(nums: tuple[int, ...]) -> dict[tuple[str, str, int], Objective]:
    """Objectives by library, name and M."""
    found: dict[tuple[str, str, int], Objective] = {
        ("ours", "DSM", 0): sm.DenoisingScoreMatching(sigma=SIGMA)
    }
    for num in nums:
        found["ours", "SSM-VR", num] = sm.SlicedScoreMatchingVR(num_projections=num)
    for num in nums:
        found["bare", "SSM-VR", num] = TiledDoubleBackward(num)
    return found


def compiled(cases: list[Case], peers: dict[str, Any], rounds: int, seed: int) -> list[Row]:
    """Eager and compiled steps of log-density networks on a CPU, interleaved."""
    rows = []
    for case in cases:
        jobs: list[tuple[Row, Callable[[], Any]]] = []
        about = {"model": case.name, "about": case.about, "batch": case.batch}
        for (library, name, num), objective in objectives((1,)).items():
            for mode in ("eager", "compiled"):
                model, x = case.make(seed, "cpu")
                made = prepare(mode, model, objective, _sgd(model), x)
                row = {**about, "library": library, "objective": name, "num": num, "mode": mode}
                jobs.append((row | made[0], made[1]))
        if "torchebm" in peers:
            jobs.append(_torchebm(peers["torchebm"], about, *case.make(seed, "cpu")))
        rows += _timed(jobs, rounds, "cpu", seed)
    return rows


def _torchebm(
    module: Any, about: Row, model: nn.Module, x: Tensor
) -> tuple[Row, Callable[[], Any]]:
    """The eager step of torchebm, which has no compiled one."""
    (contender,) = contenders.torchebm(module, model, x, (1,))
    optimizer = _sgd(model)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        contender.loss().backward()
        optimizer.step()

    row = {**about, "library": "torchebm", "objective": "SSM", "num": 1, "mode": "eager"}
    return row, step


def prepare(
    mode: str, model: nn.Module, objective: Objective, optimizer: torch.optim.Optimizer, x: Tensor
) -> tuple[Row, Callable[[], Any]]:
    """A step, and the time of its compilation or the error that prevented it."""
    if mode == "eager":
        return {}, _eager(model, objective, optimizer, x)
    if mode == "captured":
        captured = CapturedStep(model, objective, optimizer)
        return {}, lambda: captured(x)
    start = time.perf_counter()
    try:
        step = compile_step(model, objective, optimizer, x, captured=mode == "both")
        step(x)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        return {"error": reason}, _nothing
    return {"compile_seconds": time.perf_counter() - start}, lambda: step(x)


def paper_flow(
    rounds: int, seed: int, quick: bool, with_compiled: bool, device: str = "cuda"
) -> list[Row]:
    """Steps of the paper's flow: eager, captured, compiled and both, interleaved.

    Matrix products run in tf32 on a GPU, as in training.
    """
    torch.set_float32_matmul_precision("high")
    sizes = {"dim": 6, "width": 8, "layers": 1} if quick else PAPER_FLOW
    batch = 8 if quick else 128
    about = "additive couplings 4 x ({layers}x{width}), D={dim}".format(**sizes)
    case = Case("paper-flow", about, Flow, sizes, (sizes["dim"],), batch=1000)
    flow, x = case.make(seed, device)
    modes = ("eager", "captured", *(["compiled", "both"] if with_compiled else []))
    jobs: list[tuple[Row, Callable[[], Any]]] = []
    for (library, name, num), objective in objectives((1, 4, 16)).items():
        for mode in modes if library == "ours" else modes[:2]:
            row = {"model": case.name, "about": about, "batch": batch, "mode": mode}
            row |= {"library": library, "objective": name, "num": num}
            model = copy.deepcopy(flow)
            made = prepare(mode, model, objective, adam(model), x[:batch].contiguous())
            jobs.append((row | made[0], made[1]))
    rows = _timed(jobs, rounds, device, seed, warmup=6)
    return rows + _exact(case, flow, x, batch, rounds=max(3, rounds // 5))


def _exact(case: Case, flow: nn.Module, x: Tensor, batch: int, rounds: int) -> list[Row]:
    """The exact objective: to evaluate 1000 points, and as a training step."""
    objective = sm.ScoreMatching()
    model = copy.deepcopy(flow)
    row = {"model": case.name, "about": case.about, "library": "ours", "num": 0, "mode": "eager"}

    def evaluate() -> Tensor:
        with torch.no_grad():
            return objective(model, x)

    step = _eager(model, objective, adam(model), x[:batch].contiguous())
    jobs = [
        ({**row, "objective": "SM, evaluation", "batch": len(x)}, evaluate),
        ({**row, "objective": "SM, training", "batch": batch}, step),
    ]
    return _timed(jobs, rounds, x.device.type, 0)


def _eager(
    model: nn.Module, objective: Objective, optimizer: torch.optim.Optimizer, x: Tensor
) -> Callable[[], Any]:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        objective(model, x).mean().backward()
        optimizer.step()

    return step


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 1e-6)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Adam over all parameters, in a form that a CUDA graph can record where there is a GPU."""
    on_gpu = next(model.parameters()).is_cuda
    return torch.optim.Adam(model.parameters(), 1e-5, fused=True, capturable=on_gpu)


def _timed(
    jobs: list[tuple[Row, Callable[[], Any]]],
    rounds: int,
    device: str,
    seed: int,
    warmup: int = 3,
) -> list[Row]:
    """Every row with its times, and the memory of eager steps; others allocate it in advance."""
    times = interleaved([step for _, step in jobs], rounds, warmup, device, seed)
    rows = []
    for (row, step), seconds in zip(jobs, times):
        eager = row["mode"] == "eager"
        row["peak_bytes"] = peak_bytes(step, device) if eager else None
        row["seconds"] = None if "error" in row else seconds
        rows.append({"suite": "steps", **row})
    return rows


def _nothing() -> None:
    """Replaces a step that could not be compiled."""
