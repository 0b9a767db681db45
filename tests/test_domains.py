"""Score matching on domains: against divergences taken one point at a time, and against truths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching.domains import Box, Domain, PositiveOrthant, Simplex, Sphere, weight_function
from scorematching.inference.graphical.kinds import Weight
from tests.tolerances import IDENTITY, ROUTES

D = 3
Scalar = Callable[[Tensor], Tensor]


def random(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_density(x: Tensor) -> Tensor:
    """Smooth, curved and not symmetric."""
    a = torch.tensor([[0.8, -0.3, 0.4], [0.2, 0.5, -0.6]], dtype=torch.float64)
    return torch.tanh(x @ a.T).square().sum(-1) - 0.7 * x.square().sum(-1) + 0.3 * x[..., 0].exp()


def disc(x: Tensor) -> Tensor:
    return 2 - x.flatten(1).norm(dim=1)


def on_sphere(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


# The law by hand, for one point: 0.5 |W s|^2 and the divergence of the weighted score.


def divergence(vector: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(vector, x).trace()


def score(f: Scalar, x: Tensor) -> Tensor:
    if not x.requires_grad:
        x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x, create_graph=True)[0]


def weighted(weight: Callable[[Tensor], Tensor]) -> Callable[[Scalar, Tensor], Tensor]:
    """The loss of one point where the weight is a number or one for each coordinate."""

    def loss(f: Scalar, x: Tensor) -> Tensor:
        first = weight(x).sqrt() * score(f, x)
        return 0.5 * first.square().sum() + divergence(lambda y: weight(y) * score(f, y), x)

    return loss


def spherical(weight: Callable[[Tensor], Tensor]) -> Callable[[Scalar, Tensor], Tensor]:
    """The loss of one point on the sphere.

    A tangential field that is continued constantly along rays has the same divergence in the
    surrounding space as on the sphere.
    """

    def tangential(f: Scalar, x: Tensor) -> Tensor:
        y = x / x.norm()
        s = score(f, y)
        return s - y * (y @ s)

    def loss(f: Scalar, x: Tensor) -> Tensor:
        def field(y: Tensor) -> Tensor:
            return weight(y / y.norm()) * tangential(f, y)

        first = weight(x).sqrt() * tangential(f, x)
        return 0.5 * first.square().sum() + divergence(field, x)

    return loss


def simplicial(weight: Callable[[Tensor], Tensor]) -> Callable[[Scalar, Tensor], Tensor]:
    """The loss of proportions: that of their square roots on the sphere."""

    def loss(f: Scalar, x: Tensor) -> Tensor:
        return spherical(weight)(lambda z: f(z.square()) + z.log().sum(), x.sqrt())

    return loss


class Case(NamedTuple):
    domain: Any
    points: Tensor
    loss: Callable[[Scalar, Tensor], Tensor]


def clamped(x: Tensor, c: float) -> Tensor:
    return torch.minimum(x, torch.tensor(c, dtype=x.dtype))


def cases() -> dict[str, Case]:
    inside = 2.2 * random((6, D)) + 0.05
    lower, upper = (-0.5, 0.0, -math.inf), (3.0, math.inf, math.inf)
    proportions = inside / inside.sum(-1, keepdim=True)

    def bounded(x: Tensor) -> Tensor:
        """sqrt of the nearer bound's distance, below 0.9; the last coordinate is free."""
        distance = torch.minimum(x[:1] + 0.5, 3.0 - x[:1])
        return torch.cat([*(clamped(d.sqrt(), 0.9) for d in (distance, x[1:2])), x[2:] * 0 + 1])

    directions = on_sphere(random((6, D), 1) - 0.5)
    return {
        "orthant": Case(PositiveOrthant("min(x, 1)"), inside, weighted(lambda x: clamped(x, 1.0))),
        "orthant log": Case(
            PositiveOrthant("min(log(1+x), 0.6)"),
            inside,
            weighted(lambda x: clamped((1 + x).log(), 0.6)),
        ),
        "callable": Case(PositiveOrthant(torch.square), inside, weighted(torch.square)),
        "box": Case(Box(lower, upper, "min(x^0.5, 0.9)"), inside, weighted(bounded)),
        "distance": Case(
            Domain(disc, "min(x^2, 2)"),
            0.5 * inside,
            weighted(lambda x: clamped((2 - x.norm()).square(), 2.0)),
        ),
        "sphere": Case(Sphere(), directions, spherical(lambda z: z.new_ones(()))),
        "sphere minsq": Case(
            Sphere("minsq", 0.4),
            directions.abs(),
            spherical(lambda z: clamped(z.square().min(), 0.16)),
        ),
        "sphere callable": Case(
            Sphere(lambda z: 1 + z[:, 0] ** 3), directions, spherical(lambda z: 1 + z[0] ** 3)
        ),
        "simplex": Case(
            Simplex(cap=0.5), proportions, simplicial(lambda z: clamped(z.square().min(), 0.25))
        ),
        "simplex prodsq": Case(
            Simplex("prodsq", 0.2),
            proportions,
            simplicial(lambda z: clamped(z.square().prod(), 0.04)),
        ),
    }


