"""Errors a caller may want to catch; everything else is a ValueError or a TypeError.

Arguments are checked: one of the wrong type raises TypeError, one out of range or of the wrong
shape ValueError, with a message that says what was wanted, what arrived and what to do. Docstrings
mention only errors of other kinds, and those that depend on the numbers.
"""


class ScoreMatchingError(Exception):
    """Root of the package's own errors."""


class DataNotFoundError(ScoreMatchingError, FileNotFoundError):
    """A data file that is in none of the places searched."""


class SavedModelError(ScoreMatchingError, ValueError):
    """A folder that is no saved model, or whose files were truncated or changed."""


class CheckpointError(ScoreMatchingError, ValueError):
    """A checkpoint whose files are missing, truncated or changed."""


class FolderInUseError(ScoreMatchingError, RuntimeError):
    """The folder of a run in which another process trains."""


class LostRankError(ScoreMatchingError, RuntimeError):
    """A process that trained together with this one and no longer answers."""


class SmoothnessError(ScoreMatchingError, ValueError):
    """A model that is not smooth enough for the derivatives an objective takes."""


class WrongDerivativeError(ScoreMatchingError):
    """A model whose derivatives are not those of its values, or disagree with differences."""


class PerformanceWarning(UserWarning):
    """A model that takes a slower route than it could."""


class DivergedError(ScoreMatchingError):
    """A loss that is no longer finite.

    Args:
        step: the first step whose loss was not finite.
        last_finite_loss: the loss before it; None if there was none.

    Example:
        >>> str(DivergedError(step=7, last_finite_loss=-1.5)).split("; ")[0]
        'the loss is not finite at step 7 (last finite loss -1.5)'
    """

    def __init__(self, step: int, last_finite_loss: float | None = None) -> None:
        # Both go to Exception's args, which is what lets the error cross a process boundary.
        super().__init__(step, last_finite_loss)
        self.step = step
        self.last_finite_loss = last_finite_loss

    def __str__(self) -> str:
        return (
            f"the loss is not finite at step {self.step} (last finite loss "
            f"{self.last_finite_loss}); the model has its last good weights again; take a smaller "
            "learning rate, or clip gradients, max_norm=1"
        )


class SingularInformationError(ScoreMatchingError, ValueError):
    """Parameters that the data do not determine, so that standard errors do not exist."""


class NotConvergedError(ScoreMatchingError):
    """A fit that did not reach a minimum."""
