"""Samplers: Markov chains as pure functions, state in and state out.

They take callables and tensors and know nothing of models. Every sampler is a module with the
same three verbs, for C chains at once: ``draw`` makes the noise of one step, ``move`` takes the
step with it, and ``step`` is both.

================  ==============================================  =================================
module            a step                                          needs
================  ==============================================  =================================
`langevin`        ``x + (h^2 / 2) s(x) + h eps``                  a score
`mala`            the same, accepted or rejected                  a log-density with its score
`hmc`             a leapfrog path, accepted or rejected           a log-density with its score
`annealed`        Langevin steps at levels of noise that fall     a score at every level
================  ==============================================  =================================

A step never adapts its size; `adapt` and `adapt_step_size` do, from what a step reported.
"""

from scorematching.samplers import annealed, hmc, langevin, mala
from scorematching.samplers.adaptation import (
    Adaptation,
    adapt,
    adapt_step_size,
    begin_adaptation,
)
from scorematching.samplers.annealed import anneal, noise_levels
from scorematching.samplers.base import State, Target, start, target_of

__all__ = [
    "Adaptation",
    "State",
    "Target",
    "adapt",
    "adapt_step_size",
    "anneal",
    "annealed",
    "begin_adaptation",
    "hmc",
    "langevin",
    "mala",
    "noise_levels",
    "start",
    "target_of",
]
