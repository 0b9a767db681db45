"""Networks for binary digits, ``x: (N, 784)``: two hidden layers of 256 tanh units each.

=====================  ========================  =======================
network                layers                    of
=====================  ========================  =======================
encoder                784 - 256 - 256 - Dz      `WAE`
Gaussian encoder       784 - 256 - 256 - 2 Dz    `VAE`
implicit encoder       784 + De - 256 - 256 - Dz `ImplicitVAE`, De = Dz
decoder                Dz - 256 - 256 - 784      all
score given the image  784 + Dz - 256 - 256 - Dz `ImplicitVAE`
score                  Dz - 256 - 256 - Dz       `WAE`
=====================  ========================  =======================

The decoder gives logits, whose sigmoid the law of pixels takes. Reference: Song et al. (2019),
Appendix C.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching._checks import check_count
from scorematching.models.networks import mlp


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
        """Build the layers."""
        super().__init__()
        check_count(dim, "dim", "it is the number of coordinates of z")
        check_count(context_dim, "context_dim", "for no context use ScoreNetwork")
        self.dim, self.context_dim = dim, context_dim
        net = mlp([context_dim + dim, *hidden, outputs or dim], activation, generator)
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


def encoder(
    latent_dim: int, dim: int, hidden: Sequence[int], generator: torch.Generator | None
) -> nn.Module:
    """An encoder without noise, ``(N, D) -> (N, Dz)``; an explicit one has 2 Dz outputs."""
    return mlp([dim, *hidden, latent_dim], nn.Tanh, generator)


def decoder(
    latent_dim: int, dim: int, hidden: Sequence[int], generator: torch.Generator | None
) -> nn.Module:
    """The decoder, ``(N, Dz) -> (N, D)``, of logits."""
    return mlp([latent_dim, *hidden, dim], nn.Tanh, generator)
