"""What an entry of the zoo is: a third-party model, points to evaluate it at, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy
import torch
from torch import Tensor, nn

Verdict = Literal["smooth", "kinked", "borderline", "coupled", "opaque"]
"""What is true of a model, known before the library sees it.

smooth: a loss and its gradient exist; kinked: the score or its derivative jumps, so that they do
not; borderline: kinked, but by so little that the gradient is off by less than 1%, so that a
refusal and right derivatives are both right; coupled: the value at a point depends on the other
points; opaque: smooth, but torch itself cannot differentiate its backward pass, so that a refusal
is as right as a right answer.
"""


@dataclass(frozen=True)
class Model:
    """A log-density or vector field, points, and the parameters it is trained by."""

    call: Callable[[Tensor], Tensor]
    x: Tensor
    parameters: tuple[Tensor, ...]
    kind: Literal["density", "vector"] = "density"


@dataclass(frozen=True)
class Entry:
    """A third-party model and what is expected of it.

    `why` is required unless it is smooth. `random` models draw from torch's default generator,
    which is seeded before every question: what they must be right for is that draw.
    """

    library: str
    name: str
    build: Callable[[], Model]
    verdict: Verdict = "smooth"
    why: str = ""
    random: bool = False

    @property
    def label(self) -> str:
        """Library and name, unique in the zoo."""
        return f"{self.library}: {self.name}"

    def fresh(self) -> Model:
        """A new model, the same each time: float64, seeded."""
        with settings():
            torch.manual_seed(0)
            numpy.random.seed(0)  # some constructors draw from numpy's global generator
            torch.compiler.reset()
            return self.build()


@contextmanager
def settings() -> Iterator[None]:
    """Float64 and torch's own defaults, whatever an imported library has changed; undone after."""
    state = numpy.random.get_state()
    dtype, validate = torch.get_default_dtype(), torch.distributions.Distribution._validate_args
    torch.set_default_dtype(torch.float64)
    torch.distributions.Distribution.set_default_validate_args(True)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            yield
    finally:
        numpy.random.set_state(state)
        torch.set_default_dtype(dtype)
        torch.distributions.Distribution.set_default_validate_args(validate)


class Energy(nn.Module):
    """A normal log-density tilted by a network, ``-|x|^2 / 2 + <c, net(x)>``, c constant."""

    def __init__(self, net: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Log-density ``(N, *event) -> (N,)``."""
        out = self.net(x).flatten(1)
        weights = torch.linspace(0.5, 1.5, out.shape[1], dtype=out.dtype)
        return out @ weights / out.shape[1] ** 0.5 - 0.5 * x.flatten(1).square().sum(-1)


class Through(nn.Module):
    """A module that is called by a function: ``x -> function(module, x)``."""

    def __init__(self, module: nn.Module, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, x: Tensor) -> Tensor:
        """What the function returns."""
        return self.function(self.module, x)


def log_prob(module: nn.Module) -> nn.Module:
    """A distribution or flow with a method `log_prob`, as a log-density."""
    return Through(module, lambda flow, x: flow.log_prob(x))


def seeded(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, from the same state of torch's default generator at every call."""

    def with_seed(*args: Any, **kwargs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            return call(*args, **kwargs)

    return with_seed


def density(
    call: Callable[[Tensor], Tensor],
    *event: int,
    module: nn.Module | Iterable[Tensor] | None = None,
    num: int = 6,
    stir: float = 0.1,
    points: Callable[[Tensor], Tensor] = lambda x: x,
) -> Model:
    """A log-density at `num` standard normal points, moved by `points`.

    `module` has the parameters, `call` itself unless given; each gets noise of relative size
    `stir`, because libraries initialise some layers with zeros, which hides mistakes.
    """
    source = call if module is None else module
    parameters = tuple(source.double().parameters() if isinstance(source, nn.Module) else source)
    parameters = tuple(p for p in parameters if p.requires_grad)
    noise = torch.Generator().manual_seed(1)
    for p in parameters:
        size = stir * max(float(p.detach().square().mean().sqrt()), 0.3)
        p.data += size * torch.randn(p.shape, generator=noise, dtype=p.dtype)
    x = torch.randn(num, *event, generator=torch.Generator().manual_seed(2))
    return Model(call, points(x), parameters)


def vector(call: Callable[[Tensor], Tensor], *event: int, **options: object) -> Model:
    """A vector field at standard normal points, with the options of `density`."""
    model = density(call, *event, **options)  # type: ignore[arg-type]
    return Model(model.call, model.x, model.parameters, "vector")


def energy(net: nn.Module, *event: int, **options: object) -> Model:
    """A network with any output as a log-density, by `Energy`."""
    return density(Energy(net), *event, **options)  # type: ignore[arg-type]
