"""Exact laws: identities between sums, at rounding."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from scorematching import (
    ApproximateBackprop,
    CurvaturePropagation,
    DenoisingScoreMatching,
    FiniteDifferenceSSM,
    Gaussian,
    LogDensityField,
    NoiseContrastive,
    Objective,
    Rademacher,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    Sphere,
    SplitRademacher,
    VectorField,
)
from scorematching.objectives.sliced import Sliced
from tests.laws import (
    Design,
    assert_close,
    assert_same,
    axes_design,
    check_averages_over_directions,
    check_averages_to_exact,
    check_directions_are_independent,
    check_unbiased,
    normal_quadrature,
    one_by_one,
    sign_design,
)
from tests.models_zoo import (
    CONV,
    CONV_SCORE,
    DENSITIES,
    LINEAR,
    MLP,
    MLP_SCORE,
    POLYNOMIALS,
    SCORES,
    WIDE,
    Case,
    Mlp,
    MlpScore,
    both_routes,
    name,
    normal,
)
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY

INDEPENDENT = Rademacher(orthogonal=False, balanced=False)

SLICED = [
    SlicedScoreMatching(),
    SlicedScoreMatchingVR(),
    SlicedScoreMatchingVR(beta=0.0),
    SlicedScoreMatchingVR(beta=0.3),
    SlicedScoreMatchingVR(beta=1.7),
]
SMALL = Case("small", partial(Mlp, 2), (2,))
SMALL_SCORE = Case("small_score", partial(MlpScore, 2), (2,), VectorField)


def label(objective: Objective) -> str:
    beta = getattr(objective, "beta", "")
    return type(objective).__name__ + (f"-beta{beta}" if beta != "" else "")


# Which objectives depend on the directions of a point through the mean of v v' alone.


@pytest.mark.parametrize(
    "objective", [*SLICED, FiniteDifferenceSSM(), NoiseContrastive()], ids=label
)
def test_split_directions_are_for_quadratic_losses(objective: Sliced) -> None:
    # Combinations of the M directions by an orthogonal matrix leave the mean of v v' as it is.
    _, field, x = MLP.make()
    generator = torch.Generator().manual_seed(0)
    v = Gaussian().sample(x, 3, generator)
    q, _ = torch.linalg.qr(normal(3, 3, generator=generator))
    losses = [objective.loss(field, x, w) for w in (v, torch.einsum("ij,jnd->ind", q, v))]
    error = (losses[0] - losses[1]).abs().max().item()
    assert error < IDENTITY * losses[0].abs().max() if objective.quadratic else error > 1e-6
    if objective.quadratic:
        assert objective.projection == SplitRademacher()
        return
    assert objective.projection == Rademacher()
    with pytest.raises(
        ValueError, match=r"not quadratic in v.*got SplitRademacher.*Rademacher\(\)"
    ):
        type(objective)(projection=SplitRademacher())


@pytest.mark.parametrize("objective", [SlicedScoreMatching, SlicedScoreMatchingVR])
@pytest.mark.parametrize("case", [MLP, CONV, MLP_SCORE], ids=name)
def test_as_many_split_directions_as_coordinates_are_exact(objective: Any, case: Case) -> None:
    module, field, x = case.make()
    every = objective(num_projections=x[0].numel())
    v = every.draw(x, torch.Generator().manual_seed(0))
    exact = partial(ScoreMatching().loss, field, x, None)
    assert_same(lambda: every.loss(field, x, v), exact, module, IDENTITY)


# Unbiasedness: the average over a design is exact score matching.


@pytest.mark.parametrize("design", [axes_design, sign_design])
@pytest.mark.parametrize("objective", SLICED, ids=label)
@pytest.mark.parametrize("case", both_routes(DENSITIES + SCORES), ids=name)
def test_slices_average_to_exact_score_matching(
    case: Case, objective: Objective, design: Design
) -> None:
    check_averages_to_exact(objective, case, design)


@pytest.mark.parametrize("objective", [*SLICED, FiniteDifferenceSSM()], ids=label)
@pytest.mark.parametrize("case", both_routes([MLP, CONV, MLP_SCORE, CONV_SCORE]), ids=name)
def test_directions_are_averaged(case: Case, objective: Objective) -> None:
    check_averages_over_directions(objective, case)


@pytest.mark.parametrize("design", [axes_design, sign_design])
@pytest.mark.parametrize("case", POLYNOMIALS, ids=name)
def test_finite_differences_are_exact_on_quadratics(case: Case, design: Design) -> None:
    # Central differences err by third and fourth derivatives, which a quadratic has not.
    check_averages_to_exact(FiniteDifferenceSSM(eps=1.0), case, design)


@pytest.mark.parametrize("control_variate", [False, True])
@pytest.mark.parametrize("design", [axes_design, sign_design])
@pytest.mark.parametrize("case", POLYNOMIALS, ids=name)
def test_denoising_is_score_matching_of_noisy_points_on_quadratics(
    case: Case, design: Design, control_variate: bool
) -> None:
    # E[eps.s(x + sigma eps)] / sigma = E[tr grad s(x + sigma eps)]: for linear s only the first two
    # moments of eps matter, and the design has those of N(0, I).
    sigma = 0.5
    module, field, x = case.make()
    eps = design(x)
    denoising = DenoisingScoreMatching(sigma=sigma, control_variate=control_variate)

    def exact() -> Tensor:
        noisy = (x + sigma * eps).flatten(0, 1)
        return ScoreMatching().loss(field, noisy, None).unflatten(0, eps.shape[:2]).mean(0)

    assert_same(lambda: one_by_one(denoising, field, x, eps).mean(0), exact, module, IDENTITY)


@pytest.mark.parametrize("control_variate", [False, True])
@pytest.mark.parametrize("case", [SMALL, SMALL_SCORE], ids=name)
def test_denoising_is_score_matching_of_noisy_points(case: Case, control_variate: bool) -> None:
    # The same for any smooth model, with the whole normal law by quadrature.
    sigma = 0.2
    module, field, x = case.make(n=2)
    grid, weights = normal_quadrature(d=2, nodes=40)
    eps = grid[:, None].expand(-1, 2, 2)
    denoising = DenoisingScoreMatching(sigma=sigma, control_variate=control_variate)

    def exact() -> Tensor:
        noisy = (x + sigma * eps).flatten(0, 1)
        return weights @ ScoreMatching().loss(field, noisy, None).unflatten(0, eps.shape[:2])

    assert_same(lambda: weights @ one_by_one(denoising, field, x, eps), exact, module, IDENTITY)


@pytest.mark.parametrize(
    "objective",
    [
        SlicedScoreMatching(Rademacher(balanced=False)),
        SlicedScoreMatchingVR(SplitRademacher(balanced=False), num_projections=2),
        SlicedScoreMatchingVR(INDEPENDENT, num_projections=2),
        SlicedScoreMatchingVR(Gaussian()),
        SlicedScoreMatchingVR(Sphere(orthogonal=True), num_projections=3),
    ],
    ids=repr,
)
def test_objectives_are_unbiased_with_their_own_noise(objective: Objective) -> None:
    check_unbiased(objective, MLP, detect=0.05, n=60_000)


@pytest.mark.parametrize("num", [1, 4])
@pytest.mark.parametrize("law", [SlicedScoreMatching, SlicedScoreMatchingVR])
def test_directions_are_independent(law: type[SlicedScoreMatching], num: int) -> None:
    check_directions_are_independent(law(INDEPENDENT, num_projections=num), MLP)


# The layerwise baselines.


class AllSigns:
    """Every joint choice of the signs of all nodes, one for each copy of a point.

    A model asks for signs node by node; copy k of a point gets the bits of k, next node after node.
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.bits = 0

    def play(self) -> Callable[[Tensor], Tensor]:
        self.bits = 0
        return self.signs

    def signs(self, like: Tensor) -> Tensor:
        width = like[0].numel()
        places = torch.arange(self.bits, self.bits + width)
        self.bits += width
        signs = 2.0 * (torch.arange(self.copies)[:, None] >> places & 1) - 1
        return signs.repeat(len(like) // self.copies, 1).reshape(like.shape).to(like.dtype)


class OneHiddenLayer(nn.Module):
    """One hidden layer of four units, ``(N, D) -> (N,)``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


class Multiplied(nn.Module):
    """A product of two units, ``(N, D) -> (N,)``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(dim, 1), nn.Linear(dim, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.a(x).tanh() * self.b(x).exp()).sum(-1)


ONE_LAYER = Case("one_hidden_layer", partial(OneHiddenLayer, 3), (3,))
MULTIPLIED = Case("multiplied", partial(Multiplied, 3), (3,))


@pytest.mark.parametrize("case, bits", [(ONE_LAYER, 4), (WIDE, 8), (MULTIPLIED, 5)], ids=str)
def test_propagated_curvature_averages_to_exact_score_matching(case: Case, bits: int) -> None:
    module, field, x = case.make(n=2)

    def mean() -> Tensor:
        signs = AllSigns(2**bits)
        losses = CurvaturePropagation().loss(field, x.repeat_interleave(2**bits, 0), signs)
        assert signs.bits == bits, f"the model has {signs.bits} nodes"
        return losses.unflatten(0, (2, -1)).mean(1)

    assert_same(mean, lambda: ScoreMatching().loss(field, x, None), module, IDENTITY)


def test_approximate_backprop_is_exact_for_one_hidden_layer() -> None:
    module, field, x = ONE_LAYER.make()
    assert_same(
        lambda: ApproximateBackprop().loss(field, x, None),
        lambda: ScoreMatching().loss(field, x, None),
        module,
        IDENTITY,
    )


def test_approximate_backprop_is_biased_for_two_hidden_layers() -> None:
    # By hand, for f = c.softplus(B tanh(A x)): squares go through A, tanh and B as squares.
    class TwoLayers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Softplus())
            self.head = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.net(x)).squeeze(-1)

    module, field, x = Case("", TwoLayers, (3,)).make()
    first, _, second, _ = module.net
    y = first(x).tanh()
    p = second(y).sigmoid()
    squares = first.weight.square().sum(-1) * (1 - y**2) ** 2
    adjoint = module.head.weight * p
    trace = (module.head.weight * p * (1 - p) * (squares @ second.weight.square().T)).sum(-1)
    bend = -2 * y * (1 - y**2) * first.weight.square().sum(-1)
    trace = trace + (adjoint @ second.weight * bend).sum(-1)
    _, approximate = ApproximateBackprop().terms(field, x, None)
    assert_close(approximate, trace, IDENTITY)
    _, exact = ScoreMatching().terms(field, x, None)
    assert (approximate - exact).abs().max() > 0.01


