"""Variational auto-encoders, with explicit and with implicit encoders."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scorematching._checks import check_batch, check_count
from scorematching.distributions.observations import Observation
from scorematching.entropy import entropy_terms
from scorematching.models.autoencoders.base import (
    LatentModel,
    ScoredModel,
    check_latents,
    check_noise,
)

Estimator = Callable[[Tensor], Tensor]
"""Scores of B distributions at M samples of each, ``(B, M, Dz) -> (B, M, Dz)``."""


class VAE(LatentModel):
    """A variational auto-encoder with a normal encoder, trained by the evidence lower bound.

    ``-ELBO = -log p(x | z) + KL(q(z | x) | p(z))`` with one draw ``z ~ N(mean(x), std(x)^2)`` and
    ``KL = 0.5 sum(mean^2 + std^2 - 1) - sum(log std)``.

    Args:
        encoder: ``(N, *event) -> (N, 2 Dz)``, means and logarithms of standard deviations.
        decoder: ``(N, Dz) -> (N, *event)``, the parameters of the distribution of pixels.
        observation: `BernoulliPixels` or `NormalPixels`.
        latent_dim: Dz.

    Reference: Kingma and Welling (2014); "ELBO" in Song et al. (2019), Section 6.2.

    Example:
        >>> from scorematching.models import BernoulliPixels
        >>> vae = VAE(nn.Linear(5, 4), nn.Linear(2, 5), BernoulliPixels(), latent_dim=2)
        >>> vae.loss(torch.ones(3, 5)).shape, vae.sample(4).shape
        (torch.Size([3]), torch.Size([4, 5]))
    """

    def __init__(
        self, encoder: nn.Module, decoder: nn.Module, observation: Observation, latent_dim: int
    ) -> None:
        super().__init__(decoder, observation, latent_dim)
        self.encoder = encoder

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the standard deviation of ``q(z | x)``, ``(N, Dz)`` each."""
        both = self.encoder(x)
        what = "means and logarithms of standard deviations"
        check_latents(both, (len(x), 2 * self.latent_dim), what)
        mean, log_std = both.chunk(2, -1)
        return mean, log_std

    def draw_noise(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The noise of `encode` and `loss`, standard normal ``(N, Dz)`` in the dtype of x."""
        return self.noise((len(x), self.latent_dim), x, generator)

    def encode(
        self, x: Tensor, generator: torch.Generator | None = None, *, noise: Tensor | None = None
    ) -> Tensor:
        """Draw latents of points, ``(N, *event) -> (N, Dz)``; arguments as those of `loss`."""
        eps = self.draw_noise(x, generator) if noise is None else noise
        return _latents(*self.posterior(x), eps)

    def loss(
        self, x: Tensor, generator: torch.Generator | None = None, *, noise: Tensor | None = None
    ) -> Tensor:
        """Minus the evidence lower bound with one draw, ``(N, *event) -> (N,)``.

        Args:
            x: points ``(N, *event)``.
            generator: source of randomness; None is torch's default generator.
            noise: from `draw_noise`; None draws it.
        """
        check_batch(x)
        mean, log_std = self.posterior(x)
        eps = self.draw_noise(x, generator) if noise is None else noise
        z = _latents(mean, log_std, eps)
        kl = 0.5 * (mean.square() + (2 * log_std).exp() - 1).sum(-1) - log_std.sum(-1)
        return kl - self.log_likelihood(z, x)


def _latents(mean: Tensor, log_std: Tensor, eps: Tensor) -> Tensor:
    check_noise(eps, mean.shape)
    return mean + log_std.exp() * eps


class ImplicitVAE(ScoredModel):
    """A variational auto-encoder whose encoder maps noise, without a density in closed form.

    ``z = encoder(eps, x)`` has some distribution ``q(z | x)``. The gradient of its entropy needs
    the score of q *in z*, ``grad_z log q(z | x)``, either from a network (`score_loss`) or
    estimated from many samples per point. `scorematching.training.score_first` trains the score
    network and the rest alternately.

    Args:
        encoder: ``(eps, x) -> z``, ``(N, *M, De), (N, *event) -> (N, *M, Dz)``, such as
            `ConditionalMLP`.
        decoder: ``(N, Dz) -> (N, *event)``, the parameters of the distribution of pixels.
        observation: `BernoulliPixels` or `NormalPixels`.
        latent_dim: Dz.
        score_network: ``(z, x) -> score``, ``(N, Dz), (N, *event) -> (N, Dz)``; None if an
            estimator replaces it.
        noise_dim: De; None is Dz.

    Reference: Song et al. (2019), Sections 2.2 and 6.2.

    Example:
        >>> from scorematching import ScoreMatching
        >>> from scorematching.models import BernoulliPixels, ConditionalMLP
        >>> encoder, score = (ConditionalMLP(dim=2, context_dim=5) for _ in range(2))
        >>> vae = ImplicitVAE(encoder, nn.Linear(2, 5), BernoulliPixels(), 2, score)
        >>> x = torch.ones(3, 5)
        >>> vae.score_loss(x, ScoreMatching()).shape, vae.loss(x).shape
        (torch.Size([3]), torch.Size([3]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        observation: Observation,
        latent_dim: int,
        score_network: nn.Module | None = None,
        noise_dim: int | None = None,
    ) -> None:
        super().__init__(encoder, decoder, observation, latent_dim, score_network)
        self.noise_dim = latent_dim if noise_dim is None else noise_dim

    def draw_noise(
        self, x: Tensor, generator: torch.Generator | None = None, num: int | None = None
    ) -> Tensor:
        """The noise of `encode` and `loss`, standard normal ``(N, De)`` in the dtype of x.

        Args:
            x: points ``(N, *event)``.
            generator: source of randomness; None is torch's default generator.
            num: M, samples per point; the noise is then ``(N, M, De)``.
        """
        many = () if num is None else (num,)
        return self.noise((len(x), *many, self.noise_dim), x, generator)

    def encode(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        num: int | None = None,
        *,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Draw latents of points, differentiable: ``(N, *event) -> (N, Dz)``.

        Args:
            x: points ``(N, *event)``.
            generator: source of randomness; None is torch's default generator.
            num: M, samples per point; the result is then ``(N, M, Dz)``.
            noise: from `draw_noise`; None draws it.
        """
        eps = self.draw_noise(x, generator, num) if noise is None else noise
        many = () if num is None else (num,)
        check_noise(eps, (len(x), *many, self.noise_dim))
        z: Tensor = self.encoder(eps, x)
        check_latents(z, (len(x), *many, self.latent_dim))
        return z

    def score(self, z: Tensor, x: Tensor) -> Tensor:
        """The score network's ``grad_z log q(z | x)``, ``(N, Dz), (N, *event) -> (N, Dz)``."""
        s: Tensor = self.require_score_network()(z, x)
        return s

    def loss(
        self,
        x: Tensor,
        score: Estimator | None = None,
        num_samples: int = 100,
        generator: torch.Generator | None = None,
        num_decoded: int = 1,
        *,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The loss of encoder and decoder: ``-log p(x | z) - log p(z) + log q(z | x)``, ``(N,)``.

        The last term has the right gradient but not the right value, see `entropy_surrogate`. With
        an estimator, M latents are drawn per point; the prior and the entropy are averaged over
        them, and the first few are decoded. No gradient reaches the score.

        Args:
            x: points ``(N, *event)``.
            score: an estimator of scores from M samples each, ``(N, M, Dz) -> (N, M, Dz)``, such as
                ``lambda z: fit_stein(z).at_samples()``; None uses the score network.
            num_samples: M, samples per point for an estimator.
            generator: source of randomness; None is torch's default generator.
            num_decoded: how many of the M are decoded, one in the paper; more reduce the variance.
            noise: from `draw_noise`, for an estimator with ``num=num_samples``; None draws it.
        """
        check_batch(x)
        if score is None:
            z = self.encode(x, generator, noise=noise)
            scored = entropy_terms(z, lambda z: self.score(z, x))
            return scored - self.log_prior(z) - self.log_likelihood(z, x)
        check_count(num_samples, "num_samples", "the paper draws 100 per digit, 20 per face")
        check_count(num_decoded, "num_decoded", "one suffices where the batch is large")
        if num_decoded > num_samples:
            raise ValueError(
                f"num_decoded must be at most num_samples, {num_samples}, got {num_decoded}; "
                "only latents that were drawn can be decoded"
            )
        z = self.encode(x, generator, num_samples, noise=noise)
        decoded, points = z[:, :num_decoded].flatten(0, 1), x.repeat_interleave(num_decoded, 0)
        likelihood = self.log_likelihood(decoded, points).unflatten(0, (len(x), num_decoded))
        return (entropy_terms(z, score) - self.log_prior(z)).mean(1) - likelihood.mean(1)
