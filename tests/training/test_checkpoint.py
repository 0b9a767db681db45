"""Interrupted runs continue to the same digits, whatever interrupted them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

import scorematching as sm
from scorematching._files import own_checksum
from scorematching.errors import DivergedError
from scorematching.training import (
    Alternating,
    Callback,
    Phase,
    TrainConfig,
    TrainState,
    checkpoint,
    load_weights,
    read_log,
    train,
)
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
    start,
)


@pytest.mark.parametrize("steps", [2, 5, 12, 36])
def test_resumed_run_has_the_same_digits(steps: int, tmp_path: Path) -> None:
    """Before the first checkpoint, at one that ends an epoch, in an epoch's middle, at the end."""
    with pytest.raises(Interrupted):
        run_everything(tmp_path, transform=interrupted(steps))
    resumed = run_everything(tmp_path, resume=True, seed=99)
    whole = run_everything(tmp_path / "whole")
    if steps > 5:
        assert digits(resumed) == digits(whole)
    else:  # there was nothing to resume from, so the other seed is the one that counts
        assert (digits(resumed) == digits(whole)) == (steps == 5)
        assert digits(resumed) == digits(run_everything(None, seed=2 if steps == 5 else 99))


def test_finished_run_is_not_run_again(tmp_path: Path) -> None:
    whole = run_everything(tmp_path)
    again = run_everything(tmp_path, resume=True, transform=interrupted(0))
    assert digits(whole) == digits(again)


def test_run_of_batches_is_resumed(tmp_path: Path) -> None:
    """An iterable is started again and wound forward to where it was."""

    class Batches:
        """Shuffled by the very generator that the run draws from."""

        def __init__(self, generator: torch.Generator) -> None:
            self.generator = generator

        def __iter__(self):
            order = torch.randperm(40, generator=self.generator)
            return iter(points()[order].split(8))

    def run(folder: Path, steps: int, resume: bool = False) -> list[float]:
        model, g = density(), seeded(0)
        config = TrainConfig(steps=steps, checkpoint_every=4)
        objective = sm.SlicedScoreMatching()
        train(model, objective, Batches(g), config, generator=g, folder=folder, resume=resume)
        return parameters(model).tolist()

    run(tmp_path, 8)
    assert run(tmp_path, 17, resume=True) == run(tmp_path / "whole", 17)


def test_dropout_is_resumed(tmp_path: Path) -> None:
    """Layers draw from torch's own generator, which belongs to the run as well."""

    def run(folder: Path, interrupt: bool = False, resume: bool = False, seed: int = 3) -> Tensor:
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))
        model = model.append(nn.Flatten(0)).double()
        for p in model.parameters():
            nn.init.normal_(p, generator=seeded(0))
        config = TrainConfig(steps=12, batch_size=8, checkpoint_every=4)
        transform = interrupted(6 if interrupt else 100)
        options = {"transform": transform, "generator": seeded(1), "resume": resume}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            train(model, sm.ScoreMatching(), points(), config, folder=folder, **options)
        return parameters(model)

    with pytest.raises(Interrupted):
        run(tmp_path, interrupt=True)
    assert torch.equal(run(tmp_path, resume=True, seed=4), run(tmp_path / "whole"))


def test_torchs_own_generator_is_left_alone_by_models_that_do_not_use_it(tmp_path: Path) -> None:
    for steps in (4, 8):
        config = TrainConfig(steps=steps, batch_size=8, checkpoint_every=4)
        torch.randn(steps)  # another state than that of the checkpoint
        before = torch.get_rng_state()
        options: Any = {"generator": seeded(1), "folder": tmp_path, "resume": True}
        train(density(), sm.SlicedScoreMatching(), points(), config, **options)
        assert torch.equal(torch.get_rng_state(), before)


