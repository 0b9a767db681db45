"""Values, tensors in any layout, distributions and kernel estimates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import scorematching as sm
from scorematching import domains, kernels
from scorematching.distributions import DISTRIBUTIONS
from scorematching.errors import SavedModelError
from scorematching.estimators.density.bases.given import Given
from scorematching.saving.classes import RECORDS
from scorematching.saving.values import Decoder, Encoder


def round_trip(value: Any) -> Any:
    encoder = Encoder()
    node = encoder.encode(value, "value")
    return Decoder(encoder.tensors).decode(node)


PLAIN = [
    None,
    True,
    3,
    0.1,
    -0.0,
    5e-324,
    math.inf,
    -math.inf,
    "text",
    [1, (2, "three"), []],
    (),
    {1: 2.5, "a": {(0, 1): None}},
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back(value: Any) -> None:
    found = round_trip(value)
    assert found == value and type(found) is type(value) and repr(found) == repr(value)


def test_numbers_of_numpy_and_nan() -> None:
    assert round_trip(np.float64(0.1)) == 0.1 and round_trip(np.int64(7)) == 7
    assert math.isnan(round_trip(math.nan)) and round_trip(np.bool_(True)) is True
    found = round_trip(np.array([[1, 2], [3, 4]], dtype=np.int32))
    assert found.dtype == np.int32 and found.tolist() == [[1, 2], [3, 4]]
    assert round_trip(np.array(["a", 1], dtype=object)).tolist() == ["a", 1]
    with pytest.raises(TypeError, match="array of numbers"):
        round_trip(np.array(["a"]))


BLOCK = torch.arange(24.0).reshape(2, 3, 4)
LAYOUTS = {
    "plain": BLOCK,
    "transposed": BLOCK[0].T,
    "permuted": BLOCK.permute(2, 0, 1),
    "sliced": BLOCK[:, ::2],
    "expanded": torch.ones(1).expand(3),
    "scalar": torch.tensor(2.0),
    "empty": torch.empty(0, 3, dtype=torch.float64),
    "one row": BLOCK[:, :1, :1],
    "integers": torch.tensor([1, 2]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_keep_values_type_and_dense_layouts(name: str) -> None:
    value = LAYOUTS[name]
    found = round_trip(value)
    assert found.dtype == value.dtype and torch.equal(found, value)
    if name not in ("sliced", "expanded", "one row"):  # these are not dense
        assert found.stride() == value.stride()
    if value.numel() > 1:
        assert found.data_ptr() != value.data_ptr()


def test_weights_keep_their_layout(tmp_path: Path) -> None:
    saved = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    loaded = sm.load(sm.save(saved, tmp_path / "m"))
    assert loaded.weight.stride() == saved.weight.stride() != torch.ones(4, 3, 2, 2).stride()
    assert torch.equal(loaded.weight, saved.weight)


OBJECTIVES = [
    sm.ScoreMatching(domain=domains.Box(0.0, (1.0, math.inf))),
    sm.SlicedScoreMatchingVR(sm.Sphere(orthogonal=True), 3, beta="optimal"),
    sm.SlicedScoreMatching(domain=domains.Sphere("minsq", 0.5)),
    sm.DenoisingScoreMatching(sm.NoiseLadder((1.0, 0.5))),
    sm.FiniteDifferenceSSM(sm.Rademacher(balanced=False)),
    sm.MaximumLikelihood(),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_objectives_come_back(objective: Any) -> None:
    assert round_trip(objective) == objective


def test_every_distribution_of_the_package_is_listed() -> None:
    kinds, waiting = set(), [sm.distributions.Distribution]
    while waiting:
        found = [k for k in waiting.pop().__subclasses__() if k.__module__.startswith("score")]
        kinds |= set(found)
        waiting += found
    assert {kind.__name__ for kind in kinds} - set(RECORDS) == {Given.__name__}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_come_back(name: str, tmp_path: Path) -> None:
    saved = DISTRIBUTIONS[name]().to(dtype=torch.float64)
    loaded = sm.load(sm.save(saved, tmp_path / "d"))
    g = [torch.Generator().manual_seed(0) for _ in range(2)]
    x = saved.sample(9, g[0])
    assert type(loaded) is type(saved) and torch.equal(loaded.sample(9, g[1]), x)
    assert torch.equal(loaded(x), saved(x)) and torch.equal(loaded.score(x), saved.score(x))


def test_kernel_estimates_of_many_sets_come_back(tmp_path: Path) -> None:
    x = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fits = [kernels.fit_stein, kernels.fit_spectral, kernels.fit_kernel_exp_family]
    for i, fit in enumerate(fits):
        saved = fit(x)
        loaded = sm.load(sm.save(saved, tmp_path / str(i)))
        assert torch.equal(loaded.score(0.5 * x), saved.score(0.5 * x))


def test_a_missing_tensor_is_named() -> None:
    encoder = Encoder()
    node = encoder.encode(torch.ones(2), "weights")
    with pytest.raises(SavedModelError, match="'weights'"):
        Decoder({}).decode(node)


def test_an_estimator_of_another_device_loads_on_the_cpu(tmp_path: Path) -> None:
    loaded = sm.load(sm.save(sm.SteinScoreEstimator(device="cuda"), tmp_path / "gpu"))
    assert loaded.device == "cpu"
    assert sm.load(sm.save(sm.SteinScoreEstimator(), tmp_path / "none")).device is None


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    model = sm.models.MLPDensity(2, (3,))
    with pytest.raises(TypeError, match="notes"):
        sm.save(model, tmp_path / "m", notes=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="overwrite"):
        sm.save(model, tmp_path / "m", overwrite="yes")  # type: ignore[arg-type]
    sm.save(model, tmp_path / "m")
    with pytest.raises(RuntimeError, match="device"):
        sm.load(tmp_path / "m", device="abacus")
