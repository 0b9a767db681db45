"""The schedule of an annealed path: inverse temperatures, and a step size for each."""

import torch
from torch import Tensor

from scorematching._checks import check_count, check_positive, check_shape


def make_betas(schedule: str | Tensor, num_steps: int) -> Tensor:
    """Inverse temperatures from 0 to 1, ``(T + 1,)``, in double precision.

    Args:
        schedule: "sigmoid" is ``sigmoid(linspace(-4, 4))`` rescaled to begin at 0 and end at 1;
            "linear" is equally spaced; or the betas themselves.
        num_steps: T.

    Example:
        >>> make_betas("linear", 4).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    check_count(num_steps, "num_steps", "more steps give better weights")
    if isinstance(schedule, Tensor):
        wanted = "schedule must have shape (num_steps + 1,) = {}"
        check_shape(schedule, (num_steps + 1,), wanted, "include the betas of both ends, 0 and 1")
        if schedule[0] != 0 or schedule[-1] != 1 or not bool((schedule.diff() > 0).all()):
            raise ValueError(
                f"schedule must increase from 0 to 1, got {schedule[0]:g} to {schedule[-1]:g}; "
                "sort it, drop equal values and rescale it"
            )
        return schedule.double()
    if schedule == "linear":
        return torch.linspace(0, 1, num_steps + 1, dtype=torch.float64)
    if schedule == "sigmoid":
        s = torch.linspace(-4, 4, num_steps + 1, dtype=torch.float64).sigmoid()
        return (s - s[0]) / (s[-1] - s[0])
    raise ValueError(
        f'schedule must be "sigmoid", "linear" or a tensor of betas, got {schedule!r}; '
        '"sigmoid" is a good start'
    )


def make_step_sizes(step_size: float | Tensor, num_steps: int, num_groups: int) -> Tensor:
    """One step size for each temperature between the ends and each group, ``(T - 1, G)``."""
    shape = (num_steps - 1, num_groups)
    if isinstance(step_size, Tensor) and step_size.shape in (shape, shape[:1]):
        least = step_size.min().item() if step_size.numel() else 1.0
        check_positive(least, "step_size", "None adapts step sizes")
        return step_size.reshape(num_steps - 1, -1).expand(shape)
    if isinstance(step_size, Tensor):
        raise ValueError(
            f"step_size must be a number, or have shape (num_steps - 1, num_groups) = {shape} or "
            f"(num_steps - 1,) = ({num_steps - 1},), got shape {tuple(step_size.shape)}; "
            "None adapts them"
        )
    check_positive(step_size, "step_size", "None adapts step sizes")
    return torch.full(shape, float(step_size), dtype=torch.float64)
