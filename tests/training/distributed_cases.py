"""Runs of several processes: what they do together, and what happens without a part of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import scorematching as sm
from reproduction.autoencoders.mnist_networks import make_wae
from scorematching.training import (
    Callback,
    LossModule,
    TrainConfig,
    TrainState,
    loop,
    losses,
    parallel,
    score_first,
    sharing,
    train,
)
from scorematching.training.ranks import Ranks
from scorematching.training.weights import local, whole
from tests.training.distributed import DIAGONAL, FOLDER, split_modules, trained
from tests.training.problems import (
    EVERYTHING,
    Interrupted,
    density,
    digits,
    interrupted,
    parameters,
    points,
    run_everything,
    seeded,
)

# What else processes do together.


def everything(parallel: str, seed: int = 2, **settings: Any) -> Any:
    """Digits of a run with noise in batches and objective, an average and validations."""
    return digits(run_everything(None, config=replace(EVERYTHING, parallel=parallel), seed=seed))


def interrupted_run(parallel: str) -> Any:
    """A run that stops in the middle, to be resumed by another number of processes."""
    folder = Path(os.environ[FOLDER]) / parallel
    config = replace(EVERYTHING, parallel=parallel)
    try:
        run_everything(folder, config=config, transform=interrupted(18))
    except Interrupted:
        return "interrupted"


def resumed_run(parallel: str) -> Any:
    """The rest of a run that a single process began."""
    folder, config = Path(os.environ[FOLDER]) / "alone", replace(EVERYTHING, parallel=parallel)
    copy = folder.with_name(f"alone-{parallel}-{os.environ['WORLD_SIZE']}")
    if os.environ["RANK"] == "0":
        shutil.copytree(folder, copy)
    return digits(run_everything(copy, resume=True, config=config, seed=99))


def sharded_layers() -> dict[str, Any]:
    """A run with layers that were split before."""
    return trained("density", "SSM-VR", "fsdp", split_layers=True)


def held_numbers() -> list[int]:
    """How many numbers of weights, optimiser and average this process holds, and of how many."""
    module, held = density(), []

    class Count(Callback):
        def on_step(self, state: TrainState) -> None:
            states = [v for s in state.optimizer.state.values() for v in s.values() if v.ndim]
            tensors = [*state.parameters, *state.average, *states]
            held.extend([sum(local(t).numel() for t in tensors), sum(t.numel() for t in tensors)])
            with state.averaged_weights():
                assert module(points(8)).shape == (8,)

    config = TrainConfig(steps=1, batch_size=8, parallel="fsdp", ema_decay=0.5)
    train(module, sm.ScoreMatching(), points(), config, callbacks=[Count()])
    assert all(type(p) is nn.Parameter for p in module.parameters())
    return held


def own_noise() -> dict[str, Any]:
    """What a function in place of an objective draws, and how many points it gets."""
    drawn: list[Any] = []

    def loss(model: Any, batch: Tensor, generator: torch.Generator | None = None) -> Tensor:
        drawn.append([len(batch), torch.rand(1, generator=generator).item()])
        return sm.ScoreMatching()(model, batch)

    config = TrainConfig(steps=3, batch_size=9, drop_last=False, accumulate=2)
    result = train(density(), loss, points(18), config, generator=seeded(2))
    return {"drawn": drawn, "points": result.points}


def loaded(different: bool) -> Any:
    """Batches from an iterable, which may differ from process to process."""
    x = points(32)
    order = seeded(int(os.environ.get("RANK", "0")) if different else 0)
    loader = torch.utils.data.DataLoader(x, batch_size=8, shuffle=True, generator=order)
    module = density()
    config = TrainConfig(steps=8, lr=0.02)
    try:
        train(module, sm.SlicedScoreMatchingVR(), loader, config, generator=seeded(3))
    except ValueError as error:
        return str(error)
    return parameters(module).tolist()


def alternating(how: str) -> list[float]:
    """Weights after training parts in turn on exact losses."""
    module = make_wae(2, dim=6, hidden=(8,), generator=seeded(0)).double()
    x = torch.rand(40, 6, generator=seeded(1), dtype=torch.float64)
    config = TrainConfig(steps=6, batch_size=8, lr=0.01, max_norm=1.0, parallel=how)
    objective = score_first(sm.ScoreMatching())
    options: Any = {"optimizer": torch.optim.RMSprop, "generator": seeded(2)}
    train(module, objective, x, config, **options)
    return parameters(module).tolist()


def half_precision(parallel: str) -> list[float]:
    module = density().float()
    config = TrainConfig(steps=5, batch_size=8, lr=0.02, precision="bf16", parallel=parallel)
    train(module, sm.SlicedScoreMatchingVR(), points().float(), config, generator=seeded(2))
    return parameters(module).tolist()


def refused(**settings: Any) -> str:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return -self.scale * x.square().sum(-1)

    try:
        train(Scaled(), sm.ScoreMatching(), points(), TrainConfig(steps=1, **settings))
    except ValueError as error:
        return str(error)
    return "accepted"


EXTRA: dict[str, Callable[[], Any]] = {
    "everything ddp": partial(everything, "ddp"),
    "everything fsdp": partial(everything, "fsdp"),
    "accumulated ddp": partial(trained, "density", "SSM-VR", "ddp", accumulate=2),
    "accumulated fsdp": partial(trained, "density", "SSM-VR", "fsdp", accumulate=2),
    "another seed": lambda: trained("density", "SSM", seed=2 + int(os.environ["RANK"])),
    "sharded layers": sharded_layers,
    "interrupted ddp": partial(interrupted_run, "ddp"),
    "interrupted fsdp": partial(interrupted_run, "fsdp"),
    "resumed ddp": partial(resumed_run, "ddp"),
    "resumed fsdp": partial(resumed_run, "fsdp"),
    "held": held_numbers,
    "own noise": own_noise,
    "own noise again": own_noise,
    "loaded": partial(loaded, different=False),
    "loaded differently": partial(loaded, different=True),
    "alternating ddp": partial(alternating, "ddp"),
    "alternating fsdp": partial(alternating, "fsdp"),
    "bf16 ddp": partial(half_precision, "ddp"),
    "bf16 fsdp": partial(half_precision, "fsdp"),
    "number": partial(refused, parallel="fsdp", batch_size=8),
    "few points": partial(refused, batch_size=3, accumulate=2),
}


# Mechanisms removed: what the tests above would find.


def removed(
    owner: Any, name: str, value: Any, model: str, objective: str, how: str, **settings: Any
) -> Any:
    """A run with something replaced, or the error that it raises."""
    kept = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        return trained(model, objective, how, steps=4, **settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        setattr(owner, name, kept)


def unwrapped(self: Any, module: nn.Module) -> nn.Module:
    return module


def same_rows(batch: Any, rows: slice, points: int) -> Any:
    half = range(points)[rows]
    return batch[: len(half)]


def double_backward(remedy: str, layers: bool, outer: bool) -> Any:
    """Three steps of plain double backward under FSDP2: distance of the weights from those alone.

    Args:
        remedy: "none", or that of PyTorch's maintainers, ``set_reshard_after_backward(False)``,
            "always" or for the backward passes "inside" the loss only.
        layers: split every linear layer.
        outer: split the whole model.
    """
    alone, module = density(), density()
    kinds = (*((nn.Linear,) if layers else ()), *((type(module),) if outer else ()))
    split: Any = split_modules(module, kinds)
    sgd = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, module)]
    rows = slice(int(os.environ["RANK"]), None, 2)
    try:
        for _ in range(3):
            for optimizer in sgd:
                optimizer.zero_grad()
            plain_loss(alone, points(8)).mean().backward()
            for part in split:
                part.set_reshard_after_backward(remedy == "none")
            loss = plain_loss(module, points(8)[rows]).mean()
            for part in split:
                part.set_reshard_after_backward(remedy != "always")
            loss.backward()
            for optimizer in sgd:
                optimizer.step()
    except RuntimeError as error:
        return str(error)
    for part in split:
        part.reshard()
    pairs = zip(alone.named_parameters(), module.parameters())
    return {name: (whole(q) - p).abs().max().item() for (name, p), q in pairs}


def plain_loss(model: nn.Module, x: Tensor) -> Tensor:
    """Exact score matching as everybody writes it."""
    x = x.clone().requires_grad_()
    (score,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    loss = 0.5 * score.square().sum(-1)
    for i in range(x.shape[1]):
        (row,) = torch.autograd.grad(score[:, i].sum(), x, create_graph=True)
        loss = loss + row[:, i]
    return loss


class Default(parallel.Sharded):
    """Weights split with the settings of FSDP2."""

    def __init__(self, losses: Any, ranks: Any) -> None:
        super().__init__(losses, ranks)
        self.root.set_reshard_after_forward(True)
        self.root.set_reshard_after_backward(True)


def default_settings() -> Any:
    """Layers that were split before, and FSDP2's own settings."""
    split = {"split_layers": True}
    return removed(loop, "Sharded", Default, "density", "SM", "fsdp", **split)


