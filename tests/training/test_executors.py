"""Every executor runs the same step: the digits of a loop by hand, to rounding."""

from __future__ import annotations

import copy
import logging
import math
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching._graphs import CaptureError
from scorematching.errors import DivergedError
from scorematching.training import Alternating, Callback, Phase, TrainConfig, read_log, train
from scorematching.training import loop as loop_module
from scorematching.training.executors import Captured, CompiledGradients, Fallback
from scorematching.training.executors import captured as captured_module
from scorematching.training.executors.captured import MANY, make_capturable
from scorematching.training.executors.choice import COMPILE_FROM, preferences
from scorematching.training.executors.compiled import NoGain
from scorematching.training.executors.constants import Constants
from scorematching.training.loss_reader import READ_EVERY, LossReader
from scorematching.training.losses import LossModule
from scorematching.training.ranks import Ranks
from scorematching.training.step import Gradients, Step
from tests.tolerances import FLOAT32, ROUTES
from tests.training.problems import (
    Interrupted,
    density,
    digits,
    interrupted,
    noisy,
    parameters,
    points,
    run_everything,
    seeded,
)

STEPS, LR, RATIO, WARMUP, MAX_NORM, DECAY = 20, 0.02, 0.1, 3, 1.0, 0.8
CONFIG = TrainConfig(
    steps=STEPS,
    batch_size=8,
    lr=LR,
    schedule="cosine",
    warmup=WARMUP,
    max_norm=MAX_NORM,
    ema_decay=DECAY,
    log_every=1,
)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flattened gradients as they are, without the time that compilation takes."""
    monkeypatch.setattr(torch, "compile", lambda f, **how: f)


def two_groups(model: nn.Module) -> Callable[..., torch.optim.Optimizer]:
    """Adam with a tenth of the rate for the first layer, which comes in the second group."""

    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        first = list(model.net[0].parameters())
        rest = [p for p in parameters if all(p is not f for f in first)]
        groups = [{"params": rest}, {"params": first, "lr": RATIO * lr}]
        return torch.optim.Adam(groups, lr=lr)

    return make


def run(executor: Any, objective: Any = None, **options: Any) -> tuple[nn.Module, list[float], str]:
    """Averaged weights, losses and executor of a run with two groups."""
    model = density().to(options.pop("device", "cpu"), options.pop("dtype", torch.float64))
    x = points(options.pop("count", 40)).to(next(model.parameters()))
    result = train(
        model,
        objective or sm.SlicedScoreMatchingVR(),
        x,
        options.pop("config", CONFIG),
        optimizer=options.pop("optimizer", two_groups)(model),
        generator=torch.Generator(x.device).manual_seed(2),
        executor=executor,
        **options,
    )
    return model, [record.loss for record in result.history], result.executor


def by_hand(device: str = "cpu", ratio: float = RATIO) -> tuple[nn.Module, list[float]]:
    """The same run with two optimisers' worth of arithmetic in plain sight."""
    model, x = density().to(device), points().to(device)
    g, batches, losses = torch.Generator(device).manual_seed(2), [], []
    adam, average = two_groups(model)(list(model.parameters()), LR), copy.deepcopy(model)
    for step in range(STEPS):
        if not batches:
            order = torch.randperm(len(x), generator=g, device=device)
            batches = [x[rows] for rows in order.split(8)]
        u = (step - WARMUP) / (STEPS - WARMUP)
        factor = (step + 1) / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * u))
        adam.param_groups[0]["lr"], adam.param_groups[1]["lr"] = LR * factor, ratio * LR * factor
        adam.zero_grad()
        loss = sm.SlicedScoreMatchingVR()(model, batches.pop(0), generator=g).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        adam.step()
        losses.append(loss.item())
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 1 - DECAY)
    return average, losses


def assert_same_run(found: Any, expected: Any, tolerance: float = ROUTES) -> None:
    assert found[1] == pytest.approx(expected[1], rel=tolerance, abs=tolerance)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(parameters(found[0]), parameters(expected[0]), **close)


