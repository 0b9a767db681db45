"""Checkpoints: tensors in safetensors, the rest in JSON, replaced atomically.

A folder holds ``checkpoint.json`` and the files of tensors it names, ``last-*`` and ``best-*``.
Every file is written under a temporary name, flushed to disk and renamed, the JSON file last, so
that it always names complete files. Files left behind by a killed process are removed by the next
checkpoint. Nothing is ever unpickled.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scorematching.training.config import TrainConfig
from scorematching.training.weights import split_like

INDEX = "checkpoint.json"
FORMAT = 1

Tensors = dict[str, Tensor]


class Checkpoint(NamedTuple):
    """A state of a run.

    Attributes:
        state: numbers, in JSON.
        last: all tensors of the run, by name.
        best: the weights of the best validation; None without validation.
    """

    state: dict[str, Any]
    last: Tensors
    best: Tensors | None


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in a folder atomically."""
    step, best_step = checkpoint.state["step"], checkpoint.state["best_step"]
    files = {"last": f"last-{step}.safetensors"}
    _write_tensors(folder / files["last"], checkpoint.last)
    if checkpoint.best is not None:
        files["best"] = f"best-{best_step}.safetensors"
        if files["best"] not in _named(folder):
            _write_tensors(folder / files["best"], checkpoint.best)
    index = {"format": FORMAT, "files": files, **checkpoint.state}
    write_atomically(folder / INDEX, json.dumps(index, indent=1).encode())
    _remove_all_but(folder, {*files.values()})


def load(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder, or None.

    Raises:
        ValueError: if it was written by another version of the format.
    """
    if not (folder / INDEX).exists():
        return None
    from safetensors.torch import load_file

    state = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    files, version = state.pop("files"), state.pop("format")
    if version != FORMAT:
        raise ValueError(
            f"folder must hold a checkpoint of format {FORMAT}, got format {version} in {folder}; "
            "load it with the version of the package that wrote it"
        )
    tensors = {name: load_file(folder / file) for name, file in files.items()}
    return Checkpoint(state, tensors["last"], tensors.get("best"))


def previous(folder: Path, resume: bool, config: TrainConfig) -> Checkpoint | None:
    """The checkpoint in a folder, or None; it must belong to the same run.

    It may have been written by another number of processes.

    Raises:
        ValueError: if it belongs to another run, or ``resume`` is False.
    """
    found = load(folder)
    if found is None:
        return None
    if not resume:
        raise ValueError(
            f"folder must not hold another run, got {folder} with one of "
            f"{found.state['step']} steps; pass resume=True to continue it, or another folder"
        )
    known = {field.name for field in fields(TrainConfig)}  # earlier versions had others
    before = {k: v for k, v in found.state["config"].items() if k in known}
    _check_same_config(TrainConfig(**before), config, folder)
    return found


def _check_same_config(before: TrainConfig, now: TrainConfig, folder: Path) -> None:
    free: dict[str, Any] = {"log_every": 1, "checkpoint_every": 1}
    free |= {"accumulate": 1, "parallel": "ddp"}  # the same steps, up to rounding
    if now.schedule == "constant":  # a longer run has the same first steps
        free |= {"steps": 1, "epochs": None}
    old, new = asdict(replace(before, **free)), asdict(replace(now, **free))
    changed = [f"{k}={new[k]!r} (was {old[k]!r})" for k in new if new[k] != old[k]]
    if changed:
        raise ValueError(
            f"config must be that of the run in {folder}, got {', '.join(changed)}; "
            "begin another run in another folder"
        )


def load_weights(module: nn.Module, folder: str | Path, which: str = "best") -> int:
    """Copy the weights of a checkpoint into a module; returns the step at which they were saved.

    Args:
        module: of the same architecture as the one that was trained.
        folder: the folder of the run.
        which: "best", those of the least validation loss, or "last"; averaged, if the run kept
            an average. Without validation there is only "last".

    Raises:
        FileNotFoundError: if the folder holds no checkpoint.
        ValueError: if which is unknown, or "best" where there is none.

    Example:
        >>> load_weights(model, "runs/wine", which="last")  # doctest: +SKIP
        1000
    """
    checkpoint = load(Path(folder))
    if checkpoint is None:
        raise FileNotFoundError(
            f"folder must hold a checkpoint, got {folder} without {INDEX}; "
            "pass the folder that was given to train"
        )
    if which not in ("best", "last") or (which == "best" and checkpoint.best is None):
        raise ValueError(
            f'which must be "best" (for runs with validation) or "last", got {which!r}; '
            'try which="last"'
        )
    if which == "best":
        module.load_state_dict(checkpoint.best or {})
        return int(checkpoint.state["best_step"])
    weights = {**under("module", checkpoint.last), **under("average", checkpoint.last)}
    module.load_state_dict(weights)
    return int(checkpoint.state["step"])


# Optimisers, whose state is tensors and numbers by parameter and name.


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """The tensors in an optimiser's state, as ``"<parameter>.<name>"``."""
    return {key: value for key, value in _flat(optimizer) if isinstance(value, Tensor)}


def optimizer_numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The rest of the state, under the same names."""
    return {key: value for key, value in _flat(optimizer) if not isinstance(value, Tensor)}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Tensors, numbers: Mapping[str, Any]
) -> None:
    """Set the state of an optimiser, but not its settings."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        i, name = key.split(".", 1)
        own = split_like(value, parameters[int(i)]) if isinstance(value, Tensor) else value
        state.setdefault(int(i), {})[name] = own
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _flat(optimizer: torch.optim.Optimizer) -> list[tuple[str, Any]]:
    state = optimizer.state_dict()["state"]
    return [(f"{i}.{name}", value) for i, entry in state.items() for name, value in entry.items()]


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Tensors under longer names, ``name -> prefix.name``."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Tensors whose names have a prefix, without it: the inverse of `prefixed`."""
    start = f"{prefix}."
    return {k.removeprefix(start): value for k, value in tensors.items() if k.startswith(start)}


# Files.


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    _commit(temporary, path)


def _write_tensors(path: Path, tensors: Tensors) -> None:
    from safetensors.torch import save_file

    # Copies, since the format cannot hold tensors that share memory.
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    temporary = path.with_name(path.name + ".tmp")
    save_file(plain, temporary)
    _commit(temporary, path)


def _commit(temporary: Path, path: Path) -> None:
    """Flush a file to disk, rename it, and flush the folder."""
    flush(temporary, os.O_RDWR)
    os.replace(temporary, path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        flush(path.parent, os.O_RDONLY)


def flush(path: Path, mode: int) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _named(folder: Path) -> set[str]:
    """Files of the current checkpoint."""
    index = folder / INDEX
    return set(json.loads(index.read_text("utf-8"))["files"].values()) if index.exists() else set()


def _remove_all_but(folder: Path, named: set[str]) -> None:
    for pattern in ("last-*.safetensors*", "best-*.safetensors*", "*.tmp"):
        for path in folder.glob(pattern):
            if path.name not in named:
                path.unlink(missing_ok=True)
