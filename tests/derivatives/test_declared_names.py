"""Every name in a declaration of an operation exists in torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scorematching
from scorematching.derivatives.ops.registry import spellings

OPS = Path(scorematching.__file__).parent / "derivatives/ops"
PINNED = "2.13"
"""Other versions of torch may lack some names."""

OLDER = {"names", "has_names", "is_hpu"}
"""Names that only older versions of torch have."""


def declared(source: str) -> Iterator[str]:
    """The names in the positional arguments of declarations."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in (
            "elementwise",
            "linear",
            "structural",
            "constant",
        ):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield from argument.value.split()


@pytest.mark.skipif(not torch.__version__.startswith(PINNED), reason=f"torch is not {PINNED}")
@pytest.mark.parametrize("path", sorted(OPS.glob("*.py")), ids=lambda path: path.stem)
def test_declared_names_exist(path: Path) -> None:
    unknown = {name for name in declared(path.read_text()) if not any(spellings(name))}
    assert unknown <= OLDER


def test_a_misspelt_name_is_found() -> None:
    names = list(declared('linear("folded", batch_axis=0)\nlinear("fold")\n'))
    assert [name for name in names if not any(spellings(name))] == ["folded"]
