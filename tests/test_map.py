"""docs/map.md, from the paper to the code: nothing in it is made up, nothing is left out."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import scorematching as sm

ROOT = Path(__file__).parent.parent
COLUMNS = ["Paper", "Statement", "Symbol", "Test"]


def rows() -> list[list[str]]:
    """The cells of the table, its headings first."""
    lines = (ROOT / "docs" / "map.md").read_text().splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in cells if not set("".join(row)) <= set("-")]


def quoted(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


HEADINGS, *ENTRIES = rows()
SYMBOLS = sorted({symbol for row in ENTRIES for symbol in quoted(row[2])})
TESTS = sorted({test for row in ENTRIES for test in quoted(row[3])})


def resolve(symbol: str) -> Any:
    """The object of a dotted name that starts with the package."""
    module, *path = symbol.split(".")
    found: Any = importlib.import_module(module)
    for name in path:
        if not hasattr(found, name) and isinstance(found, ModuleType):
            importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    return found


@cache
def functions(file: str) -> set[str]:
    """Names of the functions that a file of tests defines at its top."""
    body = ast.parse((ROOT / file).read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_the_table_is_whole() -> None:
    assert HEADINGS == COLUMNS
    assert len(ENTRIES) > 10
    for row in ENTRIES:
        assert len(row) == len(COLUMNS)
        assert all(row)
        assert quoted(row[2]), f"{row[0]} names no symbol"
        assert quoted(row[3]), f"{row[0]} names no test"


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbols_exist(symbol: str) -> None:
    assert symbol.startswith("scorematching.")
    assert callable(resolve(symbol))


@pytest.mark.parametrize("test", TESTS)
def test_tests_exist(test: str) -> None:
    file, function = test.split("::")
    assert function.startswith("test_")
    assert function in functions(file)


def test_what_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("scorematching.SlicedScoreMatching.nothing")
    with pytest.raises(ModuleNotFoundError):
        resolve("scorematching.nothing")
    assert "test_nothing" not in functions("tests/test_laws.py")


def test_every_objective_field_and_projection_is_listed() -> None:
    exported = {name: getattr(sm, name) for name in sm.__all__}
    families = (sm.Objective, sm.Field, sm.Projection)
    members = {n for n, c in exported.items() if isinstance(c, type) and issubclass(c, families)}
    listed = {symbol.split(".")[1] for symbol in SYMBOLS}
    assert members <= listed, f"docs/map.md leaves out {members - listed}"


def test_numbers_are_those_of_the_paper() -> None:
    most = {"Eq": 24, "Theorem": 3, "Lemma": 5, "Proposition": 2, "Corollary": 1, "Algorithm": 2}
    numbered = re.compile(rf"({'|'.join(most)})\D+(\d+)")
    found = [match for row in ENTRIES for match in numbered.findall(row[0])]
    assert len(found) > 10
    for kind, number in found:
        assert 1 <= int(number) <= most[kind], f"the paper has no {kind} {number}"
