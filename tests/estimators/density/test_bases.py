"""Bases: densities, scores and samples against scipy, scikit-learn, zuko and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.mixture import GaussianMixture as Learner
from sklearn.neighbors import KernelDensity as Kernels

from scorematching.datasets import Compose, Standardise, Whiten
from scorematching.distributions import GaussianMixture
from scorematching.estimators.density import DensityEstimator
from scorematching.estimators.density.bases.candidates import NAMES, families, whitened
from scorematching.estimators.density.bases.flow import PresetFlow, fit_flow, has_flows, invert
from scorematching.estimators.density.bases.gaussian import fit_gaussian
from scorematching.estimators.density.bases.given import Given
from scorematching.estimators.density.bases.kde import KernelDensity, fit_kde
from scorematching.estimators.density.bases.mixture import fit_mixture
from scorematching.estimators.density.bases.seeds import seeded
from scorematching.estimators.density.bases.spline import Spline
from scorematching.estimators.density.bases.student_t import MultivariateT, fit_student_t
from scorematching.estimators.density.bases.transformed import Transformed, score_by_autograd
from scorematching.estimators.density.losses import held_out_losses
from scorematching.estimators.density.stacking import Stack
from scorematching.estimators.density.tilted import Tilted
from tests.estimators.density.tables import F64, normal
from tests.statistics import assert_mean

flows = pytest.mark.skipif(not has_flows(), reason="the extra flows is not installed")


def points(n=200, seed=0):
    """Two clusters in two dimensions."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return torch.where(torch.arange(n)[:, None] % 2 == 0, x - 2, 0.5 * x + 2)


def made(name):
    """A distribution of every kind."""
    x, g = points(), torch.Generator().manual_seed(0)
    if name == "stack":
        parts = [fit_gaussian(x), fit_kde(x, g), fit_student_t(x)]
        return Stack(parts, torch.tensor([0.2, 0.5, 0.3]))
    if name == "whitened":
        return whitened(lambda x, held, g: fit_mixture(x, 2, generator=g))(x, x, g)
    if name == "given":
        return Given(Learner(2, random_state=0).fit(x.numpy()), x)
    if name in ("maf", "nsf"):
        return fit_flow(name, x, points(100, 1), g, max_steps=40)
    fits = {"gaussian": fit_gaussian, "student-t": fit_student_t}
    return fits[name](x) if name in fits else fit_kde(x, g)


KINDS = [
    "gaussian",
    "student-t",
    "kde",
    "stack",
    "whitened",
    "given",
    *(pytest.param(kind, marks=flows) for kind in ("maf", "nsf")),
]


@pytest.mark.parametrize("name", KINDS)
def test_density_score_and_samples_belong_together(name):
    """The integral is one, the score is the gradient, and its mean over the samples is zero."""
    law = made(name)
    grid = torch.linspace(-30, 30, 601, dtype=F64)
    plane = torch.cartesian_prod(grid, grid)
    with torch.no_grad():
        total = torch.cat([law(part) for part in plane.split(50_000)]).exp().sum() * 0.1**2
    assert total.item() == pytest.approx(1.0, abs=0.02)
    x = law.sample(4000, torch.Generator().manual_seed(1))
    assert_mean(law.score(x), 0.0, detect=0.4)
    if name != "given":
        torch.testing.assert_close(law.score(x[:50]), score_by_autograd(law, x[:50]))
    again = law.sample(4000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(x, again, rtol=0, atol=0)


@pytest.mark.parametrize("name", [kind for kind in KINDS if kind != "given"])
def test_densities_are_moved_with_their_parts(name):
    """Only the outermost tensors were: the rest stayed in double precision, and on its device."""
    layers = torch.nn.Linear(2, 1), torch.nn.Tanh(), torch.nn.Flatten(0)
    tilt = torch.nn.Sequential(*layers).double()
    scale = Compose(Standardise.fit(points()), Whiten.fit(points()))
    law = Transformed(Tilted(made(name), tilt, scale, 0.5), scale)
    x = points(20)
    before, moved = law(x), law.to(torch.float32)
    for single, double in ((moved(x.float()), before), (moved.score(x.float()), law.score(x))):
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-3)
    assert moved.sample(5).dtype == torch.float32
    assert law.dtype == F64 and torch.equal(law(x), before)  # a copy


