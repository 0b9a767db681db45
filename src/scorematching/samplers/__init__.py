"""Samplers: steps of Markov chains as pure functions of a state.

Every sampler is a module with three functions for C chains at once: ``draw`` returns the noise of
one step, ``move`` is the step with given noise, and ``step`` does both. The latter two return the
next state, or positions, and diagnostics.

================  ==============================================  =================================
module            a step                                          needs
================  ==============================================  =================================
`langevin`        ``x + (h^2 / 2) s(x) + h eps``                  a score
`mala`            the same, accepted or rejected                  a log-density with its score
`hmc`             a leapfrog path, accepted or rejected           a log-density with its score
`annealed`        Langevin steps at decreasing levels of noise    a score at every level
================  ==============================================  =================================

`mala` and `hmc` may follow any other force than the score, see `ForcedTarget`.

Steps do not adapt their size; `adapt` and `adapt_step_size` compute a new one from the acceptance.
"""

from scorematching.samplers import annealed, hmc, langevin, mala
from scorematching.samplers.adaptation import Adaptation, adapt, adapt_step_size, begin_adaptation
from scorematching.samplers.annealed import anneal, noise_levels
from scorematching.samplers.base import ForcedTarget, State, Target, start, target_of

__all__ = [
    "Adaptation",
    "ForcedTarget",
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
