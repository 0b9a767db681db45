"""Importing torchvision, and what imports it, beside a torch for other hardware."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch


def declare_operators() -> torch.library.Library | None:
    """Declare operators that torchvision needs when imported and may not have.

    Its compiled operators cannot be loaded beside a torch for other hardware. No network here
    calls them.

    Returns:
        What has to be kept: a declaration lasts as long as this object. None if there is none.
    """
    package = find_spec("torchvision")
    if package is None or package.origin is None:
        return None
    try:
        torch.ops.load_library(str(Path(package.origin).with_name("_C.so")))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None
