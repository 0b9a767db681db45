"""Annealed importance sampling: exact weights, closed forms, groups, the bracket."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scorematching._triton import is_available
from scorematching.distributions import Gaussian
from scorematching.evaluation import (
    Annealing,
    BernoulliPixels,
    Bracket,
    NormalPixels,
    ais,
    bidirectional,
    decoder_bracket,
    decoder_log_likelihood,
)
from scorematching.evaluation.log_z import fused
from scorematching.evaluation.log_z.chains import Chains
from scorematching.evaluation.log_z.schedule import make_betas
from scorematching.evaluation.log_z.weights import LogSums
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

F64 = torch.float64
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=F64)


def standard(x: Tensor) -> Tensor:
    """Log-density of N(0, I), normalised."""
    return -0.5 * x.square().sum(-1) - 0.5 * x.shape[1] * math.log(2 * math.pi)


def grouped(means: Tensor, widths: Tensor) -> Callable[[Tensor], Tensor]:
    """Unnormalised Gaussians, one for each group: ``log Z_g = D log(width_g sqrt(2 pi))``."""

    def log_density(x: Tensor) -> Tensor:
        x = x.reshape(-1, *means.shape)
        return -0.5 * ((x - means) / widths[:, None]).square().sum(-1).flatten()

    return log_density


MEANS = torch.tensor([[0.0, 0.0], [1.0, -1.0], [2.0, 0.5]], dtype=F64)
WIDTHS = torch.tensor([0.5, 0.7, 0.2], dtype=F64)
LOG_Z = 2 * (WIDTHS * math.sqrt(2 * math.pi)).log()


# Exact weights.


@pytest.mark.parametrize("schedule", ["linear", "sigmoid", torch.tensor([0.0, 0.3, 0.4, 1.0])])
def test_without_moves_the_increments_telescope(schedule: str | Tensor) -> None:
    x, end = randn(12, 2), grouped(MEANS, WIDTHS)
    found = ais(standard, end, x, num_steps=3, schedule=schedule, num_leapfrog=0, num_groups=3)
    expected = (end(x) - standard(x)).reshape(4, 3)
    torch.testing.assert_close(found.log_weights, expected, rtol=IDENTITY, atol=IDENTITY)
    assert torch.equal(found.x, x)


def test_transitions_that_never_move_telescope() -> None:
    """With steps so large that every path is rejected, weights are importance weights."""
    x, end = randn(12, 2), grouped(MEANS, WIDTHS)
    found = ais(standard, end, x, num_steps=50, step_size=1e6, num_groups=3, generator=seeded())
    assert torch.equal(found.x, x) and (found.acceptance == 0).all()
    expected = (end(x) - standard(x)).reshape(4, 3)
    torch.testing.assert_close(found.log_weights, expected, rtol=IDENTITY, atol=IDENTITY)


def test_one_temperature_is_importance_sampling() -> None:
    x, end = randn(40, 2), grouped(MEANS[:1], WIDTHS[:1])
    found = ais(standard, end, x, num_steps=1)
    w = (end(x) - standard(x)).exp()
    assert torch.equal(found.log_weights[:, 0], end(x) - standard(x))
    assert found.log_z.item() == pytest.approx(w.mean().log().item(), rel=IDENTITY)
    error = (w.std() / (w.mean() * 40**0.5)).item()
    assert found.standard_error.item() == pytest.approx(error, rel=ROUTES)
    effective = (w.sum() ** 2 / w.square().sum()).item()
    assert found.effective_sample_size.item() == pytest.approx(effective, rel=IDENTITY)


def test_two_steps_by_hand() -> None:
    """One move: weight of the first half where it begins, of the second where it ends."""
    x, end = randn(30, 2), grouped(MEANS[:1], WIDTHS[:1])
    found = ais(standard, end, x, num_steps=2, schedule="linear", step_size=0.3, generator=seeded())
    assert not torch.equal(found.x, x)
    halves = [0.5 * (end(y) - standard(y)) for y in (x, found.x)]
    torch.testing.assert_close(found.log_weights[:, 0], sum(halves), rtol=0, atol=1e-11)


def test_sigmoid_schedule() -> None:
    """``sigmoid(linspace(-4, 4))``, rescaled, by its formula."""
    betas = make_betas("sigmoid", 8)
    s = [1 / (1 + math.exp(4 - i)) for i in range(9)]
    expected = [(v - s[0]) / (s[-1] - s[0]) for v in s]
    assert betas.tolist() == pytest.approx(expected, rel=IDENTITY)
    assert betas[0] == 0 and betas[-1] == 1


def test_groups_do_not_know_each_other() -> None:
    """A group keeps its weights when the density of another group changes."""
    x, pilots = randn(12, 2), randn(6, 2, seed=1)
    other = MEANS.clone()
    other[0] += 1
    runs = [
        ais(standard, grouped(m, WIDTHS), x, pilots, 8, num_groups=3, generator=seeded())
        for m in (MEANS, other)
    ]
    same = [torch.eq(a, b).all(0).tolist() for a, b in zip(*(r.log_weights[None] for r in runs))]
    assert same == [[False, True, True]]
    sizes = [r.step_sizes for r in runs]
    assert torch.equal(sizes[0][:, 1:], sizes[1][:, 1:])
    assert not torch.equal(sizes[0][:, 0], sizes[1][:, 0])


def test_sums_of_groups_are_those_of_each() -> None:
    log_weights = randn(20, 3)
    log_weights[:, 2] = -math.inf
    together = LogSums.of(log_weights)
    for g in range(3):
        alone = LogSums.of(log_weights[:, g])
        for name in ("log_mean", "standard_error", "effective_sample_size"):
            a, b = getattr(together, name)[g].item(), getattr(alone, name).item()
            assert a == pytest.approx(b, rel=IDENTITY), name
    assert together.effective_sample_size[2] == 0 and together.standard_error[2] == math.inf


# Closed forms.


def test_gaussians_of_many_groups() -> None:
    """E[w] = Z for every group, with adapted step sizes."""
    x, pilots = randn(4000 * 3, 2), randn(16 * 3, 2, seed=1)
    end = grouped(MEANS, WIDTHS)
    found = ais(standard, end, x, pilots, 60, num_leapfrog=5, num_groups=3, generator=seeded(2))
    assert_mean((found.log_weights - LOG_Z).exp(), 1.0, detect=0.35)
    scaled = (found.log_z - LOG_Z) / found.standard_error
    assert scaled.abs().max() < 5
    last = found.step_sizes[-1]
    assert last[0] > 1.5 * last[2] and found.acceptance[10:].mean().item() == pytest.approx(
        0.65, abs=0.15
    )


def test_chains_that_adapted_themselves_would_be_biased_so_pilots_are_dropped() -> None:
    x, pilots = randn(6, 2), randn(4, 2, seed=1)
    found = ais(standard, grouped(MEANS[:1], WIDTHS[:1]), x, pilots, 6, generator=seeded())
    assert found.log_weights.shape == (6, 1) and found.x.shape == (6, 2)
    assert found.step_sizes.shape == found.acceptance.shape == (5, 1)


class Linear(nn.Module):
    """A linear decoder, ``x = W z + b``."""

    def __init__(self, latent: int = 3, dim: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.7 * randn(dim, latent, seed=5))
        self.bias = nn.Parameter(randn(dim, seed=6))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.weight.T + self.bias

    def marginal(self, std: float) -> Gaussian:
        """``N(b, W W' + std^2 I)``."""
        w = self.weight.detach()
        return Gaussian(self.bias.detach(), w @ w.T + std**2 * torch.eye(len(w), dtype=F64))


def test_linear_gaussian_decoder() -> None:
    """Estimates differ from the closed form by their standard errors."""
    decoder, std = Linear(), 0.6
    law = decoder.marginal(std)
    x = law.sample(400, seeded(3))
    found = decoder_log_likelihood(
        decoder,
        x,
        3,
        NormalPixels(math.log(std)),
        num_chains=48,
        num_steps=40,
        num_leapfrog=4,
        batch_size=150,
        generator=seeded(4),
    )
    truth = law.log_density(x)
    scaled = (found.log_likelihood - truth) / found.standard_error
    assert_mean(scaled, 0.0, detect=0.55)
    assert_mean(scaled.square(), 1.0, detect=1.2)
    assert found.standard_error.max() < 0.5 and found.effective_sample_size.min() > 4
    assert found.nll.count == 400
    assert found.nll.mean == pytest.approx(-found.log_likelihood.mean().item(), rel=IDENTITY)
    assert found.acceptance == pytest.approx(0.65, abs=0.1)
    assert all(p.grad is None for p in decoder.parameters())
    with pytest.raises(AssertionError):
        assert_mean((found.log_likelihood + 0.1 - truth) / found.standard_error, 0.0, detect=0.55)


def test_bernoulli_decoder_against_quadrature() -> None:
    """One latent: the integral over a fine grid is exact to rounding."""
    weight, bias = randn(2, 5)

    def decoder(z: Tensor) -> Tensor:
        return (z * (3 * weight) + bias).reshape(-1, 5, 1)

    x = (randn(3, 5, 1, seed=1) > 0).double()
    grid = torch.linspace(-9, 9, 4001, dtype=F64)[:, None]
    signed = (2 * x - 1) * decoder(grid)[:, None]
    log_p = torch.nn.functional.logsigmoid(signed).flatten(2).sum(-1) + standard(grid)[:, None]
    truth = log_p.logsumexp(0) + math.log(18 / 4000)
    found = decoder_log_likelihood(
        decoder,
        x.repeat(100, 1, 1),
        1,
        num_chains=100,
        num_steps=15,
        num_leapfrog=3,
        generator=seeded(),
    )
    assert_mean((found.log_likelihood.reshape(100, 3) - truth).exp(), 1.0, detect=0.1)


def test_observations_are_normalised() -> None:
    logits = randn(1, 1, 3)
    images = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=F64)] * 3)
    total = BernoulliPixels().log_prob(logits.expand(1, 8, 3), images).exp().sum()
    assert total.item() == pytest.approx(1, rel=IDENTITY)
    extreme = BernoulliPixels().log_prob(
        torch.tensor([[[800.0], [-800.0], [30.0]]]).double(),
        torch.tensor([[1.0], [1.0], [0.0]]).double(),
    )
    assert extreme[0].tolist() == pytest.approx([0, -800, -30 - math.exp(-30)], rel=1e-15)
    grid = torch.linspace(-20, 20, 40_001, dtype=F64)[:, None]
    density = NormalPixels(math.log(1.3)).log_prob(torch.full((1, 40_001, 1), 0.4).double(), grid)
    assert density.exp().sum().item() * 0.001 == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("scale", [255.0, -1.0])