# The control variate.


@pytest.mark.parametrize("case", [MLP, CONV, MLP_SCORE], ids=name)
def test_control_variate_has_mean_zero(case: Case) -> None:
    _, field, x = case.make()
    v = sign_design(x)
    plain = one_by_one(SlicedScoreMatchingVR(beta=0.0), field, x, v)
    reduced = one_by_one(SlicedScoreMatchingVR(beta=1.0), field, x, v)
    control = plain - reduced
    assert_close(control.mean(0), torch.zeros(3, dtype=x.dtype), IDENTITY)
    assert (control.var(0) > 1e-4).all(), "a control variate that is always zero shows nothing"
    score = field.score(x).flatten(1)
    projected = torch.einsum("mnd,nd->mn", v.flatten(2), score)
    assert_close(control, 0.5 * projected**2 - 0.5 * score.square().sum(-1), IDENTITY)


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("case", [MLP, CONV, CONV_SCORE], ids=name)
def test_beta_interpolates_between_plain_and_reduced(case: Case, num: int) -> None:
    module, field, x = case.make()
    v = Gaussian().sample(x, num, torch.Generator().manual_seed(2))
    plain = partial(SlicedScoreMatching().loss, field, x, v)

    def reduced() -> Tensor:
        s, curvature = field.score_and_curvature(x, v)
        return 0.5 * s.flatten(1).square().sum(-1) + curvature

    for beta in (0.0, 1.0, 0.25, -1.0):
        assert_same(
            partial(SlicedScoreMatchingVR(beta=beta).loss, field, x, v),
            lambda beta=beta: (1 - beta) * plain() + beta * reduced(),
            module,
            IDENTITY,
        )


