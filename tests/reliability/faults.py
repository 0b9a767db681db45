"""Faults of the disk, the clock, the data and the memory, in this process."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching.errors import CheckpointError, DivergedError
from scorematching.training import TrainConfig, load_weights, read_log, train
from tests.reliability.counts import Count
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


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def begun(folder: Path, steps: int = 18) -> Path:
    """A run that was interrupted."""
    with contextlib.suppress(Interrupted):
        run_everything(folder, transform=interrupted(steps))
    return folder


# Damaged files.


def tampered(folder: Path, count: int, seed: int) -> Count:
    """Random damage to a random file of a checkpoint."""
    found = Count(
        "a file of a checkpoint: bits flipped, cut short, overwritten or removed",
        "named; the run goes on from the checkpoint before, to the same digits",
    )
    chance, whole = random.Random(seed), digits(run_everything(None))
    sound = begun(folder / "sound")
    names = ["last-15.safetensors", "best-12.safetensors", "checkpoint.json"]
    for trial in range(count):
        copy = Path(shutil.copytree(sound, folder / f"damaged-{trial}"))
        path = copy / chance.choice(names)
        damage(path, chance)

        def act(copy: Path = copy) -> None:
            with contextlib.suppress(FileNotFoundError), pytest.raises(CheckpointError):
                for which in ("last", "best"):
                    load_weights(density(), copy, which)
            assert digits(run_everything(copy, resume=True)) == whole

        found.attempt(act)
        shutil.rmtree(copy)
    return found


def damage(path: Path, chance: random.Random) -> None:
    """Change a file so that it means something else."""
    before = path.read_bytes()
    while path.exists() and _meaning(path) == _meaning(path, before):
        _damage(path, before, chance)


def _meaning(path: Path, content: bytes | None = None) -> object:
    content = path.read_bytes() if content is None else content
    try:
        return json.loads(content) if path.suffix == ".json" else content
    except ValueError:
        return content


def _damage(path: Path, before: bytes, chance: random.Random) -> None:
    content = bytearray(before)
    kind = chance.choice(["flip", "cut", "overwrite", "remove", "append"])
    if kind == "remove":
        path.unlink()
        return
    place = chance.randrange(len(content))
    if kind == "flip":
        content[place] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        content = content[:place]
    elif kind == "overwrite":
        content[place : place + 64] = chance.randbytes(64)
    else:
        content += chance.randbytes(1 + chance.randrange(99))
    path.write_bytes(content)


# Disks.


@contextlib.contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file can grow beyond a limit; writing more is an error, not a signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def full_after(calls: int) -> Iterator[None]:
    """Every write to a file after so many raises the error of a full disk, as a disk does."""
    left, real = calls, Path.write_bytes

    def write(path: Path, content: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            real(path, bytes(content)[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", write)
        yield


def full_disk(folder: Path, count: int) -> Count:
    """Limits from nothing to nearly enough, for files, and writes that fail after some."""
    found = Count(
        "a disk that is full from the n-th write on, or for files beyond a size",
        "OSError that names the file; the checkpoint before is whole; the run goes on afterwards",
    )
    whole = digits(run_everything(None))
    for trial in range(count):
        copy = begun(folder / f"full-{trial}")
        before = read_step(copy)
        fault = small_files(400 * (1 + trial)) if trial % 2 else full_after(trial // 2)

        def act(copy: Path = copy, before: int = before, fault: Any = fault) -> None:
            with pytest.raises(OSError, match=r"could not be written|No space|too large"), fault:
                run_everything(copy, resume=True)
            assert read_step(copy) >= before
            assert not list(copy.glob("*.tmp"))
            assert digits(run_everything(copy, resume=True)) == whole

        found.attempt(act)
        shutil.rmtree(copy)
    return found


def read_step(folder: Path) -> int:
    return load_weights(density(), folder, "last")


def small_device(folder: Path) -> Count:
    """A file system of half a megabyte, where this process may mount one."""
    found = Count(
        "a file system that fills up while training (tmpfs of 64 kB)",
        "OSError that names the file; the checkpoint before is whole",
    )
    place = folder / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        return found
    try:

        def act() -> None:
            with pytest.raises(OSError, match="could not be written"):
                run_everything(place / "run")
            if (place / "run" / "checkpoint.json").exists():
                assert read_step(place / "run") > 0

        found.attempt(act)
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
    return found


def read_only(folder: Path) -> Count:
    """Places where nobody can write; permissions alone do not stop the superuser."""
    found = Count(
        "a folder where nothing can be written: /proc, /sys, below a file, a read-only mount",
        "an error that names it, before the first step",
    )
    (folder / "file").touch()
    mounted = folder / "read-only"
    mounted.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(mounted)]
    is_mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    places = [Path("/proc/run"), Path("/sys/run"), folder / "file" / "run"]
    try:
        for place in [*places, *([mounted / "run"] if is_mounted else [])]:

            def act(place: Path = place) -> None:
                with pytest.raises(OSError, match=str(place)):
                    run_everything(place, transform=interrupted(0))

            found.attempt(act)
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(mounted)], capture_output=True, check=False)
    return found


# The clock, data, memory.


def clock_jumps(folder: Path) -> Count:
    found = Count(
        "a clock that jumps years ahead and back in every step",
        "the same digits; times of the run stay in order",
    )
    whole, jump = digits(run_everything(None)), [0.0]

    def jumping(batch: Tensor, generator: torch.Generator) -> Tensor:
        jump[0] = -jump[0] + (1e9 if jump[0] <= 0 else -1e9)
        return noisy(batch, generator)

    def act() -> None:
        real = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: real() + jump[0])
            assert digits(run_everything(folder / "clock", transform=jumping)) == whole
        log = read_log(folder / "clock" / "log.jsonl")
        seconds = [event["seconds"] for event in log if event["event"] == "record"]
        assert seconds == sorted(seconds) and seconds[0] >= 0 and seconds[-1] < 1000

    found.attempt(act)
    return found


def bad_batches(folder: Path, count: int) -> Count:
    """NaN or infinity in one batch."""
    found = Count(
        "a batch with NaN or infinity in it",
        "an error that says so before the step is taken; the checkpoint before goes on",
    )
    whole = digits(run_everything(None))
    for trial in range(count):
        step = 1 + trial * 36 // max(1, count - 1)

        def act(trial: int = trial, step: int = step) -> None:
            place = folder / f"nan-{trial}"
            bad = poisoned(step, float("nan") if trial % 2 else float("inf"))
            with pytest.raises((DivergedError, ValueError), match="finite"):
                run_everything(place, transform=bad)
            assert digits(run_everything(place, resume=True)) == whole

        found.attempt(act)
    return found


def poisoned(step: int, value: float) -> Callable[..., Tensor]:
    left = step

    def transform(batch: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal left
        batch = noisy(batch, generator)
        left -= len(batch) <= 8
        if left == 0 and len(batch) <= 8:
            left -= 1
            batch[3, 1] = value
        return batch

    return transform


def out_of_memory() -> Count:
    """A validation that is too large is halved; a step that is too large is explained."""
    found = Count(
        "memory that runs out: in a validation, in a step (GPU and CPU errors)",
        "smaller parts until it fits, or MemoryError that says what to change",
    )
    for error in (torch.OutOfMemoryError("CUDA out of memory. Tried"), MemoryError()):
        for most in (1, 7, 20):
            found.attempt(lambda error=error, most=most: halved(error, most))
        found.attempt(lambda error=error: explained(error))
    cpu = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
    found.attempt(lambda: explained(cpu))
    found.attempt(lambda: halved(cpu, 3))
    found.attempt(really_out_of_memory)
    return found


def halved(error: BaseException, most: int) -> None:
    sizes: list[int] = []
    objective = sm.ScoreMatching()

    def limited(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        sizes.append(len(x))
        if len(x) > most:
            raise error
        return objective(model, x, generator=generator)

    model, config = density(), TrainConfig(steps=4, batch_size=8, validate_every=2)
    held_out = points(30, seed=3)
    result = train(
        model,
        objective,
        points(),
        config,
        validation=held_out,
        validation_objective=limited,
        generator=seeded(0),
    )
    expected = objective(model, held_out).mean().item()  # the weights are the best ones
    assert abs(result.best_loss - expected) < 1e-12
    assert max(sizes) == 30 and sum(size > most for size in sizes) <= 5


def explained(error: BaseException) -> None:
    def full(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        raise error

    config = TrainConfig(steps=4, batch_size=8)
    with pytest.raises(MemoryError, match=r"a step on 8 points .* smaller batch_size"):
        train(density(), full, points(), config, generator=seeded(0))


def really_out_of_memory() -> None:
    """An allocation of an exabyte, which no machine has."""

    def full(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        return torch.empty(1 << 60) + parameters(model).sum()

    config = TrainConfig(steps=4, batch_size=8)
    with pytest.raises(MemoryError, match="smaller batch_size"):
        train(density(), full, points(), config, generator=seeded(0))
