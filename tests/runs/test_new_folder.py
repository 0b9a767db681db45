"""A folder that is complete or not there, of one process at a time; nothing finished is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest

from scorematching.errors import FolderInUseError
from scorematching.runs import new_folder
from scorematching.runs.folder import ABOUT
from tests.reliability.processes import finish, start

HOLD = """
import sys, time
from pathlib import Path
from scorematching.runs import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "part").write_text("of a fit")
    print(folder, flush=True)
    time.sleep(60)
"""


def write(folder: Path, text: str = "", overwrite: bool = False) -> None:
    """Write a small run."""
    with new_folder(folder, overwrite) as new:
        (new / ABOUT).write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_second_of_two_is_refused_at_its_start(tmp_path: Path) -> None:
    """It was discarded at its end, perhaps after hours."""
    holder = start("-c", HOLD, str(tmp_path / "wine"))
    assert holder.stdout is not None
    mine = Path(holder.stdout.readline().strip())
    foreign = mine.with_name(re.sub(r"wine\.\w+-", "wine.0123abcd-", mine.name))
    other = mine.with_name(mine.name.replace("wine", "wine.2"))
    for left in (foreign, other):  # of another host, and of a fit to another folder
        left.mkdir()
    for overwrite in (False, True):
        said = rf"got {tmp_path}/wine, which process {holder.pid} on {socket.gethostname()} since"
        with pytest.raises(FolderInUseError, match=said):
            write(tmp_path / "wine", overwrite=overwrite)
    write(tmp_path / "beside")
    assert (mine / "part").read_text() == "of a fit"
    os.kill(holder.pid, signal.SIGKILL)
    finish(holder)
    assert mine.is_dir()  # it could not clear up, and holds nothing
    write(tmp_path / "wine", "second")
    assert names(tmp_path) == sorted([foreign.name, other.name, "beside", "wine"])
    assert (tmp_path / "wine" / ABOUT).read_text() == "second"


def test_folders_of_processes_that_run_stay_without_their_lock(tmp_path: Path) -> None:
    with new_folder(tmp_path / "wine") as first:
        (tmp_path / ".wine.lock").unlink()  # by hand
        write(tmp_path / "wine", "second")
        assert first.is_dir()
        (first / ABOUT).write_text("first")
        with pytest.raises(KeyError):
            write_and_fail(tmp_path / "wine")
        shutil.rmtree(tmp_path / "wine")
    assert (tmp_path / "wine" / ABOUT).read_text() == "first"
    assert names(tmp_path) == ["wine"]


def write_and_fail(folder: Path) -> None:
    with new_folder(folder, overwrite=True) as new:
        (new / "part").write_text("of a fit")
        raise KeyError


def test_a_result_whose_name_is_taken_is_kept_beside_it(tmp_path: Path) -> None:
    (tmp_path / "wine-2").mkdir()
    kept = rf"wine could not be written in the end .* the result is kept in {tmp_path}/wine-3$"
    with pytest.raises(FileExistsError, match=kept), new_folder(tmp_path / "wine") as new:
        (new / ABOUT).write_text("mine")
        (tmp_path / "wine").mkdir()
        (tmp_path / "wine" / "notes.txt").write_text("theirs")
    assert names(tmp_path) == ["wine", "wine-2", "wine-3"]
    assert (tmp_path / "wine" / "notes.txt").read_text() == "theirs"
    assert (tmp_path / "wine-3" / ABOUT).read_text() == "mine"


def test_a_run_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.suffix == ".new" and target.name == "wine":
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    write(tmp_path / "wine", "first")
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError, match=r"\(Permission denied\); the result is kept in .*-2"):
        write(tmp_path / "wine", "second", overwrite=True)
    assert names(tmp_path) == ["wine", "wine-2"]
    assert [(tmp_path / name / ABOUT).read_text() for name in names(tmp_path)] == [
        "first",
        "second",
    ]


def test_renames_that_were_cut_short_are_completed(tmp_path: Path) -> None:
    """A process that is killed between them leaves no run of that name, but two hidden ones."""
    dead = start("-c", "pass")
    finish(dead)
    with new_folder(tmp_path / "wine") as new:
        mark = re.sub(r"-\d+-", f"-{dead.pid}-", new.name)
    shutil.rmtree(tmp_path / "wine")
    for end, text in ((".new", "new"), (".old", "old")):
        folder = (tmp_path / mark).with_suffix(end)
        folder.mkdir()
        (folder / ABOUT).write_text(text)
    with pytest.raises(FileExistsError, match="wine exists; pass --overwrite"):
        write(tmp_path / "wine")
    assert names(tmp_path) == ["wine"] and (tmp_path / "wine" / ABOUT).read_text() == "new"


def test_the_lock_of_another_user_does_not_block_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / ".wine.lock").write_text(json.dumps({"process": 1}))
    with monkeypatch.context() as patch:
        patch.setattr("scorematching.training.lock.os.open", refuse)
        write(tmp_path / "wine", "mine")
    assert names(tmp_path) == [".wine.lock", "wine"]