def joint_choices(n: int) -> list[Tensor]:
    """All joint choices of one sign vector for each of n points in the plane, ``(1, n, 2)``."""
    signs = [torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1.0, 1.0), repeat=2)]
    return [torch.stack(choice)[None] for choice in itertools.product(signs, repeat=n)]


@pytest.mark.parametrize("case", [SMALL, SMALL_SCORE], ids=name)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_optimal_beta_is_unbiased(case: Case, n: int) -> None:
    # The coefficient of each half depends on the directions of the other half only: enumerate all.
    module, field, x = case.make(n)
    optimal = SlicedScoreMatchingVR(beta="optimal")

    def mean() -> Tensor:
        return torch.stack([optimal.loss(field, x, v) for v in joint_choices(n)]).mean(0)

    assert_same(mean, lambda: ScoreMatching().loss(field, x, None), module, IDENTITY)


def test_optimal_beta_varies_with_the_directions() -> None:
    # Otherwise the test above would be about a fixed beta. The beta of a half sees the two products
    # v_1 v_2 of the other half: four values.
    _, field, x = SMALL.make(n=4)
    laws = [SlicedScoreMatchingVR(beta=beta) for beta in (0.0, 1.0, "optimal")]
    betas = set()
    for v in joint_choices(4):
        plain, reduced, optimal = (law.loss(field, x, v) for law in laws)
        betas.add(round(((plain - optimal) / (plain - reduced))[0].item(), 6))
    assert len(betas) == 4


