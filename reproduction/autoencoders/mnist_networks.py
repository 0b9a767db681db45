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

The decoder returns logits of `BernoulliPixels`. Arguments of the ``make_`` functions:
``latent_dim`` is Dz, ``dim`` the number of pixels, ``hidden`` the widths of the hidden layers of
every network; ``with_score_network=False`` is for scores from an estimator; ``generator`` draws
the initial weights.

Reference: Song et al. (2019), Appendix C.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from scorematching.distributions.observations import BernoulliPixels
from scorematching.models import VAE, WAE, ConditionalMLP, ImplicitVAE, ScoreNetwork
from scorematching.models.networks import mlp


def make_encoder(
    latent_dim: int, dim: int, hidden: Sequence[int], generator: torch.Generator | None
) -> nn.Module:
    """A deterministic encoder, ``(N, D) -> (N, Dz)``; the Gaussian one has 2 Dz outputs."""
    return mlp([dim, *hidden, latent_dim], nn.Tanh, generator)


def make_decoder(
    latent_dim: int, dim: int, hidden: Sequence[int], generator: torch.Generator | None
) -> nn.Module:
    """The decoder, ``(N, Dz) -> (N, D)``, which returns logits."""
    return mlp([latent_dim, *hidden, dim], nn.Tanh, generator)


def make_vae(
    latent_dim: int = 8,
    dim: int = 784,
    hidden: Sequence[int] = (256, 256),
    generator: torch.Generator | None = None,
) -> VAE:
    """The paper's variational auto-encoder with a Gaussian encoder for binary digits."""
    encoder = make_encoder(2 * latent_dim, dim, hidden, generator)
    decoder = make_decoder(latent_dim, dim, hidden, generator)
    return VAE(encoder, decoder, BernoulliPixels(), latent_dim)


def make_implicit_vae(
    latent_dim: int = 8,
    dim: int = 784,
    hidden: Sequence[int] = (256, 256),
    with_score_network: bool = True,
    generator: torch.Generator | None = None,
) -> ImplicitVAE:
    """The paper's variational auto-encoder with an implicit encoder for binary digits."""

    def conditional() -> nn.Module:
        return ConditionalMLP(latent_dim, dim, hidden, generator=generator)

    encoder, decoder = conditional(), make_decoder(latent_dim, dim, hidden, generator)
    score_network = conditional() if with_score_network else None
    return ImplicitVAE(encoder, decoder, BernoulliPixels(), latent_dim, score_network)


def make_wae(
    latent_dim: int = 8,
    dim: int = 784,
    hidden: Sequence[int] = (256, 256),
    with_score_network: bool = True,
    lam: float = 10.0,
    generator: torch.Generator | None = None,
) -> WAE:
    """The paper's Wasserstein auto-encoder for digits; ``lam`` is the weight of the divergence."""
    encoder = make_encoder(latent_dim, dim, hidden, generator)
    decoder = make_decoder(latent_dim, dim, hidden, generator)
    score_network = (
        ScoreNetwork(latent_dim, hidden, activation=nn.Tanh, generator=generator)
        if with_score_network
        else None
    )
    return WAE(encoder, decoder, BernoulliPixels(), latent_dim, score_network, lam)
