"""Save a model or an estimator to a folder, and load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from scorematching._checks import check_flag
from scorematching.distributions import Distribution
from scorematching.errors import SavedModelError, ScoreMatchingError
from scorematching.kernels import KernelScore
from scorematching.saving.card import card, versions
from scorematching.saving.estimators import decode_estimator, encode_estimator, is_estimator
from scorematching.saving.folder import Contents, check_target, read, write
from scorematching.saving.values import Decoder, Encoder

_MISFITS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of constructors that are given arguments of another version."""


def save(model: Any, folder: str | Path, *, overwrite: bool = False, notes: str = "") -> Path:
    """Save a model to a folder, from which `load` makes it again to the same digits.

    The folder appears complete or not at all. It holds ``model.safetensors``, ``config.json`` and
    ``README.md``, a model card.

    Args:
        model: an estimator, a model, a distribution or a kernel estimate of the package, or a
            stack of models and of layers of torch.nn.
        folder: must not exist yet.
        overwrite: replace a saved model in that folder.
        notes: text for the model card, such as where the data come from.

    Returns:
        The folder.

    Raises:
        FileExistsError: if the folder exists, and is no saved model or ``overwrite`` is False.
        TypeError: if the model has parts of other classes, whose code would not be saved.

    Example:
        >>> import tempfile
        >>> from scorematching.models import MLPDensity
        >>> model, x = MLPDensity(dim=2, hidden=(8,)), torch.randn(5, 2)
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder = save(model, Path(parent) / "model")
        ...     torch.equal(load(folder)(x), model(x))
        True
    """
    check_flag(overwrite, "overwrite", "True replaces the model in the folder")
    if not isinstance(notes, str):
        raise TypeError(
            f"notes must be a text, got {type(notes).__name__}; it goes to the model card as it is"
        )
    target = Path(folder)
    check_target(target, overwrite)
    encoder = Encoder()
    about = _encode(model, encoder)
    used = versions()
    contents = Contents(
        {"versions": used, "model": about}, encoder.tensors, card(model, used, notes)
    )
    write(target, contents, overwrite)
    return target


def load(folder: str | Path, *, device: str | torch.device = "cpu") -> Any:
    """Load what `save` has written; no code of the folder is run.

    Args:
        folder: that was given to `save`.
        device: where the tensors live; the digits are those of the same device.

    Returns:
        An object of the class that was saved.

    Raises:
        FileNotFoundError: if there is no such folder.
        SavedModelError: if it is no saved model, or a file is missing, truncated or changed.

    Example:
        >>> load("runs/wine/model")  # doctest: +SKIP
        MLPDensity(...)
    """
    torch.empty(0, device=device)  # torch's own message, if there is no such device
    config, tensors = read(Path(folder))
    try:
        return _decode(config["model"], Decoder(tensors, device))
    except (ScoreMatchingError, ImportError):
        raise
    except _MISFITS as error:
        raise SavedModelError(
            f"{folder} must describe a model of this version of the package, got "
            f"{type(error).__name__}: {error}; load it with the versions in its config.json"
        ) from error


def _encode(model: Any, encoder: Encoder) -> Any:
    """A model as JSON, or a refusal."""
    if isinstance(model, nn.Module):
        return encoder.module(model, "")
    if is_estimator(model):
        return encode_estimator(model, encoder)
    if isinstance(model, (Distribution, KernelScore)):
        return encoder.encode(model, "")
    raise TypeError(
        "model must be a model, an estimator, a distribution or a kernel estimate of the package, "
        f"got {type(model).__name__}, which has code or parts that a folder cannot hold; save the "
        "numbers you need from it"
    )


def _decode(about: Any, decoder: Decoder) -> Any:
    """The object of what `_encode` returned."""
    if about["kind"] == "estimator":
        return decode_estimator(about, decoder)
    return decoder.decode(about)
