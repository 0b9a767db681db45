"""Checkpoints: tensors in safetensors, the rest in JSON, replaced atomically.

A folder holds ``checkpoint.json`` and the files of tensors it names, ``last-*`` and ``best-*``, and
the checkpoint before that, ``previous.json``. Every file is written under a temporary name, flushed
to disk and renamed, the JSON file last, so that it always names complete files. It also holds their
checksums and its own, which are compared on loading; where they differ, a run continues from the
checkpoint before. Files left behind by a killed process are removed by the next checkpoint. Nothing
is ever unpickled.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scorematching._checks import check_choice, check_type
from scorematching._files import write_atomically, writing
from scorematching.errors import CheckpointError
from scorematching.training.checkpoint_files import (
    INDEX,
    PREVIOUS,
    Tensors,
    named_files,
    read_index,
    read_tensors,
    remove_others,
    write_index,
    write_tensors,
)
from scorematching.training.config import TrainConfig
from scorematching.training.weights import assign, split_like

logger = logging.getLogger("scorematching.training")


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
    """Replace the checkpoint in a folder atomically; the one before it is kept.

    Raises:
        OSError: if it cannot be written; the one in the folder is as it was.
    """
    step, best_step = checkpoint.state["step"], checkpoint.state["best_step"]
    files = {"last": f"last-{step}.safetensors"}
    with writing(folder / INDEX, "the checkpoint before it is complete; free space and resume"):
        write_tensors(folder / files["last"], checkpoint.last)
        if checkpoint.best is not None:
            files["best"] = f"best-{best_step}.safetensors"
            if files["best"] not in named_files(folder):
                write_tensors(folder / files["best"], checkpoint.best)
        write_index(folder, files, checkpoint.state)
        remove_others(folder)


def load(folder: Path, index: str = INDEX) -> Checkpoint | None:
    """The checkpoint in a folder, or None.

    Raises:
        CheckpointError: if a file is missing or damaged.
        ValueError: if it was written by another version of the format.
    """
    path = folder / index
    if not path.exists():
        return None
    found = read_index(path)
    if "checksum" not in found:
        logger.warning("%s has no checksums, as in earlier versions: it is not verified", path)
    last, best = (read_tensors(folder, found, name) for name in ("last", "best"))
    ours = ("format", "files", "checksums", "checksum")
    state = {key: value for key, value in found.items() if key not in ours}
    return Checkpoint(state, last or {}, best)


def load_or_previous(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; if it is damaged, the one before it, which takes its place.

    Raises:
        CheckpointError: if both are damaged, or there is none before.
    """
    try:
        found = load(folder)
        if found is not None or not (folder / PREVIOUS).exists():
            return found
        damage = f"{folder / INDEX} is missing"
    except CheckpointError as error:
        damage = str(error)
    try:
        before = load(folder, PREVIOUS)
    except CheckpointError as error:
        damage, before = f"{damage}; {error}", None
    if before is None:
        raise CheckpointError(
            f"{damage}; no earlier checkpoint is left, so restore the folder from a copy, or "
            "remove it and begin again"
        )
    logger.warning(
        "%s; continuing from the checkpoint before it, of step %d", damage, before.state["step"]
    )
    write_atomically(folder / INDEX, (folder / PREVIOUS).read_bytes())
    return before


def previous(folder: Path, resume: bool, config: TrainConfig) -> Checkpoint | None:
    """The checkpoint in a folder, or None; it must belong to the same run.

    It may have been written by another number of processes.

    Raises:
        ValueError: if it belongs to another run, or ``resume`` is False.
    """
    found = load_or_previous(folder)
    if found is None:
        return None
    with naming_values(folder):
        if not resume:
            raise ValueError(
                f"folder must not hold another run, got {folder} with one of "
                f"{found.state['step']} steps; pass resume=True to continue it, or another folder"
            )
        known = {field.name for field in fields(TrainConfig)}  # earlier versions had others
        before = {k: v for k, v in found.state["config"].items() if k in known}
        _check_same_config(TrainConfig(**before), config, folder)
    return found


