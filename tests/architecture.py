"""Rules about the shape of the package: functions from source text to a list of complaints."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import scorematching

ROOT = Path(scorematching.__file__).parent
PACKAGE = "scorematching"
CLONE = ROOT.parents[1]

Sources = dict[str, str]
"""Source text by dotted module name; a package stands under its own name."""

LAYERS: list[set[str]] = [
    {
        "errors",
        "types",
        "_shapes",
        "_directions",
        "_extras",
        "_tracing",
        "_checks",
        "_clusters",
        "_graphs",
        "_files",
        "_memory",
        "_precision",
        "_program",
        "_random",
        "_rows",
        "_tables",
        "_triton",
    },
    {"projections", "derivatives", "distributions", "kernels"},
    {"fields"},
    {"domains"},
    {"objectives"},
    {"closed_form", "entropy", "diagnostics"},
    {"models", "estimators", "samplers", "evaluation", "inference", "datasets", "training"},
    {"capture", "cluster", "saving", "plot", "tables"},
    {"runs"},
    {"report"},
    {""},
    {"cli", "__main__"},
]
"""Bottom to top, by first name below the package; the empty one is the package itself."""

PROGRAMS = {"cli", "__main__"}
"""What runs as a process of its own, and may set its threads and seeds."""

ONLY_BASE = {"distributions", "derivatives", "projections", "kernels"}
"""What needs nothing but the base: it takes numbers, tensors and callables."""

STRANGERS = [("models", "objectives"), ("objectives", "models")]
"""Pairs that never meet: a model knows nothing of how it is trained, and the other way round."""

MAX_FUNCTION, LONG_FUNCTION, LONG_SHARE, MAX_FILE = 60, 25, 0.1, 400
"""Lines of a function with its docstring, of nine in ten functions without it, and of a file."""

LOOSE_IMPORTS = {"cli", "__main__"}
"""Where third-party packages may be imported at module level."""

TREES = ("reproduction", "benchmarks")
"""Programs beside the package, with the package's rules of size and style."""

OUTSIDE = {*TREES, "examples", "tests"}
"""What stands beside the package in a clone and is not installed with it."""

FOUNDATIONS = {"estimators": {"sklearn"}, "inference": {"sklearn"}}
"""What some areas are built on, and import at module level; they are loaded when asked for."""


def package_sources(root: Path = ROOT) -> Sources:
    """Every module of the package, or of a tree beside it."""
    paths = sorted(root.rglob("*.py"))
    return {_dotted(path, root): path.read_text(encoding="utf-8") for path in paths}


def _dotted(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _area(module: str) -> str:
    """First name below the package: ``scorematching.objectives.base -> objectives``."""
    return ".".join(module.split(".")[1:2])


Function = ast.FunctionDef | ast.AsyncFunctionDef


# Imports.


class Import(NamedTuple):
    """One imported module: which, on what line, and whether inside a function."""

    name: str
    line: int
    inner: bool


def imports(module: str, source: str, known: set[str]) -> Iterator[Import]:
    """What a module imports; ``from a import b`` is a.b where that is a module of the package."""
    tree = ast.parse(source)
    functions = (n for n in ast.walk(tree) if isinstance(n, Function))
    inner = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, known)
            full = {f"{base}.{alias.name}" for alias in node.names}
            names = sorted(full & known) + ([base] if full - known else [])
        else:
            continue
        yield from (Import(name, node.lineno, id(node) in inner) for name in names)


def _absolute(node: ast.ImportFrom, module: str, known: set[str]) -> str:
    if not node.level:
        return node.module or ""
    is_package = any(name.startswith(f"{module}.") for name in known)
    parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
    return ".".join([*parents, *([node.module] if node.module else [])])


def graph(sources: Sources) -> dict[str, set[str]]:
    """Who imports whom within the package."""
    known = set(sources)
    return {
        module: {i.name for i in imports(module, text, known) if i.name in known} - {module}
        for module, text in sources.items()
    }


def _inside(name: str) -> bool:
    return name.split(".")[0] in {PACKAGE, *TREES}


