"""One colour for each method, in every picture of the project."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from scorematching._checks import check_type

DATA, SAMPLES, INK, FAINT = "#4d4d4d", "#2e8b57", "#222222", "#b8b8b8"
"""Colours of data points, of samples of a model, of reference lines and of secondary curves."""

BETTER, WORSE, EQUAL = "#2e8b57", "#b03a2e", "#666666"
"""Colours of comparisons."""

FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("SSM-VR", "#2e8b57", "o"),
    ("SSM", "#7fb800", "P"),
    ("SM", "#222222", "s"),
    ("DSM", "#d1601c", "^"),
    ("CP", "#8c564b", "X"),
    ("approximate BP", "#e377c2", "v"),
    ("MLE", "#1f6fb2", "D"),
    ("ELBO", "#1f6fb2", "D"),
    ("Stein", "#d1601c", "^"),
    ("Spectral", "#7b52ab", "v"),
    ("KEF, nu-method", "#5ab4d6", "D"),
    ("KEF", "#1f6fb2", "o"),
    ("sliced", "#2e8b57", "P"),
    ("scorematching", "#2e8b57", "o"),
    ("GraphicalModel", "#2e8b57", "o"),
    ("graphical lasso", "#d1601c", "s"),
    ("torchebm", "#d1601c", "^"),
    ("ebmkit", "#7b52ab", "v"),
    ("double backward", "#888888", "s"),
    ("Gaussian", "#1f6fb2", "s"),
    ("Student-t", "#5ab4d6", "D"),
    ("KDE", "#888888", "s"),
    ("kernel density", "#888888", "s"),
    ("mixture", "#7b52ab", "v"),
    ("MAF", "#d1601c", "^"),
    ("NSF", "#b03a2e", "X"),
    ("base", "#7b52ab", "v"),
    ("network", "#2e8b57", "o"),
)
"""Name, colour and marker of each method; a name with more words is a variant of it."""

Line = str | tuple[int, tuple[int, ...]]

VARIANTS: dict[str, Line] = {
    "tuned": "--",
    "M=100": "--",
    "x tiled": "--",
    "heuristic": ":",
    "exact": ":",
    "cosine": "-.",
    "lr=": (0, (1, 3)),
    "seventh": (0, (6, 2, 1, 2, 1, 2)),
}
"""Lines of variants of a method; those that are not listed are solid."""

OTHER = ("#b8b8b8", ".")
"""Colour and marker of an unknown method."""


class Style(NamedTuple):
    """How curves of a method look.

    Attributes:
        color: hexadecimal.
        marker: matplotlib's letter.
        linestyle: as matplotlib takes it, such as "-" or "--".

    Example:
        >>> style("Stein").color == style("Stein, tuned").color
        True
    """

    color: str
    marker: str
    linestyle: Line

    def line(self) -> dict[str, Any]:
        """Arguments of ``axes.plot``: variants have hollow markers."""
        return {**self._asdict(), "markerfacecolor": self.face, "markersize": 4.5}

    @property
    def face(self) -> str:
        """Colour inside the markers: white for variants."""
        return self.color if self.linestyle == "-" else "white"


def style(name: str) -> Style:
    """Colour, marker and line of a method, found by the beginning of its name.

    Args:
        name: for example "SSM-VR", "Stein, tuned" or "KDE"; capitals do not matter.

    Returns:
        The style; an unknown method is light grey.

    Example:
        >>> style("SSM-VR")
        Style(color='#2e8b57', marker='o', linestyle='-')
    """
    check_type(name, str, "name must be text", 'for example style("SSM-VR")')
    plain = name.strip().lower()
    for family, colour, marker in FAMILIES:
        if re.match(rf"{re.escape(family.lower())}(?![\w-])", plain):
            return Style(colour, marker, _line(name, family))
    return Style(*OTHER, "-")


def _line(name: str, family: str) -> Line:
    rest = name.strip()[len(family) :]
    return next((line for word, line in VARIANTS.items() if word in rest), "-")
