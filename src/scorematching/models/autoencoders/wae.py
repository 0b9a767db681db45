"""Wasserstein auto-encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from scorematching._checks import check_batch, check_positive
from scorematching.distributions.observations import (
    BernoulliPixels,
    NormalPixels,
    Observation,
)
from scorematching.entropy import entropy_terms
from scorematching.models.autoencoders import celeba, mnist
from scorematching.models.autoencoders.base import ScoredModel
from scorematching.models.autoencoders.vae import Estimator
from scorematching.models.networks import ScoreNetwork


class WAE(ScoredModel):
    """An auto-encoder with a penalty on the divergence of its latents from a normal distribution.

    ``E |x - decode(z)|^2 + lam KL(q(z) | p(z))`` with ``z = encoder(x)`` and q the distribution of
    z over the data. The gradient of the divergence needs the score of q *in z*,
    ``grad_z log q(z)``, either from a network (`score_loss`) or estimated from the latents of a
    batch. `scorematching.training.score_first` trains the score network and the rest alternately.

    Args:
        encoder: ``(N, *event) -> (N, Dz)``.
        decoder: ``(N, Dz) -> (N, *event)``, the parameters of the distribution of pixels.
        observation: `BernoulliPixels` or `NormalPixels`. Training uses only its means; its
            likelihood is for evaluation.
        latent_dim: Dz.
        score_network: ``z -> score``, ``(N, Dz) -> (N, Dz)``; None if an estimator replaces it.
        lam: weight of the divergence, 10 in the published experiments.

    Reference: Tolstikhin et al. (2018); Song et al. (2019), Section 6.2.

    Example:
        >>> from scorematching import ScoreMatching
        >>> wae = WAE.mnist(latent_dim=2, dim=5, hidden=(8,))
        >>> x = torch.ones(3, 5)
        >>> wae.score_loss(x, ScoreMatching()).shape, wae.loss(x).shape
        (torch.Size([3]), torch.Size([3]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        observation: Observation,
        latent_dim: int,
        score_network: nn.Module | None = None,
        lam: float = 10.0,
    ) -> None:
        """Store the parts."""
        super().__init__(encoder, decoder, observation, latent_dim, score_network)
        check_positive(lam, "lam", "10 is the weight of the published experiments")
        self.lam = lam

    @classmethod
    def mnist(
        cls,
        latent_dim: int = 8,
        dim: int = 784,
        hidden: Sequence[int] = (256, 256),
        with_score_network: bool = True,
        lam: float = 10.0,
        generator: torch.Generator | None = None,
    ) -> WAE:
        """The paper's networks for binary digits.

        Args:
            latent_dim: Dz, 8 or 32 in the paper.
            dim: number of pixels.
            hidden: widths of the hidden layers of every network.
            with_score_network: False for scores from an estimator.
            lam: weight of the divergence.
            generator: source of the initial weights; None is torch's default generator.
        """
        encoder = mnist.encoder(latent_dim, dim, hidden, generator)
        decoder = mnist.decoder(latent_dim, dim, hidden, generator)
        score_network = (
            ScoreNetwork(latent_dim, hidden, activation=nn.Tanh, generator=generator)
            if with_score_network
            else None
        )
        return cls(encoder, decoder, BernoulliPixels(), latent_dim, score_network, lam)

    @classmethod
    def celeba(
        cls,
        latent_dim: int = 32,
        size: int = 64,
        width: int = 64,
        log_std: float = -0.602,
        with_score_network: bool = True,
        score_activation: Callable[[], nn.Module] = nn.Softplus,
        lam: float = 10.0,
        as_released: bool = False,
        generator: torch.Generator | None = None,
    ) -> WAE:
        """The paper's networks for faces.

        Args:
            latent_dim: Dz, 32 in the paper.
            size: of images, ``(N, 3, size, size)``.
            width: m, maps of the first convolution.
            log_std: of the errors of pixels, for evaluation.
            with_score_network: False for scores from an estimator.
            score_activation: of the score network; the paper's table says ReLU, which must come
                with ``check_smoothness=False`` in `score_loss`.
            lam: weight of the divergence.
            as_released: leave out a ReLU as the released program does; see the `celeba` module.
            generator: source of the initial weights; None is torch's default generator.
        """
        encoder = celeba.encoder(latent_dim, 3, size, width, generator=generator)
        decoder = celeba.decoder(latent_dim, 3, size, width, as_released, generator)
        score_network = (
            celeba.ConditionalConv(
                latent_dim, 0, latent_dim, size, width, score_activation, generator=generator
            )
            if with_score_network
            else None
        )
        return cls(encoder, decoder, NormalPixels(log_std), latent_dim, score_network, lam)

    def encode(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Latents of points, ``(N, *event) -> (N, Dz)``; deterministic."""
        z: Tensor = self.encoder(x)
        return z

    def score(self, z: Tensor, x: Tensor) -> Tensor:
        """The score network's ``grad_z log q(z)``, ``(N, Dz) -> (N, Dz)``; x is not used."""
        s: Tensor = self.require_score_network()(z)
        return s

    def loss(
        self,
        x: Tensor,
        score: Estimator | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss of encoder and decoder: ``|x - decode(z)|^2 + lam (log q(z) - log p(z))``, (N,).

        The term with q has the right gradient but not the right value, see `entropy_surrogate`. No
        gradient reaches the score.

        Args:
            x: points ``(N, *event)``.
            score: an estimator of scores from the latents of the batch,
                ``(1, N, Dz) -> (1, N, Dz)``, such as ``lambda z: fit_stein(z).at_samples()``; None
                uses the score network.
            generator: not used; the loss is deterministic.
        """
        check_batch(x)
        z = self.encode(x)
        if score is None:
            self.require_score_network()
            scored = entropy_terms(z, lambda z: self.score(z, x))
        else:
            scored = entropy_terms(z[None], score)[0]
        error = (x - self.decode(z)).square().flatten(1).sum(1)
        return error + self.lam * (scored - self.log_prior(z))
