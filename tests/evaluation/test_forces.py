"""Annealed importance sampling along forces that are not the scores: estimates stay exact."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from scorematching.evaluation import (
    Annealing,
    BernoulliPixels,
    NormalPixels,
    ais,
    bidirectional,
    decoder_bracket,
    decoder_log_likelihood,
)
from scorematching.evaluation.log_z import decoders, fused
from scorematching.evaluation.log_z.chains import Chains
from scorematching.evaluation.log_z.schedule import make_betas
from tests.evaluation.test_ais import (
    F64,
    GPU,
    LOG_Z,
    MEANS,
    WIDTHS,
    Linear,
    grouped,
    mnist_decoder,
    randn,
    seeded,
    standard,
    without_waiting,
)
from tests.statistics import assert_mean

END = grouped(MEANS, WIDTHS)


def score(x: Tensor) -> Tensor:
    """The score of the groups of Gaussians."""
    residual = x.reshape(-1, *MEANS.shape) - MEANS
    return (-residual / WIDTHS[:, None] ** 2).reshape(x.shape)


def wrong(x: Tensor) -> Tensor:
    """0.8 of the score, and a constant field."""
    return 0.8 * score(x) + 0.3


EXACT, WRONG = (torch.neg, score), (lambda x: -1.2 * x + 0.2, wrong)


def run(forces: Any, num_steps: int = 20, **options: Any) -> Annealing:
    """Six chains of each group."""
    x, pilots = randn(18, 2), randn(9, 2, seed=1)
    rest = {"num_groups": 3, "generator": seeded(2), "forces": forces, **options}
    return ais(standard, END, x, pilots, num_steps, num_leapfrog=4, **rest)


# Any force.


def test_scores_as_forces_change_nothing() -> None:
    found, expected = run(EXACT), run(None)
    for name in ("log_weights", "x", "step_sizes", "acceptance"):
        new, old = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(new, old, rtol=0, atol=1e-9)
    assert 0.1 < found.acceptance.mean() < 0.9


@pytest.mark.parametrize("forces", [None, WRONG], ids=["scores", "forces"])
def test_values_kept_from_the_last_path_are_those_of_the_chains(forces: Any) -> None:
    """With a limit of memory both densities are evaluated anew in every transition."""
    kept, anew = (run(forces, 10, max_memory=limit) for limit in (None, 10**6))
    torch.testing.assert_close(kept.log_weights, anew.log_weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(kept.x, anew.x, rtol=0, atol=1e-9)


def test_a_transition_evaluates_the_density_once_and_without_gradient() -> None:
    modes, forces = [], []

    def end(x: Tensor) -> Tensor:
        modes.append(torch.is_grad_enabled())
        return END(x)

    def force(x: Tensor) -> Tensor:
        forces.append(len(x))
        return wrong(x)

    x = randn(6, 2)
    options: dict[str, Any] = {"num_leapfrog": 5, "step_size": 0.3, "num_groups": 3}
    ais(standard, end, x, num_steps=8, forces=(torch.neg, force), **options)
    # 7 moves, once before the first of them, and the density once more for the last increment,
    # after four calls that check whether it depends on the batch.
    assert modes == [False] * 13 and forces == [6] * (7 * 5 + 1)


def test_weights_stay_unbiased() -> None:
    """E[w] = Z for every group, with step sizes that pilots adapt."""
    x, pilots = randn(6000 * 3, 2), randn(16 * 3, 2, seed=1)
    rest: dict[str, Any] = {"num_groups": 3, "generator": seeded(2), "forces": WRONG}
    found = ais(standard, END, x, pilots, 60, num_leapfrog=5, **rest)
    assert_mean((found.log_weights - LOG_Z).exp(), 1.0, detect=0.35)
    assert found.acceptance[10:].mean().item() == pytest.approx(0.65, abs=0.15)


class Inconsistent(Chains):
    """The planted bug: paths begin with the exact scores, and go on with the forces."""

    def ends(self) -> Any:
        values, _ = super().ends()
        return values, [-self.x, (MEANS[1] - self.x) / WIDTHS[1] ** 2]

    def transition(self) -> None:
        self.kept = None
        super().transition()


def test_an_exact_force_at_the_beginning_of_paths_is_found_out() -> None:
    """The same chains by the right class pass."""
    end, scaled = grouped(MEANS[1:2], WIDTHS[1:2]), {}
    path = make_betas("sigmoid", 60), torch.full((59, 1), 0.25, dtype=F64), 5
    forces = torch.neg, lambda x: 0.5 * (MEANS[1] - x) / WIDTHS[1] ** 2
    for kind in (Chains, Inconsistent):
        chains = kind(standard, end, randn(24_000, 2), None, *path, seeded(2), None, forces)
        chains.run(59, capture=False)
        scaled[kind] = (chains.result()[0] - LOG_Z[1]).exp()
    assert_mean(scaled[Chains], 1.0, detect=0.1)
    with pytest.raises(AssertionError, match="more than"):
        assert_mean(scaled[Inconsistent], 1.0, detect=0.1)


def test_bounds_from_both_sides() -> None:
    """``E[exp(lower)] = Z`` and ``E[exp(-upper)] = 1 / Z``; forces change sides with the ends."""
    num = 1500
    x, y, pilots = randn(4 * num, 2), randn(4 * num, 2, seed=1), randn(2 * num, 2, seed=2)
    law = grouped(MEANS[1:2].expand(num, 2), WIDTHS[1:2].expand(num))

    def force(x: Tensor) -> Tensor:
        return 0.8 * (MEANS[1] - x) / WIDTHS[1] ** 2 + 0.3

    rest: dict[str, Any] = {"num_groups": num, "generator": seeded(), "forces": (torch.neg, force)}
    bracket = bidirectional(standard, law, x, MEANS[1] + WIDTHS[1] * y, pilots, 30, **rest)
    lower, upper = bracket.lower - LOG_Z[1], bracket.upper - LOG_Z[1]
    assert_mean(lower.exp(), 1.0, detect=0.15)
    assert_mean((-upper).exp(), 1.0, detect=0.15)
    assert lower.mean() < 0 < upper.mean()


def test_bad_forces() -> None:
    for bad in (wrong, (wrong,), (None, wrong), "bf16"):
        with pytest.raises(TypeError, match=r"forces must be two callables .* for start and end"):
            run(bad)
    with pytest.raises(ValueError, match=r"force must return one vector per chain, shape \(9, 2\)"):
        run((standard, wrong))


# Forces of a decoder in bfloat16.


class Recorder(nn.Module):
    """A small decoder of binary images; notes the precision of its outputs."""

    def __init__(self, latent: int = 3, dim: int = 20) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent, 16), nn.Tanh(), nn.Linear(16, dim))
        self.seen: set[tuple[bool, torch.dtype]] = set()
        for k, p in enumerate(self.parameters()):
            p.data = randn(*p.shape, seed=k).float()

    def forward(self, z: Tensor) -> Tensor:
        output: Tensor = self.layers(z)
        self.seen.add((torch.is_grad_enabled(), output.dtype))
        return output

    def images(self, num: int) -> Tensor:
        with torch.no_grad():
            return BernoulliPixels().sample(self.layers(randn(num, 3).float()), seeded(1))


def test_forces_in_bfloat16_and_energies_in_float32() -> None:
    """Also where the caller computes in bfloat16."""
    decoder = Recorder()
    x, options = decoder.images(5), {"num_steps": 12, "force_precision": "bf16"}
    wanted = {(True, torch.bfloat16), (False, torch.float32)}
    found = decoder_log_likelihood(decoder, x, 3, generator=seeded(), **options)
    assert decoder.seen == wanted
    decoder.seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        again = decoder_log_likelihood(decoder, x, 3, generator=seeded(), **options)
    assert decoder.seen == wanted
    assert torch.equal(found.log_likelihood, again.log_likelihood)
    assert not torch.is_autocast_enabled("cpu")
    assert all(p.grad is None for p in decoder.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_same_numbers_without_gradients(mode: type) -> None:
    decoder = Recorder()
    x, options = decoder.images(4), {"num_steps": 8, "force_precision": "bf16"}
    expected = decoder_log_likelihood(decoder, x, 3, generator=seeded(), **options)
    with mode():
        found = decoder_log_likelihood(decoder, x, 3, generator=seeded(), **options)
        assert torch.equal(found.log_likelihood, expected.log_likelihood)


def test_acceptance_and_estimates_are_those_of_exact_forces() -> None:
    decoder = Recorder()
    x = decoder.images(30)
    rough, exact = (
        decoder_log_likelihood(
            decoder, x, 3, num_steps=40, generator=seeded(), force_precision=precision
        )
        for precision in ("bf16", None)
    )
    assert not torch.equal(rough.log_likelihood, exact.log_likelihood)
    assert rough.acceptance == pytest.approx(exact.acceptance, abs=0.02)
    variance = rough.standard_error.square() + exact.standard_error.square()
    scaled = (rough.log_likelihood - exact.log_likelihood) / variance.sqrt()
    assert scaled.abs().max() < 5
    assert rough.standard_error.mean() < 1.2 * exact.standard_error.mean()


def test_linear_gaussian_decoder() -> None:
    """Estimates differ from the closed form by their standard errors."""
    decoder, std = Linear(), 0.6
    law = decoder.marginal(std)
    x = law.sample(400, seeded(3))
    options: dict[str, Any] = {"num_chains": 48, "num_steps": 40, "num_leapfrog": 4}
    found = decoder_log_likelihood(
        decoder.float(),
        x.float(),
        3,
        NormalPixels(math.log(std)),
        generator=seeded(4),
        force_precision="bf16",
        **options,
    )
    scaled = (found.log_likelihood - law.log_density(x)) / found.standard_error
    assert_mean(scaled, 0.0, detect=0.55)
    assert found.acceptance == pytest.approx(0.65, abs=0.1)


def test_the_bracket_holds() -> None:
    """``E[exp(lower - upper)] = 1``: given the image they are independent."""
    bracket = decoder_bracket(
        Recorder(),
        300,
        3,
        torch.zeros(()),
        num_steps=60,
        generator=seeded(),
        force_precision="bf16",
    )
    assert_mean((bracket.lower - bracket.upper).exp(), 1.0, detect=0.6)
    assert bracket.gap.mean > -5 * bracket.gap.standard_error


def test_decoders_that_ignore_their_latents() -> None:
    """Their likelihood is exact, and the force is that of the prior."""
    weight = nn.Parameter(torch.zeros(4))
    for coin in (lambda z: torch.zeros(len(z), 4), lambda z: weight.expand(len(z), 4)):
        found = decoder_log_likelihood(
            coin, torch.ones(3, 4), 2, num_steps=5, force_precision="bf16"
        )
        assert found.nll.mean == pytest.approx(4 * math.log(2), rel=1e-6)


class Conversions(TorchDispatchMode):
    """Counts conversions of matrices of one shape to bfloat16."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.dtype == torch.bfloat16:
            self.count += tuple(result.shape) == self.shape
        return result


