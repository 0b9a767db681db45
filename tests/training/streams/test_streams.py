"""Files in blocks give every row once, in an order that a seed fixes, from any batch on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scorematching as sm
from scorematching.training import Stream, TrainConfig, open_stream, train
from scorematching.training.streams import source, stream
from scorematching.training.streams.order import windows
from tests.training.problems import Interrupted as Stopped
from tests.training.problems import density, digits, interrupted, parameters, points, seeded
from tests.training.streams.files import WRITERS


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows or so, and a few of them in a window."""
    for module in ("npy", "csv"):
        name = f"scorematching.training.streams.{module}.BLOCK_BYTES"
        monkeypatch.setattr(name, 7 * 24)
    monkeypatch.setattr(stream, "_blocks_per_window", lambda *given: 3)


def numbers(count: int = 60, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(count, 3)) * [1, 10, 0.1] + [0, 5, 3]
    x[:, 0] = np.arange(count)  # which row it is
    return x


def opened(kind: str, folder: Path, x: np.ndarray) -> Stream:
    return open_stream(WRITERS[kind](folder / "x", x), dtype=torch.float64)


def rows(batches: list[Tensor]) -> list[int]:
    return [int(i) for batch in batches for i in batch[:, 0]]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("size", [1, 8, 50])
def test_every_row_is_seen_once(kind: str, size: int, tmp_path: Path) -> None:
    x = numbers()
    data = opened(kind, tmp_path, x)
    found = list(data.batches(size, seed=3, drop_last=False))
    assert [len(batch) for batch in found[:-1]] == [size] * (len(found) - 1)
    seen = rows(found)
    assert sorted(seen) == list(range(60)) and seen != sorted(seen)
    assert torch.equal(torch.cat(found), torch.from_numpy(x[seen]))
    dropped = list(data.batches(size, seed=3))
    assert len(dropped) == 60 // size
    assert all(torch.equal(a, b) for a, b in zip(dropped, found))


@pytest.mark.parametrize("kind", WRITERS)
def test_it_begins_anywhere(kind: str, tmp_path: Path) -> None:
    data = opened(kind, tmp_path, numbers())
    whole = list(data.batches(4, seed=1, drop_last=False))
    for start in range(len(whole) + 2):
        rest = list(data.batches(4, seed=1, start=start, drop_last=False))
        assert len(rest) == max(0, len(whole) - start)
        assert all(torch.equal(a, b) for a, b in zip(rest, whole[start:]))


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    per_window=st.integers(1, 5),
    size=st.integers(1, 20),
    start=st.integers(0, 30),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**62),
)
@settings(max_examples=150, deadline=None)
def test_any_blocks_and_batches(
    sizes: list[int], per_window: int, size: int, start: int, drop_last: bool, seed: int
) -> None:
    """Against the obvious: put the rows of all windows in one list and cut it."""

    class Counting(source.Source):
        path, event, row_bytes = Path("numbers"), (1,), 8

        def __init__(self) -> None:
            self.sizes, self.asked = sizes, list[int]()

        def read(self, block: int) -> Tensor:
            self.asked.append(block)
            first = sum(sizes[:block])
            return torch.arange(first, first + sizes[block], dtype=torch.float64)[:, None]

    counting = Counting()
    data = Stream(counting, torch.float64, 1 << 30)
    data.blocks_per_window = per_window
    expected: list[int] = []
    for window in windows(sizes, per_window, seed):
        inside = [sum(sizes[:b]) + i for b in window.blocks for i in range(sizes[b])]
        shuffled = dict(zip(window.places().tolist(), inside))
        expected += [shuffled[place] for place in range(window.rows)]
    assert sorted(expected) == list(range(sum(sizes)))
    cut = [expected[i : i + size] for i in range(0, len(expected), size)]
    cut = [batch for batch in cut if len(batch) == size or not drop_last][start:]
    got = [batch.flatten().int().tolist() for batch in data.batches(size, seed, start, drop_last)]
    assert got == cut
    assert len(counting.asked) == len(set(counting.asked))  # no block is read twice


def test_a_later_start_reads_only_what_it_needs(tmp_path: Path) -> None:
    data = opened("npy", tmp_path, numbers())
    asked: list[int] = []
    read = data.source.read
    data.source.read = lambda block: asked.append(block) or read(block)  # type: ignore[method-assign]
    next(iter(data.batches(4, seed=0, start=14)))
    assert 0 < len(asked) <= 3


def test_the_stated_mixing() -> None:
    """Variance of a batch mean in a sorted file: w / n + b / k, here with w = 0."""

    class Sorted(source.Source):
        path, event, row_bytes = Path("sorted"), (1,), 8
        sizes = (50,) * 40

        def read(self, block: int) -> Tensor:
            return torch.full((50, 1), float(block), dtype=torch.float64)

    data = Stream(Sorted(), torch.float64, 1 << 30)
    between = torch.arange(40.0).var(correction=0).item()
    for k in (2, 10):
        data.blocks_per_window = k
        means = torch.tensor(
            [next(data.batches(50 * k, seed)).mean().item() for seed in range(400)]
        )
        # A whole window: the mean of k of 40 blocks without replacement.
        expected = between / k * (40 - k) / 39
        # 400 means of a symmetric law: the variance's standard error is below 8%; four of them.
        assert abs(means.var().item() / expected - 1) < 0.32