CASES = cases()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("max_memory", [None, 1])
def test_exact_loss_is_the_divergence_by_hand(name: str, max_memory: int | None) -> None:
    domain, x, loss = CASES[name]
    found = sm.ScoreMatching(domain=domain, max_memory=max_memory)(log_density, x)
    expected = torch.stack([loss(log_density, row) for row in x])
    torch.testing.assert_close(found, expected, rtol=ROUTES, atol=ROUTES)


def vector_field(x: Tensor) -> Tensor:
    own = x if x.requires_grad else x.clone().requires_grad_()
    return torch.autograd.grad(log_density(own).sum(), own, create_graph=True)[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [sm.SlicedScoreMatching, sm.SlicedScoreMatchingVR])
def test_signs_average_to_the_exact_loss(name: str, kind: Any) -> None:
    """All 2^D sign vectors together have v v' = I on average."""
    domain, x, _ = CASES[name]
    signs = torch.tensor([*itertools.product([-1.0, 1.0], repeat=D)], dtype=torch.float64)
    v = signs[:, None].expand(len(signs), *x.shape)
    field = sm.LogDensityField(log_density)
    exact = sm.ScoreMatching(domain=domain).loss(field, x, None)
    sliced = kind(domain=domain)
    torch.testing.assert_close(sliced.loss(field, x, v), exact, rtol=IDENTITY, atol=IDENTITY)
    each = torch.stack([sliced.loss(field, x, one[None]) for one in v])
    torch.testing.assert_close(each.mean(0), exact, rtol=IDENTITY, atol=IDENTITY)
    assert (each - exact).abs().max() > 1e-3  # one direction alone is not exact


@pytest.mark.parametrize("name", CASES)
def test_score_networks_have_the_same_losses(name: str) -> None:
    domain, x, _ = CASES[name]
    network = sm.VectorField(vector_field, check_smoothness=False, route="reverse")
    loss = sm.ScoreMatching(domain=domain)
    torch.testing.assert_close(loss(network, x), loss(log_density, x), rtol=ROUTES, atol=ROUTES)


@pytest.mark.parametrize("name", ["box", "simplex"])
def test_conditions_reach_the_model(name: str) -> None:
    domain, x, _ = CASES[name]
    free = sm.LogDensityField(lambda x, c: c[0] * log_density(x))  # type: ignore[arg-type]
    fixed = sm.LogDensityField(lambda x: 3.0 * log_density(x))
    found = domain.wrap(free).given(torch.full((1,), 3.0)).score(x)
    torch.testing.assert_close(found, domain.wrap(fixed).score(x))


@pytest.mark.parametrize("name", ["box", "sphere", "simplex"])
def test_how_a_density_continues_off_the_sphere_does_not_matter(name: str) -> None:
    domain, x, _ = CASES[name]
    loss = sm.ScoreMatching(domain=domain)
    off = {"sphere": lambda x: x.norm(dim=-1), "simplex": lambda x: x.sum(-1)}.get(name)
    if off is None:
        off = lambda x: x.sum(-1)  # noqa: E731  # on a box it does

    def other(x: Tensor) -> Tensor:
        return log_density(x) + 3 * (off(x) - 1) + (off(x) - 1).square()

    same = torch.allclose(loss(other, x), loss(log_density, x), rtol=1e-9, atol=1e-9)
    assert same == (name != "box")


