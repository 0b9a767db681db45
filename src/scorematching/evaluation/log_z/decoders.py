"""Likelihoods of decoders: log p(x) of a latent-variable model, by annealing from its prior.

For ``p(x) = integral of p(z) p(x | z)`` with a standard normal prior, chains run from ``p(z)`` to
``p(z) p(x | z)``, whose normalising constant is ``p(x)``, with one group of chains for each image.
Cost: ``num_steps num_leapfrog`` passes through the decoder and back for each of
``num_chains + num_pilots`` chains of each image.

With ``force_precision="bf16"`` those passes are in bfloat16, and there are ``num_steps`` passes
forward in the decoder's own precision. This is no approximation: paths of Hamiltonian dynamics may
follow any deterministic force (see `ais`), while acceptance and weights come from log-densities in
the decoder's own precision. For the same reason a caller may bring forces, for example from a
program for one kind of decoder: ``force(x)`` of images ``x: (G, *event)`` returns the force of
their posteriors, ``z: (C G, L) -> (C G, L)``, where row ``c G + g`` is chain c of image g. It must
be deterministic, and should be near the score of ``log p(z) + log p(x | z)``.

Reference: Wu et al. (2017), On the quantitative analysis of decoder-based generative models.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_points, check_shape
from scorematching._random import normal
from scorematching.distributions.gaussian import standard_normal_log_density
from scorematching.distributions.observations import (
    BernoulliPixels,
    Observation,
    check_observation,
)
from scorematching.evaluation.estimate import Estimate
from scorematching.evaluation.log_z import fused
from scorematching.evaluation.log_z.ais import Annealing, Bracket, Forces, ais, bidirectional
from scorematching.types import LogDensity, Vector

Decoder = Callable[[Tensor], Tensor]
"""From latents to the parameters of an `Observation`, ``z: (N, L) -> (N, *event)``."""

ForceMaker = Callable[[Tensor], Vector]
"""From images to the force of their posteriors, ``(G, *event) -> ((C G, L) -> (C G, L))``."""


@dataclass(frozen=True, eq=False)
class DecoderLikelihood:
    """Log-likelihoods of N images under a decoder.

    Attributes:
        log_likelihood: estimates of ``log p(x)``, ``(N,)``; each too low on average.
        standard_error: of each, from its chains or samples, ``(N,)``.
        effective_sample_size: of the chains or samples of each, ``(N,)``.
        acceptance: mean acceptance of the moves, about 0.65 if the adaptation worked; None if
            nothing moved.

    Example:
        The likelihood of a decoder that ignores its latents is exact.

        >>> coin = lambda z: 0.0 * z.sum(-1, keepdim=True)
        >>> found = decoder_log_likelihood(coin, torch.ones(3, 1), latent_dim=2, num_steps=5)
        >>> round(found.nll.mean, 4)
        0.6931
    """

    log_likelihood: Tensor = field(repr=False)
    standard_error: Tensor = field(repr=False)
    effective_sample_size: Tensor = field(repr=False)
    acceptance: float | None = None

    @property
    def nll(self) -> Estimate:
        """Mean negative log-likelihood, with its standard error over images and chains."""
        return Estimate.of(-self.log_likelihood)


def decoder_log_likelihood(
    decoder: Decoder,
    x: Tensor,
    latent_dim: int,
    observation: Observation | None = None,
    num_chains: int = 16,
    num_steps: int = 1000,
    schedule: str | Tensor = "sigmoid",
    num_leapfrog: int = 10,
    num_pilots: int = 4,
    batch_size: int = 1000,
    generator: torch.Generator | None = None,
    capture: bool = True,
    force_precision: str | None = None,
    force: ForceMaker | None = None,
) -> DecoderLikelihood:
    """Log-likelihoods of images under a decoder with a standard normal prior.

    Args:
        decoder: ``z: (N, L) -> (N, *event)``, without batch statistics; its parameters receive no
            gradient.
        x: images ``(N, *event)``, in the decoder's dtype and on its device.
        latent_dim: L.
        observation: distribution of an image given the output; None is `BernoulliPixels`.
        num_chains: C, for each image.
        num_steps: T, temperatures from prior to posterior.
        schedule: of the temperatures, as for `ais`.
        num_leapfrog: leapfrog steps per move.
        num_pilots: further chains for each image, to adapt its step sizes.
        batch_size: images evaluated at a time.
        generator: source of randomness; None is torch's default generator.
        capture: whether to record a CUDA graph, on a GPU.
        force_precision: "bf16" computes forces in bfloat16, for decoders in float32; the estimates
            stay exact, see the module. None computes them like log-densities.
        force: in place of that, makes the force of the posterior for some images, see the module.

    Raises:
        ValueError: the decoder returns NaN, depends on the batch, or is cut from its latents.

    Example:
        ``x = z + noise`` of unit variance is normal with variance 2.

        >>> from scorematching.evaluation import NormalPixels
        >>> x, noise = torch.zeros(50, 1), NormalPixels(log_std=0.0)
        >>> found = decoder_log_likelihood(lambda z: z, x, 1, noise, num_steps=20)
        >>> abs(found.nll.mean - 0.5 * torch.tensor(4 * torch.pi).log().item()) < 0.1
        True
    """
    check_points(x)
    _check_counts(latent_dim, num_chains, num_pilots)
    check_count(batch_size, "batch_size", "a thousand images fill a GPU")
    _check_forces(force_precision, force, x)
    prior, found = standard_normal_log_density, []
    for images in x.split(int(batch_size)):
        posterior = _posterior(decoder, observation, images)
        z, pilots = _starts(len(images), num_chains, num_pilots, latent_dim, x, generator)
        rest = (num_steps, schedule, num_leapfrog, None, len(images), generator, capture)
        with _forces(force_precision, decoder, observation, images, force) as forces:
            found.append(ais(prior, posterior, z, pilots, *rest, forces=forces))
    return _joined(found)


def decoder_bracket(
    decoder: Decoder,
    num: int,
    latent_dim: int,
    like: Tensor,
    observation: Observation | None = None,
    num_chains: int = 16,
    num_steps: int = 1000,
    schedule: str | Tensor = "sigmoid",
    num_leapfrog: int = 10,
    num_pilots: int = 4,
    generator: torch.Generator | None = None,
    capture: bool = True,
    force_precision: str | None = None,
    force: ForceMaker | None = None,
) -> Bracket:
    """Log-likelihoods of simulated images from below and from above.

    Latents z are drawn from the prior, images from ``p(x | z)``. Then z is an exact sample of the
    posterior of its image, from which chains can run back. The gap bounds the error of `ais` on
    images drawn from the model.

    ``num`` is the number of images to simulate, ``like`` any tensor in the decoder's dtype and on
    its device. Other arguments as for `decoder_log_likelihood`.

    Example:
        >>> from scorematching.evaluation import NormalPixels
        >>> g = torch.Generator().manual_seed(0)
        >>> bracket = decoder_bracket(lambda z: z, 20, 1, torch.zeros(()), NormalPixels(0.0),
        ...                           num_steps=30, generator=g)
        >>> abs(bracket.gap.mean) < 0.1
        True
    """
    check_count(num, "num", "a hundred images are enough")
    check_observation(observation or BernoulliPixels())
    _check_counts(latent_dim, num_chains, num_pilots)
    _check_forces(force_precision, force, like)
    exact = normal((num, latent_dim), like, generator)
    with torch.no_grad():
        images = (observation or BernoulliPixels()).sample(decoder(exact.clone()), generator)
    z, pilots = _starts(num, num_chains, num_pilots, latent_dim, like, generator)
    prior, posterior = standard_normal_log_density, _posterior(decoder, observation, images)
    ends = exact.repeat(num_chains, 1)
    rest = (num_steps, schedule, num_leapfrog, num, generator, capture)
    with _forces(force_precision, decoder, observation, images, force) as forces:
        return bidirectional(prior, posterior, z, ends, pilots, *rest, forces=forces)


def _starts(
    num: int, chains: int, pilots: int, dim: int, like: Tensor, generator: torch.Generator | None
) -> list[Tensor]:
    """Latents from the prior for chains and pilots of images, ``(C G, L)`` and ``(P G, L)``."""
    return [normal((count * num, dim), like, generator) for count in (chains, pilots)]


def _posterior(decoder: Decoder, observation: Observation | None, x: Tensor) -> LogDensity:
    """``log p(z) + log p(x | z)``, ``(C G, L) -> (C G,)`` for images ``x: (G, *event)``."""
    pixels = BernoulliPixels() if observation is None else observation
    check_observation(pixels)

    def log_density(z: Tensor) -> Tensor:
        likelihood = fused.log_prob(pixels, decoded(decoder, z, x), x)
        return standard_normal_log_density(z) + likelihood.flatten()

    return log_density


@contextmanager
def _forces(
    precision: str | None,
    decoder: Decoder,
    observation: Observation | None,
    x: Tensor,
    force: ForceMaker | None = None,
) -> Iterator[Forces | None]:
    """The forces of prior and posterior, to be used inside the block; None in full precision."""
    if force is not None:
        yield torch.neg, _made(force, x)
        return
    if precision is None:
        yield None
        return
    # Autocast keeps the weights it has converted until the outermost of its blocks ends.
    with torch.autocast(x.device.type, enabled=False):
        yield torch.neg, _rounded_score(decoder, observation or BernoulliPixels(), x)


def _made(force: ForceMaker, x: Tensor) -> Vector:
    """The caller's force for images, with a check that it is one."""
    made = force(x)
    if not callable(made):
        raise TypeError(
            f"force must return a callable (C G, L) -> (C G, L) when it is called with images "
            f"(G, *event), got {type(made).__name__}; for a field f of latents and images give "
            "lambda x: lambda z: f(z, x)"
        )
    return made


