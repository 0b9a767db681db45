"""``python -m benchmarks.commits OLD`` times the losses of two commits alternately."""

from benchmarks.commits.run import PROGRAM, measure
from benchmarks.harness.command import run_command

if __name__ == "__main__":
    run_command(measure, f"{PROGRAM} HEAD~1 --device cuda")