# The digits.


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("executor", ["auto", "eager", "compiled"])
def test_executors_run_the_loop_by_hand(executor: str) -> None:
    found = run(executor)
    assert found[2] == ("eager" if executor == "auto" else executor)
    assert_same_run(found, by_hand())


def test_clipping_average_and_both_rates_matter() -> None:
    """Without them the same comparison fails."""
    for change in ({"max_norm": None}, {"ema_decay": None}, {"warmup": 0}):
        with pytest.raises(AssertionError):
            assert_same_run(run("eager", config=replace(CONFIG, **change)), by_hand())
    with pytest.raises(AssertionError):
        assert_same_run(run("eager"), by_hand(ratio=1.0))


def test_a_lost_rate_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the schedule sets one rate for all groups."""
    real = loop_module.Schedule

    def planted(optimizer: torch.optim.Optimizer, config: TrainConfig, *rest: int) -> Any:
        for group in optimizer.param_groups:
            group["lr"] = config.lr
        return real(optimizer, config, *rest)

    monkeypatch.setattr(loop_module, "Schedule", planted)
    with pytest.raises(AssertionError):
        assert_same_run(run("eager"), by_hand())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_for_real(tmp_path: Path) -> None:
    """To rounding, and resumed to the same digits."""
    assert_same_run(run("compiled"), by_hand())
    config = replace(CONFIG, checkpoint_every=5)
    with pytest.raises(Interrupted):
        run("compiled", config=config, folder=tmp_path, transform=interrupted(12))
    resumed = run("compiled", config=config, folder=tmp_path, transform=noisy, resume=True)
    whole = run("compiled", config=config, transform=noisy)
    assert torch.equal(parameters(resumed[0]), parameters(whole[0])) and resumed[1] == whole[1]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("executor", ["eager", "compiled"])
def test_resumed_with_two_groups(executor: str, tmp_path: Path) -> None:
    """Averages go back to their own parameters, though groups are in another order."""
    config = replace(CONFIG, checkpoint_every=5)
    with pytest.raises(Interrupted):
        run(executor, config=config, folder=tmp_path, transform=interrupted(12))
    resumed = run(executor, config=config, folder=tmp_path, transform=noisy, resume=True)
    whole = run(executor, config=config, transform=noisy)
    assert torch.equal(parameters(resumed[0]), parameters(whole[0])) and resumed[1] == whole[1]


@pytest.mark.usefixtures("uncompiled")
def test_everything_resumed_when_compiled(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run_everything(tmp_path, transform=interrupted(18), executor="compiled")
    resumed = run_everything(tmp_path, resume=True, seed=99, executor="compiled")
    assert digits(resumed) == digits(run_everything(None, executor="compiled"))


@pytest.mark.usefixtures("uncompiled")
def test_compiled_in_bf16() -> None:
    options = {"config": replace(CONFIG, precision="bf16"), "dtype": torch.float32}
    eager = run("eager", **options)
    assert_same_run(run("compiled", **options), eager, FLOAT32)
    with pytest.raises(AssertionError):
        assert_same_run(run("eager", dtype=torch.float32), eager, FLOAT32)


@pytest.mark.usefixtures("uncompiled")
def test_unused_parameters_are_left_alone() -> None:
    """An optimiser that shrinks weights skips those without a gradient, compiled or not."""

    def decaying(model: nn.Module) -> Any:
        return lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.5)

    (compiled, *_), (eager, *_) = (run(e, optimizer=decaying) for e in ("compiled", "eager"))
    torch.testing.assert_close(parameters(compiled), parameters(eager), rtol=0, atol=ROUTES)
    assert torch.equal(compiled.net[-1].bias, density().net[-1].bias)


@pytest.mark.usefixtures("uncompiled")
def test_compiled_takes_batches_of_several_shapes() -> None:
    config = replace(CONFIG, batch_size=12, drop_last=False)
    assert_same_run(run("compiled", config=config), run("eager", config=config))


NAMES = tuple(name for name, _ in density().named_parameters())


def quadratic(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    return model(x).square()


def first_layer(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    return model.net[0](x).square().sum(-1)


def random(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    return model(noisy(x, generator)).square()


@pytest.mark.usefixtures("uncompiled")
def test_compiled_phases() -> None:
    """Each trains its parts with what the ones before have left."""
    objective = Alternating(Phase(first_layer, "net.0"), Phase(sm.SlicedScoreMatchingVR(), NAMES))
    assert_same_run(run("compiled", objective), run("eager", objective))


@pytest.mark.usefixtures("uncompiled")
def test_captured_step_of_compiled_gradients() -> None:
    """On a CPU nothing is recorded, but it is what would be."""
    ends = []
    for compiled in (False, True):
        model, g = density(), seeded(0)
        losses = LossModule(model, sm.SlicedScoreMatchingVR(), g, touch=False)
        adam = two_groups(model)(list(model.parameters()), LR)
        step = Step(Gradients(losses), adam, losses.parts, MAX_NORM, DECAY)
        if compiled:
            step = step.using(CompiledGradients(losses), step.update)
        execute = Captured(step, g) if compiled else step
        for k in range(12):
            execute(points(8, seed=k))
        ends.append(torch.cat([parameters(model), *[a.flatten() for a in step.average]]))
    torch.testing.assert_close(*ends, rtol=0, atol=ROUTES)


class Weights:
    """A weight of a loss, in the ways in which callbacks change one."""

    def __init__(self, kind: str) -> None:
        number, held, table, array = 1.0, [1.0], {"weight": 1.0}, torch.ones(())
        self.weight, self.kind = 1.0, kind

        def objective(model: Any, x: Tensor, generator: Any = None) -> Tensor:
            return (number * held[0] * table["weight"] * array) * model(x).square()

        def change() -> None:
            nonlocal number, array
            if kind == "closure":
                number = 3.0
            elif kind == "list":
                held[0] = 3.0
            elif kind == "dict":
                table["weight"] = 3.0
            elif kind == "tensor":
                array = torch.full((), 3.0)
            elif kind == "method":
                self.weight = 3.0

        self.objective = self.method if kind == "method" else objective
        self.change = change

    def method(self, model: Any, x: Tensor, generator: Any = None) -> Tensor:
        """A loss with the weight of this object."""
        return self.weight * model(x).square()


SCALE = 1.0


def of_a_global(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    return SCALE * model(x).square()


def of_an_attribute(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    return model.SCALE * model(x).square()


def test_globals_that_a_loss_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of an attribute is none of them."""
    named, other = Constants([of_a_global]), Constants([of_an_attribute])
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    other.require_unchanged()
    with pytest.raises(CaptureError, match="of_a_global with another SCALE"):
        named.require_unchanged()


