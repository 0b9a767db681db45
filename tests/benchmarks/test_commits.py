"""Two versions of the library are timed alternately."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.commits.losses import captured
from benchmarks.commits.run import measure
from benchmarks.commits.worker import load
from benchmarks.harness.provenance import ROOT
from benchmarks.objectives.models import QUICK_CASES, Case


def test_a_copy_with_a_delay_is_slower(tmp_path: Path) -> None:
    """The second version is this one; the first is a copy that sleeps in every loss."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    base = tmp_path / "src/scorematching/objectives/base.py"
    text = base.read_text()
    assert "def __call__(" in text
    head, tail = text.split("def __call__(", 1)
    docstring_end = tail.index('"""', tail.index('"""') + 3) + 3
    tail = tail[:docstring_end] + "\n        __import__('time').sleep(0.05)" + tail[docstring_end:]
    base.write_text(head + "def __call__(" + tail)
    output = tmp_path / "out.json"
    measure(str(tmp_path), 3, 2, only=["mlp100 ours DSM"], quick=True, output=output)
    (row,) = json.loads(output.read_text())["rows"]
    assert row["old_ms"] > 50 and row["ratio"] < 0.9 and row["fastest"] < 0.9


def test_an_unknown_commit_is_refused() -> None:
    with pytest.raises(ValueError, match="old must be a commit or a folder"):
        measure("no-such-commit", quick=True)


def test_two_versions_in_one_process(tmp_path: Path) -> None:
    """Each version keeps its own modules; the names that were imported before are put back."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    with (tmp_path / "src/scorematching/__init__.py").open("a") as file:
        file.write("\nORIGIN = 'copy'\n")
    before = dict(sys.modules)
    try:
        copied, own = load(str(tmp_path / "src")), load(str(ROOT / "src"))
    finally:
        sys.modules.clear()
        sys.modules.update(before)
    assert copied.sm.ORIGIN == "copy" and not hasattr(own.sm, "ORIGIN")
    assert copied.sm.Rademacher is not own.sm.Rademacher


@pytest.mark.parametrize("case", QUICK_CASES, ids=lambda case: case.name)
def test_training_steps_of_every_model(case: Case) -> None:
    model, x = case.make(0, "cpu")
    steps = dict(captured(case, model, x))
    assert len(steps) == 4
    for step in steps.values():
        step()
