"""Stein thinning and control functionals against loops, closed forms and their bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scorematching.distributions import GaussianMixture
from scorematching.evaluation import control_variate, kernel_stein_discrepancy, stein_thin
from scorematching.evaluation.ksd.stein_kernel import SteinKernel
from tests.statistics import assert_mean

F64 = torch.float64
MODEL = GaussianMixture(
    weights=torch.tensor([0.4, 0.6], dtype=F64),
    means=torch.tensor([[-2.0, 0.0], [2.0, 1.0]], dtype=F64),
    covariances=torch.tensor([0.5, 1.0], dtype=F64),
)


def draw(n: int, dim: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=F64)


# Thinning.


def slow_thinning(x, m: int) -> list[int]:
    """The next point is the one whose addition gives the set of least V-statistic."""
    u = SteinKernel.of(MODEL, x, "imq", 1.0).matrix().numpy()
    chosen: list[int] = []
    for _ in range(m):
        sums = [u[np.ix_([*chosen, i], [*chosen, i])].sum() for i in range(len(x))]
        chosen.append(int(np.argmin(sums)))
    return chosen


def test_thinning_is_the_slow_search():
    x = 2 * draw(25)
    assert stein_thin(x, MODEL, 40, bandwidth=1.0).tolist() == slow_thinning(x, 40)


def test_thinning_beats_a_regular_choice_and_drops_the_burn_in():
    """Thirty points drift in from far away, then 300 of the model follow."""
    g = torch.Generator().manual_seed(0)
    burn_in = torch.linspace(20, 3, 30, dtype=F64)[:, None] + draw(30)
    x = torch.cat([burn_in, MODEL.sample(300, g)])
    chosen = stein_thin(x, MODEL, 30)
    assert chosen.min() >= 20
    good, regular = (
        kernel_stein_discrepancy(MODEL, x[i], bandwidth=2.0, statistic="v")
        for i in (chosen, torch.arange(0, 330, 11))
    )
    assert good < 0.1 * regular


# Control functionals.


def slow_control(f: np.ndarray, u: np.ndarray, ridge: float, folds: int) -> np.ndarray:
    """Values with the control functional, each fold by one bordered linear system.

    Minimum of ``|f - c - u a|^2`` in the limit: ``(u + lam I) a + c 1 = f`` and ``1' a = 0``.
    """
    n, out = len(f), np.empty(len(f))
    lam = ridge * u.diagonal().mean()
    for part in np.array_split(np.arange(n), folds):
        rest = np.setdiff1d(np.arange(n), part)
        k = len(rest)
        system = np.ones((k + 1, k + 1))
        system[:k, :k] = u[np.ix_(rest, rest)] + lam * np.eye(k)
        system[k, k] = 0.0
        a = np.linalg.solve(system, np.append(f[rest], 0.0))[:k]
        out[part] = f[part] - u[np.ix_(part, rest)] @ a
    return out


def test_control_is_the_slow_system():
    x = draw(40)
    u = SteinKernel.of(MODEL, x, "rbf").matrix().numpy()
    f = np.sin(x[:, 0].numpy()) + x[:, 1].numpy()
    wanted = slow_control(f, u, 1e-3, folds=4)
    found = control_variate(lambda x: x[:, 0].sin() + x[:, 1], x, MODEL, ridge=1e-3, folds=4)
    assert found.controlled.mean == pytest.approx(wanted.mean(), rel=1e-8)
    assert found.controlled.standard_error == pytest.approx(wanted.std(ddof=1) / 40**0.5, rel=1e-8)
    assert found.plain.mean == pytest.approx(f.mean())


@pytest.mark.parametrize("ridge", [1e-3, 1e-6])
def test_every_point_is_left_out_by_itself(ridge):
    """As many systems as points; the order of the points does not matter."""
    x = draw(40)
    u = SteinKernel.of(MODEL, x, "rbf").matrix().numpy()
    f = np.sin(x[:, 0].numpy()) + x[:, 1].numpy()
    wanted = slow_control(f, u, ridge, folds=40)
    found = control_variate(lambda x: x[:, 0].sin() + x[:, 1], x, MODEL, ridge=ridge)
    assert found.controlled.mean == pytest.approx(wanted.mean(), rel=1e-7)
    assert found.controlled.standard_error == pytest.approx(wanted.std(ddof=1) / 40**0.5, rel=1e-7)
    kurtosis = (wanted - wanted.mean()) ** 4
    count = ((wanted - wanted.mean()) ** 2).sum() ** 2 / kurtosis.sum()
    assert found.effective_count == pytest.approx(count, rel=1e-6)


def test_sorted_points_give_the_same_mean():
    """By folds of neighbours the mean of x^2 was 1.15 on average, with intervals of +- 0.05."""
    x = draw(200, 1)
    shuffled, sorted_ = (
        control_variate(lambda x: x[:, 0] ** 2, y, lambda x: -x) for y in (x, x.sort(0).values)
    )
    assert sorted_.controlled.mean == pytest.approx(shuffled.controlled.mean, rel=1e-6)
    assert sorted_.controlled.mean == pytest.approx(1.0, abs=0.05)


def test_repeated_points_are_not_left_out_by_themselves():
    """A copy knows the value: the standard error was 1e-5 and the error 0.015."""
    x = draw(100, 1).repeat_interleave(2, 0)
    with pytest.raises(ValueError, match=r"got 100 of 200 that repeat others.* use folds=5"):
        control_variate(lambda x: x[:, 0] ** 2, x, lambda x: -x)
    found = control_variate(lambda x: x[:, 0] ** 2, x, lambda x: -x, folds=5).controlled
    assert found.standard_error > 1e-3


def test_repeated_points_in_several_folds_are_refused():
    """With all points in both folds each was known: -0.0055 with a standard error of 4e-6."""
    x = draw(50)
    with pytest.raises(ValueError, match=r"got 50 that are in several folds.* in its order"):
        control_variate(x[:, 0], torch.cat([x, x]), lambda x: -x, folds=2)
    chain = x.repeat_interleave(3, dim=0)  # a repeat may lie on either side of a bound
    assert control_variate(chain[:, 0], chain, lambda x: -x, folds=4).controlled.count == 150


def test_values_may_be_an_array():
    x = draw(40)
    tensor = control_variate(x[:, 0].clone(), x, MODEL)
    reverse = x[:, 0].numpy()[::-1].copy()[::-1]  # torch has no negative strides
    for f in (x[:, 0].numpy(), reverse, lambda x: x[:, 0].numpy()):
        assert control_variate(f, x, MODEL) == tensor


def test_a_constant_is_its_own_mean():
    found = control_variate(torch.full((30,), 3.5, dtype=F64), draw(30), lambda x: -x)
    assert found.controlled.mean == pytest.approx(3.5, abs=1e-8)


def test_controlled_mean_is_unbiased_and_better():
    """``E x^2 cos(x) = 0`` for N(0, 1), since ``E x^2 cos(tx) = (1 - t^2) exp(-t^2 / 2)``."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x[:, 0] ** 2 * x[:, 0].cos()

    found = [control_variate(f, draw(40, 1, s), lambda x: -x, bandwidth=2.0) for s in range(200)]
    controlled = torch.tensor([one.controlled.mean for one in found], dtype=F64)
    plain = torch.tensor([one.plain.mean for one in found], dtype=F64)
    assert_mean(controlled, 0.0, detect=0.05)
    assert controlled.std() < 0.3 * plain.std()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: stein_thin(x, MODEL, 0), ValueError, "m must be at least 1"),
        (lambda x: stein_thin(x, MODEL, 2.0), TypeError, "m must be an integer"),
        (lambda x: stein_thin(x, None, 2), TypeError, "the model must be"),
        (lambda x: control_variate(lambda x: x, x, MODEL), ValueError, r"f must return one num"),
        (lambda x: control_variate(x[:, 0] / 0, x, MODEL), ValueError, "f must be finite"),
        (lambda x: control_variate(x[:, 0], x, MODEL, folds=9), ValueError, "folds must lie"),
        (lambda x: control_variate(x[:, 0], x, MODEL, ridge=0), ValueError, "ridge must be pos"),
        (lambda x: control_variate(x[:1, 0], x[:1], MODEL), ValueError, "x must hold two points"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(draw(10))


def test_functions_of_control_variates_may_change_their_points(generator: torch.Generator) -> None:
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    kept = x.clone()
    found = control_variate(lambda x: x.sub_(5.0)[:, 0], x, -kept)
    assert torch.equal(x, kept)
    again = control_variate(lambda x: (x - 5.0)[:, 0], x, -kept)
    assert found.plain.mean == pytest.approx(again.plain.mean, rel=1e-9)
    assert found.controlled.mean == pytest.approx(again.controlled.mean, rel=1e-9)