class HalfScore(sm.objectives.Objective):
    """An objective of the user's with a number that changes."""

    weight = 1.0

    def __init__(self) -> None:
        self.weight = 1.0

    def loss(self, field: Any, x: Tensor, noise: Any = None) -> Tensor:
        return self.weight * field.score(x).square().sum(-1)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("kind", ["closure", "list", "dict", "tensor", "method", "objective"])
def test_a_weight_of_the_loss_that_changes_is_no_constant(kind: str) -> None:
    """Such as one that is annealed; compiled and captured steps went on with the first one."""

    def weights(executor: Any) -> tuple[Tensor, str]:
        own: Any = HalfScore() if kind == "objective" else Weights(kind)
        objective = own if kind == "objective" else own.objective
        change = partial(setattr, own, "weight", 3.0) if kind == "objective" else own.change
        model, config = density(), TrainConfig(steps=12, batch_size=8, lr=LR)
        result = train(
            model,
            objective,
            points(),
            config,
            optimizer=torch.optim.SGD,
            generator=seeded(2),
            executor=executor,
            callbacks=[At(lambda _: change())],
        )
        return parameters(model), result.executor

    found, name = weights(("compiled", "eager"))
    assert name == "eager"
    torch.testing.assert_close(found, weights("eager")[0], rtol=0, atol=ROUTES)


