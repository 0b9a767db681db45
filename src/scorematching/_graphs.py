"""Work on a GPU recorded as a CUDA graph, which launches all its operations at once."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class CaptureError(RuntimeError):
    """Work that cannot be recorded as a CUDA graph."""


def generator_or_default(
    generator: torch.Generator | None, device: torch.device
) -> torch.Generator:
    """The generator, or for None torch's default one of the device."""
    if generator is not None:
        return generator
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def on_side_stream(work: Callable[[], Result], device: torch.device) -> Result:
    """Do work on a stream of its own, which torch requires of the runs before a recording."""
    current, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        result = work()
    current.wait_stream(side)
    return result


def record(
    work: Callable[[], Result],
    device: torch.device,
    generator: torch.Generator | None,
    what: str,
    instead: str,
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record work without doing it; each replay of the graph then does it.

    Its tensors are read and written in place by every replay, which also overwrites the result.
    ``what`` names the work in the error message, ``instead`` is its advice.

    Raises:
        CaptureError: if an operation cannot be recorded; generators are as before.
    """
    graph = torch.cuda.CUDAGraph()
    # Every graph uses torch's default generator, too, whether it draws from it or not.
    sources = {generator_or_default(source, device) for source in (generator, None)}
    before = [(source, source.clone_state()) for source in sources]
    if generator is not None:
        graph.register_generator_state(generator)
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph):
            return graph, work()
    except RuntimeError as error:
        # Torch leaves generators registered with the failed graph, and refuses to draw from them.
        for source, state in before:
            source.graphsafe_set_state(state)
        raise CaptureError(
            f"{what} cannot be captured in a CUDA graph: something needs the value of a tensor, or "
            "memory of another kind, while it runs; remove .item(), .cpu() and data-dependent "
            f"shapes, or {instead}"
        ) from error
