"""Callbacks: what is called when, and what a callback can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import scorematching as sm
from scorematching.training import Callback, Record, TrainConfig, TrainState, train
from scorematching.training import state as state_module
from scorematching.training.schedule import learning_rate
from tests.training.problems import (
    EVERYTHING,
    Interrupted,
    density,
    digits,
    interrupted,
    noisy,
    parameters,
    points,
    seeded,
)

CONFIG = TrainConfig(steps=6, batch_size=8, log_every=4, checkpoint_every=3, ema_decay=0.5)


class Diary(Callback):
    """Writes down what is called, and at which step."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_start(self, state: TrainState) -> None:
        self.calls.append(("start", state.step))

    def on_record(self, state: TrainState, record: Record) -> None:
        assert state.history[-1] is record
        self.calls.append(("record", state.step))

    def on_step(self, state: TrainState) -> None:
        self.calls.append(("step", state.step))

    def on_end(self, state: TrainState) -> None:
        self.calls.append(("end", state.step))


def run(*callbacks: Callback, config: TrainConfig = CONFIG, **options: Any) -> Any:
    model = density()
    result = train(
        model,
        sm.SlicedScoreMatchingVR(),
        points(),
        config,
        generator=seeded(0),
        callbacks=callbacks,
        **options,
    )
    return model, result


def test_what_is_called_when() -> None:
    first, second = Diary(), Diary()
    run(first, second)
    steps = [("step", step) for step in range(1, 7)]
    assert first.calls == second.calls
    assert first.calls == [
        ("start", 0),
        *steps[:3],
        ("record", 4),
        *steps[3:5],
        ("record", 6),
        steps[5],
        ("end", 6),
    ]


def test_a_callback_that_only_reads_changes_nothing() -> None:
    class Reading(Callback):
        def on_step(self, state: TrainState) -> None:
            with state.averaged_weights(), state.pause(), torch.no_grad():
                sm.ScoreMatching()(state.module, points(5))

    assert digits(run(Reading(), config=EVERYTHING)) == digits(run(config=EVERYTHING))


def test_stop(tmp_path: Path) -> None:
    """The run ends after the step, with a checkpoint, and goes on where it is not stopped."""

    class Stop(Callback):
        def on_step(self, state: TrainState) -> None:
            if state.step == 4:
                state.stop()

    model, result = run(Stop(), folder=tmp_path)
    assert (result.steps, result.stopped_early) == (4, True)
    shorter = TrainConfig(steps=4, batch_size=8, ema_decay=0.5)
    assert torch.equal(parameters(model), parameters(run(config=shorter)[0]))
    assert digits(run(folder=tmp_path, resume=True)) == digits(run())


def test_stop_before_the_first_step() -> None:
    class Stop(Callback):
        def on_start(self, state: TrainState) -> None:
            state.stop()

    model, result = run(Stop())
    assert result.steps == 0 and torch.equal(parameters(model), parameters(density()))


def test_start_of_a_resumed_run(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(folder=tmp_path, transform=interrupted(5))
    diary = Diary()
    run(diary, folder=tmp_path, resume=True, transform=noisy)
    assert diary.calls[:2] == [("start", 3), ("record", 4)]


def test_pauses_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Pause(Callback):
        def on_step(self, state: TrainState) -> None:
            nonlocal now
            now += 1.0
            with state.pause():
                now += 100.0

    monkeypatch.setattr(state_module.time, "perf_counter", lambda: now)
    assert run(Pause())[1].seconds == 6.0


def test_averaged_weights() -> None:
    seen: list[torch.Tensor] = []

    class Average(Callback):
        def on_step(self, state: TrainState) -> None:
            now = parameters(state.module)
            with state.averaged_weights():
                seen.append(parameters(state.module))
            assert torch.equal(parameters(state.module), now)

    model, _ = run(Average())
    assert torch.equal(parameters(model), seen[-1]) and len(seen) == 6


def test_parameters_that_are_unfrozen_later_are_refused() -> None:
    """The optimiser does not hold them: they stayed as they were, without a word."""

    class Unfreeze(Callback):
        def on_step(self, state: TrainState) -> None:
            state.module.requires_grad_(True)

    model = density()
    model.net[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"got net\.0\.\w+, unfrozen later; train in two runs"):
        train(model, sm.ScoreMatching(), points(), CONFIG, callbacks=[Unfreeze()])


class Slower(Callback):
    """Divides the rate of the second group by ten, once, as torch's ReduceLROnPlateau does."""

    def on_record(self, state: TrainState, record: Record) -> None:
        if record.step == 4:
            state.optimizer.param_groups[1]["lr"] *= 0.1


class SlowerAfterTheStep(Callback):
    """The same, after the checkpoint of that step."""

    def on_step(self, state: TrainState) -> None:
        if state.step == 4:
            state.optimizer.param_groups[1]["lr"] *= 0.1


def two_groups(parameters: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    own = {"params": parameters[:1], "lr": 2 * lr}
    return torch.optim.Adam([own, {"params": parameters[1:]}], lr=lr)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("slower", [Slower, SlowerAfterTheStep])
def test_rates_that_a_callback_sets_hold(
    slower: type[Callback], schedule: str, tmp_path: Path
) -> None:
    """The schedule set them back after one step; a resumed run knows them, too."""
    config = TrainConfig(
        steps=10, batch_size=8, lr=0.02, schedule=schedule, log_every=2, checkpoint_every=4
    )
    model, order = density(), seeded(0)
    adam = two_groups(list(model.parameters()), config.lr)
    batches = (b for _ in range(2) for b in points()[torch.randperm(40, generator=order)].split(8))
    for step, batch in enumerate(batches):
        rate = learning_rate(config, step, 10)
        adam.param_groups[0]["lr"] = 2 * rate
        adam.param_groups[1]["lr"] = rate * (0.1 if step >= 4 else 1.0)
        adam.zero_grad()
        sm.ScoreMatching()(model, batch).mean().backward()
        adam.step()

    def trained(folder: Path, transform: Any, resume: bool = False) -> torch.Tensor:
        own, options = density(), {"optimizer": two_groups, "callbacks": [slower()]}
        options |= {"folder": folder, "transform": transform, "resume": resume}
        train(own, sm.ScoreMatching(), points(), config, generator=seeded(0), **options)
        return parameters(own)

    keep = lambda batch, generator: batch  # noqa: E731
    whole = trained(tmp_path / "whole", keep)
    torch.testing.assert_close(whole, parameters(model), rtol=1e-12, atol=1e-12)
    with pytest.raises(Interrupted):
        trained(tmp_path / "run", interrupted(6, keep))
    assert torch.equal(trained(tmp_path / "run", keep, resume=True), whole)