def test_student_t_is_scipys():
    scatter = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64)
    law = MultivariateT(torch.tensor([1.0, -1.0], dtype=F64), scatter, df=3)
    truth = scipy.stats.multivariate_t([1.0, -1.0], scatter.numpy(), df=3)
    x = points()
    np.testing.assert_allclose(law(x), truth.logpdf(x.numpy()), rtol=1e-10)


def test_student_t_finds_the_tails(generator):
    """Of a Student-t with 2 degrees of freedom, and of a normal distribution."""
    law = MultivariateT(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64), df=2)
    assert fit_student_t(law.sample(3000, generator)).df in (1, 2, 3)
    assert fit_student_t(normal(3).sample(3000, generator)).df >= 20


def test_kernels_are_scikit_learns():
    x = points()
    theirs = Kernels(bandwidth=0.4).fit(x.numpy()).score_samples(points(50, 1).numpy())
    np.testing.assert_allclose(KernelDensity(x, 0.4)(points(50, 1)), theirs, rtol=1e-10)


def test_kernels_far_out_are_at_most_one() -> None:
    """The distance of a far point to itself is a rounding error, below zero for some."""
    far = 1e9 * (1 + torch.rand(200, 6, generator=torch.Generator().manual_seed(0)).double())
    kernels = KernelDensity(far, 1.0)._log_kernels(far).diagonal()
    plain = far.square().sum(-1) + far.square().sum(-1) - 2 * (far @ far.mT).diagonal()
    assert plain.min() < -100  # so that the test can fail
    assert kernels.max() <= 0


def test_bandwidth_is_near_the_best(generator):
    """No other bandwidth has a larger likelihood at many new points, by more than 0.02."""
    x, test = points(300), points(3000, 1)
    chosen = fit_kde(x, generator)(test).mean().item()
    best = max(KernelDensity(x, h)(test).mean().item() for h in np.logspace(-1.5, 0.5, 30))
    assert chosen > best - 0.02


@pytest.mark.parametrize("covariance", ["full", "tied", "diag"])
def test_mixtures_are_scikit_learns(covariance, generator):
    x = points()
    ours = fit_mixture(x, 2, covariance, 1e-3, generator)
    theirs = Learner(2, covariance_type=covariance, reg_covar=1e-3, random_state=0).fit(x.numpy())
    np.testing.assert_allclose(ours(x).mean(), theirs.score(x.numpy()), rtol=1e-3)


def test_a_mixture_of_many_points_sees_kinds_that_take_turns(generator):
    """Every second point of more than 10,000 was taken: the left cluster had no component."""
    x = points(10_002)
    covariances = torch.stack([torch.eye(2), torch.eye(2) / 4])
    exact = GaussianMixture([0.5, 0.5], [[-2.0, -2.0], [2.0, 2.0]], covariances.double())
    gap = (exact(x) - fit_mixture(x, 2, generator=generator)(x)).mean().item()
    assert abs(gap) < 0.01


def test_one_wrong_value_does_not_widen_kernels(generator):
    """The largest bandwidth won, since the row with -999 decided alone."""
    x = torch.randn(300, 2, generator=generator, dtype=F64)
    own = fit_kde(x).bandwidth
    x[7, 0] = -999
    assert own / 1.3 < fit_kde(x).bandwidth < 1.3 * own


@pytest.mark.parametrize("covariance", ["full", "tied", "diag"])
@pytest.mark.parametrize("wrong", [1, 2])
def test_no_component_lies_on_outliers(covariance, wrong, generator):
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    x[:wrong, 0] = -999
    found = fit_mixture(x, 3, covariance, 1e-6, generator)(x)
    assert found[:wrong].max() < found[wrong:].min()


def test_gaussian_of_fewer_points_than_columns():
    x = torch.randn(5, 20, generator=torch.Generator().manual_seed(0), dtype=F64)
    for shrink in (True, False):
        assert fit_gaussian(x, shrink)(x).isfinite().all()