# The mean loss is least at the truth: its gradient there is zero, by quadrature.


def nodes(low: float, high: float, num: int = 400) -> tuple[Tensor, Tensor]:
    points, weights = np.polynomial.legendre.leggauss(num)
    x = torch.as_tensor(points * (high - low) / 2 + (high + low) / 2)
    return x, torch.as_tensor(weights * (high - low) / 2)


def mean_gradient(model: Any, theta: Tensor, x: Tensor, w: Tensor, domain: Any) -> Tensor:
    """Derivative of the mean loss under the model itself, in its own parameters."""
    with torch.no_grad():
        p = w * model(theta, x).exp()
    theta = theta.clone().requires_grad_()
    field = sm.LogDensityField(lambda y: model(theta, y), check_smoothness=False, route="reverse")
    losses = sm.ScoreMatching(domain=domain).loss(field, x, None)
    return torch.autograd.grad(losses @ p / p.sum(), theta)[0]


def quadratic(theta: Tensor, x: Tensor) -> Tensor:
    return -0.5 * theta[0] * x.square().sum(-1) + theta[1] * x[:, 0]


THETA = torch.tensor([0.8, 0.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("domain", "least"),
    [(PositiveOrthant("min(x^2, 3)"), 0.0), (None, 0.1)],
    ids=["with", "without"],
)
def test_half_line(domain: Any, least: float) -> None:
    x, w = zip(*(nodes(*ends) for ends in ((0.0, 3**0.5), (3**0.5, 20.0))))
    slope = mean_gradient(quadratic, THETA, torch.cat(x)[:, None], torch.cat(w), domain)
    # Without its weight the boundary term remains.
    assert slope.abs().max() < 1e-9 if domain else slope.abs().max() > least


def test_interval() -> None:
    x, w = zip(*(nodes(*ends) for ends in ((-1.0, 0.0), (0.0, 1.0))))
    box = Box(-1.0, 1.0, "min(x^2, 9)")
    slope = mean_gradient(quadratic, THETA, torch.cat(x)[:, None], torch.cat(w), box)
    assert slope.abs().max() < 1e-9


def test_disc() -> None:
    radius, w = nodes(0.0, 2.0, 60)
    angle = torch.arange(64, dtype=torch.float64) * 2 * math.pi / 64
    x = torch.stack([torch.outer(radius, angle.cos()), torch.outer(radius, angle.sin())], -1)
    weights = (w * radius)[:, None].expand(60, 64).flatten()
    round_disc = Domain(disc, "min(x, 5)")
    slope = mean_gradient(quadratic, THETA, x.flatten(0, 1), weights, round_disc)
    assert slope.abs().max() < 1e-9


def test_circle() -> None:
    angle = torch.arange(256, dtype=torch.float64) * 2 * math.pi / 256
    x = torch.stack([angle.cos(), angle.sin()], -1)

    def model(theta: Tensor, x: Tensor) -> Tensor:
        return x @ theta + theta[0] * x[:, 0] * x[:, 1] ** 2

    slope = mean_gradient(model, THETA, x, torch.ones(256, dtype=torch.float64), Sphere())
    assert slope.abs().max() < 1e-9


@pytest.mark.parametrize("h", ["minsq", "prodsq"])
def test_proportions(h: str) -> None:
    """A beta distribution with a pole at either end, in the angle of its square roots."""
    half = math.pi / 4
    angle, w = zip(*(nodes(*ends) for ends in ((0.0, half), (half, 2 * half))))
    angle = torch.cat(angle)
    x = torch.stack([angle.cos().square(), angle.sin().square()], -1)
    area = torch.cat(w) * (2 * angle).sin()  # du = sin(2 t) dt

    def model(theta: Tensor, x: Tensor) -> Tensor:
        return ((theta - 1) * x.log()).sum(-1)

    slope = mean_gradient(model, THETA, x, area, Simplex(h, cap=2.0))
    assert slope.abs().max() < 1e-5  # the integrand has roots at the ends


# Features, and other shapes.


def test_features_have_their_own_losses() -> None:
    domain, x, _ = CASES["box"]

    def features(x: Tensor) -> Tensor:
        return torch.stack([log_density(x), x.square().sum(-1), x[:, 0] * x[:, 1]], 1)

    terms = sm.ScoreMatching(domain=domain).terms(sm.LogDensityField(features), x)
    for i in range(3):
        one = sm.LogDensityField(lambda x, i=i: features(x)[:, i])
        first, second = sm.ScoreMatching(domain=domain).terms(one, x)
        torch.testing.assert_close(terms.first[:, i], first, rtol=ROUTES, atol=ROUTES)
        torch.testing.assert_close(terms.second[:, i], second, rtol=ROUTES, atol=ROUTES)
    with pytest.raises(ValueError, match="got features"):
        sm.ScoreMatching(domain=Simplex()).terms(
            sm.LogDensityField(features), CASES["simplex"].points
        )


def test_events_of_any_shape() -> None:
    x = random((4, 2, 3)) + 0.1
    flat = sm.ScoreMatching(domain=PositiveOrthant())(
        lambda x: -(x.square().sum(-1)) + x[:, 0].exp(), x.flatten(1)
    )
    shaped = sm.ScoreMatching(domain=PositiveOrthant())(
        lambda x: -(x.flatten(1).square().sum(-1)) + x[:, 0, 0].exp(), x
    )
    torch.testing.assert_close(shaped, flat)


def test_training_a_network_on_the_orthant(generator: torch.Generator) -> None:
    """Weights leave gradients in the parameters as they should be: by differences."""
    net = sm.models.MLPDensity(dim=2, hidden=(4,)).double()
    x = random((5, 2)) + 0.1
    loss = sm.SlicedScoreMatchingVR(domain=PositiveOrthant())
    v = loss.draw(x, generator)
    parameter = next(p for p in net.parameters() if p.ndim == 2)
    loss.loss(sm.LogDensityField(net), x, v).mean().backward()
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            parameter[0, 0] += step
            values.append(loss.loss(sm.LogDensityField(net), x, v).mean().item())
            parameter[0, 0] -= step
    assert parameter.grad[0, 0].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5)


