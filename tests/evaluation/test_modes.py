"""Importance sampling around the modes of posteriors: oracles, closed forms, quadrature, bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from scorematching.distributions import Gaussian
from scorematching.evaluation import (
    BernoulliPixels,
    NormalPixels,
    importance_bracket,
    importance_log_likelihood,
)
from scorematching.evaluation.log_z.modes import DF, Mixture, fit_mixture
from tests.statistics import assert_mean

F64 = torch.float64
LIKE = torch.zeros((), dtype=F64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=F64)


def mixture() -> Mixture:
    """Two components for each of two images, in three dimensions."""
    axes = torch.linalg.qr(randn(2, 2, 3, 3)).Q
    shares = torch.tensor([[0.8, 0.3], [0.2, 0.7]], dtype=F64).log()
    roots = torch.tensor([0.5, 1.0, 2.0], dtype=F64).expand(2, 2, 3)
    return Mixture(shares, 2 * randn(2, 2, 3, seed=1), axes, roots)


# The proposal.


def test_log_prob_is_scipy_s() -> None:
    found, z = mixture(), randn(5, 2, 3, seed=2)
    for k in range(2):
        truth = np.zeros(5)
        for share, mode, axes, roots in zip(*(part[:, k] for part in found)):
            shape = (axes / roots.square()) @ axes.T
            student = scipy.stats.multivariate_t(mode.numpy(), shape.numpy(), df=DF)
            truth += share.exp().item() * student.pdf(z[:, k].numpy())
        assert found.log_prob(z)[:, k].numpy() == pytest.approx(np.log(truth), rel=1e-10)


def test_samples_are_of_that_density() -> None:
    """``E[p / q] = 1`` for a normalised p, here one near each component of each image."""
    found = mixture()
    z = found.sample(40_000, seeded(3))
    for component in range(2):
        p = torch.distributions.Normal(found.modes[component] + 0.3, 0.5)
        weights = (p.log_prob(z).sum(-1) - found.log_prob(z)).exp()
        assert_mean(weights, 1.0, detect=0.25)


def test_newton_steps_end_at_the_modes() -> None:
    """From everywhere, also where the log-density is convex."""

    def log_density(z: Tensor) -> Tensor:
        """Two wells in the first direction, at -1 and 1; curvature 8 there and 3 in the second."""
        return -(z[..., 0].square() - 1).square() - 1.5 * (z[..., 1] - 2).square()

    starts = torch.tensor([[0.1, 5.0], [-0.2, 0.0], [3.0, 2.0]], dtype=F64).unsqueeze(1)
    found = fit_mixture(log_density, starts, 30)
    truth = torch.tensor([[1.0, 2.0], [-1.0, 2.0], [1.0, 2.0]], dtype=F64).unsqueeze(1)
    torch.testing.assert_close(found.modes, truth)
    curvature = found.roots.square().sort().values[0, 0]
    torch.testing.assert_close(curvature, torch.tensor([3.0, 8.0], dtype=F64))
    assert found.log_shares.exp().squeeze(1).tolist() == pytest.approx([1 / 3] * 3)


# Likelihoods against closed forms and quadrature.


def linear(z: Tensor) -> Tensor:
    """Three latents to four pixels."""
    return z @ randn(3, 4).to(z)


def of_encoder(x: Tensor) -> Tensor:
    """Two poor guesses of the latents of an image, ``(G, 4) -> (2, G, 3)``."""
    return torch.stack([x[:, :3], torch.zeros_like(x[:, :3])])


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_linear_decoder(dtype: torch.dtype) -> None:
    x = 2 * randn(600, 4, seed=5)
    a = randn(3, 4)
    truth = Gaussian(torch.zeros(4, dtype=F64), a.T @ a + 0.25 * torch.eye(4, dtype=F64))
    noise = NormalPixels(math.log(0.5))
    found = importance_log_likelihood(
        linear, x.to(dtype), of_encoder, noise, 400, generator=seeded()
    )
    error = found.log_likelihood - truth.log_density(x)
    assert_mean(error.exp(), 1.0, detect=0.02)
    assert_mean((error / found.standard_error).square(), 1.0, detect=0.6)
    assert found.effective_sample_size.min() > 0.6 * 400
    assert found.acceptance is None and found.nll.count == 600


class Even(nn.Module):
    """One latent whose sign no image shows: every posterior has two modes."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([3 * z.square() - 1, 2 - z.square(), 0 * z, z.cos()], -1)


