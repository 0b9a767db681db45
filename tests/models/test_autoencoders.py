"""Auto-encoders: losses against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import scorematching as sm
from reproduction.autoencoders.mnist_networks import make_implicit_vae, make_wae
from scorematching.kernels import fit_spectral, fit_stein
from scorematching.models import (
    VAE,
    WAE,
    BernoulliPixels,
    ImplicitVAE,
    NormalPixels,
    ScoreNetwork,
)
from scorematching.models.autoencoders.base import LatentModel
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def near(a: Tensor, b: Tensor, tolerance: float = IDENTITY) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=tolerance)


# Distributions of pixels.


def test_pixel_laws_are_torch_s() -> None:
    output, x = normal(4, 3, 2), normal(4, 3, 2, seed=1)
    bits = (x > 0).double()
    bernoulli = torch.distributions.Bernoulli(logits=output).log_prob(bits).sum((1, 2))
    assert near(BernoulliPixels().log_prob(output, bits), bernoulli)
    pixels = NormalPixels(log_std=0.3)
    gaussian = torch.distributions.Normal(output, math.exp(0.3)).log_prob(x).sum((1, 2))
    assert near(pixels.log_prob(output, x), gaussian)
    assert near(BernoulliPixels().mean(output), torch.distributions.Bernoulli(logits=output).mean)
    rows = output[:1].expand(20_000, 3, 2)
    for law in (BernoulliPixels(), pixels):
        assert_mean(law.sample(rows, seeded(2)), law.mean(output[0]), detect=0.12)
    assert_mean((pixels.sample(rows, seeded(3)) - rows).square(), math.exp(0.6), detect=0.2)


def test_samples() -> None:
    model = make_implicit_vae(2, dim=5, hidden=(8,), generator=seeded(0)).double()
    z = torch.randn(6, 2, generator=seeded(1), dtype=torch.float64)
    assert torch.equal(model.sample(6, seeded(1)), model.decode(z))
    bits = model.sample(200, seeded(1), observe=True)
    assert bits.shape == (200, 5) and set(bits.unique().tolist()) == {0.0, 1.0}
    assert not model.sample(2).requires_grad


# Losses in closed form: x = W z + error, with W'W diagonal, has normal posteriors
# with independent latents.

STD = 0.7
W = torch.tensor([[1.0, 0.4], [1.0, -0.4], [0.5, 0.0]], dtype=torch.float64)


class Affine(nn.Module):
    """Means ``A x`` and logarithms of standard deviations of an explicit encoder."""

    def __init__(self, exact: bool = True) -> None:
        super().__init__()
        variance = 1 / (1 + W.square().sum(0) / STD**2)
        moved = 0 if exact else 1
        self.matrix = nn.Parameter(variance[:, None] * W.T / STD**2 + 0.3 * moved)
        self.log_std = nn.Parameter(0.5 * variance.log() - 0.4 * moved)

    def forward(self, x: Tensor) -> Tensor:
        mean = x @ self.matrix.T
        return torch.cat([mean, self.log_std.expand_as(mean)], -1)


class Noisy(nn.Module):
    """The same distribution as an implicit encoder, and its score."""

    def __init__(self, explicit: Affine) -> None:
        super().__init__()
        self.explicit = explicit

    def forward(self, eps: Tensor, x: Tensor) -> Tensor:
        mean, log_std = self.explicit(x).chunk(2, -1)
        if eps.ndim == 3:
            mean, log_std = mean[:, None], log_std[:, None]
        return mean + log_std.exp() * eps

    def score(self, z: Tensor, x: Tensor) -> Tensor:
        mean, log_std = self.explicit(x).chunk(2, -1)
        if z.ndim == 3:
            mean, log_std = mean[:, None], log_std[:, None]
        return -(z - mean) * (-2 * log_std).exp()


class Score(nn.Module):
    """A network that returns the true score."""

    def __init__(self, encoder: Noisy) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.encoder = (encoder,)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.weight * self.encoder[0].score(z, x)


def linear_decoder() -> nn.Linear:
    decoder = nn.Linear(2, 3, dtype=torch.float64)
    decoder.weight.data.copy_(W)
    decoder.bias.data.zero_()
    return decoder


def white(count: int, dim: int) -> Tensor:
    """Noise with mean exactly zero and covariance exactly I."""
    eps = normal(count, dim)
    eps = eps - eps.mean(0)
    factor = torch.linalg.cholesky(eps.T @ eps / count)
    return torch.linalg.solve_triangular(factor, eps.T, upper=False).T


COPIES = 16
POINT = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)


def with_white_noise(model: Any) -> Any:
    """The model with noise whose moments are exact, for the copies of one point."""

    def noise(shape: tuple[int, ...], like: Tensor, generator: Any) -> Tensor:
        if len(shape) == 2:
            return white(*shape)
        return white(shape[1], shape[2]).expand(shape)

    model.noise = noise
    return model


def evidence() -> Tensor:
    """``log p(x)`` of the point, which is normal with covariance ``W W' + std^2 I``."""
    covariance = W @ W.T + STD**2 * torch.eye(3, dtype=torch.float64)
    law = torch.distributions.MultivariateNormal(torch.zeros(3, dtype=torch.float64), covariance)
    return law.log_prob(POINT)[0]