# Falling back.


@pytest.mark.usefixtures("uncompiled")
def test_falls_back_with_a_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An objective that draws while it runs is run eagerly, from the very first draw."""
    with caplog.at_level(logging.INFO, "scorematching.training"):
        found = run(("compiled", "eager"), random, folder=tmp_path)
    assert found[2] == "eager"
    assert_same_run(found, run("eager", random), 0.0)
    events = read_log(tmp_path / "log.jsonl")
    assert events[0]["executor"] == "compiled" and events[1]["event"] == "executor"
    assert events[1]["executor"] == "eager" and "aten.randn.generator" in events[1]["reason"]
    assert any('"compiled" failed, continuing with "eager"' in m for m in caplog.messages)
    assert run(("compiled", "eager"), peeking)[2] == "eager"
    with pytest.raises(TypeError, match=r"draw its noise before .*aten\.randn\.generator"):
        run("compiled", random)


@pytest.mark.usefixtures("uncompiled")
def test_a_phase_that_cannot_be_compiled_costs_no_update() -> None:
    """All phases are compiled before the first one changes a weight."""
    objective = Alternating(Phase(quadratic, NAMES), Phase(random, NAMES))
    assert_same_run(run(("compiled", "eager"), objective), run("eager", objective), 0.0)


class Counting(nn.Module):
    """A log-density that counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = density().net
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x).squeeze(-1) / self.calls


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
def test_models_that_change_their_buffers_are_not_compiled() -> None:
    models = Counting(), Counting()
    config = TrainConfig(steps=3, batch_size=8)
    for model, executor in zip(models, (("compiled", "eager"), "eager")):
        train(model, sm.ScoreMatching(), points(), config, generator=seeded(0), executor=executor)
    assert torch.equal(parameters(models[0]), parameters(models[1]))
    assert models[0].calls == models[1].calls
    with pytest.raises(ValueError, match="must not change its buffers"):
        train(Counting(), sm.ScoreMatching(), points(), config, executor="compiled")


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_gradients_with_hooks_are_not_compiled(register: str) -> None:
    """Hooks were left out: a layer that one froze was trained, by default on a GPU."""

    def stop(gradient: Tensor) -> Tensor | None:
        if register == "register_hook":
            return torch.zeros_like(gradient)
        assert gradient.grad is not None  # of a parameter, once its gradient is there
        gradient.grad.zero_()
        return None

    model, config = density(), TrainConfig(steps=3, batch_size=8)
    weight = model.net[0].weight
    before = weight.detach().clone()
    getattr(weight, register)(stop)
    arguments: Any = (model, sm.ScoreMatching(), points(), config)
    train(*arguments, generator=seeded(0), executor=("compiled", "eager"))
    assert torch.equal(weight, before)
    with pytest.raises(ValueError, match=r"must have no hooks .* got one on module.net.0.weight"):
        train(*arguments, generator=seeded(0), executor="compiled")


class ByNumpy(nn.Module):
    """A log-density whose scale is computed outside of torch, from points or from weights."""

    def __init__(self, of_points: bool) -> None:
        super().__init__()
        self.net, self.of_points = density().net, of_points

    def forward(self, x: Tensor) -> Tensor:
        values = x if self.of_points else self.net[0].weight[:1, :1]
        scale = torch.from_numpy(np.exp(values.detach().numpy()).sum(1))
        return self.net(x).squeeze(-1) * scale


