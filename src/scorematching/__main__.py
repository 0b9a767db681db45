"""``python -m scorematching`` is the command ``scorematching``."""

from scorematching.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
