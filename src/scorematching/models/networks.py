"""Small networks for log-densities and scores."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching._checks import check_coordinates, check_count


class MLPDensity(nn.Module):
    """An unnormalised log-density: a network plus a Gaussian.

    ``log p~(x) = net(x) - 0.5 |(x - location) * exp(log_precision / 2)|^2``. The Gaussian, with
    trainable location and diagonal precision, makes the density integrable, since a network of
    softplus units grows only linearly.

    Args:
        dim: D, number of coordinates.
        hidden: widths of the hidden layers.
        activation: called once per hidden layer; must be twice continuously differentiable
            (softplus, SiLU, GELU, tanh), or the gradient of the loss is wrong.
        generator: source of the initial weights; None is torch's default generator.

    Example:
        >>> density = MLPDensity(dim=2, hidden=(16, 16))
        >>> density(torch.zeros(5, 2)).shape
        torch.Size([5])
    """

    normalised = False

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (128, 128),
        activation: Callable[[], nn.Module] = nn.Softplus,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.net = mlp(widths(dim, hidden, 1), activation, generator)
        self.location = nn.Parameter(torch.zeros(dim))
        self.log_precision = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant, ``(N, D) -> (N,)``."""
        check_coordinates(x, len(self.location), self.location)
        centred = x - self.location
        quadratic = (centred.square() * self.log_precision.exp()).sum(-1)
        return self.net(x).squeeze(-1) - 0.5 * quadratic


class ScoreNetwork(nn.Module):
    """A network for a score, ``x: (N, D) -> (N, D)``, optionally conditional on a context.

    Args:
        dim: D, number of coordinates.
        hidden: widths of the hidden layers.
        context_dim: C, number of coordinates of the context; zero for none.
        activation: called once per hidden layer; must be continuously differentiable.
        generator: source of the initial weights; None is torch's default generator.

    Example:
        The derivative of a conditional score is taken in z, never in the context.

        >>> net = ScoreNetwork(dim=2, context_dim=3)
        >>> net(torch.zeros(5, 2), torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (128, 128),
        context_dim: int = 0,
        activation: Callable[[], nn.Module] = nn.Softplus,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if context_dim != 0:
            check_count(context_dim, "context_dim", "zero is for no context")
        self.context_dim = context_dim
        self.net = mlp(widths(dim + context_dim, hidden, dim), activation, generator)

    def forward(self, x: Tensor, context: Tensor | float | None = None) -> Tensor:
        """Score at ``x: (N, D)`` given ``context: (N, C)``, or one number: ``(N, D)``."""
        first: Any = self.net[0]
        check_coordinates(x, first.in_features - self.context_dim, first.weight)
        if isinstance(context, int | float):  # a level of noise, as from samplers.anneal
            context = x.new_full((*x.shape[:-1], 1), context)
        wanted = (*x.shape[:-1], self.context_dim)
        got = (*x.shape[:-1], 0) if context is None else tuple(context.shape)
        if got != wanted:
            raise ValueError(
                f"context must have one row per point, shape {tuple(wanted)}, got "
                f"{None if context is None else got}; call the network with a context, expand it "
                "to the batch, or set context_dim= when the network is made"
            )
        return self.net(x if context is None else torch.cat([x, context], dim=-1))


class ConditionalMLP(nn.Module):
    """A vector made of a vector and a context, ``z: (N, C), x: (N, D) -> (N, outputs)``.

    The layers see ``[x, z]``. Many vectors may go with one context, ``z: (N, M, C)``: the first
    layer, linear as it is, then looks at x once and not M times.

    Args:
        dim: C, number of coordinates of z.
        context_dim: D, number of coordinates of x.
        hidden: widths of the hidden layers.
        outputs: number of outputs; None is C.
        activation: called once per hidden layer; a score network's must be continuously
            differentiable.
        generator: source of the initial weights; None is torch's default generator.

    Example:
        >>> net = ConditionalMLP(dim=2, context_dim=5)
        >>> x, z = torch.randn(3, 5), torch.randn(3, 4, 2)
        >>> torch.allclose(net(z, x)[:, 1], net(z[:, 1], x), atol=1e-6)
        True
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        hidden: Sequence[int] = (256, 256),
        outputs: int | None = None,
        activation: Callable[[], nn.Module] = nn.Tanh,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_count(dim, "dim", "it is the number of coordinates of z")
        check_count(context_dim, "context_dim", "for no context use ScoreNetwork")
        self.dim, self.context_dim = dim, context_dim
        every = widths(context_dim + dim, hidden, dim if outputs is None else outputs)
        net = mlp(every, activation, generator)
        self.first: Any = net[0]
        self.rest = net[1:]

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """The output, ``z: (N, *M, C), x: (N, D) -> (N, *M, outputs)``."""
        if x.shape != (z.shape[0], self.context_dim) or z.shape[-1] != self.dim:
            raise ValueError(
                f"z and x must have shapes (N, ..., {self.dim}) and (N, {self.context_dim}), got "
                f"{tuple(z.shape)} and {tuple(x.shape)}; give one context per row of z, flat"
            )
        of_x, of_z = self.first.weight.split([self.context_dim, self.dim], dim=1)
        constant = F.linear(x, of_x, self.first.bias)
        h = F.linear(z, of_z) + constant.reshape(len(x), *[1] * (z.ndim - 2), -1)
        output: Tensor = self.rest(h)
        return output


def widths(inputs: int, hidden: Any, outputs: int) -> list[int]:
    """All widths of a network, from the inputs to the outputs."""
    if not isinstance(hidden, Iterable) or isinstance(hidden, str):
        raise TypeError(
            f"hidden must be a sequence of widths, one for each hidden layer, got {hidden!r}; one "
            "layer of 64 units is (64,), two are (64, 64)"
        )
    return [inputs, *hidden, outputs]


def mlp(
    widths: Sequence[int],
    activation: Callable[[], nn.Module],
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Linear layers of the given widths with activations between them."""
    for width in widths:
        check_count(width, "every width", "give dim and hidden as positive integers")
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [_layer(activation)] if i else []
        layers.append(linear(inputs, outputs, generator))
    return nn.Sequential(*layers)


def _layer(activation: Any) -> nn.Module:
    """An activation layer, made by a class or function that is called without arguments."""
    layer: Any = None
    cause: TypeError | None = None
    try:
        layer = activation()
    except TypeError as error:
        cause = error
    if not isinstance(layer, nn.Module):
        raise TypeError(
            "activation must make a layer when it is called without arguments, got "
            f"{activation!r}; pass a class such as nn.SiLU, or lambda: nn.Softplus(beta=2.0)"
        ) from cause
    return layer


def linear(inputs: int, outputs: int, generator: torch.Generator | None = None) -> nn.Linear:
    """A linear layer with torch's default initial weights, drawn from ``generator``."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, device=torch.get_default_device())
    bound = inputs**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
