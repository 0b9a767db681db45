"""Samplers: Markov chains as pure functions, state in and state out.

They take callables and tensors and know nothing of models: a target is a function
``x: (C, *event) -> (log-density (C,), score (C, *event))``, for C chains at once.
"""

from scorematching.samplers.hmc import (
    HMCInfo,
    HMCNoise,
    HMCState,
    Target,
    adapt_step_size,
    draw,
    leapfrog,
    move,
    start,
    step,
    target_of,
)

__all__ = [
    "HMCInfo",
    "HMCNoise",
    "HMCState",
    "Target",
    "adapt_step_size",
    "draw",
    "leapfrog",
    "move",
    "start",
    "step",
    "target_of",
]
