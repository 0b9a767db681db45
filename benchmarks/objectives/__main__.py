"""``python -m benchmarks.objectives`` times score-matching losses."""

from benchmarks.harness.command import run_command
from benchmarks.objectives.run import PROGRAM, measure

if __name__ == "__main__":
    run_command(measure, f"{PROGRAM} --rounds 20 --compiled --no-memory")