def layer_errors(sources: Sources) -> list[str]:
    """Imports that go upward or meet a stranger, and modules that have no layer."""
    level = {area: i for i, areas in enumerate(LAYERS) for area in areas}
    unknown = {_area(module) for module in sources} - set(level)
    if unknown:
        return [f"{area} has no layer: give it one in LAYERS" for area in sorted(unknown)]
    edges = [(a, b) for a, imported in graph(sources).items() for b in sorted(imported)]
    upward = [(a, b) for a, b in edges if level[_area(b)] > level[_area(a)]]
    strangers = [(a, b) for a, b in edges if (_area(a), _area(b)) in STRANGERS]
    base = LAYERS[0]
    not_base = [
        (a, b)
        for a, b in edges
        if _area(a) in ONLY_BASE and _area(b) not in base and _area(a) != _area(b)
    ]
    return sorted({f"{a} must not import {b}" for a, b in [*upward, *strangers, *not_base]})


def cycle_errors(sources: Sources) -> list[str]:
    """Modules that can reach themselves."""
    edges = graph(sources)

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(edges[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo += edges.get(module, ())
        return seen

    return [
        f"{module} imports itself in a circle" for module in edges if module in reachable(module)
    ]


def inner_import_errors(sources: Sources) -> list[str]:
    """Imports of the package inside a function, which hide a cycle."""
    return [
        f"{module}:{i.line} imports {i.name} inside a function"
        for module, text in sources.items()
        for i in imports(module, text, set(sources))
        if _inside(i.name) and i.inner
    ]


def third_party_errors(sources: Sources) -> list[str]:
    """Module-level imports other than the standard library, torch and numpy."""
    allowed = {*sys.stdlib_module_names, "torch", "numpy", PACKAGE}
    return [
        f"{module}:{i.line} imports {i.name} at module level"
        for module, text in sources.items()
        if _area(module) not in LOOSE_IMPORTS
        for i in imports(module, text, set(sources))
        if i.name.split(".")[0] not in allowed | FOUNDATIONS.get(_area(module), set())
        if not i.inner
    ]


IMPORT_NAMES = {"scikit-learn": "sklearn", "pillow": "PIL"}
"""Import names of distributions that have another one."""


def dependency_errors(sources: Sources, requirements: list[str]) -> list[str]:
    """Requirements that nothing imports, and imports that nothing requires."""
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements]
    required = {IMPORT_NAMES.get(name, name): name for name in names}
    imported = {
        i.name.split(".")[0]
        for module, text in sources.items()
        for i in imports(module, text, set(sources))
    } - {*sys.stdlib_module_names, PACKAGE}
    unused = [
        f"{required[name]} is required and not imported" for name in required.keys() - imported
    ]
    return sorted(
        unused + [f"{name} is imported and not required" for name in imported - set(required)]
    )


def outside_errors(sources: Sources) -> list[str]:
    """Imports, inside functions too, of what is not installed with the package."""
    return [
        f"{module}:{i.line} imports {i.name}, which is not installed"
        for module, text in sources.items()
        for i in imports(module, text, set(sources))
        if i.name.split(".")[0] in OUTSIDE
    ]


# Side effects.

DRAW = re.compile(
    r"(^|\.)(random\.\w+|rand|randn|randint|randperm|rand_like|randn_like|randint_like|normal"
    r"|bernoulli|multinomial|poisson|normal_|uniform_|bernoulli_|exponential_|default_rng|sample"
    r"|shuffle|xavier_\w+|kaiming_\w+|orthogonal_|trunc_normal_)$"
)
GLOBAL_STATE = re.compile(
    r"(^|\.)(manual_seed|manual_seed_all|seed|seed_all|set_rng_state|set_default_\w+|set_num_threads"
    r"|set_num_interop_threads|use_deterministic_algorithms|set_float32_matmul_precision"
    r"|set_printoptions|seterr|set_flush_denormal|set_grad_enabled)$"
)


def import_time_draw_errors(sources: Sources) -> list[str]:
    """Random draws that happen when a module is imported: in its body, a class's, a default."""
    found = []
    for module, text in sources.items():
        for node in _at_import(ast.parse(text)):
            if isinstance(node, ast.Call) and DRAW.search(_name(node.func)):
                found.append(f"{module}:{node.lineno} draws at import: {_name(node.func)}")
    return found


def global_state_errors(sources: Sources) -> list[str]:
    """Calls and assignments that change a setting of the whole process."""
    found = []
    for module, text in sources.items():
        if _area(module) in PROGRAMS or module.removeprefix(f"{PACKAGE}.") in PROGRAMS:
            continue
        tree = ast.parse(text)
        # What a with statement opens, it closes again.
        allowed = {id(n.context_expr) for n in ast.walk(tree) if isinstance(n, ast.withitem)}
        allowed |= {id(n) for n in ast.walk(tree) if _seeds_its_own_generator(n)}
        for node in ast.walk(tree):
            if id(node) in allowed:
                continue
            if isinstance(node, ast.Call) and GLOBAL_STATE.search(_name(node.func)):
                found.append(f"{module}:{node.lineno} calls {_name(node.func)}")
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [_name(t) for t in targets if isinstance(t, ast.Attribute)]
                owned = [n for n in names if n.split(".")[0] in {"torch", "np", "numpy", "os"}]
                found += [f"{module}:{node.lineno} assigns {name}" for name in owned]
    return found


def _seeds_its_own_generator(node: ast.AST) -> bool:
    """``torch.Generator(...).manual_seed(...)``, which is nobody else's generator."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = node.func.value
    return isinstance(owner, ast.Call) and _name(owner.func) == "torch.Generator"


def _at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run on import: everything but the bodies of functions."""
    for child in ast.iter_child_nodes(tree):
        yield child
        if isinstance(child, Function):
            arguments = child.args
            eager = [*child.decorator_list, *arguments.defaults, *arguments.kw_defaults]
            for node in eager:
                yield from ast.walk(node) if node is not None else ()
        elif not isinstance(child, ast.Lambda):
            yield from _at_import(child)


def _name(node: ast.AST) -> str:
    """``torch.nn.init`` for the expression, with calls on the way left out."""
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.id if isinstance(node, ast.Name) else ""


# Functions.


def _functions(text: str) -> list[Function]:
    return [n for n in ast.walk(ast.parse(text)) if isinstance(n, Function)]


def length(node: ast.stmt) -> int:
    """Lines of a function, or of any other statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def code_length(function: Function) -> int:
    """Lines of a function without its docstring."""
    documented = ast.get_docstring(function) is not None
    return length(function) - (length(function.body[0]) if documented else 0)


def long_function_errors(sources: Sources) -> list[str]:
    """Functions nobody can hold in mind, one by one and on the whole."""
    functions = [(f, f"{m}.{f.name}") for m, text in sources.items() for f in _functions(text)]
    found = [f"{name} has {length(f)} lines" for f, name in functions if length(f) > MAX_FUNCTION]
    sizes = [(code_length(f), name) for f, name in functions]
    long = [
        f"{name} ({size})" for size, name in sorted(sizes, reverse=True) if size > LONG_FUNCTION
    ]
    if len(long) > LONG_SHARE * len(sizes):
        found.append(f"{len(long)} of {len(sizes)} functions over {LONG_FUNCTION} lines: {long}")
    return found


def long_file_errors(sources: Sources) -> list[str]:
    """Files that want to be two."""
    sizes = {module: len(text.splitlines()) for module, text in sources.items()}
    return [f"{module} has {size} lines" for module, size in sizes.items() if size > MAX_FILE]


def _public(text: str) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Public classes, functions and methods, by name; nested functions are nobody's business."""

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef | Function]]:
        for node in body:
            if isinstance(node, (ast.If, ast.Try)):
                yield from visit(node.body, prefix)
            elif isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                yield prefix + node.name, node
                if isinstance(node, ast.ClassDef):
                    yield from visit(node.body, f"{node.name}.")

    yield from visit(ast.parse(text).body, "")