class Annealed(nn.Module):
    """A log-density with a number that callbacks change."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.power = density(), 1.0
        self.register_buffer("shift", torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.power * self.net(x + self.shift)


class At(Callback):
    """Changes the model after the tenth step."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def on_step(self, state: Any) -> None:
        if state.step == 10:
            self.change(state.module)


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "number": (lambda m: setattr(m, "power", 3.0), "Annealed with another power"),
    "tensor": (lambda m: setattr(m, "power", torch.ones(1)), "Annealed with another power"),
    "frozen": (lambda m: m.net.net[0].requires_grad_(False), "other parameters to train"),
    "buffer": (lambda m: setattr(m, "shift", torch.ones_like(m.shift)), "other buffers"),
    "mode": (lambda m: m.net.eval(), "with another training"),
}


def annealed(executor: Any, change: Any, device: str = "cpu") -> tuple[Tensor, str]:
    """Weights after a run in which the model changes, and its last executor."""
    model, x = Annealed().to(device), points().to(device)
    result = train(
        model,
        sm.SlicedScoreMatchingVR(),
        x,
        TrainConfig(steps=STEPS, batch_size=8, lr=LR),
        callbacks=[At(change)],
        executor=executor,
        generator=torch.Generator(device).manual_seed(2),
    )
    return parameters(model), result.executor


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("kind", CHANGES)
def test_what_changes_between_steps_is_no_constant(kind: str) -> None:
    """Compiled steps went on with the old number, and trained what was frozen."""
    change, reason = CHANGES[kind]
    with pytest.raises(CaptureError, match=f"{reason}.*; train eagerly"):
        annealed("compiled", change)
    weights, executor = annealed(("compiled", "eager"), change)
    assert executor == "eager"
    torch.testing.assert_close(weights, annealed("eager", change)[0], rtol=ROUTES, atol=ROUTES)


@pytest.mark.usefixtures("uncompiled")
def test_buffers_that_are_written_in_place_are_read() -> None:
    def change(model: Any) -> None:
        model.shift.fill_(0.5)

    weights, executor = annealed("compiled", change)
    assert executor == "compiled"
    torch.testing.assert_close(weights, annealed("eager", change)[0], rtol=ROUTES, atol=ROUTES)


@pytest.mark.parametrize(("fused", "dtype"), [(True, torch.float32), (None, torch.float64)])
def test_learning_rates_of_captured_steps_have_the_precision_of_the_optimiser(
    fused: bool | None, dtype: torch.dtype
) -> None:
    """Fused Adam refuses rates in double precision, with which models of float64 failed."""
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=fused)
    make_capturable(optimizer)
    (group,) = optimizer.param_groups
    assert group["lr"].dtype == dtype


@pytest.mark.filterwarnings("error")
def test_steps_before_a_graph_give_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch warns of a capturable optimiser whose steps are not captured, as the first are not."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    stream = SimpleNamespace(is_capturing=lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda: stream)
    optimizer = torch.optim.RMSprop([nn.Parameter(torch.zeros(3))])
    if not hasattr(optimizer, "_accelerator_graph_capture_health_check"):
        pytest.skip("older versions of torch check CUDA itself")
    make_capturable(optimizer)
    optimizer._accelerator_graph_capture_health_check()
    del optimizer._warned_capturable_if_run_uncaptured
    with pytest.raises(UserWarning, match="without CUDA graph capture"):
        optimizer._accelerator_graph_capture_health_check()


def test_cuda_graphs_need_tensors_in_their_places() -> None:
    """A graph reads memory; compiled functions are given the tensors."""
    model = Annealed()
    graph, function = Constants(model.modules(), places=True), Constants(model.modules())
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    graph.require_unchanged()
    first = next(model.parameters())
    first.data = 2 * first.data
    function.require_unchanged()
    with pytest.raises(CaptureError, match="other buffers"):
        graph.require_unchanged()


def adam_after_a_step() -> torch.optim.Optimizer:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.Adam([weight], lr=LR)
    optimizer.step()
    return optimizer


RESTARTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "decay": (lambda o: o.param_groups[0].update(weight_decay=0.1), "another weight_decay"),
    "momenta": (lambda o: o.param_groups[0].update(betas=(0.8, 0.9)), "another betas"),
    "direction": (lambda o: o.param_groups[0].update(maximize=True), "another maximize"),
    "loaded": (lambda o: o.load_state_dict(copy.deepcopy(o.state_dict())), "other state"),
    "emptied": (lambda o: o.state.clear(), "other state"),
}


@pytest.mark.parametrize("kind", RESTARTS)
def test_options_and_state_of_an_optimiser_are_constants_of_a_graph(kind: str) -> None:
    """They were lost: a graph went on with the old weight decay, and with the old moments."""
    change, reason = RESTARTS[kind]
    optimizer = adam_after_a_step()
    constants = Constants([optimizer], places=True)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 2 * LR  # which is recorded anew, or read from a tensor
    constants.require_unchanged()
    change(optimizer)
    with pytest.raises(CaptureError, match=reason):
        constants.require_unchanged()


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "NAdam", "RAdam", "Adamax", "Rprop"])
def test_steps_of_an_optimiser_keep_its_state_in_its_place(name: str) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = getattr(torch.optim, name)([weight], lr=torch.tensor(LR))
    weight.grad = torch.ones(3)
    optimizer.step()
    constants = Constants([optimizer], places=True)
    for _ in range(3):
        optimizer.step()
        constants.require_unchanged()


