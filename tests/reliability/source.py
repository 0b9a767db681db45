"""What the source must not contain: anything that unpickles files, or unpacks archives to disk."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREES = ("src", "reproduction", "benchmarks", "examples")

MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "tarfile",
}  # fmt: skip
"""Modules that unpickle, or that unpack to disk."""

CALLS = {"read_pickle", "unpack_archive", "extractall", "extract", "loads_pickle", "unsafe_load"}
"""Functions that do, whatever they belong to; ``extract`` only with an archive's arguments."""


def complaints(name: str, source: str) -> list[str]:
    """Lines that could run code of a file, or write where a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        reason = _reason(node)
        if reason:
            found.append(f"{name}:{node.lineno}: {reason}")  # type: ignore[attr-defined]
    return found


def _reason(node: ast.AST) -> str:
    if isinstance(node, ast.Import):
        bad = {alias.name.split(".")[0] for alias in node.names} & MODULES
        return f"imports {bad.pop()}" if bad else ""
    if isinstance(node, ast.ImportFrom):
        bad = {(node.module or "").split(".")[0]} & MODULES
        return f"imports from {bad.pop()}" if bad else ""
    if not isinstance(node, ast.Call):
        return ""
    name = ast.unparse(node.func)
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name == "torch.load" and options.get("weights_only") != "True":
        return "torch.load without weights_only=True"
    if "load" in name and options.get("allow_pickle", "False") != "False":
        return "allow_pickle"
    if name.split(".")[-1] in CALLS:
        return f"calls {name}"
    return "calls eval or exec" if name in ("eval", "exec") else ""


def files() -> list[Path]:
    """All files of the package, and of the programs beside it."""
    return [path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py"))]


def check() -> tuple[int, list[str]]:
    """Number of files, and complaints about them."""
    paths = files()
    found = [c for p in paths for c in complaints(str(p.relative_to(ROOT)), p.read_text("utf-8"))]
    return len(paths), found