def test_grey_levels_are_no_binary_pixels(scale: float) -> None:
    """Their "log-probability" was in the thousands."""
    x = scale * torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    options = {"observation": BernoulliPixels(), "num_chains": 2, "num_steps": 3}
    with pytest.raises(ValueError, match=r"pixels from 0 to 1 .* divide grey levels by 255"):
        decoder_log_likelihood(nn.Linear(2, 6), x, 2, **options)
    decoder_log_likelihood(nn.Linear(2, 6), x / scale, 2, **options)


def test_observations_take_many_outputs_of_a_point() -> None:
    """One call for the outputs of all chains equals a call for each."""
    outputs, x = randn(4, 2, 5, 3, 2), (randn(5, 3, 2, seed=1) > 0).double()
    for law in (BernoulliPixels(), NormalPixels(0.3)):
        together = law.log_prob(outputs, x)
        assert together.shape == (4, 2, 5)
        for c in range(4):
            for k in range(2):
                alone = law.log_prob(outputs[c, k], x)
                assert torch.allclose(together[c, k], alone, rtol=IDENTITY, atol=0)
    scalars = NormalPixels(0.0).log_prob(randn(4, 5), randn(5, seed=1))
    assert scalars.shape == (4, 5)  # points without axes of their own


def test_images_are_simulated_from_the_observation() -> None:
    logits = torch.tensor([[-1.0, 0.5]], dtype=F64).expand(20_000, 2)
    x = BernoulliPixels().sample(logits, seeded())
    assert_mean(x, logits[0].sigmoid(), detect=0.05)
    y = NormalPixels(math.log(0.5)).sample(logits, seeded())
    assert_mean((y - logits).square(), 0.25, detect=0.03)


