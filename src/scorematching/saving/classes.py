"""Which classes can be saved, under which names, and where they are defined."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from scorematching.errors import SavedModelError

PACKAGE = "scorematching"

MODULES = {
    "ConditionalMLP": "models.networks",
    "DKEF": "models.dkef",
    "FeatureNetworks": "models.dkef",
    "GaussianBase": "distributions.bases",
    "GeneralisedGaussian": "distributions.bases",
    "ImplicitVAE": "models.autoencoders.vae",
    "MLPDensity": "models.networks",
    "NICE": "models.nice",
    "ScoreNetwork": "models.networks",
    "VAE": "models.autoencoders.vae",
    "WAE": "models.autoencoders.wae",
}
"""Modules, saved as the arguments of their constructors and their weights."""

RECORDS = {
    "BernoulliPixels": "distributions.observations",
    "NormalPixels": "distributions.observations",
}
"""Other objects, saved as the fields of a dataclass, or else as their attributes."""

ESTIMATORS: dict[str, str] = {}
"""Estimators, saved as their arguments and what `fit` has learned."""


def name_of(kind: type, table: dict[str, str]) -> str | None:
    """The name of a class in a table; None for any other class, subclasses included."""
    place = table.get(kind.__name__)
    return kind.__name__ if f"{PACKAGE}.{place}" == kind.__module__ else None


def find_class(name: Any, table: dict[str, str]) -> Any:
    """The class of a name in a table.

    Raises:
        SavedModelError: if the table has no such name.
    """
    if not isinstance(name, str) or name not in table:
        raise SavedModelError(
            f"config.json must name classes that can be saved, got {name!r}; the folder was "
            "written by another program, or by a later version of the package"
        )
    return getattr(import_module(f"{PACKAGE}.{table[name]}"), name)
