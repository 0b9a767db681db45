"""Messages: the argument, what it must be, what arrived, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching.training import TrainConfig, train
from tests.training.problems import density, points, seeded


class Held(nn.Module):
    """A density that holds something else, too."""

    def __init__(self, w: Tensor | None = None, extra: int | None = None) -> None:
        super().__init__()
        self.density, self.extra = density(), extra
        if isinstance(w, nn.Parameter):
            self.w = w
        else:
            self.register_buffer("w", w)

    def get_extra_state(self) -> int | None:
        return self.extra

    def set_extra_state(self, state: int | None) -> None:
        self.extra = state

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.density(x)
        return found


CONFIGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "one of steps and epochs must be given, got steps=None and epochs=None; try"),
    ({"steps": 1, "epochs": 1}, ValueError, "one of steps and epochs must be given"),
    ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
    ({"epochs": 1.5}, TypeError, "epochs must be an integer, got 1.5"),
    ({"steps": 1, "batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    ({"steps": 1, "lr": 0.0}, ValueError, "lr must be positive, got 0.0"),
    ({"steps": 1, "schedule": "step"}, ValueError, 'must be "constant" or "cosine", got \'step\''),
    ({"steps": 1, "warmup": -1}, ValueError, "warmup must be at least 1, got -1; zero is for no"),
    ({"steps": 1, "max_norm": -1.0}, ValueError, "max_norm must be positive, got -1.0; None"),
    ({"steps": 1, "ema_decay": 1.0}, ValueError, "ema_decay must lie between 0 and 1, got 1.0"),
    ({"steps": 1, "ema_decay": "x"}, ValueError, "ema_decay must lie between 0 and 1, got 'x'"),
    ({"steps": 1, "patience": 0}, ValueError, "patience must be at least 1, got 0; None"),
    ({"steps": 1, "log_every": 0}, ValueError, "log_every must be at least 1"),
    ({"steps": 1, "precision": "fp16"}, ValueError, 'must be "float32" or "bf16", got \'fp16\''),
    ({"steps": 1, "drop_last": 1}, TypeError, "drop_last must be True or False, got 1"),
]


@pytest.mark.parametrize(("values", "error", "message"), CONFIGS)
def test_config(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        TrainConfig(**values)
    assert message in str(caught.value)


ONE = TrainConfig(steps=1, batch_size=8)

CALLS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "the model must be an nn.Module, or a field around one": (
        {"model": sm.VectorField(lambda x: -x)},
        TypeError,
    ),
    "the model must have parameters to train, got Identity": (
        {"model": nn.Identity()},
        ValueError,
    ),
    "objective must be an Objective, got str": ({"objective": "ssm"}, TypeError),
    "config must be a TrainConfig, got dict; try": ({"config": {"steps": 1}}, TypeError),
    "data must be a tensor, a stream or an iterable of batches, got int": ({"data": 3}, TypeError),
    "data must be a tensor, a stream or an iterable of batches, got ndarray": (
        {"data": points().numpy()},
        TypeError,
    ),
    "objective must be an Objective, got the class ScoreMatching; pass ScoreMatching()": (
        {"objective": sm.ScoreMatching},
        TypeError,
    ),
    "optimizer must be called with parameters and lr=, got an optimiser that is made already": (
        {"optimizer": torch.optim.Adam(density().parameters())},
        TypeError,
    ),
    "optimizer must be called with parameters and lr=, got 'adam'; pass the class torch.optim.Ad": (
        {"optimizer": "adam"},
        TypeError,
    ),
    "the model must have weights of known sizes, got lazy layers": (
        {"model": nn.Sequential(nn.LazyLinear(1), nn.Flatten(0))},
        ValueError,
    ),
    "a folder takes dense tensors, and complex ones in complex64, got torch.complex128 for w": (
        {"model": Held(w=nn.Parameter(torch.ones(2, dtype=torch.complex128))), "folder": "run"},
        ValueError,
    ),
    "a folder takes dense tensors, and complex ones in complex64, got torch.sparse_coo for w": (
        {"model": Held(w=torch.eye(2).to_sparse()), "folder": "run"},
        ValueError,
    ),
    "must hold tensors only, got int for _extra_state; keep it in an attribute": (
        {"model": Held(extra=3)},
        TypeError,
    ),
    "data must have shape (N, *event), got (3,)": ({"data": torch.ones(3)}, ValueError),
    "data must be finite, got NaN or infinity": ({"data": points() / 0}, ValueError),
    "batch_size must be at most the number of points, 4, got 8": (
        {"data": points(4)},
        ValueError,
    ),
    "data must give batches in every epoch, got none in epoch 1": (
        {"data": iter([points()]), "config": TrainConfig(steps=2)},
        ValueError,
    ),
    "steps must be given for data of unknown length, got epochs=2": (
        {"data": iter([points()]), "config": TrainConfig(epochs=2)},
        ValueError,
    ),
    "validation must be held-out points or a function of the model, got float": (
        {"validation": 0.5},
        TypeError,
    ),
    "validation must have shape (N, *event), got (3,)": (
        {"validation": torch.ones(3)},
        ValueError,
    ),
    "validation_objective must come with held-out points, got validation=NoneType": (
        {"validation_objective": sm.ScoreMatching()},
        ValueError,
    ),
    "patience must come with a validation, got 3 without": (
        {"config": TrainConfig(steps=1, batch_size=8, patience=3)},
        ValueError,
    ),
    'executor must be one that can run here: "captured" needs a CUDA device, got cpu; "auto"': (
        {"executor": "captured"},
        ValueError,
    ),
    "executor must be \"auto\", one of ('eager', 'captured', 'compiled', 'compiled+captured')": (
        {"executor": "fast"},
        ValueError,
    ),
    "in order of preference, got ()": ({"executor": ()}, ValueError),
    "callbacks must be Callback objects, got builtin_function_or_method": (
        {"callbacks": [print]},
        TypeError,
    ),
    "optimizer must hold the parameters that are trained and no others, got one with 1 of": (
        {"optimizer": lambda parameters, lr: torch.optim.SGD(parameters[:1], lr=lr)},
        ValueError,
    ),
    "optimizer must take a step on gradients alone, got LBFGS": (
        {"optimizer": torch.optim.LBFGS},
        ValueError,
    ),
    "generator must be a torch.Generator or None, got int": ({"generator": 0}, TypeError),
    "folder must be given to resume a run, got None": ({"resume": True}, ValueError),
    "generator must be given along with a folder, got None": (
        {"folder": "run", "generator": None},
        ValueError,
    ),
    "resume must be True or False, got 'yes'": ({"resume": "yes"}, TypeError),
    "progress must be True or False, got 2": ({"progress": 2}, TypeError),
}


@pytest.mark.parametrize("message", CALLS)
def test_call(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values, error = CALLS[message]
    arguments: dict[str, Any] = {
        "model": density(),
        "objective": sm.ScoreMatching(),
        "data": points(),
        "config": ONE,
        "generator": seeded(0),
        **values,
    }
    with pytest.raises(error) as caught:
        train(**arguments)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_of_several_tensors_are_named(accumulate: int) -> None:
    """As of DataLoader(TensorDataset(x, y)); the advice was to convert x to a tensor."""
    config, data = TrainConfig(steps=1, accumulate=accumulate), [[points(), torch.zeros(3)]]
    with pytest.raises(
        TypeError, match=r"got list, .*transform=lambda batch, generator: batch\[0\]"
    ):
        train(density(), sm.ScoreMatching(), data, config)
    train(density(), sm.ScoreMatching(), data, config, transform=lambda batch, generator: batch[0])