# The bracket.


def simulated(num_steps: int, num: int = 150, std: float = 0.6) -> tuple[Bracket, Tensor]:
    """Bounds for images drawn from a linear decoder, and the truth."""
    decoder = Linear()
    z = randn(num, 3)
    x = decoder(z).detach() + std * randn(num, 4, seed=1)

    def posterior(u: Tensor) -> Tensor:
        residual = (decoder(u).reshape(-1, num, 4) - x) / std
        return standard(u) - 0.5 * residual.square().sum(-1).flatten()

    constant = 4 * math.log(std * math.sqrt(2 * math.pi))
    bracket = bidirectional(
        standard,
        posterior,
        randn(16 * num, 3, seed=2),
        z.repeat(16, 1),
        randn(4 * num, 3, seed=3),
        num_steps,
        num_leapfrog=5,
        num_groups=num,
        generator=seeded(),
    )
    return bracket, decoder.marginal(std).log_density(x) + constant


def test_both_bounds_are_unbiased_on_their_own_scale() -> None:
    """``E[exp(lower)] = Z`` and ``E[exp(-upper)] = 1 / Z``."""
    bracket, truth = simulated(30, num=1500, std=1.0)
    lower, upper = bracket.lower - truth, bracket.upper - truth
    assert_mean(lower.exp(), 1.0, detect=0.1)
    assert_mean((-upper).exp(), 1.0, detect=0.1)
    assert lower.mean() < 0 < upper.mean()


