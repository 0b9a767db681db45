"""Fit a density in one process or in many, to the same numbers.

    python examples/many_processes.py
    torchrun --nproc-per-node 2 examples/many_processes.py --parallel fsdp
    accelerate launch --num_processes 2 examples/many_processes.py

The folder of the run holds checkpoints and ``log.jsonl``. Give the command again to continue an
interrupted run, with another number of processes if you like.
"""

import argparse
from pathlib import Path

import torch

import scorematching as sm
from scorematching.training import TrainConfig, TrainResult, train


def main() -> TrainResult:
    """Fit a network to a mixture of normal distributions, with early stopping."""
    options = argparse.ArgumentParser()
    options.add_argument("--output", type=Path, default=Path("runs/many-processes"))
    options.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    options.add_argument("--steps", type=int, default=200)
    chosen = options.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)  # the same seed in every process
    points = sm.datasets.load("mixture", num=2000, dtype=torch.float32, generator=generator).x
    density = sm.models.MLPDensity(dim=2, hidden=(64, 64), generator=generator).to(device)
    config = TrainConfig(
        steps=chosen.steps, batch_size=128, parallel=chosen.parallel, patience=5, min_improvement=1
    )
    return train(
        density,
        sm.SlicedScoreMatchingVR(),
        points[200:],
        config,
        validation=points[:200],
        generator=torch.Generator(device).manual_seed(1),
        folder=chosen.output,
        resume=True,
    )


if __name__ == "__main__":
    result = main()
    print(f"validation loss {result.best_loss:.5f} after {result.steps} steps")
