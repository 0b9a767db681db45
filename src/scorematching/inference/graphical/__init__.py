"""Sparse graphical models by score matching: the path of the l1 penalty, and its selection."""

from scorematching.inference.graphical.estimator import GraphicalModel
from scorematching.inference.graphical.path import Path

__all__ = ["GraphicalModel", "Path"]
