"""Whether operations are executed now, or recorded to be executed later with other values."""

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode


def is_tracing() -> bool:
    """Whether `torch.compile`, `torch.export` or `make_fx` records the operations.

    Torch has a public function for the first two. `make_fx`, which itself is in
    ``torch.fx.experimental``, has none; its module's own function is used here and nowhere else.
    """
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def is_transformed() -> bool:
    """Whether a transform of `torch.func` runs, for which torch has no public function either."""
    return torch._C._functorch.maybe_current_level() is not None


def is_batched(x: Tensor) -> bool:
    """Whether x is a batch inside `vmap`, such as gradients with ``is_grads_batched=True``."""
    functorch = torch._C._functorch
    return functorch.is_batchedtensor(x) or functorch.is_legacy_batchedtensor(x)


def is_recording(x: Tensor) -> bool:
    """Whether work on the device of x is traced, or captured in a CUDA graph.

    Values are then unknown: they belong to later runs.
    """
    return is_tracing() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def saved_tensors_hooks() -> Any:
    """The hooks for saved tensors that are active, such as those of a checkpoint; or None.

    Torch has no public function for this, and before 2.8 none at all.
    """
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(True)