def test_another_optimizer_is_refused_before_anything_is_restored(tmp_path: Path) -> None:
    config = TrainConfig(steps=4, batch_size=8)
    options: Any = {"generator": seeded(1), "folder": tmp_path, "resume": True}
    train(density(), sm.SlicedScoreMatching(), points(), config, **options)
    model = density()
    before, options["optimizer"] = parameters(model), torch.optim.RMSprop
    with pytest.raises(ValueError, match="optimizer must be Adam to resume this run, got RMSprop"):
        train(model, sm.SlicedScoreMatching(), points(), config, **options)
    assert torch.equal(parameters(model), before)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.AdamW])
def test_any_optimizer_is_resumed(make: type[torch.optim.Optimizer], tmp_path: Path) -> None:
    """With tied weights and with buffers, too."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2, dtype=torch.float64)
            self.b = nn.Linear(2, 2, dtype=torch.float64)
            self.b.weight = self.a.weight
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += self.training
            return -self.b(torch.tanh(self.a(x))).square().sum(-1) - x.square().sum(-1)

    def run(folder: Path, steps: int, resume: bool = False) -> tuple[list[float], int]:
        model = Tied()
        for i, p in enumerate(model.parameters()):
            p.data.fill_(0.1 * i + 0.1)
        config = TrainConfig(steps=steps, batch_size=8, lr=0.01, ema_decay=0.9)
        objective = sm.MaximumLikelihood()
        g = seeded(0)
        train(
            model,
            lambda f, x, generator: objective.loss(sm.LogDensityField(f), x, None),
            points(),
            config,
            optimizer=make,
            generator=g,
            folder=folder,
            resume=resume,
        )
        return parameters(model).tolist(), int(model.calls)

    run(tmp_path, 7)
    assert run(tmp_path, 13, resume=True) == run(tmp_path / "whole", 13)


def test_killed_again_and_again(tmp_path: Path) -> None:
    """``kill -9`` at random moments; what is on disk is always whole, and leads to the same end."""
    process = start("killed", str(tmp_path))
    assert process.returncode == 0, process.stderr
    lines = [line.split() for line in process.stdout.splitlines()]
    assert [killed for killed, _ in lines] == ["1"] * 4
    steps = [int(step) for _, step in lines]
    assert steps == sorted(set(steps)) and steps[0] > 0 and steps[-1] < 37
    resumed, whole = run_everything(tmp_path, resume=True), run_everything(None)
    assert digits(resumed) == digits(whole)
    records = [event for event in read_log(tmp_path / "log.jsonl") if event["event"] == "record"]
    assert [r["step"] for r in records] == [r.step for r in whole[1].history]
    assert [r["loss"] for r in records] == [r.loss for r in whole[1].history]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best-32.safetensors",
        "best-37.safetensors",
        "checkpoint.json",
        "last-35.safetensors",
        "last-37.safetensors",
        "log.jsonl",
        "previous.json",
    ]


@pytest.mark.parametrize("survives", range(8))
def test_crash_between_any_two_writes(
    survives: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before is complete until the new one is."""
    saved = checkpoint.Checkpoint({"step": 1, "best_step": 1}, {"w": torch.zeros(2)}, {})
    checkpoint.save(tmp_path, saved._replace(best={"w": torch.zeros(2)}))
    left, real = survives, os.replace

    def replace(source: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Interrupted
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for step in (2, 3):
        best = {"w": torch.full((2,), float(step))}
        state = {"step": step, "best_step": step}
        try:
            checkpoint.save(tmp_path, checkpoint.Checkpoint(state, best, best))
        except Interrupted:
            break
    found = checkpoint.load(tmp_path)
    assert found is not None and found.best is not None
    whole = 1 + survives // 4  # each writes two files of tensors and two indices
    value = 0.0 if whole == 1 else float(whole)
    assert found.state == {"step": whole, "best_step": whole}
    assert found.last["w"].tolist() == found.best["w"].tolist() == [value, value]


def test_checkpoint_is_json_and_safetensors(tmp_path: Path) -> None:
    """Nothing that would have to be unpickled."""
    run_everything(tmp_path)
    index = json.loads((tmp_path / "checkpoint.json").read_text())
    assert index["step"] == 37 and set(index["files"]) == {"last", "best"}
    for name in index["files"].values():
        content = (tmp_path / name).read_bytes()
        size = int.from_bytes(content[:8], "little")
        assert all("dtype" in entry for entry in json.loads(content[8 : 8 + size]).values())


def test_weights_are_averaged_where_there_is_an_average(tmp_path: Path) -> None:
    config = TrainConfig(steps=5, batch_size=8, ema_decay=0.5)
    model, loaded = density(), density(seed=7)
    train(model, sm.ScoreMatching(), points(), config, generator=seeded(0), folder=tmp_path)
    assert load_weights(loaded, tmp_path, "last") == 5
    with pytest.raises(TypeError, match=r"module must be an nn\.Module, got .*Path; it comes"):
        load_weights(tmp_path, loaded)
    with pytest.raises(TypeError, match=r"folder must be a path, got MLPDensity"):
        load_weights(loaded, loaded)
    assert torch.equal(parameters(loaded), parameters(model))
    with pytest.raises(ValueError, match='try which="last"'):
        load_weights(loaded, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"checkpoint\.json"):
        load_weights(loaded, tmp_path / "elsewhere")


def test_run_of_an_earlier_version_is_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose configuration had a setting that is gone, and whose files had no checksums."""
    with pytest.raises(Interrupted):
        run_everything(tmp_path, transform=interrupted(18))
    index = json.loads((tmp_path / "checkpoint.json").read_text())
    index["config"]["capture"] = None
    del index["checksum"], index["checksums"]
    (tmp_path / "checkpoint.json").write_text(json.dumps(index))
    assert digits(run_everything(tmp_path, resume=True)) == digits(run_everything(None))
    assert "checkpoint.json has no checksums, as in earlier versions" in caplog.text


def test_settings_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    """They were accepted, and the first line of the log ended in an error of json."""
    settings: dict[str, Any] = {"steps": 5, "batch_size": 8, "max_norm": 2.0}
    options: Any = {"generator": seeded(1), "folder": tmp_path, "resume": True}
    for make in (lambda value: np.array(value)[()], lambda value: value):
        config = TrainConfig(**{name: make(value) for name, value in settings.items()})
        result = train(density(), sm.ScoreMatching(), points(), config, **options)
    assert result.steps == 5


def test_folder_of_another_run(tmp_path: Path) -> None:
    run_everything(tmp_path)
    with pytest.raises(ValueError, match="resume=True to continue"):
        run_everything(tmp_path)
    other = {"lr": 0.1, "steps": 40}
    changed = TrainConfig(**{**EVERYTHING.__dict__, **other})
    with pytest.raises(ValueError, match=r"steps=40 \(was 37\), lr=0.1 \(was 0.02\)"):
        run_everything(tmp_path, resume=True, config=changed)
    rewrite = json.loads((tmp_path / "checkpoint.json").read_text())
    other = {**rewrite, "format": 0}
    sealed = {**other, "checksum": own_checksum(other)}
    (tmp_path / "checkpoint.json").write_text(json.dumps(sealed))
    with pytest.raises(ValueError, match="format 0"):
        run_everything(tmp_path, resume=True)


def loader_of_batches() -> DataLoader[Tensor]:
    """The sampler, which has a generator, is inside the batch sampler."""
    rows = RandomSampler(points(), generator=seeded(7))
    return DataLoader(points(), batch_sampler=BatchSampler(rows, 8, drop_last=False))


LOADERS: dict[str, Callable[[], DataLoader[Tensor]]] = {
    "torch": lambda: DataLoader(points(), batch_size=8, shuffle=True),
    "own": lambda: DataLoader(points(), batch_size=8, shuffle=True, generator=seeded(7)),
    "two generators": lambda: DataLoader(
        points(),
        batch_size=8,
        sampler=RandomSampler(points(), generator=seeded(7)),
        generator=seeded(8),
    ),
    "batch sampler": loader_of_batches,
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_shuffling_loader_is_resumed(kind: str, tmp_path: Path) -> None:
    """It draws from torch's own generator or from its own; the epoch had rows twice and never."""

    def run(folder: Path, stop: int = 100, resume: bool = False, seed: int = 3) -> Tensor:
        model, loader = density(), LOADERS[kind]()
        config, transform = TrainConfig(steps=13, checkpoint_every=4), interrupted(stop)
        options: Any = {"folder": folder, "resume": resume, "transform": transform}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            train(model, sm.ScoreMatching(), loader, config, generator=seeded(1), **options)
        return parameters(model)

    with pytest.raises(Interrupted):
        run(tmp_path, stop=10)
    assert torch.equal(run(tmp_path, resume=True, seed=4), run(tmp_path / "whole"))


def test_a_resumed_run_may_begin_to_draw_from_torchs_own_generator(tmp_path: Path) -> None:
    """The next checkpoint ended in an error of Python."""

    class Draws(Callback):
        def on_step(self, state: TrainState) -> None:
            torch.rand(())

    batches: list[Tensor] = list(points().split(8))
    for steps, callbacks in ((2, []), (8, [Draws()]), (9, [])):
        config = TrainConfig(steps, checkpoint_every=1)
        options: Any = {"generator": seeded(1), "folder": tmp_path, "resume": True}
        train(density(), sm.ScoreMatching(), batches, config, callbacks=callbacks, **options)
    assert load_weights(density(), tmp_path, "last") == 9


@pytest.mark.parametrize("kind", ["tensor", "batches"])
def test_a_checkpoint_holds_torchs_own_generator_once(kind: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 1))
    model = model.append(nn.Flatten(0)).double()
    data = points() if kind == "tensor" else list(points().split(8))
    options: Any = {"generator": seeded(1), "folder": tmp_path}
    train(model, sm.ScoreMatching(), data, TrainConfig(7, batch_size=8), **options)
    states = checkpoint.under("generator", load_file(tmp_path / "last-7.safetensors"))
    now = torch.get_rng_state()
    assert sum(torch.equal(rows[0], now) for rows in states.values()) == 1


