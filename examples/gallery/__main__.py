"""Run the scripts of the gallery, and write its page: ``python examples/gallery``.

Each script is run in this process. Its picture goes to docs/img/gallery/, and docs/gallery.md shows
it beside the first paragraph of the script's docstring and its code. Names of scripts may be given;
the others then keep their pictures.
"""

from __future__ import annotations

import ast
import runpy
import sys
import time
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
ORDER = (
    "moons wine_pairs unusual_rows score_estimators langevin calibration intervals graph "
    "implicit_vi conditional digits directions"
).split()
"""The scripts, in the order of the page."""

HEAD = """\
# Gallery

Short scripts, one picture each. They are in `examples/gallery/`; each runs in seconds and ends with
`plt.show()`. `python examples/gallery` runs all of them and writes this page.
"""


def draw(name: str) -> matplotlib.figure.Figure:
    """Run a script and return its picture."""
    plt.close("all")
    show, plt.show = plt.show, lambda: None
    try:
        runpy.run_path(str(HERE / f"{name}.py"))
    finally:
        plt.show = show
    return plt.gcf()


def describe(name: str) -> tuple[str, str]:
    """The title and the text of a script's docstring."""
    docstring = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or ""
    title, _, text = docstring.partition("\n\n")
    return title.rstrip("."), " ".join(text.split())


def write_page(path: Path) -> None:
    """Write the page with all pictures."""
    parts = [HEAD]
    for name in ORDER:
        title, text = describe(name)
        source = f'    ```{{.py title="examples/gallery/{name}.py"}}\n'
        source += f'    --8<-- "examples/gallery/{name}.py"\n    ```\n'
        parts.append(f"## {title}\n\n{text}\n\n![{title}](img/gallery/{name}.png)\n")
        parts.append(f'??? example "The script"\n\n{source}')
    path.write_text("\n".join(parts))


def main(names: list[str]) -> None:
    """Draw the pictures and write the page."""
    matplotlib.use("Agg")
    folder = DOCS / "img" / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or ORDER:
        start = time.process_time()
        draw(name).savefig(folder / f"{name}.png", dpi=80)
        print(f"{name:<18} {time.process_time() - start:.1f} s")
    write_page(DOCS / "gallery.md")


if __name__ == "__main__":
    main(sys.argv[1:])
