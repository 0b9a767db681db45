"""Torch's samples need a package that only ``make zoo`` installs."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("expecttest") else ["*.py"]