def own_seed(generator: Any, ranks: Ranks) -> torch.Generator:
    return seeded(100 + ranks.rank)


class NoTouch:
    @staticmethod
    def apply(losses: Tensor, *parameters: Tensor) -> Tensor:
        return losses


REMOVED: dict[str, Callable[[], Any]] = {
    "nothing": partial(trained, "density", "DSM", "ddp", steps=4),
    "averaging": partial(removed, Ranks, "wrap", unwrapped, "density", "DSM", "ddp"),
    "touched parameters": partial(removed, losses, "_Touch", NoTouch, "density", "DSM", "ddp"),
    "common noise": partial(removed, loop, "source_of_noise", own_seed, "density", "DSM", "ddp"),
    "shared noise": partial(
        removed, LossModule, "share", lambda *a: None, "density", "DSM", "fsdp"
    ),
    "shared points": partial(removed, sharing, "take_rows", same_rows, "density", "DSM", "ddp"),
    "whole weights": default_settings,
}

WAYS = {"model": (False, True), "layers": (True, False), "both": (True, True)}
DOUBLE_BACKWARD: dict[str, Callable[[], Any]] = {
    f"{remedy} {way}": partial(double_backward, remedy, layers, outer)
    for remedy in ("none", "inside", "always")
    for way, (layers, outer) in WAYS.items()
}

ALL = {**DIAGONAL, **EXTRA, **REMOVED, **DOUBLE_BACKWARD}
"""What two processes compute in one go."""
