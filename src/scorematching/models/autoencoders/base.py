"""What the auto-encoders share: a normal prior of latents, a decoder, a distribution of pixels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_batch, check_count, check_shape
from scorematching._random import normal
from scorematching.distributions.gaussian import standard_normal_log_density
from scorematching.distributions.observations import Observation
from scorematching.fields import VectorField


class LatentModel(nn.Module):
    """A latent-variable model, ``p(x, z) = N(z; 0, I) p(x | z)``.

    Args:
        decoder: ``(N, Dz) -> (N, *event)``, the parameters of the distribution of pixels.
        observation: the distribution of pixels.
        latent_dim: Dz.
    """

    def __init__(self, decoder: nn.Module, observation: Observation, latent_dim: int) -> None:
        super().__init__()
        check_count(latent_dim, "latent_dim", "8 and 32 are the paper's")
        self.decoder, self.observation, self.latent_dim = decoder, observation, latent_dim

    def log_prior(self, z: Tensor) -> Tensor:
        """``log N(z; 0, I)``, ``(..., Dz) -> (...)``."""
        return standard_normal_log_density(z)

    def log_likelihood(self, z: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)`` of pairs: ``(N, Dz), (N, *event) -> (N,)``."""
        output = self.decoder(z)
        wanted = "x must have the shape of the decoder's output, {}"
        check_shape(x, output.shape, wanted, "give one latent for each point")
        return self.observation.log_prob(output, x)

    def decode(self, z: Tensor) -> Tensor:
        """The mean of x given z, ``(N, Dz) -> (N, *event)``."""
        return self.observation.mean(self.decoder(z))

    @torch.no_grad()
    def sample(
        self, n: int, generator: torch.Generator | None = None, observe: bool = False
    ) -> Tensor:
        """Draw latents, and decode them to points ``(n, *event)``.

        Args:
            n: number of points.
            generator: source of randomness; None is torch's default generator.
            observe: draw pixels too; otherwise return their means, as usual in pictures.
        """
        check_count(n, "n", "draw one point or more")
        like = next(self.parameters(), torch.empty(0))
        z = self.noise((n, self.latent_dim), like, generator)
        return self.observation.sample(self.decoder(z), generator) if observe else self.decode(z)

    def noise(
        self, shape: Sequence[int], like: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Normal noise in the dtype and on the device of ``like``."""
        return normal(shape, like, generator)


class ScoredModel(LatentModel, ABC):
    """A model that needs the score of its own latents, from a network or an estimator."""

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        observation: Observation,
        latent_dim: int,
        score_network: nn.Module | None = None,
    ) -> None:
        super().__init__(decoder, observation, latent_dim)
        self.encoder, self.score_network = encoder, score_network

    @abstractmethod
    def encode(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Latents of points, differentiable: ``(N, *event) -> (N, Dz)``."""

    @abstractmethod
    def score(self, z: Tensor, x: Tensor) -> Tensor:
        """The score network at latents of points, ``(N, Dz), (N, *event) -> (N, Dz)``."""

    def score_loss(
        self,
        x: Tensor,
        objective: Any,
        generator: torch.Generator | None = None,
        check_smoothness: bool = True,
    ) -> Tensor:
        """The loss of the score network at latents of points, ``(N,)``.

        Latents are detached, so that this loss trains the score network only. The derivative is
        taken in z, never in x.

        Args:
            x: points ``(N, *event)``.
            objective: any objective of score matching: ``SlicedScoreMatchingVR(Gaussian())`` is
                the paper's, ``ScoreMatching()`` has the exact trace.
            generator: source of randomness; None is torch's default generator.
            check_smoothness: refuse a score network with kinks, whose gradient would be wrong.

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
        """The score network; raises ValueError if there is none."""
        if self.score_network is None:
            raise ValueError(
                f"{type(self).__name__} must have a score network for this, got None; construct it "
                "with one, or pass an estimator, loss(x, score=lambda z: fit_stein(z).at_samples())"
            )
        return self.score_network
