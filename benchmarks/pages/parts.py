"""What the pages share: the line about provenance, and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def made_with(document: dict[str, Any]) -> str:
    """Versions, date and commit of a file of results, for a sentence."""
    found = {"Python": document.get("python"), **document["versions"]}
    names = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    at = f", commit {document['commit'][:10]}" if document["commit"] else ""
    return f"{names}; {document['date'][:10]}{at}"


def publish(
    document: dict[str, Any],
    name: str,
    out: Path | None,
    docs: Path | None,
    write: Callable[[dict[str, Any], Path], Path],
) -> Path:
    """Write a file of results and its page; returns the path of the page.

    Args:
        document: the results.
        name: of the file among the results, used if out is None.
        out: JSON file to write.
        docs: folder of the page; None is that of the documentation.
        write: ``(document, docs) -> page``.
    """
    home = Path(__file__).parents[1]
    out = out or home / "results" / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    page = write(document, docs or home.parent / "docs")
    print(f"wrote {out.name} and {page.name}")
    return page


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