def docstring_errors(sources: Sources) -> list[str]:
    """Modules and public names without a docstring."""
    found = [
        f"{module} has no docstring"
        for module, text in sources.items()
        if not ast.get_docstring(ast.parse(text))
    ]
    for module, text in sources.items():
        for name, node in _public(text):
            decorators = {_name(d).split(".")[-1] for d in node.decorator_list}
            if not ast.get_docstring(node) and not decorators & {"overload", "setter", "override"}:
                found.append(f"{module}.{name} has no docstring")
    return found


def keyword_sink_errors(sources: Sources) -> list[str]:
    """Public signatures that swallow any keyword, and with it any misspelling."""
    found = []
    for module, text in sources.items():
        if module.startswith(f"{PACKAGE}.derivatives.ops"):  # rules have torch's signatures
            continue
        for name, node in _public(text):
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            for member in members:
                if isinstance(member, Function) and member.args.kwarg is not None:
                    inner = "" if member is node else f".{member.name}"
                    found.append(f"{module}.{name}{inner} takes **{member.args.kwarg.arg}")
    return sorted(set(found))


# State.

CHANGING = frozenset(
    "add append clear discard extend insert pop popitem remove setdefault update".split()
)
"""Methods that change a container."""

REGISTRY = (f"{PACKAGE}.derivatives.ops.registry", "OPERATIONS")
"""The one container of a module that changes: operations, filled when the package is imported."""


