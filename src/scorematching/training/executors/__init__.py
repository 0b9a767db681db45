"""Executors: ways to run the same training step.

======================  ===========================================================================
"eager"                 one operation after another
"captured"              replayed as one CUDA graph (`captured`)
"compiled"              gradients by a compiled function (`compiled`)
"compiled+captured"     both: the fastest on a GPU
======================  ===========================================================================
"""

from scorematching.training.executors.captured import Captured
from scorematching.training.executors.choice import EXECUTORS, Fallback, choose
from scorematching.training.executors.compiled import CompiledGradients

__all__ = ["EXECUTORS", "Captured", "CompiledGradients", "Fallback", "choose"]
