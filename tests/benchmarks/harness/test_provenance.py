"""A number says which code it came from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.harness import provenance


def test_a_copy_says_what_it_is_a_copy_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the copy happens to lie in some checkout, which is then another one."""
    monkeypatch.setenv("SCOREMATCHING_COMMIT", "abc123")
    assert provenance.commit() == "abc123"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_changed_files_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was changed, not the results that a benchmark has just written."""

    def git(*words: str) -> None:
        named = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *named, *words], cwd=tmp_path, check=True, capture_output=True)

    files = [tmp_path / "src" / "a.py", tmp_path / "benchmarks" / "results" / "cpu.json"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.delenv("SCOREMATCHING_COMMIT", raising=False)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    clean = provenance.commit()
    assert clean is not None and len(clean) == 40
    files[1].write_text("2")
    assert provenance.commit() == clean
    files[0].write_text("2")
    assert provenance.commit() == f"{clean}+"


def test_no_git_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **options: object) -> None:
        raise OSError("no such program")

    monkeypatch.delenv("SCOREMATCHING_COMMIT", raising=False)
    monkeypatch.setattr(subprocess, "run", missing)
    assert provenance.commit() is None


def test_versions_and_processor() -> None:
    found = provenance.versions()
    assert str(found["torch"]) in torch.__version__
    assert provenance.device_name("cpu")


def test_a_stamp_says_it_all() -> None:
    found = provenance.stamp("python -m program", packages=("torch", "no-such-package"))
    assert {"command", "date", "commit", "device", "threads", "python", "versions"} == set(found)
    assert found["versions"]["no-such-package"] is None and "python" not in found["versions"]