def test_a_loader_of_unknown_length_trains_for_steps() -> None:
    class Endless(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(points())

    loader = DataLoader(Endless(), batch_size=8)
    assert train(density(), sm.ScoreMatching(), loader, TrainConfig(steps=7)).steps == 7
    with pytest.raises(ValueError, match="steps must be given"):
        train(density(), sm.ScoreMatching(), loader, TrainConfig(epochs=1))


def test_other_data_are_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def run(data: Tensor, steps: int = 4) -> None:
        options: Any = {"generator": seeded(1), "folder": tmp_path, "resume": True}
        train(density(), sm.ScoreMatching(), data, TrainConfig(steps, batch_size=8), **options)

    run(points())
    run(points() * (1 + 1e-15), 6)  # computed on another machine
    assert not caplog.records
    with pytest.raises(ValueError, match=r"got rows 41 \(was 40\); begin another run"):
        run(points(41))
    run(2 * points())
    assert "are not those of the run that is resumed" in caplog.text


def test_averages_of_shared_weights_are_loaded(tmp_path: Path) -> None:
    """A shared weight has two names in the module and one among the averages."""

    def shared() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Linear(2, 1))
        model[2].weight = model[0].weight
        for p in model.parameters():
            nn.init.normal_(p, generator=seeded(0))
        return model.append(nn.Flatten(0)).double()

    trained, loaded = shared(), shared()
    config = TrainConfig(steps=6, batch_size=8, lr=0.1, ema_decay=0.8)
    options: Any = {"generator": seeded(1), "folder": tmp_path}
    train(trained, sm.ScoreMatching(), points(), config, **options)
    load_weights(loaded, tmp_path, "last")
    assert torch.equal(parameters(loaded), parameters(trained))


