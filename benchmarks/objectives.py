"""Time, memory and noise of score-matching losses, ours and others, in one process.

The same as ``scorematching bench``.

Example:
    python -m benchmarks.objectives --threads 1 --rounds 20 --compiled
    python -m benchmarks.objectives --device cuda --compiled
"""

from scorematching.bench.run import main

if __name__ == "__main__":
    main()
