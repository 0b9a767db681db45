"""A traced model must compute what the model computes.

A model can tell traced values from tensors if it wants to, and take another branch for them. So
the first time a model is traced, its value is compared with an ordinary call.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from scorematching._checks import can_look
from scorematching.derivatives.tracing import Tape, Untraceable

_modules: WeakKeyDictionary[nn.Module, set[bool]] = WeakKeyDictionary()
_functions: set[Any] = set()


def verify(call: Any, x: Tensor, value: Tensor, tape: Tape) -> None:
    """Compare a traced value with an ordinary call, once for each model.

    A model is a module in either of its modes, or the code of a function and what it calls: the
    same closure made anew for every batch is checked once.

    Raises:
        Untraceable: if they differ.
    """
    if _is_known(call) or tape.random or not can_look(x):
        return
    with torch.no_grad():
        plain = call(x.detach().clone())
    if not _agree(value.detach(), plain):
        raise Untraceable("the model computes something else for traced values")
    _remember(call)


def _agree(value: Tensor, plain: Any) -> bool:
    if not isinstance(plain, Tensor) or plain.shape != value.shape:
        return False
    tolerance = 1e3 * torch.finfo(value.dtype).eps
    scale = plain.abs().amax().clamp_min(torch.finfo(value.dtype).tiny)
    different = (value - plain).abs() > tolerance * scale
    return not bool((different & plain.isfinite()).any())


def _is_known(call: Any) -> bool:
    if isinstance(call, nn.Module):
        return call.training in _modules.get(call, ())
    return _key(call) in _functions


def _remember(call: Any) -> None:
    if isinstance(call, nn.Module):
        _modules.setdefault(call, set()).add(call.training)
    else:
        _functions.add(_key(call))


def _key(call: Any) -> Any:
    """The code that a callable runs, with that of the callables it holds on to."""
    if isinstance(call, nn.Module):
        return id(call), call.training
    function = getattr(call, "__func__", call)
    if not hasattr(function, "__code__"):
        return type(call)
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    held += function.__defaults__ or ()
    behaviour = [h for h in held if h is not call and not isinstance(h, _DATA)]
    return (function.__code__, *(_key(h) if callable(h) else id(h) for h in behaviour))


_DATA = (Tensor, int, float, str, bytes, type(None), torch.dtype, torch.device)
"""What a closure may hold that does not decide what it does: a context, a scale."""