def test_a_mask_with_infinities_is_no_divergence(tmp_path: Path) -> None:
    """There was no checkpoint, and the run was lost at its end."""
    model = density()
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf], dtype=torch.float64))
    options: Any = {"generator": seeded(1), "folder": tmp_path}
    train(model, sm.ScoreMatching(), points(), TrainConfig(steps=3, batch_size=8), **options)
    assert load_weights(model, tmp_path, "last") == 3
    model.mask[0] = torch.nan
    with pytest.raises(DivergedError):
        train(model, sm.ScoreMatching(), points(), TrainConfig(steps=3, batch_size=8))


def test_an_optimizer_over_other_parameters_is_refused(tmp_path: Path) -> None:
    """Moments of one layer became those of another of the same shape, without a word."""

    def run(order: list[int], steps: int, frozen: bool = False) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Linear(2, 1))
        model = model.append(nn.Flatten(0)).double()
        model[3].requires_grad_(not frozen)

        def grouped(given: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
            groups = [given[2 * i : 2 * i + 2] for i in order]
            return torch.optim.Adam([{"params": group} for group in groups if group], lr=lr)

        options: Any = {"generator": seeded(1), "folder": tmp_path, "optimizer": grouped}
        config = TrainConfig(steps, batch_size=8)
        train(model, sm.ScoreMatching(), points(), config, resume=True, **options)

    run([0, 1, 2], 2)
    run([0, 1, 2], 3)
    with pytest.raises(ValueError, match=r"got 2\.weight in place 0 instead of 0\.weight; freeze"):
        run([1, 0, 2], 4)
    with pytest.raises(ValueError, match="got 4 of them instead of 6"):
        run([0, 1, 2], 4, frozen=True)


def test_a_validated_run_is_not_resumed_without_validation(tmp_path: Path) -> None:
    """It ended with the best weights of the steps before."""
    options: Any = {"generator": seeded(1), "folder": tmp_path, "resume": True}
    first, longer = TrainConfig(4, batch_size=8), TrainConfig(8, batch_size=8)
    train(density(), sm.ScoreMatching(), points(), first, validation=points(9), **options)
    with pytest.raises(ValueError, match=r"validation must be given .* step 4, would count"):
        train(density(), sm.ScoreMatching(), points(), longer, **options)


def hard_loss(model: Any, x: Tensor, generator: Any = None, scale: float = 1.0) -> Tensor:
    return scale * sm.ScoreMatching()(model, x)


def other_loss(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    return sm.ScoreMatching()(model, x)


@dataclass
class Shift:
    """A transform with numbers that were fitted."""

    by: Tensor

    def __call__(self, x: Tensor, generator: Any) -> Tensor:
        return x - self.by


ALL = [name for name, _ in density().named_parameters()]
Changes = list[tuple[dict[str, Any], dict[str, Any], str]]
OTHER_ARGUMENTS: Changes = [
    (
        {"objective": sm.SlicedScoreMatching()},
        {"objective": sm.SlicedScoreMatchingVR()},
        r"objective must .* got SlicedScoreMatchingVR \(was SlicedScoreMatching\); begin",
    ),
    (
        {"objective": sm.SlicedScoreMatching()},
        {"objective": sm.SlicedScoreMatching(num_projections=2)},
        r"got num_projections=2 \(was 1\)",
    ),
    (
        {"objective": sm.SlicedScoreMatching(sm.projections.Rademacher())},
        {"objective": sm.SlicedScoreMatching(sm.projections.Rademacher(balanced=False))},
        r"got projection.balanced=False \(was True\)",
    ),
    (
        {"objective": sm.DenoisingScoreMatching(0.1)},
        {"objective": sm.DenoisingScoreMatching([0.1, 0.2])},
        r"got sigma=\[0.1, 0.2\] \(was 0.1\)",
    ),
    (
        {"objective": partial(hard_loss, scale=1.0)},
        {"objective": partial(hard_loss, scale=2.0)},
        r"got scale=2.0 \(was 1.0\)",
    ),
    (
        {"objective": Alternating(Phase(sm.DenoisingScoreMatching(0.1), ALL))},
        {"objective": Alternating(Phase(sm.DenoisingScoreMatching(0.2), ALL))},
        r"got phases\[0\].loss.sigma=0.2 \(was 0.1\)",
    ),
    ({}, {"validation": points(8)}, r"validation must .* got rows 8 \(was 9\)"),
    ({}, {"validation": lambda model: 0.0}, r"validation must .* got <lambda> \(was Tensor\)"),
    (
        {},
        {"validation_objective": sm.DenoisingScoreMatching(0.1)},
        r"validation_objective must .* got DenoisingScoreMatching \(was None\)",
    ),
    ({}, {"transform": lambda x, g: 2 * x}, r"transform must .* got <lambda> \(was None\)"),
    (
        {"transform": Shift(torch.tensor([3.0, 1.0]))},
        {"transform": Shift(torch.tensor([3.0, 1.1]))},
        r"transform must .* got by=\[3.0, 1.1\d*\] \(was \[3.0, 1.0\]\)",
    ),
    (
        {},
        {"optimizer": partial(torch.optim.Adam, weight_decay=0.1)},
        r"optimizer must .* got \[0\].weight_decay=0.1 \(was 0\)",
    ),
    ({}, {"model": density().float()}, r"model must have the dtype .*float32 for .*float64"),
]


def resumed(folder: Path, steps: int, arguments: dict[str, Any]) -> None:
    chosen = {"model": density(), "objective": sm.ScoreMatching(), "validation": points(9)}
    chosen |= {"generator": seeded(1), "folder": folder, "resume": True, **arguments}
    train(data=points(), config=TrainConfig(steps, batch_size=8), **chosen)


@pytest.mark.parametrize(("before", "now", "words"), OTHER_ARGUMENTS)
def test_a_run_is_not_resumed_with_other_arguments(
    before: dict[str, Any], now: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """It went on without a word."""
    resumed(tmp_path, 2, before)
    model = now.setdefault("model", density())
    untouched = parameters(model)
    with pytest.raises(ValueError, match=words):
        resumed(tmp_path, 4, {**before, **now})
    assert torch.equal(parameters(model), untouched)


def test_a_run_is_resumed_with_the_same_arguments_in_other_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Numbers computed on another machine, other chunks of memory, a renamed function."""
    for k, (before, now) in enumerate(
        [
            ({"objective": sm.ScoreMatching()}, {"objective": sm.ScoreMatching(max_memory=10**6)}),
            (
                {"objective": sm.DenoisingScoreMatching(torch.tensor([1.0, 2.0]))},
                {"objective": sm.DenoisingScoreMatching([1, 2 * (1 + 1e-14)])},
            ),
            ({"optimizer": torch.optim.Adam}, {"optimizer": partial(torch.optim.Adam, fused=True)}),
            (
                {"transform": Shift(torch.tensor([3.0, 1e-17]))},
                {"transform": Shift(torch.tensor([3.0, -2e-17]))},
            ),
            ({"validation": None}, {}),
        ]
    ):
        resumed(tmp_path / str(k), 2, before)
        resumed(tmp_path / str(k), 4, now)
    assert not caplog.records
    resumed(tmp_path / "renamed", 2, {"objective": hard_loss})
    resumed(tmp_path / "renamed", 4, {"objective": other_loss})
    assert "objective is not that of the run that is resumed by its name" in caplog.text
    assert "other_loss (was hard_loss)" in caplog.text