def test_weights_are_converted_once_for_each_batch_of_images() -> None:
    decoder = Recorder()
    x = decoder.images(6)
    with Conversions((16, 3)) as seen:
        decoder_log_likelihood(decoder, x, 3, num_steps=5, batch_size=3, force_precision="bf16")
    assert seen.count == 2


def test_bad_precisions() -> None:
    x = torch.zeros(2, 3)
    for bad in ("float16", 16, ""):
        with pytest.raises(ValueError, match='force_precision must be None or "bf16", got'):
            decoder_log_likelihood(lambda z: z, x, 3, force_precision=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"in torch\.float32, got torch\.float64; convert"):
        decoder_log_likelihood(lambda z: z, x.double(), 3, force_precision="bf16")
    with pytest.raises(ValueError, match=r"in torch\.float32, got torch\.float64; convert"):
        decoder_bracket(lambda z: z, 2, 3, x.double(), force_precision="bf16")


# A force of the caller's.


def exact_maker(decoder: nn.Module, seen: list[int]) -> Any:
    """The score in the decoder's own precision, made for each batch of images."""

    def make(x: Tensor) -> Any:
        seen.append(len(x))
        return score_of(decoders._posterior(decoder, None, x))

    return make


def score_of(log_density: Any) -> Any:
    def field(z: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            return torch.autograd.grad(log_density(leaf).sum(), leaf)[0]

    return field


def test_the_score_as_the_callers_force_changes_nothing() -> None:
    decoder, seen = Recorder(), []
    x = decoder.images(5).double()
    decoder.double()
    options: dict[str, Any] = {"num_steps": 12, "batch_size": 3}
    expected = decoder_log_likelihood(decoder, x, 3, generator=seeded(), **options)
    maker = exact_maker(decoder, seen)
    found = decoder_log_likelihood(decoder, x, 3, generator=seeded(), force=maker, **options)
    torch.testing.assert_close(found.log_likelihood, expected.log_likelihood, rtol=0, atol=1e-9)
    assert found.acceptance == pytest.approx(expected.acceptance, abs=1e-9)
    assert seen == [3, 2]
    rest: Any = (decoder, 4, 3, x)
    plain, forced = (
        decoder_bracket(*rest, num_steps=8, generator=seeded(), force=f) for f in (None, maker)
    )
    torch.testing.assert_close(forced.lower, plain.lower, rtol=0, atol=1e-9)
    torch.testing.assert_close(forced.upper, plain.upper, rtol=0, atol=1e-9)


def test_likelihoods_with_a_wrong_force_are_right() -> None:
    """0.8 of the score of the likelihood, in double precision, against the closed form."""
    decoder, std = Linear(), 0.6
    law, pixels = decoder.marginal(std), NormalPixels(math.log(std))
    x = law.sample(400, seeded(3))

    def make(images: Tensor) -> Any:
        exact = score_of(decoders._posterior(decoder, pixels, images))
        return lambda z: 0.8 * exact(z)

    options: dict[str, Any] = {"num_chains": 48, "num_steps": 40, "num_leapfrog": 4}
    found = decoder_log_likelihood(
        decoder, x, 3, pixels, generator=seeded(4), force=make, **options
    )
    scaled = (found.log_likelihood - law.log_density(x)) / found.standard_error
    assert_mean(scaled, 0.0, detect=0.55)


def test_bad_forces_of_the_caller() -> None:
    x, neg = torch.zeros(2, 3), lambda images: torch.neg
    calls: list[Any] = [
        lambda **options: decoder_log_likelihood(lambda z: z, x, 3, num_steps=3, **options),
        lambda **options: decoder_bracket(lambda z: z, 2, 3, x, num_steps=3, **options),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="force must be a callable from images to a force, got"):
            call(force="bf16")
        with pytest.raises(ValueError, match="force must come without force_precision, got both"):
            call(force=neg, force_precision="bf16")
        with pytest.raises(TypeError, match=r"force must return a callable .*, got Tensor; for a"):
            call(force=torch.neg)
        with pytest.raises(ValueError, match="force must return one vector per chain"):
            call(force=lambda images: lambda z: z[:, :1])
        call(force=neg)


# Derivatives of log-probabilities by the decoder's output.

PRECISIONS = [F64, torch.float32, torch.bfloat16]


def outputs(dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(dtype, torch.float32)
    return (20 * randn(3, 5, 2, 9)).to(device, dtype), (randn(5, 2, 9) > 0).to(device, wide)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_slopes_of_pixels(dtype: torch.dtype) -> None:
    """``x - sigmoid(l)`` and ``(x - m) / std^2``, rounded once."""
    output, x = outputs(dtype)
    exact = {BernoulliPixels(): x.double() - output.double().sigmoid()}
    exact[NormalPixels(math.log(0.5))] = 4 * (x.double() - output.double())
    for pixels, expected in exact.items():
        found = fused.slopes(pixels, output.requires_grad_(), x)
        assert found.dtype == dtype and found.shape == output.shape and not found.requires_grad
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), expected, rtol=2 * eps, atol=4e-7)


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_slopes_by_the_kernel(dtype: torch.dtype) -> None:
    output, x = outputs(dtype, "cuda")
    found, law = fused.slopes(BernoulliPixels(), output, x), BernoulliPixels()
    expected = x.double() - output.double().sigmoid()
    assert found.dtype == dtype and found.shape == output.shape
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=2 * eps, atol=1e-6)
    if dtype != torch.bfloat16:
        with_slopes = fused.log_prob(law, output.clone().requires_grad_(), x).detach()
        assert torch.equal(fused.log_prob(law, output, x), with_slopes)


