"""Build wheel and sdist, install them in a fresh environment, and use them there.

``make release-check``, or ``python tests/release.py --keep FOLDER``. It needs Python, pip and an
index of packages, and installs a copy of torch; nothing outside a temporary folder is changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"

USE = """
import scorematching as sm
assert "site-packages" in sm.__file__, sm.__file__
X = sm.datasets.load("redwine").x.numpy()[::8, :3]
density = sm.DensityEstimator("none", base="gaussian", dequantise=True, random_state=0).fit(X)
sm.save(density, "density")
assert (sm.load("density").score_samples(X) == density.score_samples(X)).all()
assert sm.datasets.load("redwine").x.shape == (1599, 11)
"""
"""A program that only works with an installed package and its data."""

COMMANDS = (
    "fit redwine --out run --max-minutes 1",
    "sample run 50 --out samples.csv",
    "report run",
)
"""Command lines that are tried if this version has them."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return what it prints; its failure ends the check."""
    shown = " ".join(str(part) for part in command[1:])[:100].splitlines()
    print(f"  {Path(command[0]).name} {shown[0] if shown else ''}", flush=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    found = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    if found.returncode:
        sys.exit(f"{shown[0]} ended with {found.returncode}:\n{found.stdout}{found.stderr}")
    return found.stdout + found.stderr


def environment(folder: Path) -> Path:
    """A fresh environment; returns its folder of programs."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin")


def build(folder: Path) -> tuple[Path, Path]:
    """Build both distributions; returns wheel and sdist."""
    programs = environment(folder / "build")
    run(programs / "python", "-m", "pip", "install", "-qq", "build")
    run(programs / "python", "-m", "build", "--outdir", folder / "dist", ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def use(programs: Path, folder: Path) -> None:
    """Use an installed package from an empty folder."""
    folder.mkdir()
    command = programs / "scorematching"
    version = run(command, "--version").split()[-1]
    print(f"  version {version}")
    run(programs / "python", "-c", USE, cwd=folder)
    known = run(command, "--help")
    for line in COMMANDS:
        if f" {line.split()[0]} " in known:
            run(command, *line.split(), cwd=folder)


def main() -> None:
    """Build, install, use; first the wheel, then the sdist in its place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="a new folder to work in, which is kept")
    options = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep.resolve() if options.keep else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        wheel, sdist = build(folder)
        programs = environment(folder / "fresh")
        pip = (programs / "python", "-m", "pip", "install", "-qq", "-c", CONSTRAINTS)
        run(*pip, f"scorematching[report] @ {wheel.as_uri()}")
        use(programs, folder / "with-wheel")
        run(*pip, "--no-deps", "--force-reinstall", sdist)
        use(programs, folder / "with-sdist")
    print(f"wheel and sdist install and work; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
