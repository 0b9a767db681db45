"""docs/inference.md: what its examples print is what stands below them.

``python -m tests.inference.test_page --write`` writes the outputs again.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "inference.md"
BLOCK = re.compile(r"```(python|text)\n(.*?)```\n", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")


def run(text: str) -> list[tuple[str, str]]:
    """What each block of output says, and what the code above it prints now."""
    namespace: dict[str, Any] = {"__name__": "page"}
    pairs, printed = [], ""
    for kind, body in BLOCK.findall(text):
        if kind == "text":
            pairs.append((body, printed))
            continue
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            exec(compile(body, "docs/inference.md", "exec"), namespace)
        printed = stream.getvalue()
    return pairs


def test_examples_print_what_the_page_says() -> None:
    """Words exactly, numbers to rounding in their last digits."""
    pairs = run(PAGE.read_text())
    assert len(pairs) >= 8
    for said, printed in pairs:
        words = [re.sub(r"\s+", " ", NUMBER.sub("#", text)) for text in (said, printed)]
        assert words[0] == words[1]
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (said, printed)]
        assert numbers[0] == pytest.approx(numbers[1], rel=2e-3, abs=2e-3)


def write() -> None:
    """Put what is printed now below each example."""
    text = PAGE.read_text()
    printed = iter([now for _, now in run(text)])

    def replace(match: re.Match[str]) -> str:
        if match.group(1) == "python":
            return match.group(0)
        return f"```text\n{next(printed)}```\n"

    PAGE.write_text(BLOCK.sub(replace, text))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.inference.test_page --write")
    write()
