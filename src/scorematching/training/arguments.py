"""Checks of the arguments of `train`."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_flag, check_type
from scorematching.training.callbacks import Callback
from scorematching.training.config import TrainConfig


def check_arguments(
    config: Any,
    validation: Any,
    validation_objective: Any,
    callbacks: Any,
    generator: torch.Generator | None,
    folder: str | Path | None,
    resume: bool,
    progress: bool,
) -> None:
    """Require that arguments are what they must be, and fit each other."""
    check_type(config, TrainConfig, "config must be a TrainConfig", "try TrainConfig(steps=1000)")
    check_flag(resume, "resume", "True continues the run in the folder")
    check_flag(progress, "progress", "True shows a bar or lines")
    if folder is None and resume:
        raise ValueError(
            "folder must be given to resume a run, got None; pass the folder of the run"
        )
    if folder is not None and generator is None:
        raise ValueError(
            "generator must be given along with a folder, got None; a run can only be resumed to "
            "the same digits with a generator of its own"
        )
    if validation_objective is not None and not isinstance(validation, Tensor):
        raise ValueError(
            "validation_objective must come with held-out points, got "
            f"validation={type(validation).__name__}; a function needs no objective"
        )
    if validation is None and config.patience is not None:
        raise ValueError(
            f"patience must come with a validation, got {config.patience} without; "
            "pass validation=, held-out points for example"
        )
    for callback in callbacks:
        advice = "derive its class from scorematching.training.Callback"
        check_type(callback, Callback, "callbacks must be Callback objects", advice)