def test_the_bracket_closes() -> None:
    gaps = [simulated(num)[0].gap for num in (8, 32, 128)]
    means = [gap.mean for gap in gaps]
    assert means[0] > 2 * means[1] > 4 * means[2]
    assert 0 < means[2] < 0.1 and gaps[2].standard_error < 0.04


def test_chains_that_walk_back_from_the_wrong_place_are_found_out() -> None:
    """From the prior instead of the posterior, the upper bound does not hold."""
    x, y, pilots = (randn(2000, 2, seed=k) for k in range(3))
    end, log_z = grouped(MEANS[1:2], WIDTHS[1:2]), LOG_Z[1].item()
    right, wrong = (
        bidirectional(standard, end, x, exact, pilots[:100], 4, num_leapfrog=1, generator=seeded())
        for exact in (MEANS[1] + WIDTHS[1] * y, y)
    )
    assert right.lower.item() < right.upper.item()
    assert right.lower.item() == pytest.approx(log_z, abs=0.3)
    assert right.upper.item() == pytest.approx(log_z, abs=0.3)
    assert wrong.upper.item() < log_z - 0.3


def test_decoder_bracket() -> None:
    bracket = decoder_bracket(
        Linear(),
        40,
        3,
        torch.zeros((), dtype=F64),
        NormalPixels(math.log(0.8)),
        16,
        60,
        generator=seeded(),
    )
    assert bracket.lower.shape == bracket.upper.shape == (40,)
    assert abs(bracket.gap.mean) < 0.1 and bracket.gap.count == 40
    coins = decoder_bracket(Linear(), 10, 3, torch.zeros((), dtype=F64), num_steps=20)
    assert coins.gap.mean < 0.2


