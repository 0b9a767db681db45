"""``python -m benchmarks.networks`` times score matching on networks that people use."""

from benchmarks.harness.command import run_command
from benchmarks.networks.run import PROGRAM, measure

if __name__ == "__main__":
    run_command(measure, f"{PROGRAM} --networks unet --sizes small --rounds 10")
