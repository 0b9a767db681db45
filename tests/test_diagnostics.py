"""`explain` says how derivatives are taken; `check_model` says whether they are right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching.derivatives import composed


class Normed(nn.Module):
    """A log-density with a layer norm, which torch's own double backward gets wrong."""

    def __init__(self, dim: int = 4, act: type[nn.Module] = nn.SiLU) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 6), nn.LayerNorm(6), act(), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


class Hidden(nn.Module):
    """A log-density with an operation that no trace can look into."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(1, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x[..., None])[0].sum((1, 2))


@pytest.fixture
def x(generator: torch.Generator) -> Tensor:
    return torch.randn(3, 4, generator=generator)


def test_explain_lists_every_operation(x: Tensor) -> None:
    table = sm.explain(Normed(), x, show=False)
    routes = {row[0]: row[2] for row in table.rows}
    assert routes["layer_norm"] == "composed"
    assert routes["linear"] == routes["silu"] == "rule"
    assert routes["squeeze"] == "linear"
    assert dict((row[0], row[1]) for row in table.rows)["linear"] == "2"
    assert table.conclusion.startswith("traced")


def test_explain_shows_kinks_and_forward_mode(x: Tensor) -> None:
    table = sm.explain(lambda x: torch.relu(x).prod(-1), x, show=False)
    assert [row[2:] for row in table.rows] == [("rule", "C0"), ("nested jvp", "smooth")]


def test_explain_names_the_obstacle(x: Tensor) -> None:
    table = sm.explain(Hidden(), x, show=False)
    assert "double backward" in table.conclusion
    assert "gru" in table.conclusion


def test_explain_prints_a_table(x: Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    sm.explain(Normed(), x)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operation", "count", "route", "smoothness"]


@pytest.mark.parametrize(
    "objective",
    [
        sm.ScoreMatching(),
        sm.SlicedScoreMatching(),
        sm.SlicedScoreMatchingVR(num_projections=2),
        sm.DenoisingScoreMatching(sigma=0.3),
        sm.FiniteDifferenceSSM(),
        sm.ApproximateBackprop(),
        sm.CurvaturePropagation(),
    ],
    ids=lambda o: type(o).__name__,
)
def test_right_models_pass(objective: sm.Objective, x: Tensor, generator: torch.Generator) -> None:
    check = sm.check_model(Normed(), x, objective, generator=generator, show=False)
    assert check.passed, str(check)
    assert {"derivatives in x", "Linear", "LayerNorm"} == set(check.errors)


def test_models_that_are_not_traced_pass_too(x: Tensor, generator: torch.Generator) -> None:
    check = sm.check_model(Hidden(), x, sm.SlicedScoreMatchingVR(), generator, show=False)
    assert check.passed, str(check)


def test_score_networks_pass(x: Tensor, generator: torch.Generator) -> None:
    net = sm.models.ScoreNetwork(dim=4, hidden=(5,))
    check = sm.check_model(sm.VectorField(net), x, sm.SlicedScoreMatchingVR(), generator, False)
    assert check.passed, str(check)


def test_wrong_derivatives_are_found(
    x: Tensor, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch's own layer norm the gradient of double backward is wrong, and this sees it."""
    monkeypatch.setattr(composed, "_WRONG", frozenset())
    field = sm.LogDensityField(Normed(), route="reverse")
    check = sm.check_model(field, x, sm.SlicedScoreMatchingVR(), generator, show=False)
    assert not check.passed
    assert check.errors["derivatives in x"] < 1e-5 < check.errors["Linear"]
    assert "wrong: " in str(check)


def test_kinks_are_reported(x: Tensor) -> None:
    check = sm.check_model(Normed(act=nn.ReLU), x, sm.SlicedScoreMatchingVR(), show=False)
    assert not check.passed
    assert "net.2: ReLU" in str(check)


def test_the_model_is_left_alone(x: Tensor, generator: torch.Generator) -> None:
    model = Normed()
    before = [p.detach().clone() for p in model.parameters()]
    sm.check_model(model, x, sm.ScoreMatching(), generator, show=False)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


def test_functions_are_refused(x: Tensor) -> None:
    with pytest.raises(TypeError, match=r"model must be an nn\.Module.*write it as a module"):
        sm.check_model(lambda x: -x.square().sum(-1), x, sm.ScoreMatching())


class Dropped(Normed):
    """A log-density with dropout: random from call to call in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.net[0](x), 0.5, self.training).sin().sum(-1)


@pytest.mark.parametrize("objective", [sm.FiniteDifferenceSSM(), sm.NoiseContrastive()])
def test_dropout_is_refused_where_masks_would_differ(objective: sm.Objective, x: Tensor) -> None:
    with pytest.raises(ValueError, match=r"same answer at every call.*dropout.*model\.eval"):
        objective(Dropped(), x)
    assert objective(Dropped().eval(), x).shape == (3,)


def test_dropout_uses_one_mask_for_all_derivatives(x: Tensor) -> None:
    """Every loss is the exact one of some mask; two masks in one loss would be none of them."""
    model = Dropped().double()
    points = x.double().repeat(64, 1)
    weight, bias = model.net[0].weight, model.net[0].bias
    masks = 2.0 * (torch.arange(64)[:, None] >> torch.arange(6) & 1).double()

    def masked(mask: Tensor) -> Tensor:
        density = lambda x: ((x @ weight.T + bias) * mask).sin().sum(-1)  # noqa: E731
        return sm.ScoreMatching()(density, x.double())

    with torch.no_grad():
        losses = sm.ScoreMatching()(model, points).reshape(64, 1, 3)
        possible = torch.stack([masked(mask) for mask in masks])
    assert (losses - possible).abs().amin(1).max() < 1e-9


def test_batch_norm_in_training_mode_is_refused(x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softplus(), nn.Linear(3, 1))
    density = nn.Sequential(model, nn.Flatten(0))
    for route in ("auto", "reverse"):
        field = sm.LogDensityField(density, route=route)
        with pytest.raises(ValueError, match=r"every point by itself.*model\.eval"):
            sm.SlicedScoreMatchingVR()(field, x)
    assert sm.SlicedScoreMatchingVR()(density.eval(), x).shape == (3,)
