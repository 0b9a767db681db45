"""Red wine in Python: what ``scorematching fit redwine`` does, in a few lines.

A density is fitted to most wines, compared with a Gaussian on the others, saved, and loaded again
to find unusual wines and to draw new ones.

    python examples/redwine.py --output demo-python
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import scorematching as sm
from scorematching.evaluation import paired_difference
from scorematching.runs.split import held_out_rows


def fit_wines(output: Path, max_seconds: float | None = None, seed: int = 0) -> None:
    """Fit, compare, save, load, use.

    Args:
        output: folder of the saved model, which must not exist.
        max_seconds: for each of the two fits; None has no limit.
        seed: of everything random.
    """
    data = sm.datasets.load("redwine")
    wines = data.x.numpy()
    held = held_out_rows(wines, seed)  # a fifth; copies of a wine stay together
    train, test = np.delete(wines, held, axis=0), np.unique(wines[held], axis=0)

    options = {"dequantise": True, "random_state": seed, "max_seconds": max_seconds}
    density = sm.DensityEstimator(**options).fit(train)
    gaussian = sm.DensityEstimator("none", base="gaussian", **options).fit(train)
    values = [torch.as_tensor(model.score_samples(test)) for model in (density, gaussian)]
    print(f"gain in log-likelihood over a Gaussian: {paired_difference(*values)} per wine")

    model = sm.load(sm.save(density, output))  # a folder of safetensors and JSON
    unusual = int(model.score_samples(wines).argmin())
    pull = np.abs(model.grad_log_density(wines[[unusual]])[0] * wines.std(0))
    print(f"most unusual wine: row {unusual + 1}, by its {data.columns[pull.argmax()]}")
    drawn = dict(zip(data.columns, model.sample(1, random_state=seed)[0]))
    print("a new wine:", ", ".join(f"{name} {value:.3g}" for name, value in drawn.items()))


def main(arguments: list[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-python"), help="folder to write")
    parser.add_argument("--max-seconds", type=float, help="for each fit")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    options = parser.parse_args(arguments)
    fit_wines(options.output, options.max_seconds, options.seed)


if __name__ == "__main__":
    main()
