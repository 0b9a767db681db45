"""The shape of the package, read off its source: layers, sizes, words, side effects.

Every rule of architecture.py is run on the package, which must give no complaint, and on planted
snippets, which must give one each: a rule that cannot complain is no rule.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import scorematching
from tests import architecture
from tests.architecture import LONG_FUNCTION, MAX_FILE, MAX_FUNCTION, PACKAGE, ROOT, Sources

# Each rule, with a package that breaks it.

DOC = '"""A module."""\n'


def planted(module: str, body: str, *others: str) -> Sources:
    """A small package: sound modules and one that breaks a rule."""
    sound = {f"{PACKAGE}.{other}": DOC for other in ("types", *others)}
    return {PACKAGE: DOC, **sound, f"{PACKAGE}.{module}": DOC + body}


def lines(count: int) -> str:
    """A documented function of that many lines."""
    return "def f(x):\n" + '    """Docs."""\n' + "    x += 1\n" * (count - 1)


Rule = Callable[[Sources], list[str]]

RULES: dict[str, tuple[Rule, list[Sources]]] = {
    "layers": (
        architecture.layer_errors,
        [
            planted("fields", "from scorematching.objectives import base", "objectives.base"),
            planted("types", "import scorematching"),
            planted("models.nice", "from ..objectives.base import Objective", "objectives.base"),
            planted("distributions", "from scorematching import fields", "fields"),
            planted("utils", ""),
        ],
    ),
    "cycles": (
        architecture.cycle_errors,
        [
            {
                **planted("datasets.a", "from scorematching.datasets.b import x", "datasets"),
                "scorematching.datasets.b": DOC + "from scorematching.datasets import c",
                "scorematching.datasets.c": DOC + "from . import a",
            }
        ],
    ),
    "inner imports": (
        architecture.inner_import_errors,
        [
            planted(
                "fields", "def f():\n    from scorematching.types import Terms\n    return Terms"
            )
        ],
    ),
    "third party": (
        architecture.third_party_errors,
        [
            planted("fields", "import scipy.special"),
            planted(
                "models",
                "try:\n    from sklearn.base import clone\nexcept ImportError:\n    clone = None",
            ),
            planted("models", "class A:\n    import rich"),
        ],
    ),
    "outside": (
        architecture.outside_errors,
        [
            planted("cli", "from reproduction import run"),
            planted("models", "def f():\n    import benchmarks.harness.timing"),
        ],
    ),
    "draws at import": (
        architecture.import_time_draw_errors,
        [
            planted("models", "W = torch.randn(3)"),
            planted("models", "class A:\n    w = np.random.default_rng(0).normal()"),
            planted("models", "def f(w=torch.rand(2)):\n    return w"),
            planted("models", "def f(*, w=torch.empty(2).normal_()):\n    return w"),
        ],
    ),
    "global state": (
        architecture.global_state_errors,
        [
            planted("models", "def f(seed):\n    torch.manual_seed(seed)"),
            planted("models", "def f(generator):\n    return generator.manual_seed(0)"),
            planted("models", "def f():\n    torch.set_default_dtype(torch.float64)"),
            planted("models", "def f():\n    torch.set_num_threads(1)"),
            planted("models", "def f():\n    torch.set_grad_enabled(True)"),
            planted("models", "def f():\n    torch.use_deterministic_algorithms(True)"),
            planted("models", "def f():\n    np.random.seed(0)"),
            planted("models", "def f():\n    torch.backends.cudnn.benchmark = True"),
        ],
    ),
    "long functions": (
        architecture.long_function_errors,
        [
            planted("models", lines(MAX_FUNCTION + 1) + "def g():\n    return 1\n" * 20),
            planted("models", lines(LONG_FUNCTION + 1) + "def g():\n    return 1\n" * 8),
        ],
    ),
    "long files": (architecture.long_file_errors, [planted("models", "x = 1\n" * MAX_FILE)]),
    "docstrings": (
        architecture.docstring_errors,
        [
            planted("models", "def f():\n    return 1"),
            planted("models", 'class A:\n    """A."""\n    def f(self):\n        return 1'),
            planted("models", "class A:\n    x = 1"),
            {"scorematching.types": "x = 1"},
        ],
    ),
    "state": (
        architecture.mutable_state_errors,
        [
            planted("fields", "seen = {}\n\ndef f(x):\n    seen[x] = 1"),
            planted("fields", "seen = set()\n\ndef f(x):\n    seen.add(x)"),
            planted("fields", "count = 0\n\ndef f():\n    global count\n    count += 1"),
        ],
    ),
    "keyword sinks": (
        architecture.keyword_sink_errors,
        [
            planted("models", "def f(x, **kwargs):\n    return x"),
            planted(
                "models", "class A:\n    def __init__(self, **options):\n        self.o = options"
            ),
        ],
    ),
    "machine": (
        architecture.machine_errors,
        [
            planted("models", 'PATH = "/' + 'home/someone/data"'),
            planted("models", "# kept in /" + "tmp/cache"),
            planted("models", 'PATH = "C:' + '\\\\Users"'),
            planted("models", 'HOST = "10.0.' + '0.7"'),
            planted("models", 'HOST = "files.' + 'internal"'),
            planted("models", 'URL = "https:' + '//example.org/weights"'),
            planted("datasets", 'URL = "http:' + '//example.org/table.csv"'),
        ],
    ),
    "unfinished": (
        architecture.unfinished_errors,
        [
            planted("models", "x = 1  # TO" + "DO: more"),
            planted("models", '"""FIX' + 'ME."""'),
            planted("models", "def f():\n    pass"),
            planted("models", "class A:\n    def f(self): ..."),
            planted("models", "def f():\n    raise NotImplemented" + "Error"),
        ],
    ),
}
SOUND = planted(
    "objectives",
    "import numpy as np\nimport torch\nfrom scorematching import types\n"
    + lines(LONG_FUNCTION - 1)
    + "def g(n, generator):\n"
    '    """Draw n / 2 numbers in (0, 1/3): a path/of/words is no path."""\n'
    "    import rich\n    with torch.set_grad_enabled(True):\n"
    "        return torch.randn(n, generator=generator)\n"
    "def _h(seed):\n    return torch.Generator('cpu').manual_seed(seed)\n"
    "def _private(**kwargs):\n    return lambda: torch.randn(1)\n",
)


@pytest.mark.parametrize("rule", RULES)
def test_package_keeps(rule: str) -> None:
    errors = RULES[rule][0](architecture.package_sources())
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize(
    ("rule", "bad"),
    [(rule, bad) for rule, (_, snippets) in RULES.items() for bad in snippets],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rule_has_teeth(rule: str, bad: Sources) -> None:
    assert len(RULES[rule][0](bad)) >= 1


STYLE = ("cycles", "inner imports", "draws at import", "docstrings", "unfinished")


@pytest.mark.parametrize("tree", architecture.TREES)
@pytest.mark.parametrize("rule", STYLE)
def test_programs_keep(rule: str, tree: str) -> None:
    errors = RULES[rule][0](architecture.package_sources(architecture.CLONE / tree))
    assert not errors, "\n".join(errors)


def test_cycles_of_programs_are_seen() -> None:
    circle = {"benchmarks.a": "from benchmarks import b", "benchmarks.b": "import benchmarks.a"}
    assert len(architecture.cycle_errors(circle)) == 2
    hidden = {"benchmarks.a": "def f():\n    import reproduction.run"}
    assert len(architecture.inner_import_errors(hidden)) == 1


def test_the_experiments_use_the_harness_and_nothing_else_of_the_benchmarks() -> None:
    found = {}
    for tree in architecture.TREES:
        sources = architecture.package_sources(architecture.CLONE / tree)
        names = [
            i.name for m, text in sources.items() for i in architecture.imports(m, text, set())
        ]
        found[tree] = {name for name in names if name.split(".")[0] in architecture.TREES}
    others = {name for name in found["reproduction"] if name.startswith("benchmarks")}
    assert others and all(name.startswith("benchmarks.harness") for name in others)
    assert not {name for name in found["benchmarks"] if name.startswith("reproduction")}


@pytest.mark.parametrize("tree", architecture.TREES)
def test_programs_are_short(tree: str) -> None:
    sources = architecture.package_sources(architecture.CLONE / tree)
    sizes = {name: len(text.splitlines()) for name, text in sources.items()}
    assert not {name: size for name, size in sizes.items() if size > MAX_FILE}
    for name, text in sources.items():
        for function in architecture._functions(text):
            assert architecture.length(function) <= MAX_FUNCTION, f"{name}.{function.name}"


def test_requirements_are_what_the_package_imports() -> None:
    project = tomllib.loads((architecture.CLONE / "pyproject.toml").read_text())["project"]
    sources = architecture.package_sources()
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["flows"], *extras["plot"]]
    assert architecture.dependency_errors(sources, required) == []
    more = [*required[1:], "pandas>=2.0"]
    assert architecture.dependency_errors(sources, more) == [
        "pandas is required and not imported",
        "torch is imported and not required",
    ]


def test_extras_are_what_the_package_imports_by_name() -> None:
    project = tomllib.loads((architecture.CLONE / "pyproject.toml").read_text())["project"]
    calls = set()
    for text in architecture.package_sources().values():
        calls |= set(re.findall(r'import_extra\("([\w.]+)", "(\w+)"\)', text))
    calls.discard(("math", "tables"))  # the example in the docstring
    extras = project["optional-dependencies"]
    assert len(calls) >= 5
    for module, extra in calls:
        listed = " ".join([*extras[extra], *extras["tables"], *extras["plot"]])
        assert module.split(".")[0] in listed.replace("jinja2", "jinja2 markupsafe"), module


@pytest.mark.parametrize("rule", RULES)
def test_rule_spares_sound_code(rule: str) -> None:
    assert RULES[rule][0](SOUND) == []


def test_lengths_with_and_without_docstrings() -> None:
    (function,) = architecture._functions(lines(7))
    assert (architecture.length(function), architecture.code_length(function)) == (8, 7)


# Public names.


def test_public_names_have_examples() -> None:
    errors = architecture.example_errors(scorematching)
    assert not errors, "\n".join(errors)


def test_missing_names_and_examples_are_seen() -> None:
    class Documented:
        """A noun.

        Example:
            >>> 1 + 1
            2
        """

    class Bare:
        """A noun."""

    module = ModuleType("module")
    module.__dict__.update(__all__=["Documented", "Bare", "Gone"], Documented=Documented, Bare=Bare)
    assert [error.split()[0] for error in architecture.example_errors(module)] == [
        "module.Bare",
        "module.Gone",
    ]


def test_all_is_sorted_and_complete() -> None:
    """Whatever the package's own import brings in by name is exported, and nothing twice."""
    tree = ast.parse(Path(scorematching.__file__).read_text(encoding="utf-8"))
    own = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and PACKAGE in str(n.module)]
    imported = {a.asname or a.name for n in own for a in n.names}
    assert sorted(set(scorematching.__all__)) == sorted(scorematching.__all__)
    assert imported == set(scorematching.__all__)


@pytest.mark.parametrize(
    "module", sorted(set(architecture.package_sources()) - {f"{PACKAGE}.__main__"})
)
def test_every_module_imports(module: str) -> None:
    importlib.import_module(module)


PROBE = """
import sys, torch, numpy, warnings
def state():
    return (torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state().tolist(),
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
            numpy.random.get_state()[1].tolist(), warnings.filters[:])
before, settings = set(sys.modules), state()
import scorematching
assert state() == settings, "importing the package changed a global setting"
assert "torch._dynamo" not in sys.modules, "importing the package imported torch's compiler"
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


def test_import_is_light_and_leaves_no_trace() -> None:
    """Importing the package brings torch, numpy and nothing else, and changes no setting."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
    )
    assert run.returncode == 0, run.stderr
    third_party = set(run.stdout.split()) - set(sys.stdlib_module_names) - {"torch", "numpy"}
    heavy = "sklearn pandas matplotlib rich typer accelerate scipy PIL jinja2 safetensors ray"
    assert PACKAGE in third_party
    assert not third_party & set(heavy.split())
