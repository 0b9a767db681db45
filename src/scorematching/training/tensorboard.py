"""Records of a run for TensorBoard."""

from pathlib import Path
from typing import Any

from scorematching.training.callbacks import Callback
from scorematching.training.progress import Record
from scorematching.training.state import TrainState


class TensorBoard(Callback):
    """Writes the records of a run to event files, for ``tensorboard --logdir FOLDER``.

    Curves of the loss, the learning rate, the points per second, and where there is a validation
    its loss and standard error. A resumed run replaces what it repeats. Of several processes the
    main one writes. Requires ``pip install "scorematching[tensorboard]"``.

    Args:
        folder: for event files.

    Raises:
        ImportError: at the start of the run, if TensorBoard is not installed.

    Example:
        >>> train(model, objective, x, config, callbacks=[TensorBoard("runs/a")])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.writer: Any = None

    def on_start(self, state: TrainState) -> None:
        """Open the event file; events of later steps than the present one are discarded."""
        if not state.ranks.is_main:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "the callback TensorBoard needs the package tensorboard, which is not installed; "
                'run pip install "scorematching[tensorboard]"'
            ) from error
        self.writer = SummaryWriter(str(self.folder), purge_step=state.step + 1)

    def on_record(self, state: TrainState, record: Record) -> None:
        """Write a record and flush it, so that it survives the process."""
        if self.writer is None:
            return
        values = {
            "loss": record.loss,
            "learning rate": record.lr,
            "points per second": state.points / record.seconds,
            "validation loss": record.validation,
            "standard error of the validation loss": record.validation_error,
        }
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(name, value, record.step)
        self.writer.flush()

    def on_end(self, state: TrainState) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
