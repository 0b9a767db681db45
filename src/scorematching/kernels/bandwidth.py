"""A kernel by its name, with the median distance between samples as its bandwidth."""

from torch import Tensor

from scorematching._checks import can_read_values, check_choice, check_count, check_flag
from scorematching._memory import Budget
from scorematching._precision import at_least_single
from scorematching._rows import some_rows
from scorematching.kernels.base import checked_samples
from scorematching.kernels.distances import check_set, in_chunks, squared_distances
from scorematching.kernels.radial import IMQ, RBF, Kernel

KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "imq": IMQ}
"""Kernels by name."""

_DIAGONAL = "True counts zero distances of samples to themselves in the median"


def kernel_for(
    samples: Tensor,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    include_diagonal: bool = False,
    budget: Budget | None = None,
) -> Kernel:
    """A kernel for sets of samples, by name.

    Args:
        samples: ``(*B, M, D)``.
        kernel: "rbf" or "imq".
        bandwidth: h, a number, or one per set, ``(*B)``; None takes `median_bandwidth` of each.
        include_diagonal: passed on to `median_bandwidth`.
        budget: of the computation.

    Example:
        >>> import torch
        >>> kernel_for(torch.tensor([[0.0], [1.0], [4.0]])).bandwidth.item()
        3.0
    """
    check_choice(kernel, "kernel", KERNELS, '"rbf" suits most data')
    check_flag(include_diagonal, "include_diagonal", _DIAGONAL)
    samples = at_least_single(samples)
    check_set(samples, "samples")
    if bandwidth is None:
        bandwidth = median_bandwidth(samples, include_diagonal, budget=budget)
    if isinstance(bandwidth, Tensor) and bandwidth.shape not in ((), samples.shape[:-2]):
        raise ValueError(
            "bandwidth must be a number, or one for each set, shape "
            f"{tuple(samples.shape[:-2])}, got {tuple(bandwidth.shape)}; None takes the median "
            "distance within each set"
        )
    if isinstance(bandwidth, Tensor):
        bandwidth = bandwidth.to(samples)  # whose powers have the range of those of distances
    return KERNELS[kernel](bandwidth)


def median_bandwidth(
    samples: Tensor,
    include_diagonal: bool = False,
    max_points: int = 2000,
    budget: Budget | None = None,
) -> Tensor:
    """The median distance between the samples of each set, ``(*B, M, D) -> (*B)``.

    Of an even number of distances it is the smaller of the two in the middle. It carries no
    gradient.

    Args:
        samples: ``(*B, M, D)`` with M >= 2.
        include_diagonal: take all M^2 distances, including those of samples to themselves, and of
            these the (M^2 / 2)-th largest, as in the code released with the paper. For few
            samples it is smaller.
        max_points: samples compared per set, at least two; of larger sets as many are taken.
        budget: of the computation.

    Raises:
        TypeError: if samples are no floating-point tensor.
        ValueError: if there are fewer than two samples, some are not finite, a median is zero or
            its square overflows, or the distances do not fit into the budget.

    Example:
        >>> import torch
        >>> median_bandwidth(torch.tensor([[0.0], [1.0], [4.0]])).item()  # of 1, 3 and 4
        3.0
    """
    check_flag(include_diagonal, "include_diagonal", _DIAGONAL)
    check_count(max_points, "max_points", "2000 samples determine a median well")
    x = some_rows(checked_samples(samples).detach(), max(2, max_points), dim=-2)
    num = x.shape[-2]
    if budget is not None:
        need = 3 * num * x.numel() // x.shape[-1] * x.element_size()
        budget.require(need, f"the median distance of {num} points takes (bandwidth= does without)")
    distances = in_chunks(
        lambda part: squared_distances(part, x).clamp(min=0), x, num, budget=budget
    )
    # Off the diagonal every distance is there twice, so the median is that of all pairs.
    distances.diagonal(dim1=-2, dim2=-1).fill_(0.0 if include_diagonal else -1.0)
    pairs = num * (num - 1) // 2
    rank = num**2 - num**2 // 2 + 1 if include_diagonal else num + pairs
    median = distances.flatten(-2).kthvalue(rank, dim=-1).values.sqrt()
    if can_read_values(median) and not bool(median.isfinite().all()):
        raise ValueError(
            "samples must have squared distances within the range of their type, got a median "
            f"beyond that of {x.dtype}; divide them by their standard deviation, or use float64"
        )
    if can_read_values(median) and not bool((median > 0).all()):
        raise ValueError(
            "samples must differ for a median bandwidth, got a set in which at least half of the "
            "distances are zero; drop repeated samples, or pass bandwidth="
        )
    return median