def mutable_state_errors(sources: Sources) -> list[str]:
    """Names of modules that functions change: containers, and names declared global."""
    found = []
    for module, text in sources.items():
        tree = ast.parse(text)
        names = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        functions = (n for n in ast.walk(tree) if isinstance(n, Function))
        changed = {name for function in functions for name in _changed_names(function)}
        found += [
            f"{module} changes {name}"
            for name in sorted(changed & names)
            if (module, name) != REGISTRY
        ]
    return sorted(set(found))


def _changed_names(function: Function) -> Iterator[str]:
    """Names that a function declares global, writes into, or calls a changing method of."""
    own = {a.arg for a in function.args.args}
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield from node.names
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            written = [t.value for t in targets if isinstance(t, ast.Subscript)]
            yield from (v.id for v in written if isinstance(v, ast.Name) and v.id not in own)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in CHANGING and isinstance(owner, ast.Name) and owner.id not in own:
                yield owner.id


# Words.

ABSOLUTE_PATH = re.compile(
    r"(?<![\w.~>}:/])/(?:home|root|tmp|usr|opt|etc|mnt|srv|var|work|data|workspace|Users|Volumes)/"
    r"|\b[A-Za-z]:\\\\?[A-Za-z]"
)
HOST = re.compile(
    r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\blocalhost\b|\b[\w-]+\.(?:internal|local|lan|corp|intra)\b"
    r"|\bindex-url\b|\bartifactory\b|[a-z][a-z0-9+.-]*://[^\s\"']+",
    re.IGNORECASE,
)
PUBLIC_URL = re.compile(r"^https://")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP)\b|raise NotImplementedError(\(\))?\s*$")


def machine_errors(sources: Sources) -> list[str]:
    """Paths and hosts of one machine; public addresses belong to the data sets alone."""
    found = []
    for module, line, text in _lines(sources):
        hosts = [m.group() for m in HOST.finditer(text)]
        if _area(module) in {"datasets"}:
            hosts = [host for host in hosts if not PUBLIC_URL.match(host)]
        paths = [m.group() for m in ABSOLUTE_PATH.finditer(text)]
        found += [f"{module}:{line} holds {word!r}" for word in [*hosts, *paths]]
    return found


def unfinished_errors(sources: Sources) -> list[str]:
    """Marks of work that was left for later, and bodies that do nothing."""
    found = [
        f"{module}:{line} says {match.group()}"
        for module, line, text in _lines(sources)
        for match in UNFINISHED.finditer(text)
    ]
    for module, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function | ast.ClassDef) and _is_stub(node):
                found.append(f"{module}:{node.lineno} {node.name} has no body")
    return found


def _is_stub(node: ast.ClassDef | Function) -> bool:
    """Nothing but ``pass`` or ``...``; a docstring alone is how abstract methods are written."""
    return all(
        isinstance(s, ast.Pass)
        or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and s.value.value is ...)
        for s in node.body
    ) and "overload" not in {_name(d).split(".")[-1] for d in node.decorator_list}


def _lines(sources: Sources) -> Iterator[tuple[str, int, str]]:
    for module, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            yield module, number, line


# Public names.


def example_errors(module: ModuleType) -> list[str]:
    """Names of ``__all__`` that do not exist, or are classes or functions without an Example.

    An error class needs none: there is nothing to show but that it is raised.
    """
    found = []
    for name in module.__all__:
        value = getattr(module, name, None)
        if value is None:
            found.append(f"{module.__name__}.{name} does not exist")
        elif isinstance(value, ModuleType):
            found += example_errors(value) if hasattr(value, "__all__") else []
        elif inspect.isclass(value) and issubclass(value, Exception):
            continue
        elif inspect.isclass(value) or inspect.isfunction(value):
            doc = value.__doc__ or ""
            if not re.search(r"^ *Examples?:", doc, re.MULTILINE) or ">>>" not in doc:
                found.append(f"{module.__name__}.{name} has no Example in its docstring")
    return found