def by_quadrature(x: Tensor) -> Tensor:
    """``log p(x)`` of Bernoulli pixels, ``(N, 4) -> (N,)``."""
    z = torch.linspace(-12, 12, 4001, dtype=F64)
    logits = Even()(z.unsqueeze(-1)).unsqueeze(1)  # (grid, 1, pixels)
    likelihood = BernoulliPixels().log_prob(logits.expand(-1, len(x), -1), x)
    prior = torch.distributions.Normal(LIKE, LIKE + 1).log_prob(z).unsqueeze(-1)
    return (likelihood + prior).logsumexp(0) + math.log(24 / 4000)


def both_signs(x: Tensor) -> Tensor:
    return torch.tensor([0.8, -0.8]).to(x)[:, None, None].expand(2, len(x), 1)


def one_sign(x: Tensor) -> Tensor:
    return both_signs(x)[:1]


PIXELS = torch.tensor([[a, b, 1, d] for a in (0, 1) for b in (0, 1) for d in (0, 1)], dtype=F64)


def test_two_modes_against_quadrature() -> None:
    found = importance_log_likelihood(
        Even(), PIXELS, both_signs, num_samples=20_000, generator=seeded()
    )
    error = found.log_likelihood - by_quadrature(PIXELS)
    assert error.abs().max() < 0.05 and (found.standard_error < 0.012).all()


def test_a_missed_mode_shows_in_the_bracket_alone() -> None:
    noise = NormalPixels(math.log(0.5))
    whole, half = (
        importance_bracket(Even(), 300, 1, LIKE, starts, noise, 200, generator=seeded())
        for starts in (both_signs, one_sign)
    )
    assert abs(whole.gap.mean) < 0.05
    assert half.gap.mean > 0.4


def test_both_bounds_are_unbiased_on_their_own_scale() -> None:
    """``E[lower estimate] = p(x)`` and ``E[1 / upper estimate] = 1 / p(x)``.

    Compared image by image: the images are drawn again with the generator of the bracket.
    """
    noise, num = NormalPixels(math.log(0.5)), 3000
    bracket = importance_bracket(linear, num, 3, LIKE, of_encoder, noise, 3, generator=seeded())
    generator = seeded()
    z = torch.randn(num, 3, generator=generator, dtype=F64)
    x = noise.sample(linear(z), generator)
    a = randn(3, 4)
    truth = Gaussian(torch.zeros(4, dtype=F64), a.T @ a + 0.25 * torch.eye(4, dtype=F64))
    exact = truth.log_density(x)
    assert_mean((bracket.lower - exact).exp(), 1.0, detect=0.1)
    assert_mean((exact - bracket.upper).exp(), 1.0, detect=0.1)
    assert bracket.gap.mean > 5 * bracket.gap.standard_error


# What a caller can rely on.


def test_reproducible_and_the_callers_things_left_alone() -> None:
    decoder = nn.Linear(3, 4, dtype=F64)
    x, before = PIXELS.clone(), torch.get_rng_state()
    first, again, other = (
        importance_log_likelihood(decoder, x, of_encoder, generator=seeded(k)).log_likelihood
        for k in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(x, PIXELS) and torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in decoder.parameters())


def test_in_inference_mode_too() -> None:
    with torch.inference_mode():
        x = PIXELS.clone()
        found = importance_log_likelihood(linear, x, of_encoder, generator=seeded())
    again = importance_log_likelihood(linear, PIXELS, of_encoder, generator=seeded())
    assert torch.equal(found.log_likelihood, again.log_likelihood)


