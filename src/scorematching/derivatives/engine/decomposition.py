"""Operations without a rule, written out as ATen operations that have one.

`make_fx` records what one call does on plain tensors; the recorded graph is then run on traced
values, where every ATen operation finds its rule. A graph is kept for calls with the same
function, shapes and other arguments, in the same mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten

from scorematching.derivatives.engine.trace import Untraceable, plain

Graph = Callable[[Sequence[Any], dict[str, Any]], Any]

_NORMS = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_fused_rms_norm",  # from torch 2.8 on
)


def decompose(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], known: dict[Any, Any]
) -> Graph | None:
    """A call written out as ATen operations; None if it cannot be written out.

    Args:
        func: the function called.
        args: its arguments, some of them traced.
        kwargs: its keyword arguments.
        known: graphs of earlier calls; a new one is added.
    """
    leaves, spec = tree_flatten((tuple(args), kwargs))
    # Before torch 2.7 the structure itself has no hash.
    key = (func, repr(spec), _mixed_precision(), *map(_signature, leaves))
    try:
        missing = key not in known
    except TypeError:
        raise Untraceable(f"{func}: called with arguments that have no hash") from None
    if missing:
        known[key] = _record(func, leaves, spec)
    module = known[key]
    if module is None:
        return None
    return lambda args, kwargs: module(*_tensors(tree_flatten((tuple(args), kwargs))[0]))


def _record(func: Any, leaves: list[Any], spec: Any) -> Any:
    """The graph of a call; None if it consists of the call itself or cannot be recorded."""

    def call(*tensors: Tensor) -> Any:
        left = iter(tensors)
        filled = [next(left) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(filled, spec)
        return func(*args, **kwargs)

    values = [plain(t).detach() for t in _tensors(leaves)]
    devices = [v.device for v in values if v.is_cuda][:1]
    try:
        with torch.random.fork_rng(devices):
            before = torch.get_rng_state()
            module = _recorded(call, values)
            drawn = not torch.equal(torch.get_rng_state(), before)
            if drawn and not any(_draws(n) for n in module.graph.nodes):
                return None  # the graph would repeat the numbers drawn during the recording
    except Exception:  # data-dependent control flow, an operation without a meta kernel, ...
        return None
    targets = [n.target for n in module.graph.nodes if n.op == "call_function"]
    return None if not targets or func in targets else module


def _recorded(call: Any, values: list[Tensor]) -> Any:
    """A graph of ATen operations without changes in place."""
    with disable_proxy_modes_tracing(), sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        module = make_fx(call, decomposition_table=_table())(*values)
        if any(_mutates(n) for n in module.graph.nodes):
            module = make_fx(functionalize(module, remove="mutations"))(*values)
    return module


def _draws(node: Any) -> bool:
    """Whether a node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _mutates(node: Any) -> bool:
    """Whether a node changes its arguments in place."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _tensors(leaves: list[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _mixed_precision() -> tuple[torch.dtype | None, ...]:
    """What autocast computes in, on either device, which a graph contains as changes of dtype."""
    return tuple(
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in ("cpu", "cuda")
    )


def _signature(leaf: Any) -> Any:
    """What a graph depends on: the shape of a tensor, the value of anything else."""
    if isinstance(leaf, Tensor):
        return Tensor, leaf.shape, leaf.dtype, leaf.device
    return type(leaf), leaf


@lru_cache(maxsize=1)
def _table() -> dict[Any, Any]:
    """Torch's decompositions to core ATen, and of the norms that core ATen keeps whole."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    known = [getattr(torch.ops.aten, name) for name in _NORMS if hasattr(torch.ops.aten, name)]
    return {**core_aten_decompositions(), **get_decompositions(known)}
