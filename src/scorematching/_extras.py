"""Packages that come with an extra of this one, imported where they are used."""

from importlib import import_module
from typing import Any


def import_extra(module: str, extra: str) -> Any:
    """Import a module of a package that an extra installs.

    Args:
        module: its full name.
        extra: the extra of this package that it comes with.

    Raises:
        ImportError: if the package is not installed, with the command that installs it.

    Example:
        >>> import_extra("math", "tables").pi > 3
        True
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        name = module.split(".")[0]
        raise ImportError(
            f"this needs the package {name}, which is not installed; "
            f'pip install "scorematching[{extra}]"'
        ) from None