def test_names_of_bases():
    assert {"gaussian", "kde", "mixture"} < set(NAMES)
    few = families("auto", 20)
    assert not any(family.slow for family in few)  # no flows for twenty points
    assert len(families(["kde"], 100)) == 2


# Flows.


@flows
def test_flows_leave_torch_as_it_was(generator):
    state = torch.get_rng_state()
    validate = torch.distributions.Distribution._validate_args
    a, b = (
        fit_flow("maf", points(), points(50, 1), torch.Generator().manual_seed(3), max_steps=5)
        for _ in range(2)
    )
    assert torch.equal(a(points()), b(points()))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.distributions.Distribution._validate_args is validate


@flows
@pytest.mark.parametrize("kind", ["maf", "nsf"])
def test_flows_learn_two_clusters(kind, generator):
    flow = fit_flow(kind, points(600), points(200, 1), generator, max_steps=150)
    test = points(1000, 2)
    assert flow(test).mean() > fit_gaussian(points(600))(test).mean() + 0.2


@flows
def test_splines_are_zukos(generator):
    """Values, slopes, inverses and all gradients, inside the knots and outside."""
    from zuko.transforms import MonotonicRQSTransform

    free = [3 * torch.randn(50, 3, k, generator=generator, dtype=F64) for k in (8, 8, 7)]
    leaves = [part.requires_grad_() for part in free]
    x = (4 * torch.randn(50, 3, generator=generator, dtype=F64)).requires_grad_()
    assert (x.abs() > 5).any()
    ours = Spline(torch.stack(leaves[:2], -2), leaves[2])
    found = []
    for spline in (ours, MonotonicRQSTransform(*leaves)):
        y, log_slope = spline.call_and_ladj(x)
        gradients = torch.autograd.grad((y.square() + log_slope).sum(), [x, *leaves])
        found.append((y, log_slope, spline.inv(y.detach()), *gradients))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[0][2], x.detach(), rtol=1e-9, atol=1e-9)


@flows
@pytest.mark.parametrize("kind", ["maf", "nsf"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_inverses_of_flows_are_zukos(kind, dim, generator):
    """Also where the columns are transformed in the reverse order, and outside the splines."""
    with seeded(generator):
        module = PresetFlow(kind, dim).double().requires_grad_(False)
    for parameter in module.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=F64)
    z = 3 * torch.randn(40, dim, generator=generator, dtype=F64)
    x = invert(module.transform, z)
    torch.testing.assert_close(x, module.transform(None).inv(z), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(module.transform(None)(x), z, rtol=1e-8, atol=1e-8)


@flows
def test_flows_of_one_column(generator):
    x = points()[:, :1]
    assert fit_flow("nsf", x[:150], x[150:], generator, max_steps=5)(x).isfinite().all()


@flows
def test_flows_in_the_estimator():
    """A spiral, which no mixture of a few Gaussians has: the flow gets weight."""
    rng = np.random.default_rng(0)
    angle = 3 * np.pi * np.sqrt(rng.random(400))
    x = np.c_[angle * np.cos(angle), angle * np.sin(angle)] + 0.3 * rng.normal(size=(400, 2))
    estimator = DensityEstimator("none", base=["gaussian", "nsf"], random_state=0).fit(x)
    assert estimator.weights_["nsf"] > 0.5
    assert np.isfinite(estimator.score(x[:20])) and estimator.sample(5, 0).shape == (5, 2)


@flows
def test_losses_of_splines_count_the_jumps(generator):
    """Held-out losses estimate ``0.5 E|s - s_d|^2`` up to the constant of the data."""
    law = normal(1)
    flow = fit_flow("nsf", law.sample(300, generator), law.sample(100, generator), generator, 60)
    x = torch.linspace(-5, 5, 3001, dtype=F64)[:, None]
    weights = law(x).softmax(0)
    direct = weights @ (0.5 * (flow.score(x) + x).square() - 0.5 * x.square()).sum(1)
    by_differences = weights @ held_out_losses(flow, x)
    assert by_differences.item() == pytest.approx(direct.item(), abs=0.05)
    own = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(flow(own).sum(), own, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), own)
    between_knots = weights @ (curvature + 0.5 * slope.detach().square()).sum(1)
    assert abs(between_knots - direct) > 0.2
