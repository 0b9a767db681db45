"""What the auto-encoders share: a normal prior of latents, a decoder, a distribution of pixels."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from scorematching._checks import check_batch, check_count, check_shape
from scorematching._random import normal
from scorematching.distributions.gaussian import standard_normal_log_density
from scorematching.distributions.observations import Observation, check_observation
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
        check_observation(observation)
        self.decoder, self.observation, self.latent_dim = decoder, observation, latent_dim

    def log_prior(self, z: Tensor) -> Tensor:
        """``log N(z; 0, I)``, ``(..., Dz) -> (...)``."""
        return standard_normal_log_density(z)

    def log_likelihood(self, z: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)`` of pairs: ``(N, Dz), (N, *event) -> (N,)``."""
        output = self.decoder(z)
        check_like_output(x, output)
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


class ScoreNoise(NamedTuple):
    """The noise of the loss of a score network.

    Attributes:
        encoder: that of the encoder, from `draw_noise`.
        objective: that of the objective, such as directions ``(M, N, Dz)``.
    """

    encoder: Any
    objective: Any


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
    def draw_noise(self, x: Tensor, generator: torch.Generator | None = None) -> Any:
        """The noise of `encode` and of the loss; an empty tuple where they have none."""

    @abstractmethod
    def encode(
        self, x: Tensor, generator: torch.Generator | None = None, *, noise: Any = None
    ) -> Tensor:
        """Latents of points, differentiable: ``(N, *event) -> (N, Dz)``."""

    @abstractmethod
    def score(self, z: Tensor, x: Tensor) -> Tensor:
        """The score network at latents of points, ``(N, Dz), (N, *event) -> (N, Dz)``."""

    def draw_score_noise(
        self, x: Tensor, objective: Any, generator: torch.Generator | None = None
    ) -> ScoreNoise:
        """The noise of `score_loss`: that of the encoder, then that of the objective at latents.

        An objective must draw its noise by the shape of latents alone. Their values are not known
        yet and given as NaN.
        """
        check_batch(x)
        z = x.new_full((len(x), self.latent_dim), math.nan)
        return ScoreNoise(self.draw_noise(x, generator), objective.draw(z, generator))

    def score_loss(
        self,
        x: Tensor,
        objective: Any,
        generator: torch.Generator | None = None,
        check_smoothness: bool = True,
        *,
        noise: ScoreNoise | None = None,
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
            noise: from `draw_score_noise`; None draws it.
        """
        check_batch(x)
        self.require_score_network()
        of_encoder, of_objective = noise or (None, None)
        with torch.no_grad():
            z = self.encode(x, generator, noise=of_encoder)
        field = VectorField(lambda z: self.score(z, x), check_smoothness)
        losses: Tensor = (
            objective(field, z, generator)
            if noise is None
            else objective.loss(field, z, _in_dtype_of(z, of_objective))
        )
        return losses

    def require_score_network(self) -> nn.Module:
        """The score network; raises ValueError if there is none."""
        if self.score_network is None:
            raise ValueError(
                f"{type(self).__name__} must have a score network for this, got None; construct it "
                "with one, or pass an estimator, loss(x, score=lambda z: fit_stein(z).at_samples())"
            )
        return self.score_network


def check_latents(encoded: Any, shape: Sequence[int], what: str = "latents") -> None:
    """Require that an encoder returned a shape, since losses would broadcast any other."""
    wanted = f"encoder must return {what} of shape {{}}, as latent_dim says"
    check_shape(encoded, shape, wanted, "change latent_dim or its last layer, and flatten images")


def check_like_output(x: Tensor, output: Tensor) -> None:
    """Require points of the shape of the decoder's output."""
    wanted = "x must have the shape of the decoder's output, {}"
    check_shape(x, output.shape, wanted, "give one latent for each point, or reshape the output")


def check_noise(noise: Any, shape: Sequence[int]) -> None:
    """Require noise of a shape."""
    wanted = "noise must be normal numbers of shape {}"
    check_shape(noise, shape, wanted, "draw it with model.draw_noise(x)")


def _in_dtype_of(z: Tensor, noise: Any) -> Any:
    """Noise in the dtype of z, which mixed precision may have changed."""

    def convert(part: Tensor) -> Tensor:
        return part.to(z.dtype) if part.is_floating_point() and part.dtype != z.dtype else part

    return tree_map_only(Tensor, convert, noise)
