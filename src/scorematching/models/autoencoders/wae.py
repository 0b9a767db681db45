"""Wasserstein auto-encoders."""

from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_batch, check_positive
from scorematching.distributions.observations import Observation
from scorematching.entropy import entropy_terms
from scorematching.models.autoencoders.base import ScoredModel, check_latents, check_like_output
from scorematching.models.autoencoders.vae import Estimator


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
        >>> from scorematching.models import BernoulliPixels, ScoreNetwork
        >>> encoder, decoder = nn.Linear(5, 2), nn.Linear(2, 5)
        >>> wae = WAE(encoder, decoder, BernoulliPixels(), 2, ScoreNetwork(dim=2))
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
        super().__init__(encoder, decoder, observation, latent_dim, score_network)
        check_positive(lam, "lam", "10 is the weight of the published experiments")
        self.lam = lam

    def draw_noise(self, x: Tensor, generator: torch.Generator | None = None) -> Any:
        """An empty tuple: encoder and loss are deterministic."""
        return ()

    def encode(
        self, x: Tensor, generator: torch.Generator | None = None, *, noise: Any = None
    ) -> Tensor:
        """Latents of points, ``(N, *event) -> (N, Dz)``; deterministic."""
        z: Tensor = self.encoder(x)
        check_latents(z, (len(x), self.latent_dim))
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
        *,
        noise: Any = None,
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
            noise: not used either.
        """
        check_batch(x)
        z = self.encode(x)
        if score is None:
            scored = entropy_terms(z, lambda z: self.score(z, x))
        else:
            scored = entropy_terms(z[None], score)[0]
        decoded = self.decode(z)
        check_like_output(x, decoded)
        error = (x - decoded).square().flatten(1).sum(1)
        return error + self.lam * (scored - self.log_prior(z))
