"""NICE: exact inverses, determinants and densities, and training by two objectives."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

import scorematching as sm
from scorematching.distributions import Banana
from scorematching.models.nice import NICE, PRIORS
from scorematching.objectives.layerwise import approximate_divergence, propagated_curvature
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES
from tests.two_sample import assert_same_law

TOLERANCE = 1e-10
DIMS = [2, 3, 4, 7]
BANANA = Banana(curvature=1.0).to(dtype=torch.float64)


def flow(dim: int, prior: str = "normal", num_couplings: int = 4, width: int = 6) -> NICE:
    """A small flow with a scale, far from the identity."""
    generator = torch.Generator().manual_seed(dim)
    flow = NICE(dim, (width, width), num_couplings, prior, generator).double()
    with torch.no_grad():
        for p in flow.parameters():
            p += 0.5 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return flow


def points(n: int, dim: int) -> Tensor:
    """Standard normal points."""
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


# The map.


@pytest.mark.parametrize("num_couplings", [1, 2, 3, 4])
@pytest.mark.parametrize("dim", DIMS)
def test_inverse(dim: int, num_couplings: int) -> None:
    model, x = flow(dim, num_couplings=num_couplings), points(20, dim)
    z, _ = model.transform(x)
    torch.testing.assert_close(model.inverse(z), x, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(model.transform(model.inverse(x))[0], x, rtol=0, atol=TOLERANCE)
    assert (z - x).abs().amin(0).max() > 0.01, "close to the identity, whose inverse is no test"


@pytest.mark.parametrize("num_couplings", [1, 4])
@pytest.mark.parametrize("dim", DIMS)
def test_log_determinant_is_that_of_the_jacobian(dim: int, num_couplings: int) -> None:
    model, x = flow(dim, num_couplings=num_couplings), points(5, dim)
    _, log_det = model.transform(x)
    for x_i, log_det_i in zip(x, log_det):
        dense = jacobian(lambda y: model.transform(y[None])[0][0], x_i)
        assert log_det_i.item() == pytest.approx(
            torch.linalg.slogdet(dense).logabsdet.item(), abs=TOLERANCE
        )


def test_couplings_alternate_between_even_and_odd_coordinates() -> None:
    """Written out by coordinates; the first coupling does not change even coordinates."""
    model, x = flow(5), points(3, 5)
    rows = []
    for x_i in x:
        even, odd = x_i[[0, 2, 4]], x_i[[1, 3]]
        odd = odd + model.shifts[0](even)
        even = even + model.shifts[1](odd)
        odd = odd + model.shifts[2](even)
        even = even + model.shifts[3](odd)
        row = torch.stack([even[0], odd[0], even[1], odd[1], even[2]])
        rows.append(row * model.log_scale.exp())
    torch.testing.assert_close(model.transform(x)[0], torch.stack(rows), rtol=0, atol=IDENTITY)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("dim", DIMS)
def test_log_prob_is_the_prior_of_the_latents(dim: int, prior: str) -> None:
    model, x = flow(dim, prior), points(5, dim)
    z, log_det = model.transform(x)
    log_prior = {
        "normal": lambda z: -0.5 * z**2 - 0.5 * math.log(2 * math.pi),
        "logistic": lambda z: -z - 2 * torch.log(1 + torch.exp(-z)),
    }[prior](z)
    torch.testing.assert_close(
        model.log_prob(x), log_prior.sum(1) + log_det, rtol=0, atol=TOLERANCE
    )
    assert torch.equal(model(x), model.log_prob(x))


# The density.


def smooth_flow(prior: str) -> NICE:
    """A flow in two dimensions with a density smooth enough for a grid."""
    model = NICE(2, (6, 6), prior=prior, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        model.log_scale += torch.tensor([0.2, -0.3], dtype=torch.float64)
    return model


def quadrature(model: NICE) -> tuple[Tensor, Tensor]:
    """A square grid, and the density times the area of a cell."""
    edge = 10.0 if model.prior == "normal" else 45.0
    side = torch.linspace(-edge, edge, 601, dtype=torch.float64)
    x = torch.cartesian_prod(side, side)
    with torch.no_grad():
        return x, model.log_prob(x).exp() * (side[1] - side[0]) ** 2


@pytest.mark.parametrize("prior", PRIORS)
def test_density_integrates_to_one(prior: str) -> None:
    """The trapezoidal rule converges faster than any power if the density vanishes at the ends."""
    _, mass = quadrature(smooth_flow(prior))
    assert mass.sum().item() == pytest.approx(1, abs=ROUTES)


@pytest.mark.parametrize("prior", PRIORS)
def test_samples_have_the_moments_of_the_density(prior: str, generator: torch.Generator) -> None:
    model = smooth_flow(prior)
    grid, mass = quadrature(model)

    def moments(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], x[:, 1], x[:, 0] * x[:, 1], *x.square().T], 1)

    truth = mass @ moments(grid)
    assert_mean(moments(model.sample(40_000, generator)), truth, detect=0.08 * truth[-1].item())


def test_sampling_is_reproducible_and_keeps_no_graph(generator: torch.Generator) -> None:
    model = flow(3)
    before = torch.get_rng_state()
    x = model.sample(4, generator)
    assert x.shape == (4, 3) and x.dtype == torch.float64 and not x.requires_grad
    assert torch.equal(x, model.sample(4, torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), before)


def test_logistic_latents_are_finite_even_where_the_uniform_is_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.tensor([0.0, 0.5, 1 - 2**-24]))
    z = PRIORS["logistic"].sample((3,), torch.zeros(1), None)
    assert z.isfinite().all() and z[0] < -16 and z[2] > 16 and z[1] == 0


# The engine.


@pytest.mark.parametrize("prior", PRIORS)
def test_traced_by_rules_alone(prior: str) -> None:
    table = sm.explain(flow(5, prior), points(3, 5), show=False)
    routes = {row[2] for row in table.rows}
    assert routes <= {"rule", "linear"}, table
    assert table.conclusion.startswith("traced")


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("dim", [2, 5])
def test_both_routes_give_one_loss_and_gradient(dim: int, prior: str) -> None:
    model, x = flow(dim, prior), points(6, dim)
    objective = sm.SlicedScoreMatchingVR(num_projections=2)
    noise = objective.draw(x, torch.Generator().manual_seed(3))
    answers = []
    for route in ("traced", "reverse"):
        loss = objective.loss(sm.LogDensityField(model, route=route), x, noise)
        answers.append([loss, *torch.autograd.grad(loss.mean(), list(model.parameters()))])
    for traced, reverse in zip(*answers):
        scale = max(1.0, reverse.abs().max().item())
        torch.testing.assert_close(traced, reverse, rtol=0, atol=ROUTES * scale)


def test_layerwise_sweeps_start_from_the_true_score() -> None:
    """A sweep that confuses the halves of a coupling has a wrong first derivative."""
    field, x = sm.LogDensityField(flow(5)), points(4, 5)
    score = sm.LogDensityField(flow(5), route="reverse").score(x)
    approximate, _ = approximate_divergence(field, x)
    noise = sm.CurvaturePropagation().draw(x, torch.Generator().manual_seed(0))
    propagated, _ = propagated_curvature(field, x, noise.play())
    torch.testing.assert_close(approximate, score, rtol=0, atol=ROUTES * score.abs().max().item())
    torch.testing.assert_close(propagated, score, rtol=0, atol=ROUTES * score.abs().max().item())


# Training.


def train(objective: sm.Objective, generator: torch.Generator, steps: int = 300) -> NICE:
    """A small flow fitted to new batches of the banana, with a rate that decreases to zero."""
    model = NICE(2, hidden=(16, 16), generator=generator).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        objective(model, BANANA.sample(128, generator), generator).mean().backward()
        optimiser.step()
        schedule.step()
    return model


@pytest.mark.parametrize(
    "objective", [sm.MaximumLikelihood(), sm.SlicedScoreMatchingVR()], ids=["likelihood", "sliced"]
)
def test_trained_flow_samples_like_the_data(
    objective: sm.Objective, generator: torch.Generator
) -> None:
    """At an error rate of one in a thousand; before training the same test fails."""
    data = BANANA.sample(400, generator)
    untrained = NICE(2, hidden=(16, 16), generator=generator).double()
    with pytest.raises(AssertionError, match="energy distance"):
        assert_same_law(untrained.sample(400, generator), data, generator)
    model = train(objective, generator)
    assert_same_law(model.sample(400, generator), data, generator)


# The paper's models, and errors.


def test_sizes_of_the_paper_and_of_its_release() -> None:
    """Five hidden layers per coupling in the text, four in the code: 15,154,352 numbers."""
    with torch.device("meta"):
        paper, released = NICE(784), NICE.as_released(784)
    hidden = 4 * (1000 * 1000 + 1000)
    assert sum(p.numel() for p in released.parameters()) == 15_154_352
    assert sum(p.numel() for p in paper.parameters()) == 15_154_352 + hidden


def test_generator_decides_the_weights() -> None:
    before = torch.get_rng_state()
    first, again, other = (NICE(3, (4,), generator=seeded(k)) for k in (1, 1, 2))
    assert torch.equal(first(torch.ones(2, 3)), again(torch.ones(2, 3)))
    assert not torch.equal(first(torch.ones(2, 3)), other(torch.ones(2, 3)))
    assert torch.equal(torch.get_rng_state(), before)


def seeded(seed: int) -> torch.Generator:
    """A generator with a seed."""
    return torch.Generator().manual_seed(seed)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"dim must be at least 2, got 1; .*two halves"):
        NICE(1)
    with pytest.raises(ValueError, match=r"prior must be .normal. or .logistic., got 'cauchy'"):
        NICE(2, (3,), prior="cauchy")
    with pytest.raises(ValueError, match="num_couplings must be at least 1, got 0"):
        NICE(2, (3,), num_couplings=0)
    model = NICE(4, (3,))
    with pytest.raises(ValueError, match=r"x must have shape \(N, 4\), got \(2, 1, 2, 2\); .*flat"):
        sm.SlicedScoreMatchingVR()(model, torch.zeros(2, 1, 2, 2))
    with pytest.raises(ValueError, match=r"z must have shape \(N, 4\), got \(4,\); .*z\[None\]"):
        model.inverse(torch.zeros(4))
    with pytest.raises(ValueError, match="n must be at least 1"):
        model.sample(0)