@pytest.mark.parametrize("kind", WRITERS)
def test_moments_are_those_of_all_rows(kind: str, tmp_path: Path) -> None:
    x = numbers(61)
    x[:, 1] += 1e6  # where a sum of squares loses its digits
    moments = opened(kind, tmp_path, x).moments()
    assert moments.count == 61
    np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-13)
    np.testing.assert_allclose(moments.std, x.std(0), rtol=1e-9)


def test_standardised_rows(tmp_path: Path) -> None:
    x = numbers()
    data = opened("csv", tmp_path, x)
    z = data.standardise()(torch.from_numpy(x))
    assert torch.allclose(z.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(z.std(0, correction=0), torch.ones(3, dtype=torch.float64))
    x[:, 1] = 4.0
    with pytest.raises(ValueError, match="constant column 'x1'"):
        opened("parquet", tmp_path, x).standardise()


@pytest.mark.parametrize("kind", ["parquet", "folder", "csv"])
def test_columns(kind: str, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path / "x", numbers())
    data = open_stream(path, columns=["x2", "x0"], dtype=torch.float64)
    assert data.columns == ("x2", "x0") and data.event == (2,)
    batch = torch.cat(list(data.batches(10, seed=0)))
    assert torch.equal(batch[:, 0], torch.from_numpy(numbers()[:, 2])[batch[:, 1].long()])
    with pytest.raises(ValueError, match=r"columns must be .* x0, x1, x2"):
        open_stream(path, columns=["x3"])


def test_images_and_bytes(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    np.save(tmp_path / "x.npy", x)
    data = open_stream(tmp_path / "x.npy")
    assert data.event == (2, 3) and data.dtype == torch.float32
    found = torch.cat(list(data.batches(1, seed=0)))
    assert sorted(found.flatten().int().tolist()) == list(range(24))
    np.save(tmp_path / "y.npy", x.astype(">f8"))  # the other order of bytes
    found = torch.cat(list(open_stream(tmp_path / "y.npy").batches(1, seed=0)))
    assert sorted(found.flatten().int().tolist()) == list(range(24))


# Training.


@pytest.mark.parametrize("kind", WRITERS)
def test_training_is_resumed_at_the_exact_row(kind: str, tmp_path: Path) -> None:
    """In the middle of an epoch, in another process's stead, to the same digits."""
    x = points(40).numpy()
    path = WRITERS[kind](tmp_path / "x", x)
    config = TrainConfig(steps=17, batch_size=6, checkpoint_every=5, log_every=3)

    def run(folder: Path | None, transform: object = None, resume: bool = False) -> object:
        model, g = density(), seeded(4)
        data = open_stream(path, dtype=torch.float64)
        result = train(
            model,
            sm.SlicedScoreMatchingVR(),
            data,
            config,
            generator=g,
            folder=folder,
            resume=resume,
            transform=transform,  # type: ignore[arg-type]
        )
        return digits((model, result))

    keep = lambda batch, generator: batch  # noqa: E731
    whole = run(None, keep)
    with pytest.raises(Stopped):
        run(tmp_path / "run", interrupted(13, keep))
    assert run(tmp_path / "run", keep, resume=True) == whole


def test_epochs_are_counted_and_differ(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(batch: Tensor, generator: torch.Generator) -> Tensor:
        seen.extend(batch[:, 0].int().tolist())
        return batch * 1e-3

    model = sm.models.MLPDensity(dim=3, hidden=(4,)).double()
    config = TrainConfig(epochs=2, batch_size=20)
    data = opened("parquet", tmp_path, numbers())
    assert train(model, sm.ScoreMatching(), data, config, transform=note).steps == 6
    assert sorted(seen[:60]) == sorted(seen[60:]) == list(range(60)) and seen[:60] != seen[60:]
    assert parameters(model).isfinite().all()


def test_too_few_rows(tmp_path: Path) -> None:
    config = TrainConfig(steps=1, batch_size=61)
    model = sm.models.MLPDensity(dim=3).double()
    with pytest.raises(ValueError, match="batch_size must be at most the number of points, 60"):
        train(model, sm.ScoreMatching(), opened("npy", tmp_path, numbers()), config)


def test_columns_that_single_precision_rounds_are_not_standardised(tmp_path: Path) -> None:
    """Times in seconds since 1970: all of them were zero after scaling."""
    x = numbers() * [1.0, 1.0, 10.0] + [0.0, 1.7e9, 0.0]
    path = WRITERS["parquet"](tmp_path / "x", x)
    with pytest.raises(ValueError, match=r"got torch\.float32 for column 'x1' in .*float64"):
        open_stream(path).standardise()
    found = open_stream(path, dtype=torch.float64)
    scaled = found.standardise()(torch.cat(list(found.batches(6, seed=0))))
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3, dtype=torch.float64))


def test_another_order_of_rows_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other windows, as of another max_memory, would repeat some rows of the epoch."""
    path = WRITERS["npy"](tmp_path / "x", points(40).numpy())

    def run(steps: int) -> None:
        data, config = open_stream(path, dtype=torch.float64), TrainConfig(steps, batch_size=6)
        options = {"generator": seeded(0), "folder": tmp_path / "run", "resume": True}
        train(density(), sm.ScoreMatching(), data, config, **options)  # type: ignore[arg-type]

    run(4)
    run(5)
    monkeypatch.setattr(stream, "_blocks_per_window", lambda *given: 2)
    with pytest.raises(ValueError, match=r"max_memory, 2 \(was 3\)"):
        run(6)
