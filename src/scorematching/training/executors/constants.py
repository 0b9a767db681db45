"""What a recorded step takes as constant: numbers, flags and tensors that Python objects hold.

A CUDA graph or a compiled function does not run the model's code again. A number that a callback
changes, such as the weight of a term that is annealed, would stay what it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from scorematching._graphs import CaptureError

_NUMBERS = (bool, int, float, str)


class Constants:
    """Attributes of modules and losses, as they were when a step was recorded.

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
        self._numbers = [
            (each, vars(each), name, value)
            for each in held
            for name, value in vars(each).items()
            if type(value) in _NUMBERS
        ]
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
        changed = [
            f"{type(each).__name__} with another {name}"
            for each, attributes, name, value in self._numbers
            if attributes.get(name) is not value and not _equal(attributes.get(name), value)
        ]
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


def _equal(a: Any, b: Any) -> bool:
    """Whether two attributes are equal; a number may have become a tensor, whose ``==`` is one."""
    return type(a) is type(b) and bool(a == b)
