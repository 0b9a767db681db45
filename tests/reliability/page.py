"""The page docs/reliability.md, from the counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with

INTRODUCTION = """# What survives

Training runs are killed, disks fill up, files are damaged, and command lines are mistyped. This
page counts what becomes of that. `make reliability` repeats it; a few cases of each kind are part
of `make check`.

## What you can rely on

- **A run that is killed goes on to the same digits**, with `train(..., folder=, resume=True)`.
  Files are written under another name, flushed and renamed, so that a checkpoint is there or is
  not.
- **Every file of a checkpoint or of a saved model has a checksum**, which is compared when it is
  read. If one is wrong, the file is named, and the run goes on from the checkpoint before, which
  is kept. The checksums find damage, not a forger. Checkpoints of earlier versions have none;
  they are loaded with a note.
- **Ctrl-C ends a run after its step, with a checkpoint**, a line that says how to go on, and exit
  status 130; a second Ctrl-C, a second later or more, ends it at once. Several processes agree on
  the step, which takes up to `log_every` steps, 50 at most; `torchrun` waits half a minute for
  them.
- **One process in a folder.** The second is refused with the name of the first. The lock is the
  operating system's, so a dead process does not hold it. (On file systems without locks, and on
  Windows, there is none.)
- **If one of several processes dies, the others stop and name it.** With gloo that takes seconds.
  With NCCL it is `torchrun` that notices and ends the others.
- **If memory runs out** in a validation, it is repeated with half as many points at a time; in a
  training step, the error says what to change. Limits that you set (`max_memory=`) are kept
  within a fifth, or refused before anything is allocated ([how](memory.md)).
- **A table that does not fit into memory is refused before it is read**, with its size, the memory
  that there is, and what to do; `fit --max-rows` and `--max-memory` draw rows uniformly from the
  file, and say so in the report.
- **Nothing is ever unpickled**, and no archive is unpacked to disk.
- **Readers and commands answer with an error of one line**, never with a traceback or half a
  file.
"""

EXPLANATION = """## How it was counted

Kills: a small run with everything that has a state (noise in batches and objective, cosine
schedule, clipping, averaged weights, validation) is started in a process of its own and killed at
a random moment, at a random flush or rename of a file, in a validation, or in one of two ranks
joined by gloo. It is then resumed in another process. All weights, losses and steps must be those
of a run without interruption, digit by digit.

Read-only folders are ones in which the superuser cannot write either (`/proc`, a read-only
mount): permissions alone stop nobody who runs the tests as root. Disks are full in three ways: a
file system of 64 kB, a limit of the process on the size of files, and writes that fail half-way.

Generated files and command lines come from hypothesis. Files begin as sound ones that are cut,
overwritten or lengthened, with bits flipped or values of JSON replaced (also with new checksums,
as a forger would), or are random bytes and text. Command lines consist of a command's own options
with values of all kinds, paths where nothing can be written, and other words. What a command
would compute is replaced by something quick. A failure is an exception other than `ValueError`
and `OSError` in a reader, a traceback, an exit status other than 0, 1, 2 and 130, no answer
within 20 seconds, or a file left behind by a command that failed.
"""


def render(document: dict[str, Any]) -> str:
    """The page as text."""
    counts = document["counts"]
    files = [c for c in counts if c["what"].startswith("reader: ")]
    lines = [c for c in counts if c["what"].startswith("command: ")]
    others = [c for c in counts if c not in files and c not in lines]
    parts = [
        INTRODUCTION,
        "## Counts\n",
        summary(counts, files, lines),
        markdown_table(["tried", "promised", "kept"], map(_cells, others), align_right=False),
        markdown_table(["reader", "files", "kept"], map(_short, files), align_right=False),
        markdown_table(["command", "command lines", "kept"], map(_short, lines), align_right=False),
        EXPLANATION,
        f"`{document['command']}` took {document['seconds'] / 60:.0f} minutes on "
        f"{document['device']}; {made_with(document)}.\n",
    ]
    return "\n".join(parts)


def summary(
    counts: Sequence[dict[str, Any]],
    files: Sequence[dict[str, Any]],
    lines: Sequence[dict[str, Any]],
) -> str:
    """The two counts that say most."""
    killed = [c for c in counts if c["what"].startswith("kill -9")]
    generated = [*files, *lines]
    return (
        f"**{_sum(killed, 'good')} of {_sum(killed, 'tried')} killed runs were resumed to the same "
        f"digits. {_sum(generated, 'good'):,} of {_sum(generated, 'tried'):,} generated files "
        f"({_sum(files, 'tried'):,}) and command lines ({_sum(lines, 'tried'):,}) gave an answer "
        "or a clear error, without traceback, hang or half-written output.**\n"
    )


def _sum(counts: Sequence[dict[str, Any]], key: str) -> int:
    return sum(count[key] for count in counts)


def _cells(count: dict[str, Any]) -> list[str]:
    return [count["what"], count["promise"], f"{count['good']} of {count['tried']}"]


def _short(count: dict[str, Any]) -> list[str]:
    name = count["what"].split(": ", 1)[1]
    return [name, f"{count['tried']}", f"{count['good']}"]