def test_optimal_beta_reduces_the_variance() -> None:
    # Variance over all joint choices of directions; far out, where scores are large, c dominates.
    _, field, x = SMALL.make(n=4)

    def variance(beta: float | str) -> float:
        law = SlicedScoreMatchingVR(beta=beta)
        losses = torch.stack([law.loss(field, 4 * x, v).mean() for v in joint_choices(4)])
        return losses.var(correction=0).item()

    assert variance("optimal") < 0.5 * variance(0.0)


def test_optimal_beta_removes_noise_that_the_control_variate_explains() -> None:
    # At one point repeated, with D = 2, curvature = -tr A - 2 A_12 v_1 v_2 and c = s_1 s_2 v_1 v_2
    # are the same noise: at beta = 1 - 2 A_12 / (s_1 s_2) = 0.4 nothing of it is left.
    a = torch.tensor([[1.0, 0.3], [0.3, 2.0]], dtype=torch.float64)
    field = LogDensityField(lambda x: -0.5 * (x @ a * x).sum(-1))
    x = torch.linalg.solve(a, torch.ones(2, dtype=torch.float64)).expand(1000, 2)
    v = Rademacher(balanced=False).sample(x, generator=torch.Generator().manual_seed(0))
    spread = {
        beta: SlicedScoreMatchingVR(beta=beta).loss(field, x, v).std().item()
        for beta in (0.0, 1.0, 0.4, "optimal")
    }
    assert spread[0.4] < 1e-12
    assert spread["optimal"] < 0.01 * spread[0]
    assert spread["optimal"] < 0.01 * spread[1]


@pytest.mark.parametrize("unit", [2.0**50, 2.0**-50])
def test_optimal_beta_does_not_depend_on_the_units(unit: float) -> None:
    x = torch.linspace(-2, 2, 24).reshape(8, 3)
    objective = SlicedScoreMatchingVR(beta="optimal")
    v = objective.draw(x, torch.Generator().manual_seed(0))
    wanted, found = (
        objective.loss(LogDensityField(lambda x, u=u: -(1 + (x / u) ** 2).log().sum(-1)), u * x, v)
        for u in (1.0, unit)
    )
    assert torch.allclose(unit**2 * found, wanted, rtol=1e-4)


def product_of_pairs(objective: Objective, n: int) -> Tensor:
    """``v_a1 v_a2 v_b1 v_b2`` for a in the first half of a batch of four and b in the second."""
    x, generator = torch.zeros(4, 4, dtype=torch.float64), torch.Generator().manual_seed(0)
    v = torch.stack([objective.draw(x, generator)[0, :, :2].prod(-1) for _ in range(n)])
    return v[:, 0] * v[:, 2]


