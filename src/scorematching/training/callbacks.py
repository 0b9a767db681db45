"""Code of the user's that runs during training."""

from scorematching.training.progress import Record
from scorematching.training.state import TrainState


class Callback:
    """What `train` calls during a run; subclasses override what they need.

    ================  =========================================================================
    ``on_start``      before the first step; an interrupted run has been restored
    ``on_record``     every ``log_every`` steps and after every validation
    ``on_step``       after every step, after its record and its checkpoint
    ``on_end``        at the end, with the final weights; not after an error
    ================  =========================================================================

    A method may read the state, end the run by ``state.stop()``, and set learning rates in
    ``state.optimizer.param_groups``, which then hold, times the schedule; after a change of other
    options there, captured steps go on eagerly. It must not draw from the run's generator, or a
    resumed run would draw other numbers. Reading values from a GPU waits for the device, which in
    ``on_step`` takes time.

    Example:
        >>> import torch
        >>> from scorematching import SlicedScoreMatchingVR, models
        >>> from scorematching.training import TrainConfig, train
        >>> class StopAt(Callback):
        ...     def __init__(self, loss):
        ...         self.loss = loss
        ...     def on_record(self, state, record):
        ...         if record.loss < self.loss:
        ...             state.stop()
        >>> density, x = models.MLPDensity(dim=2, hidden=(8,)), torch.randn(64, 2)
        >>> config = TrainConfig(steps=20, batch_size=32, log_every=5)
        >>> stop = StopAt(loss=1e6)
        >>> train(density, SlicedScoreMatchingVR(), x, config, callbacks=[stop]).steps
        5
    """

    def on_start(self, state: TrainState) -> None:
        """Run before the first step."""

    def on_record(self, state: TrainState, record: Record) -> None:
        """Run after a record."""

    def on_step(self, state: TrainState) -> None:
        """Run after a step."""

    def on_end(self, state: TrainState) -> None:
        """Run at the end."""
