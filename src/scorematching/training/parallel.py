"""How weights lie in the processes that train together: whole in each, or sharded over them.

Whole weights are kept equal by `DistributedDataParallel`. Sharded ones are split by `fully_shard`,
PyTorch's FSDP2: each process holds a part of every weight, of its gradient, its average and its
optimiser state. FSDP2 collects the whole weights before the loss is evaluated and splits them again
after the forward pass or the first backward pass. A score-matching loss has backward passes inside,
after which weights would be missing. So they stay whole from the beginning of the loss to the end
of its backward pass, and are split again by this module.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scorematching.training.losses import LossModule
from scorematching.training.ranks import Ranks
from scorematching.training.weights import is_sharded, whole


class Parallel:
    """Whole weights in every process.

    Attributes:
        losses: the module whose backward pass averages gradients over the processes.
    """

    def __init__(self, losses: LossModule, ranks: Ranks) -> None:
        self.losses: nn.Module = ranks.wrap(losses)

    def backward_pass(self, last: bool) -> AbstractContextManager[None]:
        """A loss and its backward pass inside the block; gradients are averaged in the last one."""
        averages = last or not isinstance(self.losses, DistributedDataParallel)
        return nullcontext() if averages else self.losses.no_sync()  # type: ignore[operator]

    def whole_weights(self) -> AbstractContextManager[None]:
        """The model can be called inside the block."""
        return nullcontext()

    def close(self) -> None:
        """Leave the module as it was, with its present weights."""


class Sharded(Parallel):
    """Weights split over the processes along their first axis.

    Layers that were split by `fully_shard` before are left so; that overlaps communication with
    computation in large models.

    Raises:
        ValueError: if a parameter is a single number, which cannot be split.
    """

    def __init__(self, losses: LossModule, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        _check_axes(losses.module)
        self.owners = _owners(losses.module)
        mesh = init_device_mesh(ranks.device.type, (ranks.count,))
        root: Any = fully_shard(losses, mesh=mesh, reshard_after_forward=False)
        root.set_reshard_after_forward(False)
        root.set_reshard_after_backward(False)
        self.losses, self.root = losses, root
        self.split: list[Any] = [m for m in losses.modules() if isinstance(m, FSDPModule)]
        for _, _, original in self.owners:
            original.data = original.data.new_empty(0)  # its memory is in the parts now

    @contextmanager
    def backward_pass(self, last: bool) -> Iterator[None]:
        """Average gradients in the last backward pass; then split the weights again."""
        self.root.set_requires_gradient_sync(last)
        self.root.set_is_last_backward(last)
        yield
        self._reshard()

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """Whole weights in every process inside the block; what changes them there is lost."""
        for module in self.split:
            module.unshard()
        try:
            yield
        finally:
            self._reshard()

    def close(self) -> None:
        """Give the module its own parameters again, whole; all processes must call this."""
        for owner, name, original in self.owners:
            if not original.numel():  # a parameter that modules share comes several times
                original.data = whole(owner._parameters[name])
        for owner, name, original in self.owners:
            owner._parameters[name] = original

    def _reshard(self) -> None:
        for module in self.split:
            module.reshard()


def _owners(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Every module with a parameter of its own that is not split, the name, and the parameter."""
    return [
        (owner, name, p)
        for owner in module.modules()
        for name, p in owner._parameters.items()
        if p is not None and not is_sharded(p)
    ]


def _check_axes(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.ndim == 0:
            raise ValueError(
                f"parameters must have an axis along which they can be split, got {name} of shape "
                '(); give it shape (1,), or train with parallel="ddp"'
            )