@pytest.mark.gpu
@GPU
@pytest.mark.filterwarnings("ignore")  # of the debug mode itself
@pytest.mark.parametrize("forced", [True, False])
def test_a_transition_waits_for_nothing(forced: bool) -> None:
    decoder = mnist_decoder("cuda", dtype=torch.float32)
    x = (randn(4, 784) > 0).float().cuda()
    z, betas = randn(32, 8).float().cuda(), make_betas("sigmoid", 10)
    posterior = decoders._posterior(decoder, None, x)
    with torch.no_grad(), decoders._forces("bf16" if forced else None, decoder, None, x) as forces:
        rest = (torch.full((9, 4), 0.1), 3, seeded(0, "cuda"), None, forces)
        chains = Chains(standard, posterior, z, z[:8], betas, *rest)
        chains.run(2, capture=False)
        chains.position.zero_()
        without_waiting(chains.transition)


@pytest.mark.gpu
@GPU
def test_captured_and_eager_chains_agree() -> None:
    """To a few standard errors: products may be computed by different algorithms."""
    decoder = mnist_decoder("cuda", dtype=torch.float32)
    z = torch.randn(64, 8, generator=seeded(0, "cuda"), device="cuda")
    with torch.no_grad():
        x = BernoulliPixels().sample(decoder(z), seeded(1, "cuda"))
    options: dict[str, Any] = {"num_steps": 100, "batch_size": 40}
    cases = itertools.product((True, False), ("bf16", None))
    runs = [
        decoder_log_likelihood(
            decoder, x, 8, generator=seeded(3, "cuda"), capture=c, force_precision=p, **options
        )
        for c, p in cases
    ]
    for a, b in itertools.combinations(runs, 2):
        variance = a.standard_error.square() + b.standard_error.square()
        scaled = (a.log_likelihood - b.log_likelihood) / variance.sqrt()
        assert scaled.abs().max() < 7 and abs(scaled.mean()) < 1
        assert a.acceptance == pytest.approx(b.acceptance, abs=0.03)
