"""The variance report against closed forms, by enumerating every direction there is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from scorematching import (
    DenoisingScoreMatching,
    FiniteDifferenceSSM,
    Gaussian,
    Rademacher,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    Sphere,
    SplitRademacher,
    VectorField,
)
from scorematching.diagnostics import PROJECTIONS, VarianceReport, VarianceRow, variance_report
from scorematching.diagnostics.variance import measure
from scorematching.models import MLPDensity, ScoreNetwork
from scorematching.objectives.sliced import Sliced
from scorematching.projections import Projection
from tests import oracles
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

SIGNS = (-1.0, 1.0)
# Six equally likely values with the moments of N(0, 1) up to the fifth: all that a variance of a
# quadratic form takes.
NORMAL = (-(3**0.5), 0.0, 0.0, 0.0, 0.0, 3**0.5)

A = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
X = torch.tensor([[0.3, -1.2], [0.8, 0.1]], dtype=torch.float64)
DIAGONAL = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)


def gaussian(x: Tensor) -> Tensor:
    """A log-density with score -A x and Hessian -A."""
    return -0.5 * torch.einsum("ni,ij,nj->n", x, A, x)


def diagonal(x: Tensor) -> Tensor:
    return -0.5 * (DIAGONAL * x.square()).sum(-1)


@dataclass(frozen=True)
class Enumerated(Projection):
    """All directions with the given coordinates, one after the other, round and round."""

    values: tuple[float, ...] = SIGNS
    _turn: dict[str, Iterator[tuple[float, ...]]] = field(
        default_factory=dict, init=False, compare=False
    )

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        size = num * x.numel()
        if str(size) not in self._turn:
            self._turn[str(size)] = itertools.cycle(itertools.product(self.values, repeat=size))
        return x.new_tensor(next(self._turn[str(size)])).reshape(num, *x.shape)


def own_row(report: VarianceReport, num: int = 1) -> VarianceRow:
    """The row of the objective as it came, with M = num."""
    (row,) = [
        row
        for row in report.rows
        if (row.objective, row.projection, row.num_projections)
        == (report.objective, report.projection, num)
    ]
    return row


def enumerate_all(
    objective: Sliced, num: int = 1, values: tuple[float, ...] = SIGNS
) -> dict[str, float]:
    """Exact variance of the batch's mean loss under `gaussian` at X, by objective, by a report."""
    repeats = len(values) ** (num * X.numel())
    objective = replace(objective, projection=Enumerated(values=values))
    report = variance_report(
        gaussian, X, objective, (num,), repeats=repeats, show=False, projections=()
    )
    # Over a full enumeration the mean is known: divide by n, not by n - 1.
    return {row.objective: row.loss_variance * (repeats - 1) / repeats for row in report.rows}


def frobenius(matrix: Tensor) -> float:
    return matrix.square().sum().item()


# Closed forms.


def quadratic_forms() -> Tensor:
    """B with SSM loss v'Bv at each point: 0.5 s s' - A for s = -A x."""
    s = -X @ A
    return 0.5 * torch.einsum("ni,nj->nij", s, s) - A


