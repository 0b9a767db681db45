"""Training: one loop for every model and objective, resumable to the same digits.

What the arguments of `train` can be:

==============  =================================================================================
``objective``   an `Objective`, or any function ``(model, batch, generator=...) -> (N,)``, which is
                how models with a context are trained; a `DrawnLoss` draws its noise first, so that
                it can be compiled; `Alternating` trains parts in turn
``data``        a tensor ``(N, *event)``, shuffled anew in each epoch, a file that need not fit into
                memory (`open_stream`), or an iterable of batches
``validation``  held-out points, or a function of the model that returns a loss or the losses of
                points, ``(N,)``. It is called in evaluation mode, without gradients and with
                averaged weights; its noise is the same every time, so that losses can be compared
``optimizer``   called with the parameters and ``lr=``; `functools.partial` sets the rest, and a
                function of one's own may put parameters into groups with rates of their own, which
                the schedule multiplies; None is Adam, on a GPU its fused form
``executor``    "eager", "captured" (as one CUDA graph), "compiled", "compiled+captured", or several
                of these in order of preference, of which the first that works is used. "auto" on a
                GPU is all but "compiled", the fastest first; runs of fewer than 1000 steps are not
                compiled, which takes half a minute, and batches of varying shape run eagerly.
                "auto" on a CPU is "eager". The choice, and why another one failed, goes to the
                logger ``scorematching.training``
``generator``   source of all randomness, on the device of the module; None is torch's default
                generator
==============  =================================================================================

Several processes, started by `torchrun` or `accelerate launch`, train like a single one. All have
the same data and take the state of the main process's generator, draw the same batches of
``batch_size`` points and noise for all of them, and each evaluates its own points with their noise.
So the batches, the noise and the gradients are those of a single process, up to rounding, whatever
the number of processes, and a run can be resumed by another number of them. That holds for
`Objective` and `DrawnLoss`; a function of one's own draws other noise for another number.

A loss that is not finite raises `DivergedError`, at most 50 steps later. The module then has the
weights of the best validation; without validation, those of the last checkpoint, whether or not
there is a folder.
"""

from scorematching.training.alternating import Alternating, Phase, score_first
from scorematching.training.callbacks import Callback
from scorematching.training.checkpoint import load_weights
from scorematching.training.config import TrainConfig
from scorematching.training.drawn import DrawnLoss, ModelLoss, ScoreLoss
from scorematching.training.early_stopping import EarlyStopping
from scorematching.training.loop import train
from scorematching.training.losses import LossModule
from scorematching.training.progress import Record, read_log
from scorematching.training.result import TrainResult
from scorematching.training.schedule import learning_rate
from scorematching.training.state import TrainState
from scorematching.training.streams import Moments, Stream, open_stream
from scorematching.training.tensorboard import TensorBoard

__all__ = [
    "Alternating",
    "Callback",
    "DrawnLoss",
    "EarlyStopping",
    "LossModule",
    "ModelLoss",
    "Moments",
    "Phase",
    "Record",
    "ScoreLoss",
    "Stream",
    "TensorBoard",
    "TrainConfig",
    "TrainResult",
    "TrainState",
    "learning_rate",
    "load_weights",
    "open_stream",
    "read_log",
    "score_first",
    "train",
]
