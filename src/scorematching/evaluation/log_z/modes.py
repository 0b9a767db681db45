"""Likelihoods of decoders by importance sampling around the modes of each posterior.

For a smooth decoder with few latents the posterior of an image, ``p(z) p(x | z)``, is nearly normal
around some modes. They are found by Newton steps from given latents. The proposal q is a mixture of
Student-t distributions with the curvature of the log-posterior at the modes, and with K samples z_k
of it::

    log p(x) = log mean_k p(z_k) p(x | z_k) / q(z_k)

is too low on average, by about half its squared standard error. A mode that no start leads to is
missed, which no standard error shows; `importance_bracket`, or annealing from the prior
(`decoder_log_likelihood`) on some images, does show it.

Of a simulated image the latents are known, and they are a sample of its posterior. With them in
place of z_1 the same estimate is too high on average: the mean of ``1 / estimate`` is ``1 / p(x)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_count, check_points, check_shape, check_type
from scorematching._precision import without_autocast
from scorematching._random import normal, uniform
from scorematching.derivatives.repeats import check_repeats
from scorematching.distributions.gaussian import standard_normal_log_density
from scorematching.distributions.observations import (
    BernoulliPixels,
    Observation,
    check_observation,
)
from scorematching.evaluation.log_z.ais import Bracket
from scorematching.evaluation.log_z.decoders import Decoder, DecoderLikelihood, decoded
from scorematching.evaluation.log_z.weights import LogSums
from scorematching.types import LogDensity

Starts = Callable[[Tensor], Tensor]
"""From images to latents near their posteriors, ``(G, *event) -> (S, G, L)``."""

DF = 8
"""Degrees of freedom of proposals: tails heavier than the normal ones of the posteriors."""

_ROWS = 16384  # latents that are decoded at a time
_SHARES = (1.0, 0.25, 2**-4, 2**-6, 2**-8, 0.0)  # of a Newton step; the best is taken
_LEAST_CURVATURE = 0.25  # of proposals; the prior's is one
_UNIFORM = 0.1  # probability that components share alike
_LEAST_EFFECTIVE = 10.0  # samples of an image, below which its estimate may be wrong by nats


class Mixture(NamedTuple):
    """S Student-t distributions for each of G images.

    Attributes:
        log_shares: of the components, ``(S, G)``.
        modes: ``(S, G, L)``.
        axes: orthonormal columns, ``(S, G, L, L)``.
        roots: inverse scales along them, ``(S, G, L)``.
    """

    log_shares: Tensor
    modes: Tensor
    axes: Tensor
    roots: Tensor

    def sample(self, num: int, generator: torch.Generator | None) -> Tensor:
        """Independent samples, ``(num, G, L)``."""
        with without_autocast(self.modes):
            return self._sample(num, generator)

    def _sample(self, num: int, generator: torch.Generator | None) -> Tensor:
        groups, dim = self.modes.shape[1:]
        ends = self.log_shares.exp().cumsum(0)[:-1, None]
        chosen = (uniform((num, groups), self.modes, generator) > ends).sum(0)
        place = chosen, torch.arange(groups, device=chosen.device)
        chi2 = normal((DF, num, groups, 1), self.modes, generator).square().sum(0)
        t = normal((num, groups, dim), self.modes, generator) * (DF / chi2).sqrt()
        along = (t / self.roots[place]).unsqueeze(-1)
        return self.modes[place] + (self.axes[place] @ along).squeeze(-1)

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-density, ``(K, G, L) -> (K, G)``."""
        with without_autocast(z):
            return torch.stack([_component(z, *part) for part in zip(*self)]).logsumexp(0)


def _component(z: Tensor, share: Tensor, mode: Tensor, axes: Tensor, roots: Tensor) -> Tensor:
    """Log-density of one component, times its share, ``(K, G, L) -> (K, G)``."""
    t = torch.einsum("kgl,glm->kgm", z - mode, axes) * roots
    return share + roots.log().sum(-1) + _standard_t(t)


def _standard_t(t: Tensor) -> Tensor:
    """Log-density of the Student-t distribution with unit scales, ``(*B, L) -> (*B,)``."""
    dim = t.shape[-1]
    constant = math.lgamma((DF + dim) / 2) - math.lgamma(DF / 2) - dim / 2 * math.log(DF * math.pi)
    return constant - (DF + dim) / 2 * (t.square().sum(-1) / DF).log1p()


def fit_mixture(log_density: LogDensity, z: Tensor, num_newton: int) -> Mixture:
    """Components at the modes that Newton steps lead to, with the curvature there.

    Their shares are those of Laplace's approximation, mixed with equal ones.

    Args:
        log_density: ``(K, G, L) -> (K, G)``.
        z: starts, ``(S, G, L)``.
        num_newton: number of steps.
    """
    for _ in range(num_newton):
        z = _newton_step(log_density, z)
    value, _, axes, roots = _expand(log_density, z)
    evidence = (value - roots.log().sum(-1)).softmax(0)
    shares = (1 - _UNIFORM) * evidence + _UNIFORM / len(z)
    return Mixture(shares.log(), z, axes, roots)