def off_diagonal(matrix: Tensor) -> float:
    return frobenius(matrix) - frobenius(matrix.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("num", [1, 2])
def test_signs_see_what_is_off_the_diagonal(num: int) -> None:
    # Var(v'Av) = 2 sum_{i != j} A_ij^2; N points and M directions divide it by N M.
    got = enumerate_all(SlicedScoreMatchingVR(), num)
    reduced = 2 * off_diagonal(A) / (len(X) * num)
    plain = 2 * off_diagonal(quadratic_forms()) / (len(X) ** 2 * num)
    assert reduced != pytest.approx(plain, rel=0.1)
    assert got["SlicedScoreMatchingVR"] == pytest.approx(reduced, rel=IDENTITY)
    assert got["SlicedScoreMatching"] == pytest.approx(plain, rel=IDENTITY)


def test_gaussian_directions_see_the_whole_matrix() -> None:
    # Var(v'Av) = 2 |A|_F^2.
    got = enumerate_all(SlicedScoreMatchingVR(), values=NORMAL)
    reduced = 2 * frobenius(A) / len(X)
    plain = 2 * frobenius(quadratic_forms()) / len(X) ** 2
    assert got["SlicedScoreMatchingVR"] == pytest.approx(reduced, rel=IDENTITY)
    assert got["SlicedScoreMatching"] == pytest.approx(plain, rel=IDENTITY)


@pytest.mark.parametrize(
    "objective, tolerance",
    [
        (SlicedScoreMatching(), IDENTITY),
        (SlicedScoreMatchingVR(beta=0.0), IDENTITY),
        (FiniteDifferenceSSM(), ROUTES),  # differences of a quadratic have no error but rounding
    ],
)
def test_plain_ssm_by_any_name(objective: Sliced, tolerance: float) -> None:
    plain = 2 * off_diagonal(quadratic_forms()) / len(X) ** 2
    got = enumerate_all(objective)[type(objective).__name__]
    assert got == pytest.approx(plain, rel=tolerance)


def test_gradient_variance_is_the_trace_over_all_directions(generator: torch.Generator) -> None:
    model = MLPDensity(2, hidden=(4,), generator=generator).double()
    report = variance_report(
        model, X, SlicedScoreMatchingVR(Enumerated()), (1,), repeats=16, show=False
    )
    directions = torch.tensor(list(itertools.product(SIGNS, repeat=4)), dtype=torch.float64)

    def gradient(v: Tensor) -> Tensor:
        return oracles.parameter_gradient(
            lambda: oracles.sliced_vr(model, X, v.reshape(1, 2, 2)), model
        )

    truth = torch.stack([gradient(v) for v in directions]).var(0).sum().item()
    assert own_row(report).gradient_variance == pytest.approx(truth, rel=ROUTES)


def test_balanced_signs_leave_nothing_where_the_hessian_is_constant() -> None:
    # Eight directions of a 4 x 4 Hadamard matrix: sum_i v_i v_i' = 8 I exactly.
    x = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = torch.Generator().manual_seed(2)  # five batches of signs may be equally far from it
    report = variance_report(
        gaussian, x, SlicedScoreMatchingVR(), repeats=5, generator=noise, show=False
    )
    assert [own_row(report, m).loss_variance for m in (1, 2, 4, 8)] == [0.0] * 4
    assert report.reference.loss_variance > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laws_are_told_apart_by_what_they_cannot_see(dtype: torch.dtype) -> None:
    # Signs see nothing of a diagonal Hessian, the sphere nothing of a multiple of the identity.
    x = torch.randn(6, 3, dtype=dtype, generator=torch.Generator().manual_seed(1))

    def quiet(model: Callable[[Tensor], Tensor]) -> set[str]:
        rows = variance_report(model, x, SlicedScoreMatchingVR(), (1, 2), show=False).rows
        ours = [row for row in rows if row.objective == "SlicedScoreMatchingVR"]
        return {row.projection for row in ours if row.loss_variance == 0}

    signs = {"Rademacher iid", "Rademacher balanced", "SplitRademacher balanced"}
    scale = DIAGONAL.to(dtype)
    assert quiet(lambda x: -(scale * x.square()).sum(-1)) == signs
    assert quiet(lambda x: -x.square().sum(-1)) == signs | {"Sphere iid"}


# Variance due to data.


def test_data_variance_without_projection_noise_is_the_sample_variance() -> None:
    # Up to 32 points each is a chunk of its own, and signs add nothing to a diagonal Hessian.
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    report = variance_report(diagonal, x, SlicedScoreMatchingVR(), (1,), repeats=2, show=False)
    truth = ScoreMatching()(diagonal, x).var().item() / 20
    assert report.data_loss_variance == pytest.approx(truth, rel=IDENTITY)


def test_data_variance_holds_none_of_the_projections() -> None:
    x = 0.8 * torch.randn(32, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    truth = ScoreMatching()(gaussian, x).var().item() / 32

    def data_variance(seed: int) -> float:
        objective = SlicedScoreMatchingVR(Gaussian())
        generator = torch.Generator().manual_seed(seed)
        return variance_report(
            gaussian, x, objective, (1,), 2, generator, show=False, projections=()
        ).data_loss_variance

    got = torch.tensor([data_variance(seed) for seed in range(40)], dtype=torch.float64)
    # Left in, the projections would add their variance over the four draws of a chunk.
    left_in = 2 * frobenius(A) / 32 / 4
    assert (got > 0).all()  # a variance held at zero would bias the mean
    assert_mean(got, truth, detect=left_in)
    with pytest.raises(AssertionError, match="differs"):
        assert_mean(got + left_in, truth, detect=left_in)


def test_data_variance_is_scaled_to_the_whole_batch() -> None:
    # Two groups of points, in order; a chunk of neighbours would see only one of them.
    x = torch.cat([torch.zeros(64, 3), torch.full((64, 3), 2.0)]).double()
    x += 1e-3 * torch.arange(128)[:, None]
    report = variance_report(
        diagonal,
        x,
        SlicedScoreMatchingVR(),
        (1,),
        repeats=2,
        generator=torch.Generator().manual_seed(0),
        show=False,
    )
    truth = ScoreMatching()(diagonal, x).var().item() / 128
    assert report.data_loss_variance == pytest.approx(truth, rel=0.6)


# What is made of the numbers.


@pytest.fixture
def report() -> VarianceReport:
    generator = torch.Generator().manual_seed(2)
    model = MLPDensity(3, hidden=(8,), generator=generator)
    x = torch.randn(16, 3, generator=generator)
    return variance_report(model, x, SlicedScoreMatching(), (1, 3), 4, generator, show=False)


def test_rows_cover_every_law_and_number(report: VarianceReport) -> None:
    own = [row for row in report.rows if row.objective == "SlicedScoreMatching"]
    assert len({(row.projection, row.num_projections) for row in own}) == 2 * len(PROJECTIONS)
    (relative,) = [row for row in report.rows if row not in own]
    assert (relative.objective, relative.num_projections) == ("SlicedScoreMatchingVR", 1)
    assert relative.projection == report.projection == "SplitRademacher balanced"


def test_derived_numbers_follow_from_the_measured(report: VarianceReport) -> None:
    reference, data = report.reference, report.data_gradient_variance
    assert reference in report.rows and reference.gradient_relative == 1.0
    for row in report.rows:
        assert row.loss_relative == row.loss_variance / reference.loss_variance
        assert row.gradient_relative == row.gradient_variance / reference.gradient_variance
        assert row.cost == row.seconds * row.gradient_variance
        assert row.total_cost == row.seconds * (data + row.gradient_variance)
        assert row.seconds > 0


def test_suggestion_is_the_smallest_about_as_cheap_as_the_cheapest(report: VarianceReport) -> None:
    cost = {m: own_row(report, m).total_cost for m in (1, 3)}
    assert report.suggested == (1 if cost[1] <= 1.05 * cost[3] else 3)


def test_suggests_many_directions_where_they_are_all_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The same point throughout: no variance due to data, so that time x 1/M decides; the clock
    # gives all M the same time, since threads may wait for a busy machine.
    clock = itertools.count()
    monkeypatch.setattr(measure, "now", lambda x: next(clock))
    x = X[:1].expand(4, 2)
    kinds = {"projections": (), "show": False, "repeats": 200}
    kinds["generator"] = torch.Generator().manual_seed(0)
    noisy = SlicedScoreMatching(Gaussian())
    assert variance_report(gaussian, x, noisy, (1, 64), **kinds).suggested == 64
    still = SlicedScoreMatchingVR(Rademacher())
    assert variance_report(lambda x: -x.square().sum(-1), x, still, (64, 1), **kinds).suggested == 1


def test_own_law_joins_the_others_once() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    law = Sphere(balanced=True)
    rows = variance_report(diagonal_32, x, SlicedScoreMatchingVR(law), (1,), 2, show=False).rows
    assert [row.projection for row in rows].count("Sphere balanced") == 2  # with that of plain SSM
    rows = variance_report(
        diagonal_32, x, SlicedScoreMatchingVR(Sphere()), (1,), 2, show=False
    ).rows
    assert [row.projection for row in rows].count("Sphere iid") == 2


def diagonal_32(x: Tensor) -> Tensor:
    return -0.5 * (DIAGONAL.to(x) * x.square()).sum(-1)


def test_finite_differences_stand_beside_both_others() -> None:
    report = variance_report(gaussian, X, FiniteDifferenceSSM(), (2,), 2, show=False)
    names = {row.objective for row in report.rows}
    assert names == {"FiniteDifferenceSSM", "SlicedScoreMatching", "SlicedScoreMatchingVR"}
    assert report.reference.num_projections == 1  # although only M = 2 was asked for
    assert not any("Split" in row.projection for row in report.rows)


# Parameters.


def test_without_parameters_only_the_loss_varies() -> None:
    report = variance_report(gaussian, X, SlicedScoreMatching(), (1,), 3, show=False)
    assert report.data_gradient_variance is None
    assert all(row.gradient_variance is None for row in report.rows)
    assert all(row.cost == row.seconds * row.loss_variance for row in report.rows)
    assert "parameters=" in str(report)


def test_score_networks_are_measured_through_their_field(generator: torch.Generator) -> None:
    net = ScoreNetwork(2, hidden=(4,), generator=generator).double()
    report = variance_report(
        VectorField(net),
        X,
        SlicedScoreMatchingVR(Enumerated()),
        (1,),
        repeats=16,
        show=False,
        parameters=net.parameters(),
    )
    directions = torch.tensor(list(itertools.product(SIGNS, repeat=4)), dtype=torch.float64)
    losses = [oracles.vector_sliced_vr(net, X, v.reshape(1, 2, 2)).mean() for v in directions]
    row = own_row(report)
    assert row.loss_variance == pytest.approx(torch.stack(losses).var().item(), rel=ROUTES)
    assert row.gradient_variance is not None and row.gradient_variance > 0


def test_images_and_frozen_layers_are_welcome(generator: torch.Generator) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0))
    net[1].requires_grad_(False)
    x = torch.randn(6, 1, 2, 2, generator=generator)
    report = variance_report(net, x, SlicedScoreMatchingVR(), (2,), 2, generator, show=False)
    assert report.dim == 4
    assert own_row(report, 2).gradient_variance is not None


