"""The page docs/larger-than-memory.md, from the numbers of `benchmarks.streaming`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.pages.parts import made_with

INTRODUCTION = """# Data larger than memory

`open_stream` opens a file of points that need not fit into memory, and `train` takes it as data:

```python
import numpy as np
import pandas as pd
import torch

import scorematching as sm
from scorematching.training import TrainConfig, open_stream, train

names = ["delay", "distance", "speed"]  # a small file, to show how
flights = pd.DataFrame(np.random.default_rng(0).normal(size=(2000, 3)), columns=names)
flights.to_parquet("flights.parquet")

stream = open_stream("flights.parquet", columns=["delay", "distance"])
scale = stream.standardise()  # means and standard deviations, by one pass over the file
generator = torch.Generator().manual_seed(0)
result = train(
    sm.models.MLPDensity(dim=2, hidden=(16,), generator=generator),
    sm.SlicedScoreMatchingVR(),
    stream,
    TrainConfig(epochs=1),
    transform=lambda x, generator: scale(x),
    generator=generator,
    folder="runs/flights",
)
assert result.points > 1800
```

| file | blocks |
| --- | --- |
| `.npy`, an array `(N, *event)` of numbers | about a megabyte of rows |
| `.csv`, `.tsv`, `.txt`, numbers with a line of names or without | about a megabyte of lines |
| `.parquet`, one file or a folder of them | row groups |

Tables need pyarrow: `pip install 'scorematching[tables]'`. Words, lines with too many or too few
columns, missing values and numbers that are not finite are refused with file, row and column;
in text files before training begins, in others when their block is read.

## How well rows are mixed

In every epoch the blocks are put into a random order and read several at a time, as many as fit
into `max_memory`. The rows of such a window are shuffled among each other, while another thread
reads the next window. Every row is seen once in an epoch.

If blocks are alike, that is as good as shuffling all rows. If they differ, as in a file sorted by
date, it is not: for a number f(x) with variance w within blocks and b between their means, the mean
of f over a batch of n rows has a variance of about `w / n + b / k` for windows of k blocks, and
`(w + b) / n` if all rows were shuffled. Then write the file once in random order, or raise
`max_memory`.

The order follows from the run's generator. A run that was interrupted goes on at the exact row, to
the same digits, and reads only the windows that are left of its epoch.

## What it costs
"""


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page; returns its path."""
    page = docs / "larger-than-memory.md"
    docs.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    yield INTRODUCTION
    yield sentence(document)
    yield f"\n`{document['command']}` on {document['device']}; {made_with(document)}.\n"


def sentence(document: dict[str, Any]) -> str:
    """What was measured."""
    stream, tensor = document["stream"], document["tensor"]
    pairs = sorted(slow / fast for fast, slow in zip(stream["wall"], tensor["wall"]))
    points = 128 * document["steps"] * len(pairs)
    each = [1e6 * sum(times["cpu"]) / (points / 128) for times in (stream, tensor)]
    speed = [points / sum(times["wall"]) for times in (stream, tensor)]
    share = document["pass_seconds"] / (document["rows"] / speed[0])
    low, middle, high = (pairs[round(q * (len(pairs) - 1))] for q in (0.1, 0.5, 0.9))
    return (
        f"The network of the demo, trained on a parquet file of {document['bytes'] / 1e9:.1f} GB\n"
        f"({document['rows'] / 1e6:.1f} million rows of {document['dim']} columns), used at most "
        f"{document['peak_bytes'] / 1e6:.0f} MB of resident memory,\n"
        f"{document['imported_bytes'] / 1e6:.0f} MB of which torch and the package take before "
        "anything is opened.\n\n"
        f"On one core it saw {speed[0]:,.0f} points per second, and another process, with all rows "
        f"in memory, {speed[1]:,.0f}:\n{speed[0] / speed[1]:.0%} of the throughput. The two took "
        f"turns of {document['steps']} steps with batches of 128; in pairs of turns\nthe share was "
        f"{middle:.0%} (median of {len(pairs)}; 80% of them lie between {low:.0%} and {high:.0%}). "
        f"A step took {each[0]:,.0f} microseconds\nof CPU time from the file, reading ahead "
        f"included, and {each[1]:,.0f} from memory: {each[1] / each[0]:.0%}.\n\n"
        f"One pass over the file, for the statistics, took {document['pass_seconds']:.0f} seconds, "
        f"{share:.1%} of the time of\ntraining on as many rows.\n"
    )