@pytest.mark.parametrize("what", ["learning rate", "shape of batches", "neither"])
def test_many_graphs_of_a_step_give_one_warning(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(captured_module, "record", lambda work, *_: (None, work()))
    model = density()
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    step = Step(Gradients(lambda x, phase: -model(x).mean()), sgd)
    execute = Captured(step, None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for i in range(MANY + 2):
            sgd.param_groups[0]["lr"] = LR * (1 + i if what == "learning rate" else 1)
            execute._graph_for(points(2 + i if what == "shape of batches" else 2))
    assert [what in str(w.message) for w in seen] == ([] if what == "neither" else [True])


def test_a_graph_needs_a_step_before_it() -> None:
    """Without one the optimiser's state would be made, and emptied, at every replay."""
    model = density()
    losses = LossModule(model, sm.SlicedScoreMatchingVR(), seeded(0), touch=False)
    step = Step(Gradients(losses), torch.optim.Adam(model.parameters()), losses.parts)
    with pytest.raises(ValueError, match="warmup must be at least 1, got 0"):
        Captured(step, None, warmup=0)


@pytest.mark.gpu
def test_a_weight_decay_that_changes_ends_a_graph() -> None:
    class Decay(Callback):
        def on_step(self, state: Any) -> None:
            if state.step == 10:
                state.optimizer.param_groups[0]["weight_decay"] = 0.5

    ends = []
    for executor in (("captured", "eager"), "eager"):
        model, x = density().to("cuda"), points().to("cuda")
        config = TrainConfig(steps=STEPS, batch_size=8, lr=LR)
        rest = {"callbacks": [Decay()], "generator": torch.Generator("cuda").manual_seed(2)}
        objective = sm.SlicedScoreMatchingVR()
        ends.append(train(model, objective, x, config, executor=executor, **rest))  # type: ignore[arg-type]
        ends.append(parameters(model))
    assert ends[0].executor == "eager"
    # A capturable Adam counts its steps, and so corrects its averages, in float32.
    torch.testing.assert_close(ends[1], ends[3], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CHANGES)
def test_what_changes_between_captured_steps_is_no_constant(kind: str) -> None:
    change, _ = CHANGES[kind]
    if kind == "tensor":
        change = lambda m: setattr(m, "power", torch.ones(1, device="cuda"))  # noqa: E731
    weights, executor = annealed("auto", change, "cuda")
    assert executor == "eager"
    torch.testing.assert_close(weights, annealed("eager", change, "cuda")[0], rtol=1e-6, atol=1e-6)
    with pytest.raises(CaptureError, match="train eagerly"):
        annealed("captured", change, "cuda")


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("of_points", [True, False])
def test_what_the_tracer_does_not_see_is_not_compiled(of_points: bool) -> None:
    config, model = TrainConfig(steps=3, batch_size=8), ByNumpy(of_points)
    with pytest.raises(ValueError, match="must consist of torch's operations to be compiled"):
        train(model, sm.MaximumLikelihood(), points(), config, executor="compiled")
    auto = ("compiled", "eager")
    result = train(model, sm.MaximumLikelihood(), points(), config, executor=auto)
    assert result.executor == "eager"


def test_smoothness_error_keeps_its_type() -> None:
    kinked = sm.models.MLPDensity(2, (8,), nn.ReLU, generator=seeded(0)).double()
    for executor in ("compiled", ("compiled", "eager")):
        with pytest.raises(sm.SmoothnessError, match="relu"):
            train(kinked, sm.SlicedScoreMatching(), points(), CONFIG, executor=executor)


def test_a_step_that_cannot_be_recorded_is_repeated() -> None:
    """Recording fails at the third call; the step is run by the next executor, once."""
    calls: list[tuple[str, int]] = []

    class Recording(Step):
        def __init__(self, name: str) -> None:
            self.name = name

        def prepare(self, batch: Tensor) -> None:
            """Nothing to prepare."""

        def __call__(self, batch: Tensor) -> Tensor:
            if self.name == "captured" and batch == 2:
                raise CaptureError("cannot be recorded\nat all")
            calls.append((self.name, int(batch)))
            return batch

    reported: list[tuple[str, str]] = []
    execute = Fallback(["captured", "eager"], Recording, lambda *new: reported.append(new))
    assert [execute(torch.tensor(batch)).item() for batch in range(4)] == [0, 1, 2, 3]
    assert calls == [("captured", 0), ("captured", 1), ("eager", 2), ("eager", 3)]
    assert reported == [("eager", "CaptureError: cannot be recorded")]
    with pytest.raises(CaptureError):
        Fallback(["captured"], Recording, lambda *new: None)(torch.tensor(2))


def test_an_executor_that_gains_nothing_is_replaced_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Executor(Step):
        def __init__(self, name: str) -> None:
            self.name = name

        def prepare(self, batch: Tensor) -> None:
            if self.name == "compiled":
                raise NoGain("its products are large")

        def __call__(self, batch: Tensor) -> Tensor:
            return batch

    execute = Fallback(["compiled", "eager"], Executor, lambda *new: None)
    with caplog.at_level("INFO", logger="scorematching.training"):
        assert execute(torch.tensor(2)) == 2 and execute.name == "eager"
    found = [r for r in caplog.records if "does not pay off" in r.getMessage()]
    assert [r.levelname for r in found] == ["INFO"]
    with pytest.raises(NoGain):
        Fallback(["compiled"], Executor, lambda *new: None)(torch.tensor(2))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_steps_of_large_products_are_captured_by_default() -> None:
    """Compiled explicitly they are, but "auto" does not wait for the compiler."""
    model = sm.models.MLPDensity(64, (64, 64), generator=seeded(0)).cuda()
    x = torch.randn(128, 64, device="cuda")
    config = TrainConfig(steps=COMPILE_FROM, batch_size=128, log_every=COMPILE_FROM)
    assert train(model, sm.ScoreMatching(), x, config).executor == "captured"
    assert train(model, sm.SlicedScoreMatchingVR(), x, config).executor == "compiled+captured"


def test_batches_that_are_no_tensors_run_eagerly() -> None:
    def pairs(model: Any, batch: tuple[Tensor, Tensor], generator: Any = None) -> Tensor:
        return model(batch[0]).square()

    data, config = [(points(8), points(8))], TrainConfig(steps=2)
    result = train(density(), pairs, data, config, executor=("compiled", "eager"))
    assert result.executor == "eager"
    with pytest.raises(
        TypeError, match="batches must be tensors for steps to be compiled, got tup"
    ):
        train(density(), pairs, data, config, executor="compiled")


def test_preferences() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert preferences("auto", cpu, True, 10**6) == ("eager",)
    assert preferences("auto", gpu, False, 10**6) == ("eager",)
    assert preferences("auto", gpu, True, 999) == ("captured", "eager")
    assert preferences("auto", gpu, True, 1000) == ("compiled+captured", "captured", "eager")
    assert preferences("compiled", gpu, False, 1) == ("compiled",)
    assert preferences(["captured", "eager"], gpu, False, 1) == ("captured", "eager")


# Losses.


def test_losses_are_read_some_steps_at_a_time() -> None:
    """And one that is not finite is reported with its own step."""
    reader = LossReader(Ranks(torch.device("cuda")), log_every=10**6)
    for step in range(1, READ_EVERY):
        reader.add(torch.tensor(float(step)))
        assert reader.last_finite is None and len(reader.unread) == step
    reader.add(torch.tensor(0.5))
    assert reader.last_finite == 0.5 and not reader.unread and len(reader.recent) == READ_EVERY
    assert reader.mean() == (sum(range(READ_EVERY)) + 0.5) / READ_EVERY and not reader.recent
    losses = [1.0, 2.0, math.nan, 3.0] + [4.0] * READ_EVERY
    with pytest.raises(DivergedError) as caught:
        for loss in losses:
            reader.add(torch.tensor(loss))
    assert caught.value.step == READ_EVERY + 3 and caught.value.last_finite_loss == 2.0
    assert LossReader(Ranks(torch.device("cuda")), log_every=7).every == 7
    assert LossReader(Ranks(torch.device("cpu")), log_every=7).every == 1


# A GPU.


def capturable(device: str) -> Callable[..., Any]:
    """Groups that round as captured ones do: with rates as tensors."""

    def groups(model: nn.Module) -> Any:
        def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
            made = two_groups(model)(parameters, lr)
            for group in made.param_groups:
                group["capturable"] = device == "cuda"
                group["lr"] = torch.tensor(group["lr"], dtype=torch.float64, device=device)
            return made

        return make

    return groups


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("executor", ["captured", "compiled", "compiled+captured"])
def test_executors_on_a_gpu(executor: str) -> None:
    found = run(executor, device="cuda", optimizer=capturable("cuda"))
    assert found[2] == executor
    # The corrections of Adam's averages are in float32, and compiled they are rounded otherwise.
    tolerance = ROUTES if executor == "captured" else 1e-5
    assert_same_run(found, run("eager", device="cuda", optimizer=capturable("cuda")), tolerance)
    assert_same_run(found, by_hand("cuda"), 1e-5)  # rates are float32 tensors there


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_auto_on_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    config = replace(CONFIG, steps=1000, log_every=100)
    assert run("auto", device="cuda", config=config)[2] == "compiled+captured"
    with caplog.at_level(logging.INFO, "scorematching.training"):
        found = run("auto", random_on_device, device="cuda", config=config)
    assert found[2] == "captured"
    assert any(
        '"compiled+captured" failed, continuing with "captured"' in m for m in caplog.messages
    )
    assert run("auto", peeking, device="cuda", config=config)[2] == "eager"


def random_on_device(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return model(x + 0.05 * noise).square()


def peeking(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    return model(x).square() * (1.0 if x.sum().item() > 0 else 2.0)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("executor", ["captured", "compiled+captured"])
def test_no_step_waits_for_the_device(executor: str) -> None:
    """Torch raises an error at whatever waits, between steps 10 and 40."""

    class Strict(Callback):
        def on_step(self, state: Any) -> None:
            if state.step in (10, 40):
                torch.cuda.set_sync_debug_mode("error" if state.step == 10 else "default")

    try:
        config = replace(CONFIG, steps=60, log_every=100)
        run(executor, device="cuda", config=config, callbacks=[Strict()], count=800)
    finally:
        torch.cuda.set_sync_debug_mode("default")
