"""Pages of the documentation: their blocks of code, run one after the other.

``python -m tests.docs.pages docs/inference.md`` writes what the code prints now into the blocks of
output of that page.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")


class Output(NamedTuple):
    """What a page says that code prints, and what it prints now."""

    said: str
    printed: str

    def words(self) -> tuple[str, str]:
        """Both without decimals and spaces."""
        found = [re.sub(r"\s+", " ", NUMBER.sub("#", text)).strip() for text in self]
        return found[0], found[1]

    def numbers(self) -> tuple[list[float], list[float]]:
        """The decimals of both."""
        found = [[float(number) for number in NUMBER.findall(text)] for text in self]
        return found[0], found[1]


def pages() -> list[Path]:
    """README and all pages with code, in the order of their names."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if "```python" in page.read_text(encoding="utf-8")]


def run(page: Path) -> list[Output]:
    """Run the code of a page in one namespace; returns its blocks of output."""
    namespace: dict[str, Any] = {"__name__": "page"}
    outputs, printed = [], ""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        kind, body = match.groups()
        if kind == "text":
            outputs.append(Output(body, printed))
            continue
        line = text[: match.start()].count("\n") + 1
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            exec(compile("\n" * line + body, str(page.relative_to(ROOT)), "exec"), namespace)
        printed = stream.getvalue()
    return outputs


def write(page: Path) -> None:
    """Put what is printed now into the blocks of output."""
    printed = iter([output.printed for output in run(page)])

    def replace(match: re.Match[str]) -> str:
        return match.group(0) if match.group(1) == "python" else f"```text\n{next(printed)}```\n"

    page.write_text(BLOCK.sub(replace, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            write(page)
