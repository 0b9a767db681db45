"""Full precision inside autocast, for numbers that mixed precision would spoil."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


@contextmanager
def without_autocast(x: Any) -> Iterator[None]:
    """Do without autocast inside the block, where it is on for the device of a tensor."""
    device = x.device.type if isinstance(x, Tensor) else "cpu"
    if not torch.is_autocast_enabled(device):
        yield
        return
    with torch.autocast(device, enabled=False):
        yield


def at_least_single(x: Any) -> Any:
    """A tensor of half precision in single precision, as autocast makes them; others as is."""
    return x.float() if getattr(x, "dtype", None) in _HALF else x