# Manners.


@pytest.mark.parametrize("given", [True, False])
def test_leaves_everything_as_found(given: bool, capsys: pytest.CaptureFixture[str]) -> None:
    own = torch.Generator().manual_seed(3)
    model = MLPDensity(3, hidden=(4,), generator=own)
    model.location.grad = torch.ones(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(8, 3, generator=own).requires_grad_()
    original, state = x.detach().clone(), torch.get_rng_state()
    with torch.no_grad():
        generator = own if given else None
        variance_report(model, x, SlicedScoreMatchingVR(), (1,), 2, generator, show=False)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, original) and x.requires_grad and x.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.location.grad, torch.ones(3)) and model.log_precision.grad is None
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("given", [True, False])
def test_same_state_gives_the_same_variances(given: bool) -> None:
    def variances() -> list[float]:
        generator = torch.Generator().manual_seed(0) if given else None
        report = variance_report(gaussian, X, SlicedScoreMatching(), (1,), 4, generator, show=False)
        return [row.loss_variance for row in report.rows]

    assert variances() == variances()


def test_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    report = variance_report(gaussian, X, SlicedScoreMatchingVR(), (1, 2), repeats=2)
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    table = printed.splitlines()[3:]
    assert sum(line.startswith("SplitRademacher balanced") for line in table) == 3
    lines = [
        line for line in table if line.startswith(("Rademacher", "Split", "Gaussian", "Sphere"))
    ]
    assert len({len(line) for line in lines}) == 1  # aligned
    assert sum("*" in line for line in lines) == 1