def gaussian_kl(explicit: Affine) -> Tensor:
    """Between the encoder's distribution at the point and the posterior, by torch."""
    mean, log_std = explicit(POINT)[0].chunk(2)
    exact = Affine()(POINT)[0].detach().chunk(2)
    q = torch.distributions.Normal(mean, log_std.exp())
    p = torch.distributions.Normal(exact[0], exact[1].exp())
    return torch.distributions.kl_divergence(q, p).sum()


def explicit_vae(encoder: nn.Module) -> VAE:
    return with_white_noise(VAE(encoder, linear_decoder(), NormalPixels(math.log(STD)), 2))


def test_bound_of_the_posterior_is_the_evidence() -> None:
    """``-ELBO = -log p(x) + KL(q | posterior)``, and the second term vanishes at the posterior."""
    x = POINT.expand(COPIES, 3)
    assert near(explicit_vae(Affine()).loss(x).mean(), -evidence())
    far = Affine(exact=False)
    loss = explicit_vae(far).loss(x).mean()
    assert near(loss, -evidence() + gaussian_kl(far)) and gaussian_kl(far) > 0.5


def implicit_vae(explicit: Affine) -> ImplicitVAE:
    encoder = Noisy(explicit)
    pixels = NormalPixels(math.log(STD))
    return with_white_noise(ImplicitVAE(encoder, linear_decoder(), pixels, 2, Score(encoder)))


def gradients(loss: Tensor, *modules: nn.Module) -> Tensor:
    inputs = [p for module in modules for p in module.parameters()]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, inputs)])


def test_implicit_gradient_is_that_of_the_bound() -> None:
    """With the true score, and noise with exact moments."""
    far, x = Affine(exact=False), POINT.expand(COPIES, 3)
    explicit, implicit = explicit_vae(far), implicit_vae(far)
    truth = gradients(explicit.loss(x).mean(), far, explicit.decoder)
    assert near(gradients(implicit.loss(x).mean(), far, implicit.decoder), truth)
    assert near(gradients(explicit.loss(x).mean(), far), gradients(gaussian_kl(far), far))


def test_implicit_gradient_with_an_estimator() -> None:
    """Prior and entropy over all samples, the likelihood over the first."""
    far = Affine(exact=False)
    model = implicit_vae(far)

    def gradient(score: Callable[[Tensor], Tensor]) -> Tensor:
        decoded = model.log_likelihood(model.encode(POINT, num=COPIES)[:, 0], POINT)
        return gradients((model.loss(POINT, score, COPIES) + decoded).mean(), far)

    mean, log_std = far(POINT)[0].chunk(2)
    to_prior = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, log_std.exp()),
        torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean)),
    )
    truth = gradients(to_prior.sum(), far)
    assert near(gradient(lambda z: model.encoder.score(z, POINT)), truth)
    flipped = gradient(lambda z: -model.encoder.score(z, POINT))
    assert (flipped - truth).abs().max() > 0.5  # a planted bug fails


def test_implicit_gradient_vanishes_at_the_posterior() -> None:
    """The posterior is the minimum."""
    exact = Affine()
    loss = implicit_vae(exact).loss(POINT.expand(COPIES, 3)).mean()
    found = torch.autograd.grad(loss, list(exact.parameters()))
    assert all(near(g, torch.zeros_like(g)) for g in found)


