"""Several processes that train together are one that trains alone.

What they compute is in `distributed` and `distributed_cases`; every group of processes computes all
its cases in one go.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tolerances import IDENTITY
from tests.training import distributed_cases as cases
from tests.training.distributed import DIAGONAL, EQUAL, MODELS, OBJECTIVES, start, trained, vectors
from tests.training.problems import EVERYTHING, Interrupted, digits, interrupted, run_everything

EXACT = 1e-10
"""The difference between processes and one of them, over 20 steps in float64."""

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that a single process began."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.raises(Interrupted):
        run_everything(folder / "alone", transform=interrupted(18))
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Found:
    """What two processes computed, joined by gloo."""
    return start("tests.training.distributed_cases", "ALL", 2, folder)


@cache
def alone(model: str, objective: str) -> dict[str, Any]:
    return trained(model, objective)


def assert_equal(found: Found, case: str, expected: dict[str, Any]) -> None:
    """The gradients, weights and losses of every process, and the next random number."""
    for rank in found:
        for (name, mine), (_, wanted) in zip(vectors(rank[case]), vectors(expected), strict=True):
            assert torch.allclose(mine, wanted, rtol=0, atol=EXACT), (case, name)
        assert rank[case]["next"] == expected["next"]


def assert_case(found: Found, case: str) -> None:
    _, objective, model = case.split(" ", 2)
    assert_equal(found, case, alone(model, objective))


@pytest.mark.parametrize("case", DIAGONAL)
def test_two_processes_are_like_one(ranks: Found, case: str) -> None:
    assert_case(ranks, case)


def test_four_processes_are_like_one(tmp_path: Path) -> None:
    found = start("tests.training.distributed", "CORNER", 4, tmp_path)
    for case in found[0]:
        assert_case(found, case)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [2, 4])
def test_every_objective_and_model(count: int, tmp_path: Path) -> None:
    found = start("tests.training.distributed", "EQUAL", count, tmp_path, timeout=500)
    assert len(found[0]) == 2 * len(MODELS) * len(OBJECTIVES) == len(EQUAL)
    for case in EQUAL:
        assert_case(found, case)


# Noise, averages, validations, parts.


def close(found: Any, expected: Any, tolerance: float = EXACT) -> bool:
    """Whether nested lists have the same numbers, up to rounding."""
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(close, found, expected))
    if expected is None or isinstance(expected, int):
        return bool(found == expected)
    return abs(found - expected) <= tolerance


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_everything_at_once(ranks: Found, how: str) -> None:
    """Noise in batches and objective, clipping, an average, validations, the best weights."""
    expected = digits(run_everything(None))
    assert all(close(rank[f"everything {how}"], expected) for rank in ranks)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_batches_in_parts(ranks: Found, how: str) -> None:
    """Gradients that are added up are those of the whole batch, in one process, too."""
    assert_equal(ranks, f"accumulated {how}", alone("density", "SSM-VR"))
    assert_equal(
        [{"alone": trained("density", "SSM-VR", accumulate=4)}],
        "alone",
        alone("density", "SSM-VR"),
    )


def test_seed_of_the_main_process(ranks: Found) -> None:
    """Generators with other seeds take its state."""
    for (_, mine), (_, wanted) in zip(
        vectors(ranks[1]["another seed"]), vectors(alone("density", "SSM"))
    ):
        assert torch.allclose(mine, wanted, rtol=0, atol=EXACT)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_parts_trained_in_turn(ranks: Found, how: str) -> None:
    """A parameter that waits for its turn has no gradient, not one of zero."""
    assert all(close(rank[f"alternating {how}"], cases.alternating("ddp")) for rank in ranks)


def test_functions_draw_noise_of_their_own(ranks: Found) -> None:
    """Other numbers in every process and part, the same in every run; unequal shares of points."""
    drawn = [[n for _, n in rank["own noise"]["drawn"]] for rank in ranks]
    assert len({*drawn[0], *drawn[1]}) == len(drawn[0]) + len(drawn[1]) == 12
    assert all(rank["own noise"] == rank["own noise again"] for rank in ranks)
    sizes = [[n for n, _ in rank["own noise"]["drawn"]] for rank in ranks]
    assert sizes == [[3, 2] * 3, [2, 2] * 3]
    assert ranks[0]["own noise"]["points"] == 27


def test_batches_from_an_iterable_are_shared(ranks: Found) -> None:
    assert all(close(rank["loaded"], cases.loaded(different=False)) for rank in ranks)
    for rank in ranks:
        assert "data must give the same batches in all 2 processes" in rank["loaded differently"]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_mixed_precision(ranks: Found, how: str) -> None:
    """Sums over points are rounded in another order: bf16 has three digits."""
    expected = torch.tensor(cases.half_precision("ddp"))
    for rank in ranks:
        found = torch.tensor(rank[f"bf16 {how}"])
        assert (found - expected).norm() < 0.02 * expected.norm()


# Checkpoints.


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_one_process_resumes_what_two_began(ranks: Found, folder: Path, how: str) -> None:
    assert all(rank[f"interrupted {how}"] == "interrupted" for rank in ranks)
    index = json.loads((folder / how / "checkpoint.json").read_text())
    assert index["processes"] == 2 and 0 < index["step"] < EVERYTHING.steps
    config = replace(EVERYTHING, parallel=how)
    resumed = digits(run_everything(folder / how, resume=True, config=config, seed=99))
    assert close(resumed, digits(run_everything(None)))


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_processes_resume_what_one_began(ranks: Found, how: str) -> None:
    expected = digits(run_everything(None))
    assert all(close(rank[f"resumed {how}"], expected) for rank in ranks)


# Split weights.


def test_layers_that_are_split_already(ranks: Found) -> None:
    assert_equal(ranks, "sharded layers", alone("density", "SSM-VR"))


def test_each_process_holds_a_part(ranks: Found) -> None:
    """Weights, average and optimiser together; afterwards the module has whole weights again."""
    held = [rank["held"][0] for rank in ranks]
    assert sum(held) == ranks[0]["held"][1]
    assert max(held) < 0.6 * ranks[0]["held"][1]


def test_what_cannot_be_split_is_refused(ranks: Found) -> None:
    for rank in ranks:
        assert "got scale of shape (); give it shape (1,)" in rank["number"]
        assert "got one of 3 points; use larger batches" in rank["few points"]


# Mechanisms removed: each makes a run differ from that of one process, or fail.


def difference(found: Found, case: str) -> float:
    def weights(name: str) -> Tensor:
        return torch.tensor([rank[name]["weights"] for rank in found], dtype=torch.float64)

    return (weights(case) - weights("nothing")).abs().max().item()


@pytest.mark.parametrize("mechanism", ["averaging", "shared noise", "shared points"])
def test_runs_without_a_mechanism_differ(ranks: Found, mechanism: str) -> None:
    assert difference(ranks, mechanism) > 1e-4


def test_runs_without_a_mechanism_fail(ranks: Found) -> None:
    for rank in ranks:
        assert "parameters that were not used" in rank["touched parameters"]
        assert "the same batches in all 2 processes" in rank["common noise"]
        assert "RuntimeError" in rank["whole weights"]


# Double backward as everybody writes it, under FSDP2.


@pytest.mark.parametrize("way", cases.WAYS)
def test_plain_double_backward_under_fsdp(ranks: Found, way: str) -> None:
    """An error, or with PyTorch's remedy for it wrong weights without one.

    The remedy is right only around the backward passes inside the loss, and where the whole model
    is split. Otherwise the last weight's gradient is one step late, or the model keeps the weights
    of the first step. `train` splits the loss, not the model.
    """
    for rank in ranks:
        assert "setStorage" in rank[f"none {way}"]
        worst = {remedy: max(rank[f"{remedy} {way}"].values()) for remedy in ("inside", "always")}
        assert worst["always"] > 1e-3
        assert (worst["inside"] > 1e-3) if way == "layers" else (worst["inside"] < IDENTITY)
