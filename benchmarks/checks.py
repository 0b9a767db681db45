"""What the checks of a model cost: smoothness and verification, as a share of a training run.

For each network, 1000 training steps of SSM-VR with M = 1 are timed one by one. The share of the
checks is the time of all steps beyond 1000 times the median step, which has none.

Example:
    python -m benchmarks.checks --json benchmarks/results/checks.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import scorematching as sm
from benchmarks.harness.provenance import stamp

NETWORKS = {
    "mlp2": (2, (128, 128), 128),
    "mlp100": (100, (256, 256, 256), 128),
    "mlp784": (784, (512, 512), 128),
}
"""Coordinates, hidden units and batch size."""


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Time every network, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print("network    step ms   first use s   checks, share of the run")
    rows = [measure(name, options.steps) for name in NETWORKS]
    command = "python -m benchmarks.checks"
    document = {**stamp(command), "threads": options.threads, "rows": rows}
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return document


def measure(name: str, steps: int) -> dict[str, Any]:
    """Time ``steps`` training steps of one network."""
    dim, hidden, batch = NETWORKS[name]
    generator = torch.Generator().manual_seed(0)
    model = sm.models.MLPDensity(dim, hidden, nn.Softplus, generator=generator)
    x = torch.randn(batch, dim, generator=generator)
    objective, optimizer = sm.SlicedScoreMatchingVR(), torch.optim.Adam(model.parameters(), 1e-4)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        objective(model, x, generator).mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    step = statistics.median(seconds)
    share = sum(max(0.0, s - 1.5 * step) for s in seconds) / (steps * step)
    row = {"network": name, "step_ms": 1e3 * step, "first_s": seconds[0], "share": share}
    print(f"{name:8} {1e3 * step:9.2f} {seconds[0]:13.2f} {share:26.1%}")
    return row


if __name__ == "__main__":
    main()