def test_data_come_out_plain(report: VarianceReport) -> None:
    data = json.loads(json.dumps(report.to_dict()))
    assert data["suggested"] == report.suggested
    assert data["rows"] == report.as_rows() and len(data["rows"]) == len(report.rows)
    assert data["reference"]["loss_relative"] == 1.0


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"objective": ScoreMatching()}, TypeError, "objective must be sliced, got ScoreMatching"),
        ({"objective": DenoisingScoreMatching(sigma=1.0)}, TypeError, "draws no directions"),
        ({"objective": X, "x": gaussian}, TypeError, "got Tensor.*call variance_report.model, x"),
        (
            {"objective": FiniteDifferenceSSM(), "projections": [SplitRademacher()]},
            ValueError,
            "projection must suit a loss that is not quadratic in v",
        ),
        ({"x": X[:1]}, ValueError, "x must hold at least two points, got 1"),
        ({"repeats": 1}, ValueError, "repeats must be at least 2, got 1"),
        ({"num_projections": 4}, ValueError, "num_projections must be a non-empty sequence, got 4"),
        ({"num_projections": ()}, ValueError, "num_projections must be a non-empty sequence"),
        ({"num_projections": (1, 0)}, ValueError, "at least 1, got 0"),
        ({"parameters": [torch.ones(2).requires_grad_()]}, ValueError, "used by the model"),
    ],
)
def test_says_what_is_wrong(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    arguments = {"objective": SlicedScoreMatchingVR(), "model": gaussian, "x": X, "show": False}
    with pytest.raises(error, match=message):
        variance_report(**{**arguments, **change})
