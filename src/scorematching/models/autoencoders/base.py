"""What all auto-encoders here are: a normal law of latents, a decoder and a law of pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_batch, check_count, check_generator
from scorematching.distributions.gaussian import standard_normal_log_density
from scorematching.distributions.observations import Observation
from scorematching.fields import VectorField


class LatentModel(nn.Module):
    """A density by latents, ``p(x, z) = N(z; 0, I) p(x | z)``.

    Args:
        decoder: ``(N, Dz) -> (N, *event)``, what the law of pixels is told.
        observation: the law of pixels.
        latent_dim: Dz.
    """

    def __init__(self, decoder: nn.Module, observation: Observation, latent_dim: int) -> None:
        """Keep the parts."""
        super().__init__()
        check_count(latent_dim, "latent_dim", "8 and 32 are the paper's")
        self.decoder, self.observation, self.latent_dim = decoder, observation, latent_dim

    def log_prior(self, z: Tensor) -> Tensor:
        """``log N(z; 0, I)``, ``(..., Dz) -> (...)``."""
        return standard_normal_log_density(z)

    def log_likelihood(self, z: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)``, pair by pair: ``(N, Dz), (N, *event) -> (N,)``.

        With `log_prior` it is what annealed importance sampling needs to estimate ``log p(x)``.
        """
        output = self.decoder(z)
        if output.shape != x.shape:
            raise ValueError(
                f"x must have the shape of the decoder's output, {tuple(output.shape)}, got "
                f"{tuple(x.shape)}; the latents must be as many as the points"
            )
        return self.observation.log_prob(output, x)

    def decode(self, z: Tensor) -> Tensor:
        """The mean of x given z, ``(N, Dz) -> (N, *event)``."""
        return self.observation.mean(self.decoder(z))

    @torch.no_grad()
    def sample(
        self, n: int, generator: torch.Generator | None = None, observe: bool = False
    ) -> Tensor:
        """Draw latents, and decode them.

        Args:
            n: number of points.
            generator: source of randomness; None is torch's default generator.
            observe: draw pixels from their law, too; otherwise their means, which is what
                pictures of samples usually show.

        Returns:
            Points ``(n, *event)``.
        """
        check_count(n, "n", "ask for one point or more")
        like = next(self.parameters(), torch.empty(0))
        z = self.noise((n, self.latent_dim), like, generator)
        if not observe:
            return self.decode(z)
        return self.observation.sample(self.decoder(z), generator)

    def noise(
        self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Normal noise in the dtype and on the device of a tensor."""
        check_generator(generator, like)
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


class ScoredModel(LatentModel, ABC):
    """A model that needs the score of its own latents, from a network or an estimator.

    Args:
        encoder: what draws latents.
        decoder: ``(N, Dz) -> (N, *event)``.
        observation: the law of pixels.
        latent_dim: Dz.
        score_network: what is trained to be the score; None where an estimator gives it.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        observation: Observation,
        latent_dim: int,
        score_network: nn.Module | None = None,
    ) -> None:
        """Keep the parts."""
        super().__init__(decoder, observation, latent_dim)
        self.encoder, self.score_network = encoder, score_network

    @abstractmethod
    def encode(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Latents of points, with their graph: ``(N, *event) -> (N, Dz)``."""

    @abstractmethod
    def score(self, z: Tensor, x: Tensor) -> Tensor:
        """The score network's answer at latents of points, ``(N, Dz), (N, *event) -> (N, Dz)``."""

    def score_loss(
        self,
        x: Tensor,
        objective: Any,
        generator: torch.Generator | None = None,
        check_smoothness: bool = True,
    ) -> Tensor:
        """The loss of the score network at latents of points, ``(N,)``.

        Latents are drawn and detached: this loss trains the score network alone, and its
        derivative is taken in z, never in x.

        Args:
            x: points ``(N, *event)``.
            objective: any objective of score matching: ``SlicedScoreMatchingVR(Gaussian())`` is
                the paper's, ``ScoreMatching()`` has the exact trace.
            generator: source of randomness; None is torch's default generator.
            check_smoothness: refuse a score network with kinks, whose gradient is wrong.

        Raises:
            ValueError: if there is no score network.
        """
        check_batch(x)
        self.require_score_network()
        with torch.no_grad():
            z = self.encode(x, generator)
        field = VectorField(lambda z: self.score(z, x), check_smoothness)
        losses: Tensor = objective(field, z, generator)
        return losses

    def require_score_network(self) -> nn.Module:
        """The score network, or an error that says what else to do."""
        if self.score_network is None:
            raise ValueError(
                f"{type(self).__name__} must have a score network for this, got None; make it "
                "with one, or give loss an estimator: loss(x, score=stein_score)"
            )
        return self.score_network
