"""What a recorded step takes as constant: numbers, flags and tensors that Python objects hold.

A CUDA graph or a compiled function does not run the model's code again. A number that a callback
changes, such as the weight of a term that is annealed, would stay what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dis import get_instructions
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from scorematching._graphs import CaptureError

_NUMBERS = (bool, int, float, str)
_OWN = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module, of which buffers and parameters are compared by themselves."""
_FEW = 16
"""Numbers in a tensor on the CPU, at most, for which it may be recorded as constants."""


class Constants:
    """Attributes of modules and losses, as they were when a step was recorded.

    Numbers, also in lists, dictionaries and small tensors on the CPU that are no buffers; of
    functions, those of their closures and the globals that they name.

    Args:
        holders: objects that the step reads: all modules, and losses of the user's own.
        places: whether parameters and buffers must stay at their places in memory, which a CUDA
            graph reads; otherwise buffers must stay the same tensors.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> constants = Constants([layer])
        >>> layer.p = 0.1
        >>> try:
        ...     constants.require_unchanged()
        ... except CaptureError as error:
        ...     print(str(error).split(";")[0])
        a step that is compiled or captured needs an unchanged model, got Dropout with another p
    """

    def __init__(self, holders: Iterable[Any], places: bool = False) -> None:
        """Keep the present values."""
        held = list(holders)
        modules = [each for each in held if isinstance(each, nn.Module)]
        found = [(label, read, _numbers(read())) for each in held for label, read in _places(each)]
        self._numbers = [entry for entry in found if entry[2] is not None]
        owned = [p for each in modules for p in each._parameters.values()]
        self._parameters = [p for p in owned if p is not None]
        self._buffers = [(each._buffers, name) for each in modules for name in each._buffers]
        self._place = Tensor.data_ptr if places else id
        self._kept = [buffers[name] for buffers, name in self._buffers]  # so that ids stay theirs
        self._tensors = self._find_tensors()

    def require_unchanged(self) -> None:
        """Refuse to go on if something has changed.

        Raises:
            CaptureError: naming it.
        """
        changed = [label for label, read, known in self._numbers if _differs(read(), known)]
        if changed or self._find_tensors() != self._tensors:
            changed += ["other buffers, or other parameters to train"]
            raise CaptureError(
                "a step that is compiled or captured needs an unchanged model, got "
                f'{changed[0]}; train eagerly, executor="eager", or hold what changes in a buffer '
                "that is written in place"
            )

    def _find_tensors(self) -> list[Any]:
        place: Any = self._place
        tensors = [buffers.get(name) for buffers, name in self._buffers]
        found = [b if b is None else place(b) for b in tensors]
        trained = [p.requires_grad for p in self._parameters]
        places = () if place is id else map(place, self._parameters)
        return [*found, *trained, *places]


def _places(holder: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Where an object holds what it reads: a description of each place, and how to read it."""
    name = getattr(holder, "__name__", type(holder).__name__)
    for key in getattr(holder, "__dict__", {}):
        if key not in _OWN:
            yield f"{name} with another {key}", partial(vars(holder).get, key)
    code = getattr(holder, "__code__", None)
    if code is None:
        return
    for key, cell in zip(code.co_freevars, holder.__closure__ or ()):
        yield f"{name} with another {key}", partial(getattr, cell, "cell_contents", None)
    for key in {each.argval for each in get_instructions(code) if each.opname == "LOAD_GLOBAL"}:
        yield f"{name} with another {key}", partial(holder.__globals__.get, key)


def _numbers(value: Any) -> Any:
    """A number, or those of a container or small tensor; None of anything else."""
    if type(value) in _NUMBERS or isinstance(value, np.generic):
        return value
    if type(value) is tuple:
        return value if value and all(type(item) in _NUMBERS for item in value) else None
    if type(value) in (list, dict):
        items = value.items() if type(value) is dict else enumerate(value)
        known = tuple((key, _numbers(item)) for key, item in items)
        return known if known and all(item is not None for _, item in known) else None
    if type(value) is Tensor and value.is_cpu and value.numel() <= _FEW and not value.requires_grad:
        return str(value.dtype), value.tolist()
    return None


def _differs(value: Any, known: Any) -> bool:
    """Whether a place holds other numbers than were known."""
    if value is known:  # the usual case, also where it is NaN
        return False
    found = _numbers(value)
    return type(found) is not type(known) or bool(found != known)
