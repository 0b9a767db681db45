"""A process that times the losses of two versions of the library, on request.

Both are loaded into one process, one after the other: two processes differ by several percent in
the time of the same step, because of where their memory lies and on which core they run.

Arguments are the device, the folders of the versions, and "quick" for tiny sizes. Requests are
lines ``[version, loss, steps]`` on standard input, answers are seconds per step on standard output;
the first answer lists the losses that both versions have.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from types import ModuleType

import torch

from benchmarks.harness.timing import Step, seconds_of

LOSSES = "benchmarks.commits.losses"


def serve(device: str, sources: list[str], quick: bool) -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    versions = [dict(load(source).losses(device, quick)) for source in sources]
    print(json.dumps([name for name in versions[0] if name in versions[1]]), flush=True)
    for line in sys.stdin:
        version, name, repeats = json.loads(line)
        step = versions[version][name]
        step()  # the caches hold another loss
        print(seconds_of(partial(_repeat, step, repeats), device) / repeats, flush=True)


def load(source: str) -> ModuleType:
    """The module `losses` with the library in a folder.

    What was imported before keeps the version that it was imported with: modules refer to each
    other, and the library imports nothing of its own inside a function.
    """
    for name in list(sys.modules):
        if name.split(".")[0] == "scorematching" or name.startswith("benchmarks."):
            del sys.modules[name]
    sys.path.insert(0, source)
    try:
        return importlib.import_module(LOSSES)
    finally:
        sys.path.remove(source)


def _repeat(step: Step, repeats: int) -> None:
    for _ in range(repeats):
        step()


if __name__ == "__main__":
    serve(device=sys.argv[1], sources=sys.argv[2:4], quick="quick" in sys.argv[4:])