def _rounded_score(decoder: Decoder, pixels: Observation, x: Tensor) -> Vector:
    """The score of `_posterior` with the decoder in bfloat16, ``(C G, L) -> (C G, L)``."""

    def score(z: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            leaf = (z.clone() if z.is_inference() else z).detach().requires_grad_()
            with torch.autocast(z.device.type, torch.bfloat16):
                output = decoded(decoder, leaf, x)
            if not output.requires_grad:
                return -z
            slopes = fused.slopes(pixels, output, x)
            (pulled,) = torch.autograd.grad(output, leaf, slopes, allow_unused=True)
        return -z if pulled is None else pulled - z

    return score


def decoded(decoder: Decoder, z: Tensor, x: Tensor) -> Tensor:
    """The decoder's output for chains of images, ``(C G, L), (G, *event) -> (C, G, *event)``."""
    output = decoder(z.clone())  # it may change its latents in place
    wanted = "decoder must return one image per row of latents, shape {} like x"
    check_shape(output, (len(z), *x.shape[1:]), wanted, "reshape its output or x")
    if z.requires_grad and torch.is_grad_enabled() and not output.requires_grad:
        _check_constant(decoder, z, output)
    return output.reshape(-1, *x.shape)


def _check_constant(decoder: Decoder, z: Tensor, output: Tensor) -> None:
    """Require that an output without a gradient does not depend on latents."""
    with torch.no_grad():
        constant = torch.equal(decoder(z + 1), output)
    if not constant:
        raise ValueError(
            "decoder must be differentiable in its latents, got an output that depends on them "
            "and has no gradient; check it for .detach(), torch.no_grad() or numpy"
        )


def _joined(found: list[Annealing]) -> DecoderLikelihood:
    """The results of all batches of images."""
    sizes = torch.tensor([run.log_weights.shape[1] for run in found], dtype=torch.float64)
    rates = torch.stack([run.acceptance.double().mean() for run in found]).cpu()
    return DecoderLikelihood(
        log_likelihood=torch.cat([run.log_z for run in found]),
        standard_error=torch.cat([run.standard_error for run in found]),
        effective_sample_size=torch.cat([run.effective_sample_size for run in found]),
        acceptance=(rates @ sizes / sizes.sum()).item(),
    )


def _check_counts(latent_dim: int, num_chains: int, num_pilots: int) -> None:
    check_count(latent_dim, "latent_dim", "it is the number of inputs of the decoder")
    check_count(num_chains, "num_chains", "16 chains for each image are usual")
    check_count(num_pilots, "num_pilots", "a quarter of num_chains is enough")


def _check_forces(precision: str | None, force: Any, like: Tensor) -> None:
    if precision not in (None, "bf16"):
        raise ValueError(
            f'force_precision must be None or "bf16", got {precision!r}; None computes forces in '
            "the decoder's own precision"
        )
    if precision is not None and like.dtype != torch.float32:
        raise ValueError(
            f'force_precision="bf16" must come with a decoder and images in torch.float32, got '
            f"{like.dtype}; convert both with .float(), or use None"
        )
    if force is not None and not callable(force):
        raise TypeError(
            f"force must be a callable from images to a force, got {force!r}; None follows the "
            "score of the decoder"
        )
    if force is not None and precision is not None:
        raise ValueError(
            f"force must come without force_precision, got both, force_precision={precision!r}; "
            "the force has a precision of its own, so drop force_precision"
        )
