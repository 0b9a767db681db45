"""What a GPU does during a step: its kernels, by kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

KINDS = {
    "sums after split products": "splitk|split_k",
    "convolutions": "fprop|dgrad|wgrad|implicit|cudnn|convolve|nchwtonhwc|nhwctonchw",
    "matrix products": "gemm|cutlass|xmma|nvjet|cublas|sm80_|sm90_",
    "optimiser": "adam|multi_tensor",
    "random numbers and sorting": "philox|distribution|random|sort|radix",
    "copies": "memcpy|memset|copy_kernel|direct_copy|catarray",
    "elementwise": "",
}
"""Kinds of kernels by a pattern of their names; the first that fits counts.

Libraries compute many convolutions by kernels that are named as matrix products.
"""


def kind_of(name: str) -> str:
    """The kind of a kernel.

    Example:
        >>> kind_of("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n")
        'matrix products'
        >>> kind_of("triton_poi_fused_mul_7")
        'elementwise'
    """
    return next(kind for kind, names in KINDS.items() if re.search(names, name.lower()))


def account(step: Callable[[], Any], steps: int = 10) -> dict[str, dict[str, float]]:
    """Milliseconds and number of kernels of a step, by kind; empty where there is no GPU."""
    if not torch.cuda.is_available():
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    total = {kind: {"ms": 0.0, "kernels": 0.0} for kind in KINDS}
    for event in profile.key_averages():
        if event.self_device_time_total > 0:
            here = total[kind_of(event.key)]
            here["ms"] += event.self_device_time_total / 1e3 / steps
            here["kernels"] += event.count / steps
    return total