# What a caller can rely on.


def test_reproducible_and_the_callers_things_left_alone() -> None:
    x, pilots, before = randn(6, 2), randn(3, 2, seed=1), torch.get_rng_state()
    kept = x.clone(), pilots.clone()
    end = grouped(MEANS, WIDTHS)
    first, again, other = (
        ais(standard, end, x, pilots, 5, num_groups=3, generator=seeded(k)) for k in (1, 1, 2)
    )
    assert torch.equal(first.log_weights, again.log_weights)
    assert not torch.equal(first.log_weights, other.log_weights)
    assert torch.equal(x, kept[0]) and torch.equal(pilots, kept[1])
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(first, Annealing) and not first.log_weights.requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_same_numbers_without_gradients(mode: type) -> None:
    x, pilots, end = randn(6, 2), randn(3, 2, seed=1), grouped(MEANS, WIDTHS)
    expected = ais(standard, end, x, pilots, 5, num_groups=3, generator=seeded())
    with mode():
        found = ais(standard, end, x, pilots, 5, num_groups=3, generator=seeded())
        assert torch.equal(found.log_weights, expected.log_weights)


def test_single_precision_is_weighed_in_double() -> None:
    x, pilots = randn(600, 2).float(), randn(60, 2, seed=1).float()
    found = ais(standard, grouped(MEANS.float(), WIDTHS.float()), x, pilots, 30, num_groups=3)
    assert found.log_weights.dtype == F64 and found.x.dtype == torch.float32
    assert (found.log_z - LOG_Z).abs().max() < 1


def test_densities_with_zeros() -> None:
    """The density is zero on half of the plane: no chain ends there, and weights are right."""

    def half(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0, standard(x), -math.inf)

    found = ais(standard, half, randn(4000, 2), randn(50, 2, seed=1), 5, generator=seeded())
    assert_mean(found.log_weights[:, 0].exp(), 0.5, detect=0.1)
    alive = found.log_weights[:, 0] > -math.inf
    assert (found.x[alive, 0] > 0).all() and not alive.all()


def call(**changed: Any) -> Annealing:
    """A small run with some arguments changed."""
    arguments: dict[str, Any] = {"start": standard, "end": standard, "x": randn(6, 2)}
    return ais(**{**arguments, "pilots": randn(6, 2), "num_steps": 3, **changed})


