"""The benchmark of data larger than memory, in small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import streaming
from scorematching.training import open_stream


@pytest.mark.slow
def test_it_measures_and_writes_a_page(tmp_path: Path) -> None:
    page = streaming.measure(smoke=True, output=tmp_path / "streaming.json", docs=tmp_path)
    found = json.loads((tmp_path / "streaming.json").read_text())
    assert found["bytes"] >= 2e7 and found["rows"] % streaming.GROUP == 0
    for part in ("stream", "tensor"):
        times = found[part]
        assert len(times["wall"]) == len(times["cpu"]) == 3
        assert all(0 < cpu <= 1.1 * wall + 0.1 for cpu, wall in zip(times["cpu"], times["wall"]))
    assert found["imported_bytes"] <= found["peak_bytes"] < 1e9
    assert page is not None and "median of 3" in page.read_text()


def test_both_contenders_have_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    written = streaming.write_table(path, 1e-6)
    stream = open_stream(path)
    rows = streaming.in_memory(stream)
    assert len(rows) == written["rows"] == len(stream)
    moments = stream.moments()
    np.testing.assert_allclose(rows.double().mean(0), moments.mean, atol=1e-7)
