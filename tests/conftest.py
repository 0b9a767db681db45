"""Fixtures shared by all tests."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from scorematching.cli import main
from scorematching.datasets.files import ENVIRONMENT_VARIABLE

if instructions := os.environ.get("ATEN_CPU_CAPABILITY"):
    # Torch's compiler would take code for other instructions from the cache of other runs.
    place = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}_{instructions}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place))


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with a fixed seed; tests say ``dtype=torch.float64`` where they draw."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def same_threads() -> Iterator[None]:
    """Give back the threads that a program, as a program may, set for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def only_named_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Data files are searched only in the folders that a test names."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def small_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A csv file with normal, rounded, constant and text columns, and some rows twice."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2)) @ [[1.0, 0.5], [0.0, 2.0]]
    frame = pd.DataFrame(
        {"a": x[:, 0], "b": 10 + x[:, 1], "unit": 7.0, "<i>site</i>": ["x", "y"] * 60}
    )
    frame["tenths"] = (x.sum(1) + rng.normal(size=120)).round(1)
    path = tmp_path_factory.mktemp("tables") / "small.csv"
    pd.concat([frame, frame.head(15)]).to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def small_run(small_table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on that table, report included; do not change it."""
    out = tmp_path_factory.mktemp("runs") / "small"
    assert main(["fit", str(small_table), "--out", str(out), "--model", "mlp", "--seed", "1"]) == 0
    return out
