"""The command line: ``scorematching COMMAND --help`` explains each command with an example."""

from scorematching.cli.app import DataDir, make_app, run_app
from scorematching.cli.commands import app, main

__all__ = ["DataDir", "app", "main", "make_app", "run_app"]
