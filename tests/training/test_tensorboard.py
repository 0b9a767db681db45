"""Records in TensorBoard's event files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import scorematching as sm
from scorematching.training import Callback, Record, TensorBoard, TrainConfig, TrainState, train
from tests.training.problems import density, points, seeded


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves in a folder, read by TensorBoard itself."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


class StopAt(Callback):
    def on_record(self, state: TrainState, record: Record) -> None:
        if record.step == 20:
            raise KeyboardInterrupt


def run(folder: Path, *callbacks: Callback, **settings: Any) -> Any:
    config = TrainConfig(steps=40, batch_size=8, log_every=5, validate_every=10, checkpoint_every=7)
    options: Any = {"validation": points(30), "generator": seeded(2), "folder": folder / "run"}
    boards = [TensorBoard(folder / "board"), *callbacks]
    objective = sm.SlicedScoreMatchingVR()
    return train(density(), objective, points(), config, callbacks=boards, **options, **settings)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_records_are_written_once(tmp_path: Path) -> None:
    """A run that is interrupted after step 20 repeats steps from 14 on."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, StopAt())
    history = run(tmp_path, resume=True).history
    found = read(tmp_path / "board")
    assert found["loss"] == [(r.step, pytest.approx(r.loss, rel=1e-6)) for r in history]
    assert [step for step, _ in found["validation loss"]] == [10, 20, 30, 40]
    assert [step for step, _ in found["standard error of the validation loss"]] == [10, 20, 30, 40]
    assert all(value == pytest.approx(1e-3) for _, value in found["learning rate"])
    assert all(value > 0 for _, value in found["points per second"])


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install .scorematching\[tensorboard\]"):
        run(tmp_path)
