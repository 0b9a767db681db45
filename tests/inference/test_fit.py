"""Fits and their standard errors against independent closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching.inference import (
    NotConvergedError,
    SingularInformationError,
    fit,
    fit_robust,
    models,
)
from scorematching.inference import problem as problem_module
from scorematching.inference.fitting import independent
from scorematching.inference.parameters import parametric
from scorematching.inference.problem import Part, Problem
from tests.statistics import assert_mean

SLICED = [
    sm.SlicedScoreMatching(projection=sm.Rademacher(balanced=False)),
    sm.SlicedScoreMatchingVR(projection=sm.Gaussian(), num_projections=3),
]


def normal_points(n: int, d: int = 3, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(d, d, generator=g, dtype=torch.float64) + 2 * torch.eye(d)
    return 0.5 + torch.randn(n, d, generator=g, dtype=torch.float64) @ root


class Normal(nn.Module):
    """``log p = b.x - 0.5 x'Px`` with P given by its upper triangle."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.rows, self.columns = torch.triu_indices(d, d)
        self.b = nn.Parameter(torch.zeros(d))
        self.upper = nn.Parameter(torch.eye(d)[self.rows, self.columns].clone())

    def forward(self, x: Tensor) -> Tensor:
        twice = torch.where(self.rows == self.columns, 1.0, 2.0)
        products = x[:, self.rows] * x[:, self.columns] * twice
        return x @ self.b - 0.5 * products @ self.upper