def test_proposals_keep_their_precision_under_autocast() -> None:
    found = Mixture(*(part.float() for part in mixture()))
    z = found.sample(5, seeded())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found.sample(5, seeded()), z)
        inside = found.log_prob(z)
    assert torch.equal(inside, found.log_prob(z))


def test_images_in_parts_and_of_any_shape() -> None:
    def pictures(z: Tensor) -> Tensor:
        return linear(z).unflatten(-1, (1, 2, 2))

    def starts(x: Tensor) -> Tensor:
        return of_encoder(x.flatten(1))

    found = importance_log_likelihood(
        pictures, PIXELS.unflatten(1, (1, 2, 2)), starts, batch_size=3, generator=seeded()
    )
    again = importance_log_likelihood(linear, PIXELS, of_encoder, generator=seeded(1))
    error = (found.log_likelihood - again.log_likelihood).abs()
    assert found.log_likelihood.shape == (8,) and error.max() < 0.2


def rooted(z: Tensor) -> Tensor:
    """A decoder without second derivatives at zero, where one of the starts is."""
    return linear(z) + z.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": 1}, "num_samples must be at least 2, got 1"),
        ({"num_newton": 0}, "num_newton must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"starts": lambda x: x[:, :3]}, "starts must return some latents for each image"),
        ({"starts": lambda x: x[None, :3, :3]}, "starts must return some latents for each image"),
        ({"decoder": lambda z: linear(z) * math.nan}, "decoder must give every start a finite"),
        ({"decoder": lambda z: z}, "decoder must return one image per row of latents"),
        ({"decoder": rooted}, "decoder must give every start a finite Hessian"),
        ({"decoder": torch.no_grad()(linear)}, "decoder must be differentiable in its latents"),
        ({"decoder": lambda z: linear(z.detach())}, "decoder must be differentiable in its"),
        ({"starts": torch.zeros(2, 8, 3)}, "starts must be callable, got Tensor"),
        ({"starts": lambda x: x[None, :, :3][:0]}, "the number of latents of an image must be at"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    arguments = {"decoder": linear, "x": PIXELS, "starts": of_encoder}
    with pytest.raises((ValueError, TypeError), match=message):
        importance_log_likelihood(**(arguments | change))  # type: ignore[arg-type]


def test_a_decoder_that_ignores_its_latents() -> None:
    def coin(z: Tensor) -> Tensor:
        return torch.zeros(len(z), 4, dtype=F64)

    found = importance_log_likelihood(coin, PIXELS, of_encoder, generator=seeded())
    assert found.nll.mean == pytest.approx(4 * math.log(2), abs=0.03)


def test_estimates_from_few_samples_are_refused() -> None:
    """Decoders whose second derivatives are cut: proposals are as wide as the prior."""
    decoder, noise, x = nn.Linear(6, 40, dtype=F64), NormalPixels(-4.0), randn(5, 40)

    def once(z: Tensor) -> Tensor:
        """The same decoder with a first derivative only."""
        return _Once.apply(z, decoder.weight) + decoder.bias

    def starts(x: Tensor) -> Tensor:
        return torch.zeros(1, len(x), 6, dtype=F64)

    with pytest.raises(ValueError, match="effective sample size below 10 of 1000 samples for 5 of"):
        importance_log_likelihood(once, x, starts, noise, generator=seeded())
    found = importance_log_likelihood(decoder, x, starts, noise, generator=seeded())
    assert found.effective_sample_size.min() > 500


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return z @ weight.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.saved_tensors[0], None


def test_bad_input_of_the_bracket() -> None:
    with pytest.raises(ValueError, match=r"starts must return .* shape \(None, 2, 4\), got"):
        importance_bracket(lambda z: linear(z[:, :3]), 2, 4, LIKE, of_encoder)
    with pytest.raises(ValueError, match="num must be"):
        importance_bracket(linear, 0, 3, LIKE, of_encoder)
    with pytest.raises(ValueError, match="latent_dim must be"):
        importance_bracket(linear, 2, 0, LIKE, of_encoder)
