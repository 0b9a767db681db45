"""Hooks of mkdocs, which fill marks on pages and complete the menu.

``[[package]]`` becomes the reference of all public names of a package, ``[[CHANGELOG.md]]`` that
file, with its links as seen from docs/.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path
from typing import Any

MARK = re.compile(r"^\[\[([\w.]+)\]\]$", re.MULTILINE)
ROOT = Path(__file__).parents[2]
MEASURED = {"Reliability": "reliability.md", "Larger than memory": "larger-than-memory.md"}
"""Pages that a long measurement writes: in the menu "Measured" once they are there."""


def on_config(config: Any, **context: Any) -> Any:
    """Add the pages of long measurements to the menu."""
    (menu,) = [entry["Measured"] for entry in config["nav"] if "Measured" in entry]
    docs = Path(config["docs_dir"])
    menu += [{title: page} for title, page in MEASURED.items() if (docs / page).exists()]
    return config


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Replace the marks of a page."""
    return MARK.sub(lambda match: fill(match.group(1)), markdown)


def fill(mark: str) -> str:
    """The text for a mark."""
    if mark.endswith(".md"):
        return (ROOT / mark).read_text(encoding="utf-8").replace("](docs/", "](")
    return reference(mark)


def reference(package: str) -> str:
    """Directives of mkdocstrings for the functions and classes in a package's ``__all__``."""
    module = import_module(package)
    values = {name: getattr(module, name) for name in module.__all__}
    named = {name: v for name, v in values.items() if isinstance(v, type) or isfunction(v)}
    return "\n\n".join(f"::: {path(package, name, value)}" for name, value in named.items())


def path(package: str, name: str, value: Any) -> str:
    """The public path; where a module has the same name, the path inside that module."""
    public = f"{package}.{name}"
    return public if find_spec(public) is None else f"{value.__module__}.{value.__qualname__}"