def test_halves_have_independent_directions_where_beta_is_estimated() -> None:
    assert_mean(product_of_pairs(SlicedScoreMatchingVR(beta="optimal"), 1000), 0.0, detect=0.3)
    # Rows of one Hadamard matrix, as a whole balanced batch has them, have mean -1/3.
    with pytest.raises(AssertionError, match="differs"):
        assert_mean(product_of_pairs(SlicedScoreMatchingVR(), 1000), 0.0, detect=0.3)


# Theorem 1 and Lemma 5.


class Quartic(nn.Module):
    """A quartic log-density in the plane, whose score is a polynomial."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.3, -0.2, 0.5, 0.7, -0.4], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.unbind(-1)
        monomials = [x1**4 + x2**4, x1**2 * x2, x1 * x2, x1**2 + x2, x1 * x2**3]
        return torch.stack(monomials, -1) @ self.a


@pytest.mark.parametrize("design", [axes_design, sign_design])
def test_sliced_loss_is_the_sliced_fisher_divergence_up_to_a_constant(design: Design) -> None:
    # L = J + C with C = E (v.s_d)^2 / 2, for data from N(mu, R R'); the quadrature is exact.
    mu = torch.tensor([0.5, -1.0], dtype=torch.float64)
    root = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    whiten = torch.linalg.inv(root)
    grid, weights = normal_quadrature(d=2, nodes=8)
    x = mu + grid @ root.T
    v, data_score = design(x), -grid @ whiten
    model = Quartic()

    def expectation(values: Tensor) -> Tensor:
        return (values @ weights).mean()[None]

    def sliced_loss(f: Callable[[Tensor], Tensor]) -> Tensor:
        return expectation(one_by_one(SlicedScoreMatching(), LogDensityField(f), x, v))

    def fisher_divergence() -> Tensor:
        gap = LogDensityField(model).score(x) - data_score
        return expectation(0.5 * (gap * v).sum(-1) ** 2)

    constant = expectation(0.5 * (data_score * v).sum(-1) ** 2)
    assert_same(lambda: sliced_loss(model) + constant, fisher_divergence, model, IDENTITY)
    # At the truth the divergence is zero; elsewhere it is not.
    at_truth = sliced_loss(lambda x: -0.5 * ((x - mu) @ whiten.T).square().sum(-1))
    assert_close(at_truth, -constant, IDENTITY)
    assert sliced_loss(model) > at_truth + 0.1


class PlaneGaussian(nn.Module):
    """``-0.5 (x - mu)' A (x - mu)`` in the plane, with A positive definite."""

    def __init__(self) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.3, -0.5], dtype=torch.float64))
        self.root = nn.Parameter(torch.tensor([[1.0, 0.1], [0.3, 0.6]], dtype=torch.float64))

    @property
    def precision(self) -> Tensor:
        return self.root + self.root.T

    def forward(self, x: Tensor) -> Tensor:
        centred = x - self.mu
        return -0.5 * (centred @ self.precision * centred).sum(-1)


def row_gradients(values: Tensor, model: nn.Module) -> Tensor:
    """Parameter gradient of every number, ``(K,) -> (K, P)``."""
    rows = []
    for value in values:
        gradients = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(rows)


def plane_law(law: str, num: int) -> tuple[Tensor, Tensor]:
    """All joint choices of M directions, ``(M, B, 2)``, and their probabilities ``(B,)``."""
    if law == "Gaussian":
        v, chance = normal_quadrature(d=2, nodes=3)
    else:
        v = sign_design(torch.zeros(1, 2, dtype=torch.float64))[:, 0]
        chance = torch.full((4,), 0.25, dtype=torch.float64)
    picks = torch.cartesian_prod(*[torch.arange(len(v))] * num).reshape(-1, num)
    return v[picks].transpose(0, 1), chance[picks].prod(-1)


