"""All entries of the zoo, and why some libraries are missing."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from tests.zoo import libraries
from tests.zoo.entry import Entry


@cache
def load() -> tuple[tuple[Entry, ...], dict[str, str]]:
    """Every entry that can be built here, and the error of every module that cannot be imported."""
    entries: list[Entry] = []
    missing: dict[str, str] = {}
    for module in pkgutil.iter_modules(libraries.__path__):
        try:
            entries += importlib.import_module(f"{libraries.__name__}.{module.name}").ENTRIES
        except ImportError as error:
            missing[module.name] = str(error)
    return tuple(entries), missing
