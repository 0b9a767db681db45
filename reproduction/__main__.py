"""``python -m reproduction`` runs the paper's experiments."""

from reproduction.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