def normal_by_hand(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimate and sandwich of exact score matching, one point and one basis matrix at a time.

    With residual r = P x - b the loss is 0.5 |r|^2 - tr P; it is least at P = S^-1, b = P mean.
    """
    n, d = x.shape
    precision = np.linalg.inv(np.cov(x.T, bias=True).reshape(d, d))
    b = precision @ x.mean(0)
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    basis = []
    for i, j in pairs:
        e = np.zeros((d, d))
        e[i, j] = e[j, i] = 1
        basis.append(e)
    directions = np.array([[*(-np.eye(d)), *(e @ row for e in basis)] for row in x])  # (N, P, D)
    residual = x @ precision - b
    traces = np.array([0.0] * d + [np.trace(e) for e in basis])
    psi = np.einsum("npd,nd->np", directions, residual) - traces
    hessian = np.einsum("npd,nqd->pq", directions, directions) / n
    inverse = np.linalg.inv(hessian)
    values = np.concatenate([b, [precision[i, j] for i, j in pairs]])
    return values, inverse @ (psi.T @ psi / n) @ inverse / n


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("max_memory", [None, 2**26])
def test_fits_without_gradients_around_them(mode: Any, max_memory: int | None) -> None:
    """They ended in errors of torch."""

    def everything() -> str:
        g, x = (
            torch.Generator().manual_seed(0),
            torch.linspace(-1.3, 1.4, 60).double().tan()[:, None],
        )
        objective = sm.SlicedScoreMatching()
        result = fit(models.StudentTExperts(1), x, objective, generator=g, max_memory=max_memory)
        robust = fit_robust(models.Gaussian(1), x, 0.1)
        alpha = result.function(lambda theta: theta["log_alpha"].exp())
        parts = (result, result.how_many_projections(), alpha, robust)
        return "".join(map(str, parts))

    expected = everything()
    with mode():
        assert everything() == expected


def test_normal_precision_by_closed_form() -> None:
    x = normal_points(200)
    result = fit(Normal(3), x)
    values, covariance = normal_by_hand(x.numpy())
    assert "closed form" in result.method
    np.testing.assert_allclose(np.asarray(result.params), values, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(result.cov_params(), covariance, rtol=1e-8, atol=1e-12)
    assert [*result.params][:4] == ["b[0]", "b[1]", "b[2]", "upper[0]"]

    # The same minimum without the closed form, from elsewhere.
    def curved(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        root = theta["root"]  # the precision is root root'
        return x @ theta["b"] - 0.5 * (x @ root).square().sum(-1)

    x = x[:, :1]
    values, covariance = normal_by_hand(x.numpy())
    other = fit(curved, x, start={"b": [0.3], "root": [[0.7]]})
    assert "Newton" in other.method
    square = other.function(lambda theta: torch.cat([theta["b"], theta["root"][0] ** 2]))
    np.testing.assert_allclose(np.asarray(square.params), values, rtol=1e-8)
    np.testing.assert_allclose(square.cov_params(), covariance, rtol=1e-8)


@pytest.mark.parametrize("objective", [None, *SLICED], ids=str)
def test_derivatives_are_those_of_the_objective(objective: sm.Objective | None) -> None:
    """Losses, gradients of points and the Hessian, by the library's engine and differences."""
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()
    x = normal_points(6, 2)
    objective = independent(objective or sm.ScoreMatching())
    own = parametric(module, None)
    part = Part(torch.arange(6), x, objective).drawn(torch.Generator().manual_seed(0))
    problem = Problem(own, (part,), torch.tensor([0.1, 0.1, 0.2, 0.2, 0.3, 0.1]).double())
    direct = objective.loss(sm.LogDensityField(module), x, part.noise)
    torch.testing.assert_close(problem.losses(own.start), direct, rtol=1e-9, atol=1e-9)
    found = problem.derivatives(own.start)
    for row in range(6):
        module.zero_grad()
        rows = slice(row, row + 1)
        noise = None if part.noise is None else part.noise[:, rows]
        objective.loss(sm.LogDensityField(module), x[rows], noise).sum().backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
        expected = torch.cat([g.reshape(-1) for g in grads])
        torch.testing.assert_close(found.gradients[row], expected, rtol=1e-9, atol=1e-9)
    step = 1e-5 * torch.randn(own.start.shape, generator=torch.Generator().manual_seed(1))
    ahead, behind = (problem.value_and_gradient(own.start + s)[1] for s in (step, -step))
    torch.testing.assert_close(
        found.hessian @ step.double(), (ahead - behind) / 2, rtol=1e-5, atol=1e-12
    )


def test_backward_passes_in_chunks_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal_points(40, 2)
    whole = fit(Normal(2), x).cov_params()
    monkeypatch.setattr(problem_module, "CHUNK_NUMBERS", 100)
    np.testing.assert_allclose(fit(Normal(2), x).cov_params(), whole, rtol=1e-10, atol=1e-14)
    pull_back = problem_module._pull_back

    def unbatched(g: Tensor, inputs: tuple[Tensor, ...], v: Tensor, batched: bool) -> list[Tensor]:
        if batched:
            raise RuntimeError("no batching rule")
        return pull_back(g, inputs, v, batched)

    monkeypatch.setattr(problem_module, "_pull_back", unbatched)
    np.testing.assert_allclose(fit(Normal(2), x).cov_params(), whole, rtol=1e-10, atol=1e-14)


def test_maximum_likelihood_has_the_same_errors_of_a_mean() -> None:
    """Of the mean of normal points: the variance of the points over N."""
    x = normal_points(300, 1)

    def normal(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        z = (x[:, 0] - theta["mean"]) * theta["log_precision"].exp().sqrt()
        return -0.5 * z.square() + 0.5 * theta["log_precision"]

    start = {"mean": 0.0, "log_precision": 0.0}
    for objective in (sm.MaximumLikelihood(), sm.ScoreMatching()):
        result = fit(normal, x, objective, start=start)
        assert result.params["mean"] == pytest.approx(x.mean().item(), rel=1e-8)
        assert result.params["log_precision"] == pytest.approx(-x.var(correction=0).log().item())
        assert result.bse["mean"] == pytest.approx((x.var(correction=0) / 300).sqrt().item())


# Theorem 3 of Song et al. (2019), where V and W are known.

D = 3


def isotropic(theta: dict[str, Tensor], x: Tensor) -> Tensor:
    return -0.5 * theta["precision"] * x.square().sum(-1)


def theorem(objective: sm.Objective) -> float:
    """N times the variance of the precision of N(0, I): H^-2 (sum V_ij + 2/M sum W_ij ...).

    T_ij = x_i x_j - delta_ij, so V_ij = 2 delta_ij, W_ij = 1 and H = D. For SSM-VR only the
    curvature -v'v is random: nothing for signs, 2 D / M for normal directions.
    """
    m, normal = objective.num_projections, isinstance(objective.projection, sm.Gaussian)
    if isinstance(objective, sm.SlicedScoreMatchingVR):
        return (2 * D + normal * 2 * D / m) / D**2
    return (2 * D + 2 / m * D * (D - 1) + normal * 2 / m * 2 * D) / D**2


THEOREM = [
    kind(projection=projection, num_projections=m)
    for kind in (sm.SlicedScoreMatching, sm.SlicedScoreMatchingVR)
    for projection in (sm.Rademacher(balanced=False), sm.Gaussian())
    for m in (1, 4)
]


@pytest.mark.parametrize("objective", THEOREM, ids=str)
def test_theorem_3(objective: sm.Objective, generator: torch.Generator) -> None:
    n, repeats = 500, 1500
    expected = theorem(objective)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64)
    result = fit(isotropic, x, objective, start={"precision": 1.0}, generator=generator)
    assert n * result.cov_params()[0, 0] == pytest.approx(expected, rel=0.3)
    # The estimate itself is mean(v'v) / mean((v.x)^2), or mean(v'v) / mean(x'x) with less variance.
    x = torch.randn(repeats * n, D, generator=generator, dtype=torch.float64)
    v = objective.draw(x, generator)
    squares = x.square().sum(-1)
    if isinstance(objective, sm.SlicedScoreMatching):
        squares = (v * x).sum(-1).square().mean(0)
    top, bottom = (t.reshape(repeats, n).mean(1) for t in (v.square().sum(-1).mean(0), squares))
    error = n * (top / bottom - 1).square()
    assert_mean(error, expected, detect=0.4 * expected)


def test_monte_carlo_estimate_is_the_fit(generator: torch.Generator) -> None:
    x = torch.randn(50, D, generator=generator, dtype=torch.float64)
    objective = THEOREM[0]
    result = fit(isotropic, x, objective, start={"precision": 1.0}, generator=generator)
    v = result._setting.problem.parts[0].noise[0]
    expected = v.square().sum(-1).mean() / (v * x).sum(-1).square().mean()
    assert result.params["precision"] == pytest.approx(float(expected), rel=1e-10)


def test_finite_differences_are_refused() -> None:
    """Points in units far below the step had wrong estimates, with small standard errors."""
    x = 0.01 * normal_points(50, 1)
    with pytest.raises(ValueError, match="objective must have exact derivatives"):
        fit(models.Gaussian(1), x, sm.FiniteDifferenceSSM())


def test_directions_are_independent_between_points(generator: torch.Generator) -> None:
    x = torch.zeros(2, 4, dtype=torch.float64)
    for objective in (
        sm.SlicedScoreMatchingVR(),
        sm.SlicedScoreMatchingVR(num_projections=2),
        sm.SlicedScoreMatching(projection=sm.Rademacher()),
        sm.SlicedScoreMatching(projection=sm.Gaussian(balanced=True)),
    ):
        v = torch.stack([independent(objective).draw(x, generator)[0] for _ in range(4000)])
        products = (v[:, 0] * v[:, 1]).sum(-1).square()  # (v_1 . v_2)^2 has mean D
        assert_mean(products, 4.0, detect=1.0)


# The split of K, and the number of directions.


def test_split_of_k(generator: torch.Generator) -> None:
    x = torch.randn(4000, D, generator=generator, dtype=torch.float64)
    objective = THEOREM[2]  # SSM with one normal direction
    split = fit(isotropic, x, objective, start={"precision": 1.0}, generator=generator).K_split
    assert split is not None
    assert float(split.data) == pytest.approx(2 * D, rel=0.15)
    assert float(split.directions) == pytest.approx(2 * D * (D - 1) + 4 * D, rel=0.1)
    assert fit(isotropic, x, start={"precision": 1.0}).K_split is None


def test_how_many_projections(generator: torch.Generator) -> None:
    x = torch.randn(8000, D, generator=generator, dtype=torch.float64)
    objective = THEOREM[0]  # SSM with one sign vector: inflation 1 + (D - 1) / M
    result = fit(isotropic, x, objective, start={"precision": 1.0}, generator=generator)
    how = result.how_many_projections(share=0.3)
    expected = [1 + (D - 1) / m for m in how.counts]
    assert [row[0] for row in how.inflation] == pytest.approx(expected, rel=0.1)
    assert how.suggested == 8 and "8 directions" in str(how)
    orthogonal = sm.SlicedScoreMatchingVR(projection=sm.Gaussian(orthogonal=True))
    result = fit(isotropic, x[:1000], orthogonal, start={"precision": 1.0}, generator=generator)
    assert result.how_many_projections().inflation[0][0] == pytest.approx(2.0, rel=0.3)
    assert "\n1 direction per point adds at most" in str(result.how_many_projections(share=9.0))
    with pytest.raises(TypeError, match="sliced objective"):
        fit(isotropic, x, start={"precision": 1.0}).how_many_projections()


def test_how_many_projections_in_clusters(generator: torch.Generator) -> None:
    """Of ten copies of a point the data add up, the directions do not: a tenth of their share."""
    x = normal_points(400, 2)
    objective = sm.SlicedScoreMatching(sm.Gaussian(), num_projections=2)
    alone = fit(Normal(2), x, objective, generator=generator)
    copies, labels = x.repeat(10, 1), torch.arange(400).repeat(10)
    found = fit(Normal(2), copies, objective, cluster=labels, generator=generator)
    added = [np.array(how.how_many_projections().inflation) - 1 for how in (alone, found)]
    np.testing.assert_allclose(added[1], added[0] / 10, rtol=0.25)
    # Both parts together are the covariance of the estimates.
    assert found.K_split is not None
    inverse = np.linalg.inv(found.H)
    covariance = inverse @ sum(k.numpy() for k in found.K_split) @ inverse / len(copies)
    np.testing.assert_allclose(covariance.diagonal(), np.asarray(found.bse) ** 2, rtol=0.3)


def test_split_agrees_with_the_variance_report(generator: torch.Generator) -> None:
    x = normal_points(400, 3)
    objective = sm.SlicedScoreMatching(projection=sm.Rademacher(balanced=False))
    result = fit(Normal(3), x, objective, generator=generator)
    module = Normal(3).double()
    with torch.no_grad():
        for name, value in result.theta.items():
            getattr(module, name).copy_(value)
    report = sm.variance_report(
        module,
        x,
        objective,
        num_projections=(1,),
        projections=[objective.projection],
        repeats=300,
        generator=generator,
        show=False,
    )
    assert result.K_split is not None
    directions, data = (float(k.trace()) / 400 for k in reversed(result.K_split))
    assert report.reference.gradient_variance == pytest.approx(directions, rel=0.25)
    assert report.data_gradient_variance == pytest.approx(data, rel=0.8)


# statsmodels' names.


def test_table(generator: torch.Generator) -> None:
    x = normal_points(100, 2)
    result = fit(Normal(2), x)
    z = np.asarray(result.params) / np.asarray(result.bse)
    np.testing.assert_allclose(np.asarray(result.tvalues), z)
    np.testing.assert_allclose(np.asarray(result.pvalues), 2 * scipy.stats.norm.sf(abs(z)))
    half = scipy.stats.norm.isf(0.05) * np.asarray(result.bse)
    np.testing.assert_allclose(result.conf_int(0.1)[:, 1], np.asarray(result.params) + half)
    one = result.wald_test(["b[0]"])
    assert one.statistic == pytest.approx(result.tvalues["b[0]"] ** 2)
    assert one.pvalue == pytest.approx(result.pvalues["b[0]"])
    R = np.array([[1.0, 0, 0, 2, 0], [0, 1, 0, 0, 0]])
    both = result.wald_test(R, [0.1, 0.2])
    off = R @ np.asarray(result.params) - [0.1, 0.2]
    statistic = off @ np.linalg.solve(R @ result.cov_params() @ R.T, off)
    assert both == pytest.approx((statistic, 2, scipy.stats.chi2.sf(statistic, 2)))
    sd = result.function(lambda theta: theta["upper"][0] ** -0.5, ["sd"])
    slope = 0.5 * result.params["upper[0]"] ** -1.5
    assert sd.bse["sd"] == pytest.approx(slope * result.bse["upper[0]"])
    text, summary = str(result.summary()), result.summary()
    assert "upper[2]" in text and "closed form" in text and "points: 100" in text
    assert "<td>b[0]</td>" in summary._repr_html_() and "<table>" in summary.as_html()
    assert summary.as_latex().count(r"\\") == 6 and "b[0] &" in summary.as_latex()
    pandas = pytest.importorskip("pandas")
    assert pandas.Series(result.params)["b[1]"] == result.params["b[1]"]
    assert fit(Normal(2), pandas.DataFrame(x.numpy())).params == result.params


def test_predict() -> None:
    x = normal_points(100, 2)
    result = fit(Normal(2), x)
    precision = np.linalg.inv(np.cov(x.numpy().T, bias=True))
    score = -(x.numpy() - x.numpy().mean(0)) @ precision
    np.testing.assert_allclose(result.predict(x, "score"), score, rtol=1e-8)
    log_density = result.predict(x)
    expected = scipy.stats.multivariate_normal(x.mean(0).numpy(), np.linalg.inv(precision)).logpdf(
        x
    )
    np.testing.assert_allclose(np.diff(log_density - expected), 0, atol=1e-8)
    with pytest.raises(ValueError, match="which must be"):
        result.predict(x, "density")


def test_score_networks_are_fitted_too() -> None:
    x = normal_points(100, 2)
    net = nn.Linear(2, 2)
    result = fit(sm.VectorField(net), x)
    precision = np.linalg.inv(np.cov(x.numpy().T, bias=True))
    np.testing.assert_allclose(result.theta["weight"], -precision, rtol=1e-8)
    with pytest.raises(ValueError, match="no log-density"):
        result.predict(x)


def test_weights_and_clusters() -> None:
    x = normal_points(60, 2)
    counts = torch.arange(60) % 3
    repeated = fit(Normal(2), x.repeat_interleave(counts, 0))
    weighted = fit(Normal(2), x, weights=counts)
    assert [*weighted.params.values()] == pytest.approx([*repeated.params.values()], rel=1e-9)
    # A repeated row is one observation: clusters of copies have the errors of weights.
    labels = torch.arange(60).repeat_interleave(counts)
    clustered = fit(Normal(2), x.repeat_interleave(counts, 0), cluster=labels)
    groups = int((counts > 0).sum())
    correction = groups / (groups - 1)
    np.testing.assert_allclose(
        clustered.cov_params(), correction * weighted.cov_params(), rtol=1e-8, atol=1e-14
    )
    assert not np.allclose(clustered.cov_params(), repeated.cov_params(), rtol=0.05)
    assert f"{groups} clusters" in str(clustered.summary())


def test_parts_of_a_module_stay_fixed_and_the_caller_keeps_his() -> None:
    x = normal_points(100, 2)
    module = Normal(2)
    module.b.requires_grad_(False)
    before = {name: p.clone() for name, p in module.named_parameters()}
    state = torch.get_rng_state()
    result = fit(module, x, sm.SlicedScoreMatchingVR(), generator=torch.Generator().manual_seed(0))
    assert [*result.params] == ["upper[0]", "upper[1]", "upper[2]"]
    assert all(torch.equal(before[name], p) for name, p in module.named_parameters())
    fit(module, x)  # exact score matching needs no random numbers at all
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.dtype == torch.float32 and p.grad is None for p in module.parameters())