def _newton_step(log_density: LogDensity, z: Tensor) -> Tensor:
    """The best of some parts of a step that climbs along every axis, ``(S, G, L) -> (S, G, L)``."""
    _, slope, axes, roots = _expand(log_density, z)
    along = (slope.unsqueeze(-2) @ axes).squeeze(-2) / roots.square()
    step = (axes @ along.unsqueeze(-1)).squeeze(-1)
    tried = torch.stack([z + share * step for share in _SHARES])
    with torch.no_grad():
        values = log_density(tried.flatten(0, 1)).unflatten(0, tried.shape[:2])
    best = values.nan_to_num(-math.inf).argmax(0)
    return tried.gather(0, best[None, ..., None].expand(1, *z.shape)).squeeze(0)


def _expand(log_density: LogDensity, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values, gradients, and the axes of minus the Hessian with the roots of its eigenvalues.

    Negative eigenvalues count as positive ones, so that Newton steps climb.
    """
    with torch.inference_mode(False), torch.enable_grad():
        z = z.detach().clone().requires_grad_()
        value = log_density(z)
        _check_finite(value, "log p(x | z)")
        (slope,) = torch.autograd.grad(value.sum(), z, create_graph=True)
        rows = [
            torch.autograd.grad(part.sum(), z, retain_graph=True)[0] for part in slope.unbind(-1)
        ]
    hessian = torch.stack(rows, -1)
    _check_finite(hessian.sum((-2, -1)), "Hessian of log p(x | z)")
    curvature, axes = torch.linalg.eigh(-hessian)
    roots = curvature.abs().clamp(min=_LEAST_CURVATURE).sqrt()
    return value.detach(), slope.detach(), axes, roots


def importance_log_likelihood(
    decoder: Decoder,
    x: Tensor,
    starts: Starts,
    observation: Observation | None = None,
    num_samples: int = 1000,
    num_newton: int = 20,
    batch_size: int = 250,
    generator: torch.Generator | None = None,
) -> DecoderLikelihood:
    """Log-likelihoods of images under a decoder with a standard normal prior, see the module.

    Args:
        decoder: ``z: (N, L) -> (N, *event)``, twice differentiable and without batch statistics;
            its parameters receive no gradient. At the kinks of ReLU, Newton steps may stop before
            a mode, which `importance_bracket` shows.
        x: images ``(N, *event)``, in the decoder's dtype and on its device.
        starts: gives latents from which modes are searched, for images ``(G, *event)`` some
            ``(S, G, L)``: samples of an encoder or of the prior, such as four of each image.
        observation: distribution of an image given the output; None is `BernoulliPixels`.
        num_samples: K, of each image; at least two.
        num_newton: Newton steps from each start.
        batch_size: images evaluated at a time.
        generator: source of randomness; None is torch's default generator.

    Raises:
        ValueError: the decoder returns NaN, depends on the batch or the call, or is cut from its
            latents; latents have another shape; or the estimates of half of the images hang on
            few samples.

    Example:
        ``x = z + noise`` of unit variance is normal with variance 2.

        >>> from scorematching.evaluation import NormalPixels
        >>> encode, g = lambda x: 0.5 * x.unsqueeze(0), torch.Generator().manual_seed(0)
        >>> x, noise = torch.zeros(3, 1), NormalPixels(log_std=0.0)
        >>> found = importance_log_likelihood(lambda z: z, x, encode, noise, generator=g)
        >>> abs(found.nll.mean - 0.5 * torch.tensor(4 * torch.pi).log().item()) < 0.01
        True
    """
    check_points(x)
    check_count(batch_size, "batch_size", "some hundred images fill a processor")
    _check_counts(num_samples, num_newton)
    found = []
    for part in x.split(int(batch_size)):
        joint = _joint(decoder, observation, part)
        mixture = fit_mixture(joint, _begin(starts, part, joint), num_newton)
        found.append(_weigh(joint, mixture, num_samples, generator))
    first, second = (torch.cat(sums) for sums in list(zip(*found))[:2])
    whole = LogSums(first, second, num_samples)
    _check_effective(whole.effective_sample_size, num_samples)
    return DecoderLikelihood(whole.log_mean, whole.standard_error, whole.effective_sample_size)


def importance_bracket(
    decoder: Decoder,
    num: int,
    latent_dim: int,
    like: Tensor,
    starts: Starts,
    observation: Observation | None = None,
    num_samples: int = 1000,
    num_newton: int = 20,
    generator: torch.Generator | None = None,
) -> Bracket:
    """Log-likelihoods of simulated images from below and from above, see the module.

    ``num`` is the number of images to simulate, ``latent_dim`` L, ``like`` any tensor in the
    decoder's dtype and on its device. Other arguments as for `importance_log_likelihood`.

    Example:
        >>> from scorematching.evaluation import NormalPixels
        >>> encode, g = lambda x: 0.5 * x.unsqueeze(0), torch.Generator().manual_seed(0)
        >>> bracket = importance_bracket(lambda z: z, 20, 1, torch.zeros(()), encode,
        ...                              NormalPixels(log_std=0.0), generator=g)
        >>> abs(bracket.gap.mean) < 0.01
        True
    """
    check_count(num, "num", "a hundred images are enough")
    check_count(latent_dim, "latent_dim", "it is the number of inputs of the decoder")
    _check_counts(num_samples, num_newton)
    pixels = BernoulliPixels() if observation is None else observation
    check_observation(pixels)
    exact = normal((num, latent_dim), like, generator)
    with torch.no_grad():
        images = pixels.sample(decoder(exact.clone()), generator)
    joint = _joint(decoder, pixels, images)
    mixture = fit_mixture(joint, _begin(starts, images, joint, latent_dim), num_newton)
    most = _weigh(joint, mixture, num_samples - 1, generator)
    last = _weigh(joint, mixture, 1, generator)
    known = LogSums.of(_log_weights(joint, mixture, exact.unsqueeze(0)))
    return Bracket(most.merge(last).log_mean, most.merge(known).log_mean)


def _joint(decoder: Decoder, observation: Observation | None, x: Tensor) -> LogDensity:
    """``log p(z) + log p(x | z)``, ``(K, G, L) -> (K, G)`` for images ``x: (G, *event)``."""
    pixels = BernoulliPixels() if observation is None else observation
    check_observation(pixels)
    with torch.inference_mode(False):
        x = x.clone()  # autograd keeps it, which it refuses for tensors of inference mode

    def log_density(z: Tensor) -> Tensor:
        likelihood = pixels.log_prob(decoded(decoder, z.flatten(0, 1), x), x)
        return standard_normal_log_density(z) + likelihood

    return log_density


def _begin(starts: Starts, x: Tensor, joint: LogDensity, latent_dim: int | None = None) -> Tensor:
    """The latents from which modes are searched, ``(S, G, L)``, where the decoder is checked."""
    advice = "pass a function of images, such as lambda x: torch.stack([encode(x), encode(x)])"
    check_type(starts, Callable, "starts must be callable", advice)
    with torch.no_grad():
        z = starts(x.clone())  # it may change its images in place
    wanted = "starts must return some latents for each image, shape {}"
    check_shape(z, (None, len(x), latent_dim), wanted, "torch.stack several encodings of x")
    check_count(len(z), "the number of latents of an image", "let starts return one or more")
    rows = torch.cat([z, z + 1]).flatten(0, 1)
    check_repeats(lambda z: joint(z.unflatten(0, (-1, len(x)))).flatten(), rows, len(x))
    return z


def _weigh(
    joint: LogDensity, mixture: Mixture, num: int, generator: torch.Generator | None
) -> LogSums:
    """Sums of the weights of so many samples of each image, some at a time."""
    at_once = max(1, _ROWS // mixture.modes.shape[1])
    counts = [min(at_once, num - done) for done in range(0, num, at_once)]
    weights = (_log_weights(joint, mixture, mixture.sample(n, generator)) for n in counts)
    return reduce(LogSums.merge, map(LogSums.of, weights))


@torch.no_grad()
def _log_weights(joint: LogDensity, mixture: Mixture, z: Tensor) -> Tensor:
    """Of samples ``(K, G, L)``, ``(K, G)``."""
    return joint(z).double() - mixture.log_prob(z).double()


def _check_finite(values: Tensor, what: str) -> None:
    bad = int((~values.isfinite()).sum())
    if bad:
        raise ValueError(
            f"decoder must give every start a finite {what}, got NaN or infinity for {bad} "
            f"of {values.numel()}; check its outputs and the latents that starts returns"
        )


def _check_effective(sizes: Tensor, num_samples: int) -> None:
    """Refuse estimates that hang on few samples for half of the images."""
    least = min(_LEAST_EFFECTIVE, num_samples / 100)
    poor = int((sizes < least).sum())
    if 2 * poor > len(sizes):
        raise ValueError(
            f"starts must lead to the modes of nearly normal posteriors, got an effective sample "
            f"size below {least:g} of {num_samples} samples for {poor} of {len(sizes)} images; "
            "give more starts and num_samples, or anneal by decoder_log_likelihood"
        )


def _check_counts(num_samples: int, num_newton: int) -> None:
    check_count(num_newton, "num_newton", "twenty steps suit most decoders")
    check_count(num_samples, "num_samples", "take a thousand")
    if num_samples < 2:
        raise ValueError(
            f"num_samples must be at least 2, got {num_samples}; one has no standard error"
        )
