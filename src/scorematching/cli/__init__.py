"""The command line: ``scorematching COMMAND --help`` explains each command with an example."""

from scorematching.cli.app import INTERRUPTED, DataDir, make_app, run_app
from scorematching.cli.commands import app, main

__all__ = ["INTERRUPTED", "DataDir", "app", "main", "make_app", "run_app"]
