"""What has been found out about a model, kept with the model itself.

Whether a model can be traced, whether its answers were right and how smooth it is are measured once
and needed at every step. The findings lie on the model: in the ``__dict__`` of the nn.Module that a
callable is, or that a function, method, partial or closure holds, so that a closure made anew for
every batch shares them. Models of several modules share them where all modules are the same. Copies
of a model start without findings, and so does a loaded one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType
from typing import Any
from weakref import ref

from torch import Tensor, nn

ATTRIBUTE = "_scorematching"
"""Name of the attribute of the model that holds the findings."""


@dataclass
class Findings:
    """What is known of one model in one mode.

    Attributes:
        uses: how often each question was answered.
        routes: the route of each question, once decided.
        obstacle: what stopped the trace; None where nothing did.
        met: the operations of the last complete trace, by name and kind.
        graphs: decompositions of operations without a rule.
        needs_buffers: whether plain tensors that the model allocates must be traced.
        lost_axis: whether pairing lost the batch axis, so that a jet is taken instead.
        outputs: number of outputs per point; None while that is unknown.
        any_batch: whether the model takes batches of any size; None while that is unknown.
        smoothness: the measurement, once made.
        measured_points: number of points at which it was made.
        layers: those of the model at its measurements.
        value: the log-densities of the last evaluation, where their values can be read.
        kinks: operations of all traces that can have kinks; None before the first trace.
        reason: why the slow route is taken; None where it is not.
        warned: whether the user has been told about it.
    """

    uses: Counter[str] = field(default_factory=Counter)
    routes: dict[str, str] = field(default_factory=dict)
    obstacle: str | None = None
    met: Sequence[tuple[str, str]] = ()
    graphs: dict[Any, Any] = field(default_factory=dict)
    needs_buffers: bool = False
    lost_axis: bool = False
    outputs: int | None = None
    any_batch: bool | None = None
    smoothness: Any = None
    measured_points: int = 0
    layers: Layers = field(default_factory=lambda: Layers())
    value: Tensor | None = None
    kinks: set[str] | None = None
    reason: str | None = None
    warned: bool = False

    @property
    def operations(self) -> Counter[tuple[str, str]]:
        """How often the last complete trace met each operation, by name and kind."""
        return Counter(self.met)


@contextmanager
def counted(uses: Counter[str], name: str) -> Iterator[int]:
    """The number of a use; one that ends in an error does not count, so that it is checked again.

    Checks are made at some uses only: a model that was refused would pass at the next one.
    """
    uses[name] += 1
    try:
        yield uses[name]
    except BaseException:
        uses[name] -= 1
        raise


class Layers:
    """The layers of a model, and functions that its modules hold, to notice one that is exchanged.

    They are compared at every use, which takes a fraction of a microsecond for each module with
    others in it. What was there before is known, so that parts may take turns.
    """

    def __init__(self) -> None:
        self._known: set[Other] = set()
        self._children: list[tuple[dict[str, Any], list[int], list[Any]]] = []
        self._functions: list[tuple[dict[str, Any], str, Any]] = []

    def keep(self, call: Any) -> None:
        """Remember the present ones."""
        modules = _all_modules(call)
        held = [(m._modules, [*m._modules.values()]) for m in modules if m._modules]
        # The ids are compared; the modules are kept so that their ids are not used again.
        self._children = [(now, [*map(id, then)], then) for now, then in held]
        self._functions = [(vars(m), name, f) for m in modules for name, f in _functions(m)]
        self._known |= set(self._present(modules))

    def have_new(self, call: Any) -> bool:
        """Whether there are some that have not been kept."""
        same = all([*map(id, now.values())] == then for now, then, _ in self._children)
        if same and all(now.get(name) is f for now, name, f in self._functions):
            return False
        return not self._known.issuperset(self._present(_all_modules(call)))

    def _present(self, modules: Sequence[nn.Module]) -> Iterator[Other]:
        for module in modules:
            yield Other(module)
            yield from (Other(f) for _, f in _functions(module))


class Notes(dict[Any, Findings]):
    """Findings by mode; empty in a copy, and an empty dict in a pickle."""

    def __deepcopy__(self, memo: Any) -> Notes:
        return Notes()

    def __copy__(self) -> Notes:
        return Notes()

    def __reduce__(self) -> Any:
        return dict, ()

    def forget_the_dead(self) -> None:
        """Drop findings about models of which a module no longer exists."""
        for key in [k for k in self if any(isinstance(o, Other) and o.is_dead for o in k)]:
            del self[key]


class Other:
    """A module or function, as part of a key or set: the thing itself, which it does not hold."""

    def __init__(self, module: Any) -> None:
        self.number, self.module = id(module), ref(module)

    @property
    def is_dead(self) -> bool:
        """Whether the module no longer exists."""
        return self.module() is None

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Other) and self.module() is other.module()
        return same and not self.is_dead


def findings_of(call: Any, kind: str) -> Findings:
    """The findings about a callable, in the mode it is in."""
    known = vars(call).get(ATTRIBUTE) if isinstance(call, nn.Module) else None
    if known and (kind, call.training) in known:  # the usual case, at every step
        return known[kind, call.training]
    owner = owner_of(call)
    if owner is None:
        return Findings()
    within = call is owner  # a module's own layers need no place in the key
    others = () if within else (Other(m) for m in _modules(call) if m is not owner)
    key = (kind, getattr(owner, "training", None), *_code(call), *others)
    notes = vars(owner).get(ATTRIBUTE)
    if not isinstance(notes, Notes):
        notes = Notes()
        object.__setattr__(owner, ATTRIBUTE, notes)
    if key not in notes:
        notes.forget_the_dead()
        notes[key] = Findings()
    return notes[key]


def owner_of(call: Any) -> Any:
    """The object that keeps the findings: the first module a callable holds, or itself."""
    if isinstance(call, nn.Module):
        return call
    seen: set[int] = set()
    waiting = [call]
    while waiting and len(seen) < MAX_OBJECTS:
        thing = waiting.pop(0)
        if isinstance(thing, nn.Module):
            return thing
        if id(thing) not in seen:
            seen.add(id(thing))
            waiting += [held for held in _held(thing) if not isinstance(held, _DATA)]
    keeper = getattr(call, "__self__", getattr(call, "func", call))
    return keeper if hasattr(keeper, "__dict__") else None


MAX_OBJECTS = 100
"""How many objects are searched for a module; a closure usually holds it directly."""


def _held(thing: Any) -> Iterator[Any]:
    """The objects that a callable, a partial, a method or a container refers to."""
    if isinstance(thing, (list, tuple)):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif hasattr(thing, "__code__") or hasattr(thing, "__func__"):
        function = getattr(thing, "__func__", thing)
        yield from (held for held in (getattr(thing, "__self__", None),) if held is not None)
        yield from (_contents(cell) for cell in function.__closure__ or ())
        yield from function.__defaults__ or ()
        yield from _globals(function)
    else:
        yield from (getattr(thing, a) for a in ("func", "args", "keywords") if hasattr(thing, a))
        yield from getattr(thing, "__dict__", {}).values()


def _modules(call: Any) -> Iterator[nn.Module]:
    """The modules that a callable holds itself, in its arguments, or in its object."""
    bound = getattr(call, "__self__", None)
    for held in _held(call):
        if isinstance(held, nn.Module):
            yield held
        elif isinstance(held, (list, tuple, dict)) or (held is bound and held is not None):
            yield from (inner for inner in _held(held) if isinstance(inner, nn.Module))


def _all_modules(call: Any) -> list[nn.Module]:
    """The modules that a callable holds, with all modules inside them."""
    roots = [owner_of(call), *(() if isinstance(call, nn.Module) else _modules(call))]
    try:
        return [m for root in roots if isinstance(root, nn.Module) for m in root.modules()]
    except TypeError:  # a module without a hash, such as a dataclass
        return []


def _functions(module: nn.Module) -> list[tuple[str, Any]]:
    """The functions that a module holds as attributes, such as its activation, with their names."""
    kinds = (FunctionType, BuiltinFunctionType)
    return [(name, value) for name, value in vars(module).items() if isinstance(value, kinds)]


def _globals(function: Any) -> list[Any]:
    """The global objects that the code of a function names."""
    known = function.__globals__
    return [known[name] for name in function.__code__.co_names if name in known]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _code(call: Any) -> tuple[Any, ...]:
    """The code that a callable runs, to tell two functions of one module apart."""
    if isinstance(call, nn.Module):
        return ()
    function = getattr(call, "__func__", getattr(call, "func", call))
    code = getattr(function, "__code__", type(function))
    closed = map(_contents, getattr(function, "__closure__", None) or ())
    given = (*(getattr(function, "__defaults__", None) or ()), *getattr(call, "args", ()))
    named = _globals(function) if hasattr(function, "__code__") else ()
    held = (*closed, *given, *getattr(call, "keywords", {}).values(), *named)
    inner = [h for h in held if callable(h) and h is not call and not isinstance(h, nn.Module)]
    return (code, *(_kind(h) for h in inner))


def _kind(function: Any) -> Any:
    """What tells a function from others: its code, or itself where it is one of torch's own."""
    itself = isinstance(function, (BuiltinFunctionType, MethodDescriptorType))
    return function if itself else getattr(function, "__code__", type(function))


_DATA = (Tensor, int, float, str, bytes, type(None), CodeType, type, type(nn))
"""Objects that hold no model."""
