"""A few cases of each kind; ``make reliability`` has all of them, and counts."""

from __future__ import annotations

import io
import json
import logging
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scorematching.datasets import readers as data_readers
from tests.reliability import faults, source, suite
from tests.reliability.commands import Command, commands, try_command
from tests.reliability.counts import Count
from tests.reliability.page import render
from tests.reliability.readers import READERS, Reader, try_reader
from tests.reliability.suite import Amount

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are reported to the log, many times."""
    logger = logging.getLogger("scorematching.training")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory: flushing to a disk would take most of the time."""
    with tempfile.TemporaryDirectory(dir=suite.memory_folder()) as name:
        yield Path(name)


def assert_kept(*counts: Count) -> None:
    for count in counts:
        assert count.good == count.tried, (count.what, count.failures)


def test_kills(memory: Path) -> None:
    counts = list(suite.kills(memory, Amount(kills=(1, 1, 1, 0), seed=1)))
    assert [count.tried for count in counts] == [1, 1, 1, 0]
    assert_kept(*counts)


@pytest.mark.slow
def test_a_rank_that_dies(memory: Path) -> None:
    counts = list(suite.kills(memory, Amount(kills=(0, 0, 0, 2), seed=1)))
    assert counts[-1].tried == 2
    assert_kept(*counts)


def test_faults(memory: Path) -> None:
    assert_kept(
        faults.tampered(memory, 1, seed=1),
        faults.full_disk(memory, 2),
        faults.read_only(memory),
        faults.clock_jumps(memory),
        faults.bad_batches(memory, 1),
        faults.out_of_memory(),
    )


@pytest.mark.slow
def test_signals(memory: Path) -> None:
    assert_kept(*suite.all_signals(memory, Amount()))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_generated_files(reader: Reader, memory: Path) -> None:
    assert_kept(try_reader(reader, memory / "files", 6, seed=2))


@pytest.mark.parametrize("command", commands(), ids=lambda c: f"{c.program} {c.name}".strip())
def test_generated_command_lines(command: Command, tmp_path: Path) -> None:
    assert_kept(try_command(command, tmp_path / "lines", 5, seed=2))


# The suite itself can fail.


def test_a_reader_with_a_bug_is_found(tmp_path: Path) -> None:
    def read(folder: Path) -> object:
        return json.loads((folder / "run.json").read_text())["seed"]

    reader = Reader("with a bug", "run.json", READERS[-1].make, read)
    count = try_reader(reader, tmp_path / "files", 100, seed=0)
    assert count.tried == 100 and count.good < 100
    assert any("KeyError" in failure or "TypeError" in failure for failure in count.failures)


def test_a_command_with_a_bug_is_found(tmp_path: Path) -> None:
    sound = commands()[0]

    def call(words: list[str]) -> int:
        if "--data-dir" in words:
            raise KeyError("data-dir")
        return sound.call(words)

    broken = Command(sound.program, sound.name, sound.options, sound.arguments, call)
    count = try_command(broken, tmp_path / "lines", 30, seed=0)
    assert count.good < count.tried == 30 and "KeyError" in count.failures[0]

    def leave(words: list[str]) -> int:
        Path("half.json").write_text("{")
        status = sound.call(words)
        if not status:
            Path("half.json").unlink()
        return status

    broken = Command(sound.program, sound.name, sound.options, sound.arguments, leave)
    count = try_command(broken, tmp_path / "lines", 30, seed=0)
    assert any("half.json" in failure for failure in count.failures)


# Archives.


def test_a_file_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_readers, "_MAX_BYTES", 1 << 16)
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr("ids.npy", bytes(1 << 20))
    assert bomb.stat().st_size < 1 << 12
    with pytest.raises(ValueError, match=r"bomb.zip must be .* 1048576 bytes, more than 65536"):
        data_readers.read_mosaics(bomb)


def test_names_in_archives_lead_nowhere(tmp_path: Path) -> None:
    """They are keys of what is read in memory; nothing is written."""
    ids = io.BytesIO()
    np.save(ids, np.arange(1))
    path = tmp_path / "in" / "pack.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as pack:
        pack.writestr("ids.npy", ids.getvalue())
        pack.writestr("../outside.avif", b"not a picture")
        pack.writestr("/tmp/outside.avif", b"not a picture")
    with pytest.raises(ValueError, match="mosaics"):
        data_readers.read_mosaics(path)
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "pack.zip"]


# Pickles.


def test_nothing_is_unpickled() -> None:
    tried, found = source.check()
    assert tried > 300 and not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "x = torch.load(path)",
        "x = torch.load(path, weights_only=False)",
        "x = np.load(path, allow_pickle=True)",
        "x = numpy.load(path, allow_pickle=flag)",
        "x = pd.read_pickle(path)",
        "pack.extractall(folder)",
        "shutil.unpack_archive(path)",
        "import tarfile",
        "eval(text)",
    ],
)
def test_the_search_finds(line: str) -> None:
    assert source.complaints("planted", line)


def test_the_search_lets_pass() -> None:
    fine = "x = torch.load(path, weights_only=True)\ny = np.load(path, allow_pickle=False)\n"
    assert not source.complaints("planted", fine + "import json\njson.load(file)")


# The page.


def test_the_page_is_that_of_the_counts() -> None:
    """If not, ``make reliability`` writes both again."""
    document = json.loads((ROOT / "tests" / "reliability" / "counts.json").read_text())
    assert (ROOT / "docs" / "reliability.md").read_text() == render(document)
    assert all(count["good"] == count["tried"] for count in document["counts"])
    killed = [c for c in document["counts"] if c["what"].startswith("kill")]
    assert sum(c["good"] for c in killed) >= 50
    made = [c for c in document["counts"] if c["what"].startswith(("reader", "command"))]
    assert sum(c["good"] for c in made) >= 5000
