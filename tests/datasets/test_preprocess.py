"""Preprocessing against dense Jacobians, exact moments and hand-made tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from scorematching.datasets import (
    Compose,
    Dequantise,
    Logit,
    Standardise,
    Transform,
    Whiten,
    drop_correlated,
)
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY as EXACT


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(n: int = 40, d: int = 4) -> Tensor:
    """Correlated columns of different means and scales, in (0.1, 0.9)."""
    z = torch.randn(n, d, generator=generator(), dtype=torch.float64)
    mix = torch.randn(d, d, generator=generator(1), dtype=torch.float64)
    return 0.1 + 0.8 * (z @ mix).sigmoid()


def transforms() -> dict[str, Transform]:
    x = table()
    logit = Logit()
    return {
        "standardise": Standardise.fit(x),
        "whiten": Whiten.fit(x),
        "symmetric whiten": Whiten.fit(x, symmetric=True),
        "logit": logit,
        "compose": Compose(logit, Whiten.fit(logit(x)), Standardise.fit(x)),
        "empty compose": Compose(),
    }


@pytest.fixture(params=transforms().items(), ids=lambda item: item[0])
def transform(request: pytest.FixtureRequest) -> Transform:
    return request.param[1]


def test_inverse_returns_the_points(transform: Transform) -> None:
    x = table()
    torch.testing.assert_close(transform.inverse(transform(x)), x, rtol=0, atol=EXACT)


def test_forward_undoes_the_inverse(transform: Transform) -> None:
    z = 0.5 * torch.randn(7, 4, generator=generator(2), dtype=torch.float64)
    torch.testing.assert_close(transform(transform.inverse(z)), z, rtol=0, atol=EXACT)


def test_log_abs_det_is_that_of_the_dense_jacobian(transform: Transform) -> None:
    x = table(n=5)
    rows = [
        torch.autograd.functional.jacobian(lambda row: transform(row[None])[0], row) for row in x
    ]
    truth = torch.linalg.slogdet(torch.stack(rows)).logabsdet
    got = transform.log_abs_det(x)
    assert got.shape == (5,)
    torch.testing.assert_close(got, truth, rtol=0, atol=EXACT)


def test_points_and_dtype_are_left_as_found(transform: Transform) -> None:
    x = table()
    before = x.clone()
    transform(x), transform.inverse(x), transform.log_abs_det(x)
    assert torch.equal(x, before)


def test_whitened_covariance_is_the_identity() -> None:
    x = table(n=50, d=6)
    z = Whiten.fit(x)(x)
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(z.mean(0), torch.zeros_like(z[0]), rtol=0, atol=EXACT)
    torch.testing.assert_close(z.T @ z / 50, eye, rtol=0, atol=EXACT)
    # The unbiased covariance, 1/(N - 1), would fail.
    assert (torch.cov(z.T) - eye).abs().max() > 1e-3


def test_whitening_orders_and_signs_its_components() -> None:
    whiten = Whiten.fit(table())
    assert torch.equal(whiten.std, whiten.std.sort(descending=True).values)
    largest = whiten.components.gather(0, whiten.components.abs().argmax(0, keepdim=True))
    assert bool((largest > 0).all())


def test_symmetric_whitening_is_the_inverse_root_of_the_covariance() -> None:
    """``C^(-1/2)`` from the eigenvalues of the covariance C."""
    x = table(n=50, d=3)
    centred = x - x.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / 50)
    wanted = centred @ (vectors / values.sqrt() @ vectors.T)
    torch.testing.assert_close(Whiten.fit(x, symmetric=True)(x), wanted, rtol=0, atol=EXACT)
    assert (Whiten.fit(x)(x) - wanted).abs().max() > 0.1  # components have another basis


def test_whitening_refuses_ratios_below_the_least() -> None:
    """Standard deviations of 1 and 1e-3."""
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
    x = x * torch.tensor([1.0, 1e-3])
    assert Whiten.fit(x, min_ratio=0.9e-3).std.tolist() == pytest.approx([1.0, 1e-3])
    with pytest.raises(ValueError, match="full rank 2 to be whitened, got rank 1"):
        Whiten.fit(x, min_ratio=1.1e-3)


def test_whitening_a_singular_covariance_raises() -> None:
    x = table()
    with pytest.raises(ValueError, match="full rank 5 to be whitened, got rank 4 from 40 points"):
        Whiten.fit(torch.cat([x, x[:, :1] + x[:, 1:2]], 1))
    with pytest.raises(ValueError, match="full rank 4 to be whitened, got rank 2 from 3 points"):
        Whiten.fit(x[:3])


def test_whitening_many_points_of_single_precision() -> None:
    """The rank does not depend on how many points there are: columns of sizes 1 and 1/200."""
    x = torch.randn(100_000, 2, generator=generator()) * torch.tensor([1.0, 0.005])
    assert Whiten.fit(x).std.tolist() == pytest.approx([1.0, 0.005], rel=0.02)
    with pytest.raises(ValueError, match="full rank 3 to be whitened, got rank 2"):
        Whiten.fit(torch.cat([x, 0.3 * x[:, :1] + x[:, 1:]], 1))


def test_standardise_serves_any_event_shape() -> None:
    x = torch.randn(30, 2, 3, generator=generator(), dtype=torch.float64)
    z = Standardise.fit(x)(x)
    torch.testing.assert_close(z.mean(0), torch.zeros_like(z[0]), rtol=0, atol=EXACT)
    torch.testing.assert_close(z.square().mean(0), torch.ones_like(z[0]), rtol=0, atol=EXACT)
    assert Standardise.fit(x).log_abs_det(x).shape == (30,)


@pytest.mark.parametrize("fit", [Standardise.fit, Whiten.fit])
@pytest.mark.parametrize("columns", [1, 3])
def test_other_events_than_those_of_the_fit_are_refused(fit: object, columns: int) -> None:
    """One column was broadcast to four."""
    assert callable(fit)
    fitted, x = fit(table()), table()[:, :columns]
    for method in (fitted, fitted.log_abs_det, Compose(fitted, Logit())):
        with pytest.raises(ValueError, match=rf"x must have shape \(None, 4\).*40, {columns}"):
            method(x)
    with pytest.raises(ValueError, match=rf"z must have shape \(None, 4\).*40, {columns}"):
        fitted.inverse(x)
    with pytest.raises(ValueError, match=r"x must have shape \(None, 4\), .*got \(4,\)"):
        fitted.log_abs_det(table()[0])
    assert torch.equal(fitted(table()[0]), fitted(table())[0])
    with pytest.raises(ValueError, match=r"x must have shape \(None, 1\)"):
        Standardise.fit(table()[:, :1])(table())


def test_arrays_are_named() -> None:
    """The message asked for another shape, which an array of the right one has."""
    fitted = Standardise.fit(table())
    for method, name in ((fitted, "x"), (fitted.log_abs_det, "x"), (fitted.inverse, "z")):
        with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, got ndarray; convert"):
            method(table().numpy())  # type: ignore[arg-type]


def test_noise_for_other_columns_than_those_of_the_fit_is_refused() -> None:
    for columns in (1, 3):
        with pytest.raises(ValueError, match=r"x must have shape \(None, 4\), like the points"):
            Dequantise.fit(table(), every_column=True)(table()[:, :columns].numpy())
    assert Dequantise(torch.tensor(0.5))(table()).shape == (40, 4)


def test_one_mean_for_each_channel() -> None:
    """The log-determinant is that of every pixel, not of one per channel."""
    x = torch.randn(5, 3, 2, 2, generator=generator(), dtype=torch.float64)
    std = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).reshape(3, 1, 1)
    scale = Standardise(torch.zeros_like(std), std)
    torch.testing.assert_close(scale.inverse(scale(x)), x)
    np.testing.assert_allclose(scale.log_abs_det(x), [-4 * np.log(6.0)] * 5)


def test_standardise_keeps_the_digits_of_large_numbers() -> None:
    """Moments are computed in double precision."""
    x = (1e5 + torch.randn(1000, 1, generator=generator())).float()
    wide = x.double()
    fitted = Standardise.fit(x)
    assert fitted.std.item() == pytest.approx(wide.std(correction=0).item(), rel=1e-6)
    assert fitted.mean.item() == pytest.approx(wide.mean().item(), abs=0.01)


def test_whitening_keeps_the_digits_of_large_numbers() -> None:
    x = (1e6 + torch.randn(5000, 3, generator=generator())).float()
    z = Whiten.fit(x)(x).double()
    torch.testing.assert_close(z.T.cov(correction=0), torch.eye(3).double(), rtol=0, atol=1e-5)


def test_correlations_keep_the_digits_of_large_numbers() -> None:
    a, b = torch.randn(2, 5000, generator=generator())
    x = (1e6 + torch.stack([a, a + 0.2 * b], 1)).float()
    truth = torch.corrcoef(x.double().mT)[0, 1].item()
    assert drop_correlated(x, truth - 1e-6) == [1]
    assert drop_correlated(x, truth + 1e-6) == [0, 1]


def test_values_that_differ_by_rounding_are_constant() -> None:
    x = torch.cat([table(), torch.full((40, 1), 0.3, dtype=torch.float64)], 1)
    x[::2, 4] = 0.1 + 0.2
    assert x[0, 4] != x[1, 4]
    with pytest.raises(ValueError, match=r"got a constant in \[4\]"):
        Standardise.fit(x)


def test_logit_clips_and_sums_over_the_event() -> None:
    logit = Logit(clip=0.25)
    x = torch.tensor([[[0.0, 0.5], [0.75, 2.0]]], dtype=torch.float64)
    log3 = np.log(3.0)
    np.testing.assert_allclose(logit(x), [[[-log3, 0.0], [log3, log3]]], atol=EXACT)
    # 1 / (y (1 - y)) is 16/3 at 1/4 and 3/4, and 4 at 1/2.
    np.testing.assert_allclose(logit.log_abs_det(x), [np.log(16 / 3) * 3 + np.log(4.0)], atol=EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_logit_is_finite_where_the_clip_is_below_rounding(dtype: torch.dtype) -> None:
    x, logit = torch.tensor([[0.0, 1.0]], dtype=dtype), Logit(1e-4 if dtype.itemsize < 4 else 1e-9)
    assert logit(x).isfinite().all() and logit.log_abs_det(x).isfinite().all()


@pytest.mark.parametrize("x", [[[0.0, 255.0]], [[-1.0, 1.0]]])
def test_logit_refuses_other_ranges(x: list[list[float]]) -> None:
    """They were clipped, so that nearly all values were the same."""
    with pytest.raises(ValueError, match=r"between 0 and 1 .* from (0 to 255|-1 to 1); divide"):
        Logit()(torch.tensor(x))
    Logit()(torch.tensor([[-0.1, 1.1]]))


@pytest.mark.parametrize("clip", [0.0, -0.1, 0.5, float("nan")])
def test_logit_refuses_a_clip_that_leaves_nothing(clip: float) -> None:
    with pytest.raises(ValueError, match="clip must be"):
        Logit(clip)


def test_dequantise_takes_the_median_gap() -> None:
    # Gaps between distinct values: 1, 2, 4, 100 (median 3); and 0.5, 0.5 with repeated values.
    x = torch.tensor([[0.0, 1, 3, 7, 107], [1.0, 1.5, 1.5, 2.0, 1.0]], dtype=torch.float64).T
    width = Dequantise.fit(x, gaps=1.0, every_column=True).width
    assert isinstance(width, Tensor)
    assert width.tolist() == [3.0, 0.5]


def test_dequantise_fills_the_gaps_of_rounded_columns_only() -> None:
    """Half a gap to either side; a column without repeated values stays as it is."""
    x = torch.tensor([[0.0, 1, 3, 7, 107], [1.0, 1.5, 1.5, 2.0, 1.0]], dtype=torch.float64).T
    width = Dequantise.fit(x).width
    assert isinstance(width, Tensor)
    assert width.tolist() == [0.0, 0.25]


def test_dequantise_takes_arrays_and_data_frames() -> None:
    frame = pd.DataFrame({"a": [0, 1, 1, 2], "b": [1.0, 2.0, 2.0, 3.0]}, index=list("wxyz"))
    dequantise = Dequantise.fit(frame)
    noisy = dequantise(frame, generator(1))
    assert list(noisy.columns) == ["a", "b"] and list(noisy.index) == list("wxyz")
    assert ((noisy - frame).abs() <= 0.5).to_numpy().all()
    array = dequantise(frame.to_numpy(), generator(1))
    np.testing.assert_array_equal(array, noisy.to_numpy())
    with pytest.raises(ValueError, match=r"columns of the fit in their order, \['a', 'b'\], got"):
        dequantise(frame[["b", "a"]])


def test_dequantise_noise_is_uniform_on_its_support() -> None:
    x = torch.zeros(100_000, 2, dtype=torch.float64)
    width = torch.tensor([1.0, 3.0], dtype=torch.float64)
    u = Dequantise(width)(x, generator(3)) / width
    # U(-1, 1) has moments 0, 1/3, 0, 1/5; noise on (0, 1), or normal noise, has others.
    powers = torch.stack([u, u**2, u**3, u**4], 1)
    truth = torch.tensor([0, 1 / 3, 0, 1 / 5], dtype=torch.float64)[:, None].expand(4, 2)
    assert_mean(powers, truth, detect=0.02)
    assert u.abs().max() <= 1


def test_dequantise_obeys_its_generator_and_leaves_the_global_one() -> None:
    x = table()
    dequantise = Dequantise(1 / 512)
    state = torch.get_rng_state()
    assert torch.equal(dequantise(x, generator(5)), dequantise(x, generator(5)))
    assert not torch.equal(dequantise(x, generator(5)), dequantise(x, generator(6)))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, torch.tensor([0.5, math.inf]), "wide", None])
def test_widths_of_noise_are_checked(wrong: Any) -> None:
    """Points were NaN, or had the noise of another width, without a word."""
    with pytest.raises((TypeError, ValueError), match=r"width must be .*; half the gap between"):
        Dequantise(wrong)


def test_thresholds_are_checked() -> None:
    """With NaN no column was dropped."""
    for wrong in (math.nan, -0.5, 98, "high", None):
        with pytest.raises(ValueError, match=r"threshold must lie between 0 and 1, got .*; 0\.98"):
            drop_correlated(correlated(), wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="as_released must be True or False, got None"):
        drop_correlated(correlated(), as_released=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("fit", [Standardise.fit, Dequantise.fit, drop_correlated])
def test_constant_coordinates_are_named(fit: object) -> None:
    x = table()
    x[:, 2] = 1.0
    assert callable(fit)
    with pytest.raises(ValueError, match=r"got a constant in \[2\]; drop"):
        fit(x)


@pytest.mark.parametrize("fit", [Whiten.fit, Dequantise.fit, drop_correlated])
def test_tables_only(fit: object) -> None:
    assert callable(fit)
    with pytest.raises(ValueError, match=r"shape \(N, D\), got \(5, 2, 2\); flatten"):
        fit(table(n=5).reshape(5, 2, 2))


def correlated() -> Tensor:
    """Columns a, b, a', -b', c: a' near a, -b' near -b, c alone."""
    a, b, c, e, f = torch.randn(5, 500, generator=generator(), dtype=torch.float64)
    return torch.stack([a, b, a + 0.01 * e, -b + 0.01 * f, c], 1)


def test_drop_correlated_drops_the_first_of_each_pair() -> None:
    assert drop_correlated(correlated()) == [2, 3, 4]
    assert drop_correlated(correlated(), threshold=0.99999) == [0, 1, 2, 3, 4]
    assert drop_correlated(correlated()[:, :1]) == [0]


def test_drop_correlated_as_released_forgets_the_sign_after_the_first_pass() -> None:
    assert drop_correlated(correlated(), as_released=True) == [1, 2, 3, 4]
    # The first pass does see a negative pair.
    assert drop_correlated(correlated()[:, [1, 3, 4]], as_released=True) == [1, 2]
