"""Evaluations of a model on plain tensors, for the measurement of smoothness.

`Probe` evaluates a callable at any number of points, in double precision if asked to, in batches
of exactly N rows where the callable carries something of N rows, and with the same random numbers
every time. It leaves the random state and the model's buffers and attributes as they were.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scorematching._shapes import dimension, event_axes, inner
from scorematching.derivatives.ops.compositions import twice_differentiable
from scorematching.derivatives.smoothness.masks import Mask, MaskRecorder, Recorder

Model = Callable[[Tensor], Tensor]

CHUNK_ROWS, CHUNK_NUMBERS = 256, 1 << 16
"""Points and coordinates of one evaluation at most, unless the caller's batch is larger."""


class Probe:
    """Evaluations of a model around points ``x: (N, *event)``.

    Args:
        call: log-density ``(N, *event) -> (N, *F)`` or vector field ``(N, *event) -> (N, *event)``.
        x: points.
        is_density: whether the callable is a log-density.
        double: whether to evaluate in double precision.
        generator: source of the combination of several outputs (features) into one.

    Attributes:
        x: the points, in the precision of the evaluations.
        value: the callable's output at x.
    """

    def __init__(
        self, call: Model, x: Tensor, is_density: bool, double: bool, generator: torch.Generator
    ) -> None:
        self.call, self.is_density = call, is_density
        self._calls = _Calls(double)
        self.x = x.detach().clone().to(_wider(x.dtype) if double else x.dtype)
        changes = _ChangeRecorder()
        self._copies = changes.copies
        self.value = self._value(self.x, changes)
        self._calls.is_first = False
        self._weights = self._combination(generator)

    @cached_property
    def is_random(self) -> bool:
        """Whether values differ from call to call although the random state is the same."""
        return not agree(self._value(self.x), self.value)

    @cached_property
    def resolves_points(self) -> bool:
        """Whether values are the same, up to a percent, where a last digit of the points changes.

        Half precision has too few digits to tell.
        """
        if self.x.dtype not in (torch.float32, torch.float64):
            return True
        signs = torch.randint(2, self.x.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
        moved = self.x * (1 + torch.finfo(self.x.dtype).eps * signs.to(self.x))
        return agree(self._value(moved), self.value, 1e-2)

    @cached_property
    def takes_any_rows(self) -> bool:
        """Whether a batch of another size and order gives the same values, row by row."""
        n = len(self.x)
        count = 2 * n if n <= 64 else min(n // 2, CHUNK_ROWS)
        rows = torch.arange(count, device=self.x.device).flip(0) % n
        try:
            return agree(self._value(self.x[rows]), self.value[rows])
        except Exception:  # of any kind: whether the model is at fault shows with N rows
            return False

    def levels(self, points: Tensor, rows: Tensor, directions: Tensor) -> Tensor:
        """Log-density (if there is one), ``d.s`` and ``d' (ds/dx) d`` at M points: ``(3 or 2, M)``.

        ``rows: (M,)`` are the rows of x that the points belong to.
        """
        levels = points.new_empty(3 if self.is_density else 2, len(points), dtype=torch.float64)
        for index, batch, at in self._batches(points, rows):
            d = torch.zeros_like(batch)
            d[at] = directions[index]
            with self._settings():
                found = self._derivatives(batch.requires_grad_(), d)
            levels[:, index] = found[:, at].double()
        return levels

    def masks(self, points: Tensor, rows: Tensor, places: bool = False) -> list[Mask]:
        """Masks of the evaluation at M points; none if operations differ from batch to batch.

        With `places`, operations are described together with the place that called them, and
        those that can have a kink without a mask are included, with an empty one.
        """
        parts: list[tuple[Tensor, list[Mask]]] = []
        for index, batch, at in self._batches(points, rows):
            entry = Probe._value.__code__ if places else None
            recorder = MaskRecorder(len(batch), lambda: self._calls.name, entry)
            self._value(batch, recorder)
            if not recorder.masks:  # then there are none, or operations differ
                return []
            parts.append((index, [Mask(m.rows[at], m.operation) for m in recorder.masks]))
        kinds = {tuple((m.operation, m.rows.shape[1]) for m in masks) for _, masks in parts}
        return [] if len(kinds) > 1 else [_join(parts, i) for i in range(len(parts[0][1]))]

    def _batches(self, points: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches that the callable takes: indices of points, the batch, the points' rows in it."""
        number = torch.arange(len(points), device=points.device)
        if self.takes_any_rows:
            most = min(CHUNK_ROWS, CHUNK_NUMBERS // dimension(points))
            for index in number.split(max(len(self.x), most)):
                yield index, points[index], number[: len(index)]
            return
        order = rows.argsort(stable=True)
        turn = torch.empty_like(number)  # how many earlier points belong to the same row
        turn[order] = number - torch.searchsorted(rows[order], rows[order])
        for k in range(int(turn.max()) + 1):
            index = (turn == k).nonzero().flatten()
            batch = self.x.clone()
            batch[rows[index]] = points[index]
            yield index, batch, rows[index]

    def _derivatives(self, x: Tensor, d: Tensor) -> Tensor:
        *value, slope = self._slope(x, d)
        try:
            bend = inner(_gradient(slope, x, False), d, event_axes(x))
        except RuntimeError:  # torch has no second derivative of some operation
            step = torch.finfo(x.dtype).eps ** (1 / 3)
            ahead, behind = (self._slope(x + h * d, d)[-1] for h in (step, -step))
            bend = (ahead - behind) / (2 * step)
        return torch.stack([*value, slope, bend]).detach()

    def _slope(self, x: Tensor, d: Tensor) -> list[Tensor]:
        """Log-density, if there is one, and ``d.s``."""
        y = self.call(x)
        if not self.is_density:
            return [inner(y, d, event_axes(x))]
        y = y if self._weights is None else y.flatten(1) @ self._weights
        return [y, inner(_gradient(y, x, True), d, event_axes(x))]

    def _value(self, x: Tensor, *modes: Recorder) -> Tensor:
        with self._settings(*modes):
            return self.call(x.detach().requires_grad_()).detach()

    @contextmanager
    def _settings(self, *modes: Recorder) -> Iterator[None]:
        """Gradients on, no compilation; random state and changed tensors are put back after."""
        device = self.x.device
        devices = [] if device.type == "cpu" else [device]
        kind = "cuda" if device.type == "cpu" else device.type
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.random.fork_rng(devices, device_type=kind))
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.callback(self._restore)
            stack.enter_context(twice_differentiable())
            stack.enter_context(self._calls)
            for mode in modes:
                stack.enter_context(mode)
            yield

    def _restore(self) -> None:
        for module, attributes, buffers in self._calls.modules.values():
            held = vars(module)
            for name in held.keys() - attributes.keys():
                del held[name]
            held.update(attributes)
            module._buffers.update(buffers)
        with torch.no_grad():
            for value, copy in self._copies:
                value.copy_(copy)

    def _combination(self, generator: torch.Generator) -> Tensor | None:
        """Random weights that make one log-density of several features."""
        if not self.is_density or self.value.ndim == 1:
            return None
        features = self.value.flatten(1)
        spread = features.std(0, correction=0)
        floor = max(1e-6 * float(features.abs().max()), torch.finfo(spread.dtype).tiny)
        normal = torch.randn(spread.shape, generator=generator, device=generator.device)
        return normal.to(spread) / spread.clamp(min=floor)


def agree(a: Tensor, b: Tensor, tolerance: float | None = None) -> bool:
    """Whether two outputs are equal, by default up to rounding, relative to the largest."""
    if a.shape != b.shape:
        return False
    tolerance = torch.finfo(b.dtype).eps ** 0.5 if tolerance is None else tolerance
    size = float(b.abs().nan_to_num(0, 0, 0).max())
    return torch.allclose(a.double(), b.double(), 0.0, tolerance * size, equal_nan=True)


def _gradient(y: Tensor, x: Tensor, create_graph: bool) -> Tensor:
    """Gradient of ``y: (N,)``; zero where y is constant."""
    if not y.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=create_graph, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def _join(parts: list[tuple[Tensor, list[Mask]]], number: int) -> Mask:
    """One operation's mask at all points, from the batches that they were evaluated in."""
    order = torch.cat([index for index, _ in parts]).argsort()
    rows = torch.cat([masks[number].rows for _, masks in parts])
    return Mask(rows[order], parts[0][1][number].operation)


class _Calls(TorchFunctionMode):
    """Keeps the name of the current torch call and the modules as they were at the first.

    With `double`, calls are made in double precision: every tensor, every dtype argument and every
    result is widened, so that a model with float32 parameters runs on float64 points without
    being copied or changed. Parameters are not detached: torch.utils.checkpoint, which runs layers
    again outside of this mode, would take one saved tensor for another.
    """

    def __init__(self, double: bool) -> None:
        super().__init__()
        self.double, self.is_first = double, True
        self.name = ""
        self.parameters: dict[int, tuple[Tensor, Tensor]] = {}
        self.modules: dict[int, tuple[nn.Module, dict[str, Any], dict[str, Tensor | None]]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.name = getattr(func, "__name__", "")
        if self.is_first:
            self._keep_modules()
        try:
            return self._call_double(func, args, kwargs) if self.double else func(*args, **kwargs)
        finally:
            self.name = ""

    def _keep_modules(self) -> None:
        """Remember attributes and buffers of the modules that are being called.

        Some assign new buffers, or keep a tensor for later calls, which in double precision or of
        another number of points would not suit them.
        """
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not Probe._value.__code__:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and isinstance(module._buffers, dict):
                if id(module) in self.modules:
                    return
                self.modules[id(module)] = module, dict(vars(module)), dict(module._buffers)
            frame = frame.f_back

    def _call_double(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.name in ("float", "half", "bfloat16"):
            func = Tensor.double
        changes = self.name.endswith("_") and not self.name.endswith("__")
        first = changes or self.name in ("__setitem__", "__iadd__", "__imul__", "__isub__")
        target = kwargs.get("out", args[0] if first else None)
        wide, rest = self._widen(args), self._widen(kwargs)
        result = self._widen(func(*wide, **rest))
        if not isinstance(target, Tensor) or target.dtype == _wider(target.dtype):
            return result
        changed = rest.get("out", wide[0])  # a copy of the target, which has to follow
        if changed.requires_grad:
            raise TypeError("a tensor of lower precision is changed in place")
        with torch.no_grad():
            target.copy_(changed)
        return target if result is changed else result

    def _widen(self, value: Any) -> Any:
        if isinstance(value, nn.Parameter):
            return self._parameter(value)
        if isinstance(value, Tensor):
            return value.to(_wider(value.dtype))
        if isinstance(value, torch.dtype):
            return _wider(value)
        if type(value) in (tuple, list):
            return type(value)(map(self._widen, value))
        return {k: self._widen(v) for k, v in value.items()} if type(value) is dict else value

    def _parameter(self, value: Tensor) -> Tensor:
        if id(value) not in self.parameters:  # the first of the pair keeps the id from being reused
            self.parameters[id(value)] = value, value.to(_wider(value.dtype))
        return self.parameters[id(value)][1]


def _wider(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


class _ChangeRecorder(Recorder):
    """Copies every tensor that an evaluation changes in place and did not create itself."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[Tensor, Tensor]] = []
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for i, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._copy(args[i] if i < len(args) else kwargs.get(argument.name))
        out = func(*args, **kwargs)
        outs = out if isinstance(out, (tuple, list)) else (out,)
        self._known |= _storages(outs) - _storages(args)
        return out

    def _copy(self, value: Any) -> None:
        if isinstance(value, Tensor) and not _storages([value]) & self._known:
            self._known |= _storages([value])
            whole = value if value._base is None else value._base
            self.copies.append((whole, whole.detach().clone()))


def _storages(values: Sequence[Any]) -> set[int]:
    tensors = [v for v in values if isinstance(v, Tensor) and v.layout == torch.strided]
    return {t.untyped_storage()._cdata for t in tensors}  # sparse tensors have no storage
