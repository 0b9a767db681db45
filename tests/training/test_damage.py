"""Files that were changed on the disk are named, and the checkpoint before them is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scorematching._files import own_checksum
from scorematching.errors import CheckpointError
from scorematching.training import TrainConfig, load_weights, read_log, train
from scorematching.training.checkpoint import load
from tests.training.problems import (
    Interrupted,
    density,
    digits,
    interrupted,
    parameters,
    points,
    run_everything,
    seeded,
)

Damage = Callable[[bytes], bytes]

DAMAGES: dict[str, Damage] = {
    "a bit": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    "a bit of the header": lambda content: content[:9] + bytes([content[9] ^ 1]) + content[10:],
    "half": lambda content: content[: len(content) // 2],
    "nothing left": lambda content: b"",
    "more": lambda content: content + b"\0",
    "noise": lambda content: bytes(range(256)) * 4,
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted at step 18, with checkpoints of steps 10 and 15."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.raises(Interrupted):
        run_everything(folder, transform=interrupted(18))
    return folder


@pytest.fixture(scope="module")
def whole() -> object:
    """The digits of the run without interruption."""
    return digits(run_everything(None))


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "run"))


def damage(path: Path, how: Damage) -> None:
    path.write_bytes(how(path.read_bytes()))


FILES = ["last-15.safetensors", "best-12.safetensors", "checkpoint.json"]


@pytest.mark.parametrize(("file", "how"), [(FILES[i % 3], how) for i, how in enumerate(DAMAGES)])
def test_the_checkpoint_before_is_used(
    file: str, how: str, folder: Path, whole: object, caplog: pytest.LogCaptureFixture
) -> None:
    damage(folder / file, DAMAGES[how])
    assert digits(run_everything(folder, resume=True)) == whole
    assert file in caplog.text
    assert "continuing from the checkpoint before it, of step 10" in caplog.text
    assert read_log(folder / "log.jsonl")[-1]["event"] == "end"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_found(file: str, how: str, folder: Path) -> None:
    damage(folder / file, DAMAGES[how])
    with pytest.raises(CheckpointError, match=file):
        load(folder)


def test_a_missing_index_is_the_checkpoint_before(folder: Path, whole: object) -> None:
    (folder / "checkpoint.json").unlink()
    assert digits(run_everything(folder, resume=True)) == whole


def test_without_a_sound_checkpoint_nothing_is_done(folder: Path) -> None:
    for name in ("last-15.safetensors", "last-10.safetensors"):
        damage(folder / name, DAMAGES["a bit"])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError, match=r"last-15.*last-10.*restore the folder from a copy"):
        run_everything(folder, resume=True)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_bit_of_the_weights_counts(folder: Path) -> None:
    """One that no loss would show: the sign of a number near zero."""
    path = folder / "last-15.safetensors"
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r'last-15.safetensors .*try which="previous"'):
        load_weights(density(), folder, "last")
    assert load_weights(density(), folder, "previous") == 10
    assert load_weights(density(), folder, "best") == 12  # whose file is sound


def test_previous_weights_are_those_of_a_shorter_run(tmp_path: Path) -> None:
    def run(folder: Path, steps: int) -> None:
        config = TrainConfig(steps=steps, batch_size=8, checkpoint_every=5)
        train(density(), _squared, points(), config, generator=seeded(0), folder=folder)

    run(tmp_path / "long", 10)
    run(tmp_path / "short", 5)
    long, short = density(3), density(4)
    assert load_weights(long, tmp_path / "long", "previous") == 5
    load_weights(short, tmp_path / "short", "last")
    assert torch.equal(parameters(long), parameters(short))


def _squared(model: torch.nn.Module, x: torch.Tensor, generator: object) -> torch.Tensor:
    return (model(x) - x.sum(-1)).square()


@pytest.mark.parametrize(
    "edit",
    [
        {"files": {"last": "../elsewhere.safetensors"}},
        {"files": {"last": "/etc/passwd"}},
        {"files": {"best": "best-12.safetensors"}},
        {"files": ["last-15.safetensors"]},
        {"files": {"last": 15}},
        {"config": None},
        {"config": {"steps": "many"}},
        {"history": [{"unknown": 1}]},
        {"optimizer": 3},
        {"recent": 3, "step": "x"},
    ],
    ids=lambda edit: json.dumps(edit),
)
def test_a_forged_index_is_refused(edit: dict[str, object], folder: Path) -> None:
    """With a checksum of its own that is right, so that only the contents are wrong."""
    (folder / "previous.json").unlink()
    index = {**json.loads((folder / "checkpoint.json").read_text()), **edit}
    index["checksum"] = own_checksum(index)
    (folder / "checkpoint.json").write_text(json.dumps(index))
    with pytest.raises((CheckpointError, ValueError, TypeError)) as caught:
        run_everything(folder, resume=True)
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"event": "record"}', "\udcff"])
def test_a_damaged_log_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = '{"event": "start", "step": 0}\n'
    path.write_bytes((first + line + "\n").encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"log.jsonl must hold one event per line.*line 2"):
        read_log(path)


def test_a_checksum_cannot_be_left_out(folder: Path) -> None:
    """As a flipped bit in its name would."""
    index = json.loads((folder / "checkpoint.json").read_text())
    for name in ("checksum", "checksums"):
        rest = {key: value for key, value in index.items() if key != name}
        (folder / "checkpoint.json").write_text(json.dumps(rest))
        with pytest.raises(CheckpointError, match="own checksum"):
            load(folder)


def test_missing_values_are_named(folder: Path) -> None:
    index = json.loads((folder / "checkpoint.json").read_text())
    del index["waited"], index["checksum"], index["checksums"]
    (folder / "checkpoint.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"without some of its values.*waited"):
        run_everything(folder, resume=True)
