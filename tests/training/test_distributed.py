"""Two processes that train together are one that trains alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.tolerances import IDENTITY
from tests.training.problems import exact, gradient, start


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two real ranks computed, joined by gloo."""
    folder = tmp_path_factory.mktemp("ranks")
    process = start("ranks", str(folder))
    assert process.returncode == 0, process.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def test_gradient_is_that_of_one_process(ranks: list[dict[str, Any]]) -> None:
    """For the same points and directions, half of them in each process."""
    gradients = torch.tensor([rank["gradient"] for rank in ranks], dtype=torch.float64)
    alone = torch.tensor(gradient(None, 0), dtype=torch.float64)
    assert torch.equal(gradients[0], gradients[1])
    assert torch.allclose(gradients[0], alone, rtol=0, atol=IDENTITY)


def test_training_is_that_of_one_process(ranks: list[dict[str, Any]]) -> None:
    """Clipped, averaged, over several epochs."""
    weights = torch.tensor([rank["exact"] for rank in ranks], dtype=torch.float64)
    alone = torch.tensor(exact(None, 0), dtype=torch.float64)
    assert torch.equal(weights[0], weights[1])
    assert torch.allclose(weights[0], alone, rtol=0, atol=IDENTITY)


def test_ranks_stay_together_with_noise_of_their_own(ranks: list[dict[str, Any]]) -> None:
    """Weights, history and best step, though each draws its own directions."""
    assert ranks[0]["sliced"] == ranks[1]["sliced"]


def test_ranks_resume_to_the_same_digits(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["resumed"] == rank["sliced"]


def test_equal_noise_is_refused(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "generator must differ from process to process" in rank["same_noise"]


def test_untouched_parameters_would_break_it(ranks: list[dict[str, Any]]) -> None:
    """Why the loss module gives unused parameters a gradient: torch gives up without."""
    for rank in ranks:
        assert "parameters that were not used in producing loss" in rank["untouched"]