def test_wasserstein_gradient() -> None:
    """``KL(N(0, A A') | N(0, I)) = 0.5 (|A|^2 - log det A A' - D)`` has gradient ``A - A^-T``."""
    a = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    a.weight.data.copy_(torch.tensor([[1.5, 0.3], [-0.4, 0.6]]))
    x, decoder = white(40, 2), nn.Linear(2, 2, dtype=torch.float64)

    def score(z: Tensor) -> Tensor:
        return -z @ torch.linalg.inv(a.weight @ a.weight.T)

    model = WAE(a, decoder, NormalPixels(), 2, lam=3.0)
    (found,) = torch.autograd.grad(model.loss(x, score).mean(), a.weight)
    error = (x - decoder(a(x))).square().sum(1).mean()
    (of_error,) = torch.autograd.grad(error, a.weight)
    assert near(found, of_error + 3 * (a.weight - torch.linalg.inv(a.weight).T))
    network = ScoreNetwork(2, (4,), generator=seeded(0)).double()
    learned = WAE(a, decoder, NormalPixels(), 2, network, lam=3.0)
    assert near(learned.loss(x), model.loss(x, lambda z: network(z[0])[None]))
    assert WAE(a, decoder, NormalPixels(), 2).lam == 10


def test_estimators_see_draws_of_one_law() -> None:
    """M latents of each point; for a WAE those of the batch."""
    seen = []

    def watch(z: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        seen.append(z)
        return -z

    x = torch.rand(4, 5, generator=seeded(0)).round()
    vae = make_implicit_vae(2, dim=5, hidden=(8,), with_score_network=False, generator=seeded(0))
    wae = make_wae(2, dim=5, hidden=(8,), with_score_network=False, generator=seeded(0))
    losses = vae.loss(x, watch, 7, seeded(1))
    z = vae.encode(x, seeded(1), num=7)
    expected = (-z * z).sum(-1).mean(1) - vae.log_prior(z).mean(1) - vae.log_likelihood(z[:, 0], x)
    assert torch.allclose(losses, expected)
    more = vae.loss(x, lambda z: -z, 7, seeded(1), num_decoded=3) - losses
    decoded = torch.stack([vae.log_likelihood(z[:, m], x) for m in range(3)])
    assert torch.allclose(more, decoded[0] - decoded.mean(0), atol=1e-5)
    assert wae.loss(x, watch).shape == (4,)
    assert torch.equal(seen[0], z) and torch.equal(seen[1], wae.encode(x)[None])


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral])
def test_kernel_estimators_fit(fit: Any) -> None:
    x = torch.rand(16, 5, generator=seeded(0), dtype=torch.float64).round()
    vae = make_implicit_vae(2, dim=5, hidden=(8,), generator=seeded(0)).double()
    wae = make_wae(2, dim=5, hidden=(8,), generator=seeded(0)).double()
    rows = torch.rand(16, 5, generator=seeded(2), dtype=torch.float64)

    def estimator(z: Tensor) -> Tensor:
        return fit(z).at_samples()

    for losses in (vae.loss(x, estimator, 20, seeded(1)), wae.loss(rows, estimator)):
        assert losses.shape == (16,) and losses.isfinite().all()


# Which parameters each loss trains.


@pytest.mark.parametrize("make", [make_implicit_vae, make_wae])
def test_each_loss_reaches_its_own_parts(make: Any) -> None:
    x = torch.rand(6, 5, generator=seeded(0)).round()

    def learners(loss: Callable[[Any], Tensor]) -> set[str]:
        model = make(2, dim=5, hidden=(8,), generator=seeded(0))
        loss(model).mean().backward()
        return {n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None}

    assert learners(lambda m: m.loss(x)) == {"encoder", "decoder"}
    for objective in (sm.ScoreMatching(), sm.SlicedScoreMatchingVR(sm.Gaussian(), 3)):
        assert learners(lambda m, o=objective: m.score_loss(x, o)) == {"score_network"}


@pytest.mark.parametrize("make", [make_implicit_vae, make_wae])
def test_score_loss_is_the_objective_in_z(make: Any) -> None:
    """One Jacobian at a time, in z with the image held fixed."""
    model = make(3, dim=5, hidden=(8,), generator=seeded(0)).double()
    x = torch.rand(4, 5, generator=seeded(0), dtype=torch.float64).round()
    losses = model.score_loss(x, sm.ScoreMatching(), seeded(1))
    z = model.encode(x, seeded(1)).detach()
    for i in range(4):
        at = lambda u, i=i: model.score(u[None], x[i : i + 1])[0]  # noqa: E731
        trace = torch.autograd.functional.jacobian(at, z[i]).trace()
        assert near(losses[i], trace + 0.5 * at(z[i]).square().sum(), ROUTES)
    sliced = sm.SlicedScoreMatchingVR(sm.Gaussian(), num_projections=2)
    g = seeded(1)
    direct = sliced(sm.VectorField(lambda z: model.score(z, x)), model.encode(x, g).detach(), g)
    assert torch.equal(model.score_loss(x, sliced, seeded(1)), direct)


