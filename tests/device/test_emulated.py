"""The library on a device that is not the CPU gives the results of the CPU, without a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import emulated
from tests.device.cases import CASES, PLANTED


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_results_are_those_of_the_cpu(tmp_path: Path) -> None:
    library = emulated.build(tmp_path)
    command = [sys.executable, "-m", "tests.device", str(library)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert {case.__name__ for case in PLANTED if found.pop(case.__name__) is None} == set()
    assert found.keys() == CASES.keys()
    wrong = [f"{name}: {trace}" for name, trace in found.items() if trace]
    assert not wrong, "\n".join(wrong)
