"""Training: one loop for every model and objective, resumable to the same digits."""

from scorematching.training.alternating import Alternating, Phase, score_first
from scorematching.training.checkpoint import load_weights
from scorematching.training.config import TrainConfig, learning_rate
from scorematching.training.early_stopping import EarlyStopping
from scorematching.training.loop import TrainResult, train
from scorematching.training.progress import Record, read_log
from scorematching.training.step import LossModule

__all__ = [
    "Alternating",
    "EarlyStopping",
    "LossModule",
    "Phase",
    "Record",
    "TrainConfig",
    "TrainResult",
    "learning_rate",
    "load_weights",
    "read_log",
    "score_first",
    "train",
]