def test_log_likelihood_goes_pair_by_pair() -> None:
    model = make_implicit_vae(2, dim=5, hidden=(8,), generator=seeded(0)).double()
    z, x = normal(4, 2), torch.rand(4, 5, generator=seeded(0), dtype=torch.float64).round()
    together = model.log_likelihood(z, x)
    for i in range(4):
        one = -F.binary_cross_entropy_with_logits(model.decoder(z[i]), x[i], reduction="sum")
        assert near(together[i], one)
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1)
    assert near(model.log_prior(z), prior)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, x: m.loss(x), ValueError, "must have a score network for this, got None"),
        (lambda m, x: m.score_loss(x, sm.ScoreMatching()), ValueError, "score=lambda z: fit_stein"),
        (lambda m, x: m.loss(x.long()), TypeError, r"convert it with x\.float\(\)"),
        (lambda m, x: m.loss(x, torch.neg, 0), ValueError, "num_samples must be at least 1"),
        (lambda m, x: m.loss(x, torch.neg, 5, num_decoded=6), ValueError, "at most num_samples"),
        (lambda m, x: m.loss(x[:, :4], torch.neg), ValueError, r"and \(N, 5\), got"),
        (lambda m, x: m.log_likelihood(x[:, :2], x[:2]), ValueError, r"output, \(3, 5\), got \(2"),
        (lambda m, x: m.sample(0), ValueError, "n must be at least 1"),
        (
            lambda m, x: LatentModel(m.decoder, m.observation, 0),
            ValueError,
            "latent_dim must be at",
        ),
        (lambda m, x: make_wae(2, lam=0.0), ValueError, "lam must be positive"),
        (lambda m, x: NormalPixels(math.inf), ValueError, "log_std must be a finite number"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    model = make_implicit_vae(2, dim=5, hidden=(4,), with_score_network=False)
    with pytest.raises(error, match=message):
        call(model, torch.ones(3, 5))


@pytest.mark.parametrize("kind", [VAE, ImplicitVAE, WAE])
@pytest.mark.parametrize("axes", [(), (1, 1)])
def test_encoders_of_other_shapes_are_refused(kind: Any, axes: tuple[int, ...]) -> None:
    """Too many latents, or axes left over from an image, were broadcast: (N, Dz, N) losses."""
    width = (4 if kind is VAE else 2) + (not axes)
    layers = (nn.Flatten(), nn.Linear(4, width), nn.Unflatten(1, (width, *axes)))
    if kind is ImplicitVAE:
        encoder: Any = ConditionalEncoder(nn.Sequential(*layers))
    else:
        encoder = nn.Sequential(*layers)
    model = kind(encoder, nn.Linear(2, 4), NormalPixels(), 2)
    score = () if kind is VAE else (torch.neg,)
    with pytest.raises(ValueError, match=r"encoder must return .* as latent_dim says, got \(3, "):
        model.loss(torch.ones(3, 4), *score)


class ConditionalEncoder(nn.Module):
    """An encoder that has no use for its noise."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, eps: Tensor, x: Tensor) -> Tensor:
        z: Tensor = self.net(x)
        return z[:, None].expand(-1, eps.shape[1], *z.shape[1:])


def test_wasserstein_error_is_that_of_pairs() -> None:
    """``(N, 1, H, W)`` less ``(N, H, W)`` is ``(N, N, H, W)``: all pairs of images."""
    x = normal(3, 1, 2, 2)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).double()
    lost = nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))).double()
    with pytest.raises(ValueError, match=r"decoder's output, \(3, 2, 2\), got \(3, 1, 2, 2\)"):
        WAE(encoder, lost, NormalPixels(), 2).loss(x, torch.neg)
    model = WAE(encoder, nn.Sequential(lost, nn.Unflatten(1, (1, 2))), NormalPixels(), 2)
    z = model.encode(x)
    error = (x[:, 0] - lost(z)).square().sum((1, 2))
    entropy = (-z.detach() * z).sum(1)  # the surrogate for the score -z
    assert near(model.loss(x, torch.neg), error + 10 * (entropy - model.log_prior(z)))
