"""What a release needs: one version, a light import, files that say how to cite and to report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import scorematching

ROOT = Path(__file__).parents[1]

IMPORT_TIME = """
import time, torch
start = time.process_time()
import scorematching
print(time.process_time() - start)
"""


def test_version_is_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    where = project["tool"]["setuptools"]["dynamic"]["version"]
    assert where == {"attr": "scorematching.__version__"}
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited == scorematching.__version__


def test_import_takes_little_beyond_torch() -> None:
    """Processor seconds, the least of three, since other programs may be running."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", IMPORT_TIME]
    runs = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for _ in range(3)]  # fmt: skip
    assert min(float(run.stdout) for run in runs) < 1.5


def test_checks_run_on_every_supported_python() -> None:
    workflow = (ROOT / ".github" / "workflows" / "check.yml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={versions[0]}"
    assert all(f'"{version}"' in workflow for version in versions) and "make check" in workflow
