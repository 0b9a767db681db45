"""Compiled updates against those of the optimisers themselves."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from scorematching.training.executors.constants import Constants
from scorematching.training.executors.update import (
    CompiledUpdate,
    _plain_step,
    compiled_update,
)
from tests.training.problems import seeded

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own

Update = Callable[[torch.optim.Optimizer], Callable[[], Any]]


def parameters() -> list[nn.Parameter]:
    generator = seeded(0)
    return [nn.Parameter(torch.randn(4, 3, generator=generator)) for _ in range(4)]


def rmsprop(weights: list[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(weights, lr=torch.tensor(1e-2), **options)


def weights_after(update_of: Update, steps: int = 5, **options: Any) -> Tensor:
    """Two phases in each step, whose parameters differ, at a rate that falls."""
    weights, generator = parameters(), seeded(1)
    optimizer = rmsprop(weights, **options)
    update = update_of(optimizer)
    for _ in range(steps):
        for trained in ((0, 1), (2, 3)):
            for i, p in enumerate(weights):
                p.grad = torch.randn(p.shape, generator=generator) if i in trained else None
            update()
        optimizer.param_groups[0]["lr"].mul_(0.9)
    return torch.cat([p.detach().flatten() for p in weights])


def eager(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    return optimizer.step


@pytest.mark.timeout(300)
def test_weights_are_those_of_the_optimiser(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="scorematching.training")  # why it is not compiled
    made: list[CompiledUpdate] = []

    def update_of(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
        made.append(CompiledUpdate(optimizer))
        return made[-1]

    options = {"momentum": 0.9, "weight_decay": 0.1}
    found, expected = (weights_after(u, **options) for u in (update_of, eager))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert list(made[0].ways.values()) == [made[0].compiled] * 2


@pytest.mark.parametrize("fault", ["fails", "differs", "has another state"])
def test_a_compiled_update_that_is_wrong_is_not_used(fault: str) -> None:
    made: list[CompiledUpdate] = []

    def update_of(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
        def wrong() -> None:
            optimizer.step()
            if fault == "fails":
                raise RuntimeError("after half of the work")
            for p, state in optimizer.state.items():
                (p.data if fault == "differs" else state["square_avg"]).mul_(1.001)

        made.append(CompiledUpdate(optimizer))
        made[-1].compiled = wrong
        return made[-1]

    found = weights_after(update_of)
    assert torch.equal(found, weights_after(eager))
    assert len(made[0].ways) == 2
    assert made[0].compiled not in made[0].ways.values()


@pytest.mark.parametrize("case", ["number", "fused", "hook", "hook of all", "own"])
def test_updates_that_are_left_as_they_are(case: str) -> None:
    class Own(torch.optim.SGD):
        """An optimiser that a user wrote."""

    weights = parameters()
    made: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "number": lambda: torch.optim.RMSprop(weights, lr=1e-2),
        "fused": lambda: torch.optim.Adam(weights, lr=torch.tensor(1e-2), fused=True),
        "hook": lambda: rmsprop(weights),
        "hook of all": lambda: rmsprop(weights),
        "own": lambda: Own(weights, lr=torch.tensor(1e-2)),
    }
    optimizer, added = made[case](), contextlib.ExitStack()
    if "hook" in case:
        assert isinstance(compiled_update(optimizer), CompiledUpdate)
        add = optimizer.register_step_post_hook
        add = register_optimizer_step_post_hook if case == "hook of all" else add
        added.callback(add(lambda *_: None).remove)
    with added:
        assert not isinstance(compiled_update(optimizer), CompiledUpdate)


def test_the_compiler_gets_the_update_without_its_wrapper() -> None:
    """The wrapper names the update for profilers, of which the compiler warns."""
    optimizer = rmsprop(parameters())
    assert _plain_step(optimizer).__func__ is not type(optimizer).step  # type: ignore[attr-defined]
    assert _plain_step(optimizer).__name__ == "step"


@pytest.mark.timeout(300)
def test_options_that_change_are_read() -> None:
    ends = []
    for update_of in (CompiledUpdate, eager):
        weights = parameters()
        optimizer = rmsprop(weights)
        update = update_of(optimizer)
        for decay in (0.0, 0.5, 0.0):
            optimizer.param_groups[0]["weight_decay"] = decay
            for p in weights:
                p.grad = torch.ones_like(p)
            update()
        ends.append(torch.cat([p.detach().flatten() for p in weights]))
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)


@pytest.mark.timeout(300)
def test_state_stays_where_a_graph_reads_it() -> None:
    weights = parameters()
    optimizer = rmsprop(weights, momentum=0.9)
    update = CompiledUpdate(optimizer)
    for p in weights:
        p.grad = torch.ones_like(p)
    update()
    constants = Constants([optimizer], places=True)
    for _ in range(3):
        update()
        constants.require_unchanged()


def test_an_update_that_a_schedule_replaces() -> None:
    """Schedules replace the method, and warn unless theirs is called."""
    optimizer = rmsprop(parameters())
    update = CompiledUpdate(optimizer)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    for p in update.parameters:
        p.grad = torch.ones_like(p)
    update()
    assert optimizer._opt_called  # type: ignore[attr-defined]