# Bad input.


def bad_points() -> dict[str, tuple[Any, Tensor, str]]:
    x = random((5, 3)) + 0.1
    outside = x.clone()
    outside[[1, 4], 2] = -0.1
    proportions = x / x.sum(-1, keepdim=True)
    zero = proportions.clone()
    zero[2] = torch.tensor([0.0, 0.5, 0.5])
    return {
        "orthant": (PositiveOrthant(), outside, "2 of 5 rows that do not: 1, 4"),
        "box": (Box(0.0, 0.5), x, "x must lie in Box"),
        "distance": (Domain(disc), 3 * x + 1, "x must lie in Domain"),
        "sphere": (Sphere(), x, "divide x by its length"),
        "orthant of the sphere": (Sphere("minsq"), on_sphere(outside), "rows that do not: 1, 4"),
        "simplex": (Simplex(), x, "divide proportions by their sum"),
        "zeros": (Simplex(), zero, r"1 of 5 rows that do not: 2; use Simplex.interior"),
    }


@pytest.mark.parametrize("name", bad_points())
def test_points_outside_are_named(name: str) -> None:
    domain, x, message = bad_points()[name]
    with pytest.raises(ValueError, match=message):
        sm.ScoreMatching(domain=domain)(log_density, x)


BAD = [
    (lambda: Box(1.0, 0.0), "lower must be below upper"),
    (lambda: Box((0.0, 1.0), (2.0, 2.0, 2.0)), "as many numbers"),
    (lambda: Box("a", 1.0), "lower must be a number"),
    (lambda: Box([[0.0]], 1.0), "lower must be a number"),
    (lambda: PositiveOrthant("x"), r"h must be \"min\(x, c\)\""),
    (lambda: PositiveOrthant("min(x, 0)"), "every number in h"),
    (lambda: Domain(3), "distance must be a function"),
    (lambda: Sphere("maxsq"), "h must be one of"),
    (lambda: Sphere(cap=0.0), "cap must be positive"),
    (lambda: sm.ScoreMatching(domain="sphere"), "domain must be a domain"),
    (lambda: sm.SlicedScoreMatching(domain=1), "domain must be a domain"),
    (lambda: sm.SlicedScoreMatchingVR(domain=1), "domain must be a domain"),
    (
        lambda: sm.ScoreMatching(domain=Box((0.0, 0.0), 9.0))(log_density, random((2, 3))),
        "one for each of the 3 coordinates",
    ),
    (
        lambda: sm.ScoreMatching(domain=Domain(lambda x: x))(log_density, random((2, 3))),
        "distance must return one number per point",
    ),
    (
        lambda: sm.domains.restrict(sm.LogDensityField(log_density), Box()).slice_by_differences(
            random((2, 3)), random((2, 3)), 0.1
        ),
        "leave the domain",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_points_on_a_bound_have_weight_zero() -> None:
    x = torch.zeros(1, 2, dtype=torch.float64)
    loss = sm.ScoreMatching(domain=PositiveOrthant())(lambda x: -(x + 1).square().sum(-1), x)
    assert loss.item() == -4.0  # h' s = -2 for each coordinate


@pytest.mark.parametrize("loss", [sm.ScoreMatching, sm.SlicedScoreMatchingVR])
def test_points_on_a_bound_with_an_infinite_score_are_named(loss: Any) -> None:
    x = random((6, 2)) + 0.1
    x[4, 1] = 0.0
    model = sm.LogDensityField(lambda x: x.log().sum(-1) - x.sum(-1), check_smoothness=False)
    with pytest.raises(ValueError, match=r"on the boundary must have a finite score, .*: 4; move"):
        loss(domain=PositiveOrthant())(model, x)


@pytest.mark.parametrize("h", [torch.ones_like, torch.exp, lambda x: x + 1e-3, torch.log])
def test_weights_that_do_not_vanish_at_the_boundary_are_refused(h: Any) -> None:
    """With h = 1 an exponential sample is fitted by a normal distribution, without a word."""
    for make in (lambda: PositiveOrthant(h), lambda: Domain(lambda x: x[:, 0], h)):
        with pytest.raises(ValueError, match="h must be zero at distance zero"):
            make()


def test_zeros_are_moved_inside() -> None:
    x = torch.tensor([[0.0, 0.4, 0.6]], dtype=torch.float64)
    moved = Simplex.interior(x)
    assert moved[0, 0].item() == pytest.approx(1e-20) and (moved[0, 1:] == x[0, 1:]).all()
    losses = [
        sm.ScoreMatching(domain=Simplex(cap=0.1))(log_density, Simplex.interior(x, by)).item()
        for by in (1e-10, 1e-8)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_weights_by_formula() -> None:
    x = random((4,)) * 3
    for formula, value in {
        "min(x,2)": torch.minimum(x, torch.tensor(2.0)),
        "min(log(1+x), .5)": torch.minimum((1 + x).log(), torch.tensor(0.5)),
        "min(x^1.5, 1e1)": x**1.5,
    }.items():
        torch.testing.assert_close(weight_function(formula)(x), value.double())


@pytest.mark.parametrize(("name", "h"), [("x", "min(x, 4)"), ("x^2", "min(x^2, 4)")])
def test_the_slope_at_a_cap_is_the_mean_of_both_sides(name: str, h: str) -> None:
    """In a box, on the sphere, and in graphical models, which have formulas of their own."""
    places = torch.tensor([[1.0, 2.0, 4.0, 5.0]], dtype=torch.float64)
    wanted = [1.0, 1.0, 0.5, 0.0] if name == "x" else [2.0, 2.0, 0.0, 0.0]
    assert PositiveOrthant(h).drift(places)[0].tolist() == wanted
    assert Weight(name, 4.0)(places)[1][0].tolist() == wanted
    x = torch.tensor([[0.5, 0.75**0.5]], dtype=torch.float64)
    below, at, above = (Sphere("minsq", cap=cap).slope(x) for cap in (0.49, 0.5, 0.51))
    assert torch.equal(below, 0 * x)
    torch.testing.assert_close(at, above / 2)
