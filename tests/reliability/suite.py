"""All of it, with numbers that say how much of each."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.reliability import faults, signals, source
from tests.reliability.commands import commands, try_command
from tests.reliability.counts import Count
from tests.reliability.kills import KINDS
from tests.reliability.processes import finish, start
from tests.reliability.readers import READERS, try_reader


@dataclass(frozen=True)
class Amount:
    """How often each thing is tried.

    Attributes:
        kills: at any moment, in a checkpoint, in a validation, of one of two ranks.
        generated: files and command lines together.
        damaged: files of a checkpoint.
        others: full disks and bad batches, each.
        seed: of all that is random.
    """

    kills: tuple[int, int, int, int] = (30, 10, 5, 5)
    generated: int = 5000
    damaged: int = 50
    others: int = 10
    seed: int = 0


def memory_folder() -> str | None:
    """A folder in memory, where there is one: flushing to a disk would take most of the time."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def run_suite(
    amount: Amount, say: Callable[[str], object], names: Sequence[str]
) -> Iterator[tuple[str, Count]]:
    """Some parts; the counts come as they are ready, with the name of their part."""
    logging.getLogger("scorematching.training").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        for part in names:
            place = Path(name) / part
            place.mkdir()
            for count in PARTS[part](place, amount):
                say(f"{count.good} of {count.tried}: {count.what}")
                yield part, count


def kills(folder: Path, amount: Amount) -> Iterator[Count]:
    words = [str(folder / "runs"), *map(str, amount.kills), str(amount.seed)]
    status, output, errors = finish(start("-m", "tests.reliability.kills", *words), 3000)
    assert status == 0, errors[-2000:]
    rows = json.loads(output)
    for kind in KINDS:
        what = f"kill -9 {kind}" if "rank" not in kind else f"kill -9 of {kind}"
        promise = "resumed to the same digits"
        if "rank" in kind:
            promise = (
                "the other stops within a minute and names it; both resumed to the same digits"
            )
        count = Count(what, promise)
        for row in (row for row in rows if row["kind"] == kind):
            good = row["same"] and row.get("named", True) and row.get("seconds", 0) < 60
            count.add(good, json.dumps(row))
        yield count


def all_faults(folder: Path, amount: Amount) -> Iterator[Count]:
    yield faults.tampered(folder, amount.damaged, amount.seed)
    yield faults.full_disk(folder, amount.others)
    yield faults.small_device(folder)
    yield faults.read_only(folder)
    yield faults.clock_jumps(folder)
    yield faults.bad_batches(folder, amount.others)
    yield faults.out_of_memory()


def all_signals(folder: Path, amount: Amount) -> Iterator[Count]:
    for name, part in (("a", signals.interrupts), ("b", signals.benchmark), ("c", signals.locks)):
        (folder / name).mkdir()
        yield part(folder / name)


def no_pickle(folder: Path, amount: Amount) -> Iterator[Count]:
    count = Count("files of source searched", "nothing is unpickled or unpacked to disk")
    tried, found = source.check()
    count.tried, count.good, count.failures = tried, tried - len(found), found
    yield count


def all_generated(folder: Path, amount: Amount) -> Iterator[Count]:
    """Half of them files, half of them command lines; as many for each reader or command."""
    programs = commands()
    for number, reader in zip(shares(amount.generated // 2, len(READERS)), READERS):
        yield try_reader(reader, folder / "reader", number, amount.seed)
    rest = amount.generated - amount.generated // 2
    for number, command in zip(shares(rest, len(programs)), programs):
        yield try_command(command, folder / "command", number, amount.seed)


def shares(total: int, parts: int) -> list[int]:
    """A number, divided among so many as evenly as possible."""
    return [total // parts + (i < total % parts) for i in range(parts)]


PARTS: dict[str, Callable[[Path, Amount], Iterator[Count]]] = {
    "kills": kills,
    "faults": all_faults,
    "signals": all_signals,
    "source": no_pickle,
    "generated": all_generated,
}
"""What can be run by itself, in the order of the page."""
