"""What a recorded step takes as constant: numbers, flags and tensors that Python objects hold.

A CUDA graph or a compiled function does not run the model's code again. A number that a callback
changes, such as the weight of a term that is annealed, would stay what it was. So would the weight
decay of an optimiser, whose update is part of a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dis import get_instructions
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from scorematching._graphs import CaptureError

_NUMBERS = (bool, int, float, str)
_OWN = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module, of which buffers and parameters are compared by themselves."""
_RATES = frozenset({"params", "lr", "initial_lr"})
"""Of a group of an optimiser's parameters: not its options. Recorded steps read rates anew."""
_FEW = 16
"""Numbers in a tensor on the CPU, at most, for which it may be recorded as constants."""


class Constants:
    """Attributes of modules and losses, as they were when a step was recorded.

    Numbers, also in lists, dictionaries and small tensors on the CPU that are no buffers; of
    functions, those of their closures and the globals that they name. Of optimisers, the options of
    their groups, and which tensors their state has.

    Args:
        holders: objects that the step reads: all modules, losses of the user's own, and optimisers
            if it updates parameters.
        places: whether parameters and buffers must stay at their places in memory, which a CUDA
            graph reads; otherwise buffers must stay the same tensors.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> constants = Constants([layer])
        >>> layer.p = 0.1
        >>> try:
        ...     constants.require_unchanged()
        ... except CaptureError as error:
        ...     print(str(error).split(", got ")[1].split(";")[0])
        Dropout with another p
    """

    def __init__(self, holders: Iterable[Any], places: bool = False) -> None:
        """Keep the present values."""
        held = list(holders)
        modules = [each for each in held if isinstance(each, nn.Module)]
        found = [(label, read, _numbers(read())) for each in held for label, read in _places(each)]
        self._numbers = [entry for entry in found if entry[2] is not None]
        self._optimizers = [each for each in held if isinstance(each, Optimizer)]
        owned = [p for each in modules for p in each._parameters.values()]
        self._parameters = [p for p in owned if p is not None]
        self._buffers = [(each._buffers, name) for each in modules for name in each._buffers]
        self._place = Tensor.data_ptr if places else id
        buffers = [buffers[name] for buffers, name in self._buffers]
        self._kept = [*buffers, *_states(self._optimizers)]  # so that ids stay theirs
        self._tensors = self._find_tensors()

    def require_unchanged(self) -> None:
        """Refuse to go on if something has changed.

        Raises:
            CaptureError: naming it.
        """
        changed = [label for label, read, known in self._numbers if _differs(read(), known)]
        if changed or self._find_tensors() != self._tensors:
            changed += ["other buffers, other parameters to train, or an optimiser's other state"]
            raise CaptureError(
                "a step that is compiled or captured needs an unchanged model and optimiser, got "
                f'{changed[0]}; train eagerly, executor="eager", or hold what changes in a buffer '
                "that is written in place"
            )

    def _find_tensors(self) -> list[Any]:
        place: Any = self._place
        tensors = [buffers.get(name) for buffers, name in self._buffers]
        found = [b if b is None else place(b) for b in tensors]
        trained = [p.requires_grad for p in self._parameters]
        places = () if place is id else map(place, self._parameters)
        return [*found, *trained, *places, *map(id, _states(self._optimizers))]


def _states(optimizers: Iterable[Optimizer]) -> list[Any]:
    """What optimisers keep of their parameters, such as moments."""
    states = (state for each in optimizers for state in each.state.values())
    return [kept for state in states for kept in state.values()]


def _places(holder: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Where an object holds what it reads: a description of each place, and how to read it."""
    name = getattr(holder, "__name__", type(holder).__name__)
    if isinstance(holder, Optimizer):
        for i, group in enumerate(holder.param_groups):
            for key in group.keys() - _RATES:
                yield f"{name} with another {key}", partial(_option, holder, i, key)
        return
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


def _option(optimizer: Optimizer, group: int, key: str) -> Any:
    """An option of a group; read there, since other groups take the place of those at a load."""
    return optimizer.param_groups[group].get(key)


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