@contextmanager
def naming_values(folder: Path | None) -> Iterator[None]:
    """Name the folder, if its checkpoint lacks values that a run needs inside the block.

    Raises:
        CheckpointError: instead of the error of Python.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{folder} must hold the checkpoint of a run, got one without some of its values "
            f"({error!r}); restore the folder from a copy"
        ) from error


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
            an average. Without validation there is only "last". "previous" are the last weights of
            the checkpoint before, for folders whose files were damaged.

    Raises:
        FileNotFoundError: if the folder holds no checkpoint.
        CheckpointError: if its files are missing, truncated or changed.
        ValueError: if which is unknown, or "best" where there is none.

    Example:
        >>> load_weights(model, "runs/wine", which="last")  # doctest: +SKIP
        1000
    """
    check_type(module, nn.Module, "module must be an nn.Module", "it comes before the folder")
    check_type(folder, str | Path, "folder must be a path", "it comes after the module")
    check_choice(which, "which", ("best", "last", "previous"), '"last" suits runs of any kind')
    path = Path(folder) / (PREVIOUS if which == "previous" else INDEX)
    if not path.exists():
        raise FileNotFoundError(
            f"folder must hold a checkpoint, got {folder} without {path.name}; "
            "pass the folder that was given to train"
        )
    try:
        index = read_index(path)
        tensors = read_tensors(path.parent, index, "best" if which == "best" else "last")
    except CheckpointError as error:
        advice = 'try which="previous", or restore the folder from a copy'
        raise CheckpointError(f"{error}; {advice}") from error
    if tensors is None:
        raise ValueError(
            'which must be "last" for a run without validation, got "best"; try which="last"'
        )
    if which == "best":
        module.load_state_dict(tensors)
        return int(index["best_step"])
    module.load_state_dict(under("module", tensors))
    average, own = under("average", tensors), dict(module.named_parameters())
    # Not by load_state_dict: a shared parameter has an average under one of its names only.
    assign([own[name] for name in average], list(average.values()))
    return int(index["step"])


# Optimisers, whose state is tensors and numbers by parameter and name.


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """The tensors in an optimiser's state, and the rest, both as ``"<parameter>.<name>"``."""
    state = optimizer.state_dict()["state"]
    flat = {f"{i}.{name}": value for i, entry in state.items() for name, value in entry.items()}
    tensors = {key: value for key, value in flat.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in flat.items() if key not in tensors}


def require_class(optimizer: torch.optim.Optimizer, name: str | None) -> None:
    """Refuse the state of an optimiser of another class; None if its class is not known."""
    own = type(optimizer).__name__
    if name not in (None, own):
        raise ValueError(
            f"optimizer must be {name} to resume this run, got {own}, whose state is another; give "
            "the same optimiser, or another folder to begin anew"
        )


def require_parameters(names: list[str], before: list[str] | None) -> None:
    """Refuse the state of an optimiser over other parameters, or in another order.

    Args:
        names: of the optimiser's parameters, in its order.
        before: those in the checkpoint; None if not known.
    """
    if before is None or names == before:
        return
    place = next((i for i, pair in enumerate(zip(names, before)) if pair[0] != pair[1]), None)
    got = f"{len(names)} of them instead of {len(before)}"
    if place is not None:
        got = f"{names[place]} in place {place} instead of {before[place]}"
    raise ValueError(
        f"the optimiser must hold the parameters of the run that is resumed, in their order, got "
        f"{got}; freeze the same parameters and form the same groups, or begin in another folder"
    )


def require_dtypes(own: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    """Refuse weights of another precision than those of a module, which would round them."""
    for name, value in before.items():
        if name in own and own[name].dtype != value.dtype:
            raise ValueError(
                f"model must have the dtype of the run that is resumed, got {own[name].dtype} for "
                f"{name} (was {value.dtype}); convert it, as by model.double(), or begin another "
                "run in another folder"
            )


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


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Tensors under longer names, ``name -> prefix.name``."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Tensors whose names have a prefix, without it: the inverse of `prefixed`."""
    start = f"{prefix}."
    return {k.removeprefix(start): value for k, value in tensors.items() if k.startswith(start)}
