"""One process, or one of several that train together.

Processes started by `torchrun` or `accelerate launch` are joined by `accelerate`, which wraps the
module so that gradients are averaged. A single process does not use `accelerate`, whose state is
global and cannot be changed once it exists.
"""

import atexit
import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scorematching._checks import check_generator
from scorematching._graphs import generator_or_default

_RELEASE = 0.2  # seconds in which threads of gloo release their tensors at the end


@dataclass(frozen=True)
class Ranks:
    """A process among ``count`` of them.

    Attributes:
        device: where this process computes.
        rank: its number, from zero.
        count: number of processes.
        accelerator: joins them; None for a single process.

    Example:
        >>> alone = Ranks(torch.device("cpu"))
        >>> alone.is_main, alone.gather(torch.ones(2)).shape
        (True, torch.Size([1, 2]))
    """

    device: torch.device
    rank: int = 0
    count: int = 1
    accelerator: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module whose backward pass averages gradients over the processes."""
        return module if self.count == 1 else self.accelerator.prepare_model(module)

    def gather(self, x: Tensor) -> Tensor:
        """The tensors of all processes, ``(*shape) -> (count, *shape)``."""
        if self.count == 1:
            return x[None]
        gathered: Tensor = self.accelerator.gather(x[None].to(self.device))
        return gathered.to(x.device)

    def all(self, flag: bool) -> bool:
        """Whether a flag is set in all processes."""
        return bool(self.gather(torch.tensor(float(flag))).all())

    def from_main(self, x: Tensor) -> Tensor:
        """The tensor of the main process, for all."""
        return self.gather(x)[0]

    def wait(self) -> None:
        """Wait for the others.

        By a gather, which works on every device; accelerate's own barrier needs a GPU for each
        process, even for processes that compute on the CPU.
        """
        self.gather(torch.zeros(()))


def join(device: torch.device, parallel: str = "ddp") -> Ranks:
    """This process among those it was started with; of several GPUs, each process takes its own.

    For "fsdp", `accelerate launch --use_fsdp` may be used too.

    Raises:
        ValueError: if the processes were joined in a way that is not supported.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        count = torch.distributed.get_world_size()
    else:
        count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Ranks(device)
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=device.type == "cpu")
    atexit.register(_leave)
    kind = accelerator.distributed_type.value
    known = ("MULTI_CPU", "MULTI_GPU", *(("FSDP",) if parallel == "fsdp" else ()))
    if kind not in known or accelerator.num_processes != count:
        raise ValueError(
            f'the {count} processes must train by data parallelism or by parallel="fsdp", got '
            f"{kind} with {accelerator.num_processes} of them; start them with torchrun, or with "
            "accelerate launch --multi_gpu"
        )
    return Ranks(accelerator.device, accelerator.process_index, count, accelerator)


def source_of_noise(generator: torch.Generator | None, ranks: Ranks) -> torch.Generator:
    """The given generator, or torch's default one, in the main process's state in all of them.

    All draw the same numbers, for the whole batch, and use those of their own points.
    """
    generator = generator_or_default(generator, ranks.device)
    check_generator(generator, ranks, "the module")
    if ranks.count > 1:
        generator.set_state(ranks.from_main(generator.get_state()).clone())
    return generator


def _leave() -> None:
    """End communication before Python does: threads of gloo must not outlive the interpreter.

    The group's threads end with its last reference only, and modules sharded by FSDP hold one. A
    thread that still releases the tensors of its last work needs the interpreter's lock, which it
    gets while this one sleeps; without the lock it would abort the process.
    """
    if dist.is_initialized():
        with contextlib.suppress(Exception):  # other processes may have left already
            dist.destroy_process_group()
        time.sleep(_RELEASE)
