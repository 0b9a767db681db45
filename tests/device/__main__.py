"""Compare all cases on the emulated device with the CPU.

    python -m tests.device LIBRARY

prints, for each case, null or what went wrong on the device: an error, or other results.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten

from tests.device import emulated
from tests.device.cases import CASES, PLANTED, Case


def compare(function: Case, device: torch.device) -> str | None:
    """What differs on a device, or None."""
    try:
        here, there = (tree_flatten(function(d))[0] for d in (torch.device("cpu"), device))
        for a, b in zip(here, there, strict=True):
            if isinstance(a, Tensor):
                assert b.device == device, f"a result is on {b.device}"
                assert_close(b.cpu(), a, rtol=1e-6, atol=1e-8)
            elif isinstance(a, float):
                assert_close(b, a, rtol=1e-6, atol=1e-8)
    except Exception:  # whatever the library may do wrong is a result of the case
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    device = emulated.load(Path(sys.argv[1]))
    found = {case.__name__: compare(case, device) for case in PLANTED}
    found |= {name: compare(case, device) for name, case in CASES.items()}
    print(json.dumps(found), flush=True)
    os._exit(0)  # torch does not join the thread of such a device's backward passes
