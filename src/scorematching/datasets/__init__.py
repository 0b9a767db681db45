"""Datasets: points by name, invertible preprocessing, splits."""

from scorematching.datasets.columns import Dequantise, drop_correlated
from scorematching.datasets.preprocess import Compose, Logit, Standardise, Transform, Whiten
from scorematching.datasets.registry import Dataset, is_at_hand, load, names
from scorematching.datasets.splits import Split, paper_split, split

__all__ = [
    "Compose",
    "Dataset",
    "Dequantise",
    "Logit",
    "Split",
    "Standardise",
    "Transform",
    "Whiten",
    "drop_correlated",
    "is_at_hand",
    "load",
    "names",
    "paper_split",
    "split",
]