NAN = torch.full((6, 2), math.nan, dtype=F64)
BAD = [
    ({"x": [[0.0]]}, TypeError, "x must be a torch.Tensor, got list"),
    ({"x": NAN}, ValueError, "x must be finite, got NaN or infinity in 6 of 6 points"),
    ({"pilots": None}, ValueError, "pilots must be given if step_size is None, got None; draw"),
    ({"pilots": randn(6, 3)}, ValueError, r"pilots must be points like x, \(2,\) of .* got \(3,\)"),
    ({"pilots": randn(6, 2).float()}, ValueError, "pilots must be points like x"),
    ({"pilots": NAN}, ValueError, "pilots must be finite"),
    ({"num_groups": 0}, ValueError, "num_groups must be at least 1"),
    ({"num_groups": 4}, ValueError, "x must hold the same number of chains for each of 4 groups"),
    ({"num_steps": 0}, ValueError, "num_steps must be at least 1"),
    ({"num_leapfrog": -1}, ValueError, "num_leapfrog must be at least 1"),
    ({"schedule": "cosine"}, ValueError, 'schedule must be "sigmoid", "linear" or a tensor'),
    ({"schedule": torch.tensor([0.0, 0.5, 0.4, 1.0])}, ValueError, "must increase from 0 to 1"),
    ({"step_size": 0.0}, ValueError, "step_size must be positive, got 0.0"),
    ({"step_size": torch.tensor([0.1, -0.1])}, ValueError, "step_size must be positive, got -0.1"),
    ({"step_size": torch.ones(3, 1)}, ValueError, r"= \(2, 1\) or .*, got shape \(3, 1\)"),
    ({"step_size": "big"}, TypeError, "step_size must be a positive number, got 'big'; None"),
    ({"end": lambda x: x}, ValueError, "one log-density per point"),
    ({"end": lambda x: torch.zeros(len(x))}, ValueError, "the log-density must depend on x"),
    ({"end": lambda x: x[:, 0] * math.nan}, ValueError, "log_density must be a number or minus"),
    ({"generator": 3}, TypeError, "generator must be a torch.Generator or None"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_arguments(changed: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(**changed)


def test_decoders_that_are_cut_from_their_latents() -> None:
    """Chains followed the prior: likelihoods were too low by tens of nats."""
    decoder = nn.Linear(2, 3)
    for cut in (torch.no_grad()(decoder), lambda z: decoder(z.detach()).detach()):
        with pytest.raises(ValueError, match="decoder must be differentiable in its latents"):
            decoder_log_likelihood(cut, torch.ones(2, 3), 2, num_steps=3)
    coin = decoder_log_likelihood(
        lambda z: torch.zeros(len(z), 3), torch.ones(2, 3), 2, num_steps=3
    )
    assert coin.nll.mean == pytest.approx(3 * math.log(2))


def test_bad_decoders() -> None:
    x, run = torch.zeros(3, 4), decoder_log_likelihood
    with pytest.raises(ValueError, match=r"decoder must return .* \(60, 4\) like x, got \(60, 2\)"):
        run(lambda z: z, x, 2)
    with pytest.raises(ValueError, match="latent_dim must be at least 1"):
        run(lambda z: z, x, 0)
    with pytest.raises(ValueError, match="num_pilots must be at least 1"):
        run(lambda z: z, x, 4, num_pilots=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        run(lambda z: z, x, 4, batch_size=0)
    with pytest.raises(ValueError, match="log_std must be a finite number, got -inf"):
        NormalPixels(-math.inf)
    with pytest.raises(TypeError, match=r"x must have a floating-point dtype, got torch\.uint8"):
        run(lambda z: z, x.byte(), 4)
    with pytest.raises(ValueError, match="exact must hold the same number of chains"):
        bidirectional(standard, standard, randn(6, 2), randn(5, 2), randn(6, 2), num_groups=3)


# On a GPU.


def mnist_decoder(device: str, latent: int = 8, dtype: torch.dtype = F64) -> nn.Module:
    """A decoder of the shape used for MNIST, with weights from a seed."""
    sizes = [latent, 256, 256, 784]
    layers: list[nn.Module] = []
    for k, (a, b) in enumerate(itertools.pairwise(sizes)):
        layer = nn.Linear(a, b).to(dtype)
        with torch.no_grad():
            layer.weight.copy_(randn(b, a, seed=k) / a**0.5)
            layer.bias.zero_()
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(device)


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("own_generator", [True, False])
def test_captured_equals_eager(own_generator: bool) -> None:
    decoder = mnist_decoder("cuda")
    x = (randn(7, 784) > 0).double().cuda()

    def run(capture: bool) -> Any:
        with torch.random.fork_rng(devices=["cuda"]):
            torch.cuda.manual_seed(1)
            generator = seeded(3, "cuda") if own_generator else None
            return decoder_log_likelihood(
                decoder, x, 8, num_steps=20, batch_size=4, generator=generator, capture=capture
            )

    captured, eager = run(True), run(False)
    torch.testing.assert_close(captured.log_likelihood, eager.log_likelihood, rtol=0, atol=1e-8)
    assert captured.acceptance == pytest.approx(eager.acceptance, abs=1e-8)
    assert captured.log_likelihood.is_cuda


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_binary_images_in_one_reading(dtype: torch.dtype) -> None:
    logits = (20 * randn(3, 5, 2, 9)).to("cuda", dtype)
    x, weights = (randn(5, 2, 9) > 0).to("cuda", dtype), randn(3, 5).to("cuda", dtype)
    answers = []
    law = BernoulliPixels()
    for log_prob in (partial(fused.log_prob, law), law.log_prob):
        leaf = logits.clone().requires_grad_()
        value = log_prob(leaf, x)
        (slope,) = torch.autograd.grad((value * weights).sum(), leaf)
        answers.append((value.detach(), slope))
    assert is_available(), "Triton comes with torch for GPUs"
    # Sums of terms up to 60 that may cancel.
    torch.testing.assert_close(*answers, rtol=0, atol=1e-12 if dtype == F64 else 1e-4)


def without_waiting(work: Callable[[], None]) -> None:
    """Do work in which it is an error to wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@GPU
@pytest.mark.filterwarnings("ignore")  # of the debug mode itself
def test_a_transition_waits_for_nothing() -> None:
    decoder, sizes = mnist_decoder("cuda"), torch.full((9, 1), 0.1, dtype=F64)
    z = randn(8, 8).cuda()

    def end(z: Tensor) -> Tensor:
        return standard(z) + decoder(z).sum(-1)

    chains = Chains(standard, end, z, z, make_betas("sigmoid", 10), sizes, 3, seeded(0, "cuda"))
    with torch.no_grad():
        chains.transition()
        without_waiting(chains.transition)


@pytest.mark.gpu
@GPU
def test_densities_that_look_at_values_are_refused_clearly() -> None:
    def peeking(x: Tensor) -> Tensor:
        return standard(x) * (2.0 if x.sum().item() > 0 else 1.0)

    x = randn(6, 2).cuda()
    arguments: dict[str, Any] = {"num_steps": 30, "generator": seeded(0, "cuda")}
    with pytest.raises(RuntimeError, match=r"cannot be captured.*capture=False"):
        ais(standard, peeking, x, x, **arguments)
    assert ais(standard, peeking, x, x, capture=False, **arguments).log_z.isfinite().all()


@pytest.mark.gpu
@GPU
def test_linear_gaussian_decoder_on_a_gpu() -> None:
    decoder, std = Linear(), 0.6
    law = decoder.marginal(std)
    x = law.sample(400, seeded(3))
    found = decoder_log_likelihood(
        decoder.cuda(),
        x.cuda(),
        3,
        NormalPixels(math.log(std)),
        num_chains=48,
        num_steps=100,
        batch_size=150,
        generator=seeded(4, "cuda"),
    )
    error = found.log_likelihood.cpu() - law.log_density(x)
    scaled = error / found.standard_error.cpu()
    assert_mean(scaled, 0.0, detect=0.55)


@pytest.mark.gpu
@pytest.mark.slow
@GPU
@pytest.mark.timeout(600)
@pytest.mark.parametrize("latent", [8, 32])
def test_all_of_mnist_in_less_than_four_minutes(latent: int) -> None:
    decoder = mnist_decoder("cuda", latent, torch.float32)
    z = torch.randn(10_000, latent, generator=seeded(0, "cuda"), device="cuda")
    with torch.no_grad():
        x = BernoulliPixels().sample(decoder(z), seeded(1, "cuda"))
    begin = time.perf_counter()
    found = decoder_log_likelihood(decoder, x, latent, generator=seeded(2, "cuda"))
    print(f"latent {latent}: {time.perf_counter() - begin:.1f} s, {found.nll}, {found.acceptance}")
    assert time.perf_counter() - begin < 240
    assert found.nll.count == 10_000 and math.isfinite(found.nll.mean)