@pytest.mark.parametrize("law", ["Rademacher", "Gaussian"])
@pytest.mark.parametrize("num", [1, 2])
def test_variance_of_the_gradient_at_the_truth(num: int, law: str) -> None:
    # sum_ij V_ij + 2/M sum_{i != j} W_ij, and 2/M sum_i V_ii more for Gaussian directions, where
    # V_ij = VV_iijj, W_ij = VV_ijij, VV = E[T T'], T_ij = grad_theta (H_ij + s_i s_j / 2).
    model = PlaneGaussian()
    grid, weights = normal_quadrature(d=2, nodes=3)
    root = torch.linalg.inv(torch.linalg.cholesky(model.precision.detach()))
    x = model.mu.detach() + grid @ root
    v, chance = plane_law(law, num)
    losses = SlicedScoreMatching().loss(
        LogDensityField(model), x.repeat_interleave(len(chance), 0), v.repeat(1, len(x), 1)
    )
    g = row_gradients(losses, model)
    probability = torch.kron(weights, chance)
    assert_close(probability @ g, torch.zeros(6, dtype=x.dtype), IDENTITY)
    variance = torch.einsum("k,kp,kq->pq", probability, g, g)

    s = -(x - model.mu) @ model.precision
    pairs = -model.precision + 0.5 * s[:, :, None] * s[:, None, :]
    t = row_gradients(pairs.flatten(), model).unflatten(0, (len(x), 2, 2))
    vv = torch.einsum("k,kijp,kabq->ijabpq", weights, t, t)
    expected = torch.einsum("iijjpq->pq", vv) + 2 / num * (vv[0, 1, 0, 1] + vv[1, 0, 1, 0])
    if law == "Gaussian":
        expected = expected + 2 / num * (vv[0, 0, 0, 0] + vv[1, 1, 1, 1])
    assert_close(variance, expected, IDENTITY)


# Corners.


@pytest.mark.parametrize("objective", [*SLICED, SlicedScoreMatchingVR(beta="optimal")], ids=label)
@pytest.mark.parametrize("n", [1, 4])
def test_one_dimension_has_one_direction(objective: Objective, n: int) -> None:
    # A sign squared is one: every sliced objective is exact score matching.
    module, field, x = Case("line", partial(Mlp, 1), (1,)).make(n)
    v = objective.draw(x, torch.Generator().manual_seed(0))
    assert_same(
        lambda: objective.loss(field, x, v),
        lambda: ScoreMatching().loss(field, x, None),
        module,
        IDENTITY,
    )


def test_optimal_beta_of_a_single_point_is_one() -> None:
    _, field, x = MLP.make(n=1)
    v = Rademacher().sample(x, generator=torch.Generator().manual_seed(0))
    optimal = SlicedScoreMatchingVR(beta="optimal").loss(field, x, v)
    assert torch.equal(optimal, SlicedScoreMatchingVR().loss(field, x, v))


@pytest.mark.parametrize("num", [1, 3, 7])
@pytest.mark.parametrize("objective", [ScoreMatching(), *SLICED], ids=label)
@pytest.mark.parametrize("case", both_routes([LINEAR]), ids=name)
def test_linear_log_density_has_no_curvature(case: Case, objective: Objective, num: int) -> None:
    module, field, x = case.make()
    v = Rademacher().sample(x, num, torch.Generator().manual_seed(0))
    first, second = objective.terms(field, x, v)
    assert torch.equal(second, torch.zeros(3, dtype=x.dtype))
    w = module.w.detach()
    fixed = case.field(lambda x: x @ w)  # no parameter: the score has no graph at all
    assert_close(objective.terms(fixed, x, v).first, first, IDENTITY)
    if isinstance(objective, ScoreMatching):
        loss = objective.loss(field, x, v).mean()
        (gradient,) = torch.autograd.grad(loss, [module.w])
        assert_close(gradient, w, IDENTITY)


# Properties, over shapes.

