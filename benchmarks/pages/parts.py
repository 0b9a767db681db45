"""What the pages share: the line about provenance, and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def made_with(document: dict[str, Any]) -> str:
    """Versions, date and commit of a file of results, for a sentence."""
    found = {"Python": document.get("python"), **document["versions"]}
    names = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    at = f", commit {document['commit'][:10]}" if document["commit"] else ""
    return f"{names}; {document['date'][:10]}{at}"


def pyplot() -> Any:
    """matplotlib.pyplot, drawing into files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, bbox_inches="tight", facecolor="white")
    pyplot().close(figure)
