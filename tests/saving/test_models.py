"""Models survive a folder to the last digit, and what cannot be saved is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import scorematching as sm
from scorematching.models import DKEF, MLPDensity, ScoreNetwork
from scorematching.saving.arguments import ARGUMENTS
from scorematching.saving.classes import ESTIMATORS, MODULES, RECORDS, find_class
from tests.saving.examples import MODELS, answers, assert_refused, model


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_is_the_saved_one(name: str, tmp_path: Path) -> None:
    saved = model(name)
    loaded = sm.load(sm.save(saved, tmp_path / "m"))
    assert type(loaded) is type(saved) and repr(loaded) == repr(saved)
    expected, found = saved.state_dict(), loaded.state_dict()
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert found[key].dtype == value.dtype and torch.equal(found[key], value)
    for (_, a), (_, b) in zip(saved.named_parameters(), loaded.named_parameters(), strict=True):
        assert a.requires_grad == b.requires_grad
    assert [m.training for m in loaded.modules()] == [m.training for m in saved.modules()]
    for key, value in answers(saved).items():
        np.testing.assert_array_equal(answers(loaded)[key], value)


def test_the_weights_are_a_plain_state_dict(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    saved = model("mlp")
    sm.save(saved, tmp_path / "m")
    state = load_file(tmp_path / "m" / "model.safetensors")
    assert {k: v.tolist() for k, v in state.items()} == {
        k: v.tolist() for k, v in saved.state_dict().items()
    }


def test_modes_of_parts_are_kept(tmp_path: Path) -> None:
    saved = nn.Sequential(MLPDensity(2, (3,)).eval(), nn.Flatten(0))
    saved[0].location.requires_grad_(False)
    loaded = sm.load(sm.save(saved, tmp_path / "m"))
    assert (loaded.training, loaded[0].training, loaded[1].training) == (True, False, True)
    frozen = [name for name, p in loaded.named_parameters() if not p.requires_grad]
    assert frozen == ["0.location"]


def test_layers_without_weights_may_be_shared(tmp_path: Path) -> None:
    """One activation in several places, as many write it, and layers that do nothing."""
    activation, dropout = nn.Softplus(beta=2.0), nn.Dropout(0.5).eval()
    parts = [nn.Linear(2, 3), activation, dropout, nn.Linear(3, 3), activation, dropout]
    saved = nn.Sequential(*parts, nn.Identity(1, unused=2), nn.Linear(3, 1))
    loaded = sm.load(sm.save(saved, tmp_path / "m"))
    x = torch.linspace(-1, 1, 8).reshape(4, 2)
    assert torch.equal(loaded(x), saved(x))
    assert repr(loaded) == repr(saved)
    assert [part.training for part in loaded] == [part.training for part in saved]
    norm = nn.BatchNorm1d(3, affine=False)
    with pytest.raises(TypeError, match="must not use one weight in two places"):
        sm.save(nn.Sequential(nn.Linear(2, 3), norm, nn.Linear(3, 3), norm), tmp_path / "n")


def test_loading_leaves_the_random_state_and_takes_no_memory_of_the_file(tmp_path: Path) -> None:
    folder = sm.save(model("nice"), tmp_path / "m")
    before = torch.get_rng_state()
    first, second = sm.load(folder), sm.load(folder)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        first.log_scale.add_(1)
    assert not torch.equal(first.log_scale, second.log_scale)


def test_every_listed_class_exists_and_has_arguments() -> None:
    assert set(MODULES) == set(ARGUMENTS)
    for table in (MODULES, RECORDS, ESTIMATORS):
        for name in table:
            kind = find_class(name, table)
            assert (
                kind.__name__ == name.split(".")[-1]
                and kind.__module__ == f"scorematching.{table[name]}"
            )


def test_every_public_model_is_listed() -> None:
    public = [vars(sm.models)[name] for name in sm.models.__all__]
    modules = {kind.__name__ for kind in public if issubclass(kind, nn.Module)}
    assert modules <= set(MODULES)
    assert {kind.__name__ for kind in public} - modules <= set(RECORDS)


# Refusals.


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Longer(MLPDensity):
    """A subclass, whose code would be lost."""


def _hooked() -> nn.Module:
    found = MLPDensity(2, (3,))
    found.net.register_forward_hook(lambda *_: None)
    return found


def _replaced_forward() -> nn.Module:
    found = MLPDensity(2, (3,))
    found.forward = lambda x: x.sum(-1)  # type: ignore[method-assign]
    return found


def _other_layers() -> nn.Module:
    found = ScoreNetwork(2, (3, 3))
    found.net[3] = nn.Tanh()
    return found


def _shared() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.Tanh(), layer)


REFUSED = {
    "an own module": (Own, "Own.*state_dict"),
    "an own module inside": (lambda: nn.Sequential(nn.Linear(2, 2), Own()), "Own.*state_dict"),
    "an own base": (lambda: DKEF(2, 3, base=Own()), "Own.*state_dict"),
    "an own activation": (
        lambda: MLPDensity(2, (3,), type("Act", (nn.Tanh,), {})),
        "Act.*state_dict",
    ),
    "a subclass": (lambda: Longer(2, (3,)), "Longer.*state_dict"),
    "hooks": (_hooked, "hooks"),
    "a replaced forward": (_replaced_forward, "replaced forward"),
    "replaced layers": (_other_layers, "layers were replaced"),
    "shared layers": (_shared, "shared"),
    "a layer without its arguments": (lambda: nn.LSTM(2, 3), "LSTM"),
    "a function": (lambda: torch.sin, "must be a model, an estimator"),
    "a tensor": (lambda: torch.ones(2), "must be a model, an estimator"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_saved_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    assert_refused(*REFUSED[name], tmp_path)