# Bad input.


def test_collinear_columns() -> None:
    x = normal_points(100, 2)
    x = torch.cat([x, x[:, :1] + x[:, 1:]], 1)
    with pytest.raises(SingularInformationError, match=r"columns \[0, 1, 2\] of X are collinear"):
        fit(Normal(3), x)


def test_parameters_that_the_data_do_not_determine() -> None:
    def double(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -0.5 * (theta["a"] + theta["b"]) * x.square().sum(-1)

    with pytest.raises(SingularInformationError, match=r"do not determine [+-]1 [ab] [+-]1 [ab]"):
        fit(double, normal_points(50, 2), start={"a": 1.0, "b": 1.0})

    def unused(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -0.5 * theta["a"] * x.square().sum(-1) + theta["constant"]

    with pytest.raises(SingularInformationError, match="constant"):
        fit(unused, normal_points(50, 2), start={"a": 1.0, "constant": 0.0})


def test_no_minimum() -> None:
    def bounded(theta: dict[str, Tensor], x: Tensor) -> Tensor:  # a precision below one
        return -0.5 * theta["a"].sigmoid() * x.square().sum(-1)

    with pytest.raises((NotConvergedError, SingularInformationError)):
        fit(bounded, normal_points(50, 1) * 0.01, start={"a": 0.0})

    def undefined(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -0.5 * theta["a"].log() * x.square().sum(-1)

    with pytest.raises(
        NotConvergedError, match=r"must be finite at the initial parameters, .* in 50 of 50 rows"
    ):
        fit(undefined, normal_points(50, 1), start={"a": -1.0})


def test_a_model_with_kinks() -> None:
    def kinked(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -(theta["a"] * x).abs().sum(-1) - 0.5 * x.square().sum(-1)

    with pytest.raises(sm.SmoothnessError):
        fit(kinked, normal_points(100, 2), start={"a": 1.0})


def test_a_model_that_ignores_its_parameters() -> None:
    def cut(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -0.5 * theta["a"].detach() * x.square().sum(-1)

    with pytest.raises(SingularInformationError, match=r"singular: .* do not determine \+1 a"):
        fit(cut, normal_points(50, 2), start={"a": 1.0})


START = {"precision": 1.0}
BAD = [
    (lambda x: fit(isotropic, x[:1], start=START), "more points than the model has parameters"),
    (lambda x: fit(Normal(3), x[:9]), "more points than the model has parameters"),
    (lambda x: fit(isotropic, x), "start must be a dict"),
    (lambda x: fit("density", x), "model must be an nn.Module or a function"),
    (lambda x: fit(nn.ReLU(), x), "model must have parameters"),
    (lambda x: fit(Normal(3), x, start={"c": 1.0}), "start must name parameters"),
    (lambda x: fit(Normal(3), x, start={"b": 1.0}), "must have shape"),
    (lambda x: fit(isotropic, x[:, 0], start=START), "X must have shape"),
    (lambda x: fit(isotropic, "points", start=START), "X must be numbers"),
    (lambda x: fit(isotropic, x, sm.NoiseContrastive, start=START), "objective must be a loss"),
    (lambda x: fit(isotropic, x, sm.SlicedScoreMatchingVR(beta="optimal"), START), "beta"),
    (lambda x: fit(isotropic, x, start=START, weights=torch.ones(3)), "weights must hold one"),
    (lambda x: fit(isotropic, x, start=START, weights=-torch.ones(50)), "weights must be finite"),
    (lambda x: fit(isotropic, x, start=START, cluster=[1, 2]), "cluster must hold one label"),
    (lambda x: fit(isotropic, x, start=START, cluster=[1] * 50), "at least two clusters"),
    (lambda x: fit(isotropic, x, start=START).conf_int(95), "alpha must be between"),
    (lambda x: fit(isotropic, x, start=START).wald_test(["a"]), "R must name parameters"),
    (lambda x: fit(isotropic, x, start=START).wald_test([[1.0, 2.0]]), "one column per parameter"),
    (lambda x: fit(isotropic, x, start=START).wald_test([]), "one column per parameter"),
    (lambda x: fit(isotropic, x, start=START).wald_test([[1.0], [2.0]]), "independent rows"),
    (lambda x: fit(isotropic, x, start=START).wald_test([1.0], [0, 0]), "q must be a number"),
    (
        lambda x: fit(isotropic, x, start=START).function(lambda t: t["precision"], ["a", "b"]),
        "one name per number",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call(normal_points(50))  # type: ignore[operator]


def test_rows_that_are_not_finite_are_named() -> None:
    x = normal_points(50)
    x[[3, 7], 0] = math.inf
    with pytest.raises(ValueError, match="2 of 50 rows that do not: 3, 7"):
        fit(isotropic, x, start=START)


def test_results_can_be_compared_and_tested() -> None:
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right, wrong = (fit(models.Gaussian(2), k * x[:200]) for k in (1.0, 2.0))
    found = sm.evaluation.compare(right, wrong, x[200:])
    losses = []
    for r in (right, wrong):  # the loss of a normal distribution by hand
        s = torch.as_tensor(r.predict(x[200:], "score"))
        trace = r.params["precision[0,0]"] + r.params["precision[1,1]"]
        losses.append((0.5 * s.square().sum(1) - trace).mean().item())
    assert found.better == "a"
    assert found.difference.mean == pytest.approx(losses[0] - losses[1])
    held_out = sm.evaluation.Fixed(right, held_out=True)
    generator = torch.Generator().manual_seed(1)
    assert sm.evaluation.ksd_test(held_out, x[200:], generator=generator).p_value > 0.01


def test_results_are_compared_at_data_frames() -> None:
    """They ended in a KeyError; columns are matched by name, as in predictions."""
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = pd.DataFrame(x.numpy() * [1.0, 5.0], columns=["a", "b"])
    results = fit(models.Gaussian(2), table), fit(models.Gaussian(2, centred=True), table)
    expected = sm.evaluation.compare(*results, table.to_numpy(copy=True)).difference
    assert sm.evaluation.compare(*results, table[["b", "a"]]).difference == expected
    by_hand = (sm.LogDensityField(lambda x: -x.square().sum(-1)), results[0])
    assert sm.evaluation.compare(*by_hand, table).better == "b"


def test_results_on_a_domain_are_compared_on_it() -> None:
    x = torch.rand(300, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = (fit(models.TruncatedGaussian(1), k * x) for k in (1.0, 2.0))
    with pytest.raises(ValueError, match="all of space, got one on PositiveOrthant"):
        sm.evaluation.compare(a, b, x)
    with pytest.raises(ValueError, match="pass an objective with that domain"):
        sm.evaluation.compare(a.field, b.field, x)  # which know it, too
    on_domain = sm.ScoreMatching(domain=a.domain)
    assert sm.evaluation.compare(a, b, x, on_domain).better == "a"


def test_uses_of_the_score_on_a_domain_are_refused_with_advice_that_holds() -> None:
    """A test of fit advised an objective, which it does not take."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(400, 2, generator=g, dtype=torch.float64).log().neg()
    found = fit(models.TruncatedGaussian(2), x)
    held_out = sm.evaluation.Fixed(found, held_out=True)
    network = sm.LogDensityField(models.TruncatedGaussian(2).double())
    advice = r"map the points to all of space, .* x \* score\(x\) \+ 1; or compare"
    for use in (
        lambda: sm.evaluation.ksd_test(held_out, x),
        lambda: sm.evaluation.ksd_test(sm.evaluation.Fixed(network), x),
        lambda: sm.evaluation.kernel_stein_discrepancy(found.field, x),
        lambda: sm.evaluation.stein_thin(x, found, 3),
        lambda: sm.evaluation.control_variate(x[:, 0], x, found),
    ):
        with pytest.raises(ValueError, match=advice):
            use()
    for score, right in ((-torch.ones_like(x), True), (0.3 - x, False)):
        mapped = sm.evaluation.Fixed(x * score + 1)
        assert (sm.evaluation.ksd_test(mapped, x.log(), generator=g).p_value > 0.01) == right


@pytest.mark.parametrize(("unit", "found"), [
    (1e75, None), (1e-75, None), (1e80, "squares of the gradients of points must be finite"),
    (1e150, "squares of the gradients"), (1e-80, "variances of estimates must be numbers"),
    (1e-160, "variances of estimates must be numbers"),
])  # fmt: skip
def test_units_in_which_squares_overflow_are_refused(unit: float, found: str | None) -> None:
    """A precision of 1e-160 was estimated as 3e-147: beside infinite gradients no step counted."""
    x = 1.0 + torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if found is not None:
        with pytest.raises((NotConvergedError, SingularInformationError), match=found):
            fit(models.Gaussian(2), unit * x)
        return
    scaled, plain = fit(models.Gaussian(2), unit * x), fit(models.Gaussian(2), x)
    powers = unit ** torch.tensor([-1.0, -1.0, -2.0, -2.0, -2.0], dtype=torch.float64)
    for name in ("params", "bse"):
        wanted = torch.as_tensor(np.asarray(getattr(plain, name))) * powers
        got = torch.as_tensor(np.asarray(getattr(scaled, name)))
        torch.testing.assert_close(got / wanted, torch.ones_like(wanted))
