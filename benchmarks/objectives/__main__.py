"""``python -m benchmarks.objectives`` times score-matching losses."""

from benchmarks.objectives.run import main

if __name__ == "__main__":
    main()