LAWFUL = [
    ScoreMatching(),
    SlicedScoreMatching(),
    SlicedScoreMatchingVR(),
    DenoisingScoreMatching(sigma=0.5),
    DenoisingScoreMatching(sigma=0.5, control_variate=True),
    FiniteDifferenceSSM(eps=0.5),
]
EVEN = [*SLICED, FiniteDifferenceSSM(eps=0.5), NoiseContrastive(eps=0.5)]
UNNORMALISED = [*LAWFUL, *SLICED, NoiseContrastive(eps=0.5)]

shapes = given(
    d=st.integers(1, 5), m=st.integers(1, 7), n=st.integers(1, 5), seed=st.integers(0, 1000)
)
few = settings(max_examples=15, deadline=None, derandomize=True, database=None)


def setting(
    objective: Objective, d: int, m: int, n: int, seed: int
) -> tuple[Mlp, Tensor, Tensor | None]:
    """A density of D coordinates, N points, and noise for an objective that looks M times."""
    case = Case("", partial(Mlp, d), (d,))
    x, generator = case.points(n, seed + 1), torch.Generator().manual_seed(seed + 2)
    if isinstance(objective, ScoreMatching):
        return case.module(seed), x, None
    if isinstance(objective, DenoisingScoreMatching):
        return case.module(seed), x, objective.draw(x, generator)
    return case.module(seed), x, Gaussian().sample(x, m, generator)


def loss_of(objective: Objective, f: object, x: Tensor, noise: Tensor | None) -> Tensor:
    return objective.loss(LogDensityField(f), x, noise)


@pytest.mark.parametrize("objective", LAWFUL, ids=label)
@shapes
@few
def test_terms_are_linear_in_the_field(
    objective: Objective, d: int, m: int, n: int, seed: int
) -> None:
    f, x, noise = setting(objective, d, m, n, seed)
    g, _, _ = setting(objective, d, m, n, seed + 1)
    both = objective.terms(LogDensityField(lambda x: 2.5 * f(x) - 0.7 * g(x)), x, noise)
    alone = (objective.terms(LogDensityField(h), x, noise) for h in (f, g))
    for mixed, of_f, of_g in zip(both, *alone, strict=True):
        assert_close(mixed, 2.5 * of_f - 0.7 * of_g, IDENTITY)


@pytest.mark.parametrize("objective", EVEN, ids=label)
@shapes
@few
def test_losses_are_even_in_the_directions(
    objective: Objective, d: int, m: int, n: int, seed: int
) -> None:
    f, x, v = setting(objective, d, m, n, seed)
    assert_close(loss_of(objective, f, x, -v), loss_of(objective, f, x, v), IDENTITY)


@pytest.mark.parametrize("objective", UNNORMALISED, ids=label)
@shapes
@few
def test_losses_ignore_a_constant(objective: Objective, d: int, m: int, n: int, seed: int) -> None:
    f, x, noise = setting(objective, d, m, n, seed)
    shifted = loss_of(objective, lambda x: f(x) + 3.0, x, noise)
    assert_close(shifted, loss_of(objective, f, x, noise), IDENTITY)


@pytest.mark.parametrize("objective", UNNORMALISED, ids=label)
@shapes
@few
def test_losses_turn_with_the_points(
    objective: Objective, d: int, m: int, n: int, seed: int
) -> None:
    f, x, noise = setting(objective, d, m, n, seed)
    q, _ = torch.linalg.qr(normal(d, d, generator=torch.Generator().manual_seed(seed)))
    turned = loss_of(objective, lambda x: f(x @ q), x @ q.T, None if noise is None else noise @ q.T)
    assert_close(turned, loss_of(objective, f, x, noise), IDENTITY)


@pytest.mark.parametrize("objective", UNNORMALISED, ids=label)
@shapes
@few
def test_losses_belong_to_their_points(
    objective: Objective, d: int, m: int, n: int, seed: int
) -> None:
    f, x, noise = setting(objective, d, m, n, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    axis = -2  # the batch, before the event
    shuffled = None if noise is None else noise.index_select(axis, order)
    loss = loss_of(objective, f, x, noise)
    assert_close(loss_of(objective, f, x[order], shuffled), loss[order], IDENTITY)
    alone = None if noise is None else noise.narrow(axis, 0, 1)
    assert_close(loss_of(objective, f, x[:1], alone), loss[:1], IDENTITY)
