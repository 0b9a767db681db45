"""A number says which code it came from."""

from __future__ import annotations

import subprocess

import pytest
import torch

from benchmarks.harness import provenance


def test_a_copy_says_what_it_is_a_copy_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the copy happens to lie in some checkout, which is then another one."""
    monkeypatch.setenv("SCOREMATCHING_COMMIT", "abc123")
    assert provenance.commit() == "abc123"


@pytest.mark.parametrize(("changed", "mark"), [("", ""), (" M src/x.py", "+")])
def test_changed_files_are_marked(changed: str, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCOREMATCHING_COMMIT", raising=False)
    answers = {"rev-parse": "abc123", "status": changed}
    monkeypatch.setattr(provenance, "_git", lambda *words: answers[words[0]])
    assert provenance.commit() == "abc123" + mark


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
