"""Training: one loop for every model and objective, resumable to the same digits."""

from scorematching.training.alternating import Alternating, Phase, score_first
from scorematching.training.callbacks import Callback
from scorematching.training.checkpoint import load_weights
from scorematching.training.config import TrainConfig
from scorematching.training.early_stopping import EarlyStopping
from scorematching.training.loop import TrainResult, train
from scorematching.training.losses import LossModule
from scorematching.training.progress import Record, read_log
from scorematching.training.schedule import learning_rate
from scorematching.training.state import TrainState

__all__ = [
    "Alternating",
    "Callback",
    "EarlyStopping",
    "LossModule",
    "Phase",
    "Record",
    "TrainConfig",
    "TrainResult",
    "TrainState",
    "learning_rate",
    "load_weights",
    "read_log",
    "score_first",
    "train",
]
