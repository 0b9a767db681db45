"""A hook of mkdocs: ``[[package]]`` on a page becomes the reference of all its public names."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction
from typing import Any

MARK = re.compile(r"^\[\[([\w.]+)\]\]$", re.MULTILINE)


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Replace the marks of a page."""
    return MARK.sub(lambda match: reference(match.group(1)), markdown)


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
