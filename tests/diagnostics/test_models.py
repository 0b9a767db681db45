"""`explain` says how derivatives are taken; `check_model` says whether they are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching.derivatives import speed
from scorematching.derivatives.engine.trace import Untraceable
from scorematching.derivatives.ops import compositions
from tests.derivatives.ways.habits import Cube


class Normed(nn.Module):
    """A log-density with a layer norm, which torch's own double backward gets wrong."""

    def __init__(self, dim: int = 4, act: type[nn.Module] = nn.SiLU) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 6), nn.LayerNorm(6), act(), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


class Hidden(nn.Module):
    """A log-density that calls its layer inside ``vmap``, where it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: torch.tanh(self.layer(row)).sum())(x)


@pytest.fixture
def x(generator: torch.Generator) -> Tensor:
    return torch.randn(3, 4, generator=generator)


class Conjugate(torch.autograd.Function):
    """The identity, with the conjugate of its gradient."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].conj()


class Waves(nn.Module):
    """A log-density with complex weights, whose gradient may be wrong."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.cdouble))
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        w = Conjugate.apply(self.weight) if self.wrong else self.weight
        z = x.to(torch.cdouble) @ w
        return torch.tanh(z.real).sum(-1) - z.imag.square().sum(-1)


@pytest.mark.parametrize("wrong", [False, True])
def test_check_model_takes_complex_weights(wrong: bool, x: Tensor) -> None:
    field = sm.LogDensityField(Waves(wrong), route="reverse")
    check = sm.check_model(field, x, sm.DenoisingScoreMatching(0.3), show=False)
    assert check.passed is not wrong


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*not a leaf Tensor:UserWarning")  # of copies, in torch
def test_check_model_takes_scripted_modules(x: Tensor) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))
    check = sm.check_model(torch.jit.script(net), x, sm.SlicedScoreMatchingVR(), show=False)
    assert check.passed
    assert "Linear" in str(check)


def test_explain_lists_every_operation(x: Tensor) -> None:
    table = sm.explain(Normed(), x, show=False)
    routes = {row[0]: row[2] for row in table.rows}
    assert routes["layer_norm"] == "rule"
    assert routes["linear"] == routes["silu"] == "rule"
    assert routes["squeeze"] == "linear"
    assert dict((row[0], row[1]) for row in table.rows)["linear"] == "2"
    assert table.conclusion.startswith("traced")


def test_explain_shows_kinks_and_forward_mode(x: Tensor) -> None:
    table = sm.explain(lambda x: torch.i0(torch.relu(x)).sum(-1), x, show=False)
    rows = {row[0]: row[2:] for row in table.rows}
    assert rows["relu"] == ("rule", "C0")
    assert rows["i0"] == ("decomposed", "smooth")
    assert rows["i0.default"] == ("nested jvp", "smooth")
    assert "refused" in table.conclusion


def test_explain_names_the_obstacle(x: Tensor) -> None:
    table = sm.explain(Hidden(), x, show=False)
    assert table.conclusion.startswith("not traced, double backward instead")
    assert "vmap" in table.conclusion
    assert "test_models.py:" in table.conclusion


def test_explain_says_that_the_caller_chose(x: Tensor) -> None:
    table = sm.explain(sm.LogDensityField(Normed(), route="reverse"), x, show=False)
    assert table.conclusion.startswith("not traced, double backward instead")
    assert 'route="reverse"' in table.conclusion


def test_explain_says_that_double_backward_is_faster(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that the trace was wrong, which it was not."""
    seconds = iter([5.0, 1.0, 5.0, 1.0])  # the trace, then double backward, twice
    monkeypatch.setattr(speed, "_seconds", lambda *arguments: next(seconds))
    field = sm.LogDensityField(lambda x: torch.i0(x).sum(-1))
    for _ in range(8):
        sm.SlicedScoreMatchingVR()(field, x)
    conclusion = sm.explain(field, x, show=False).conclusion
    assert "double backward instead (measured to be faster than the trace)" in conclusion


CENTRES = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(4, 3)

PROBES: dict[str, Callable[[Tensor, nn.Module], Tensor]] = {
    "mixture": lambda x, n: torch.logsumexp(-(x[:, None] - CENTRES).square().sum(-1), 1),
    "mixture, components first": lambda x, n: torch.logsumexp(
        -(x[None] - CENTRES[:, None]).square().sum(-1), 0
    ),
    "sequence first": lambda x, n: (
        n(x.reshape(-1, 3, 1).transpose(0, 1).reshape(-1, 1).expand(-1, 3)).reshape(3, -1).sum(0)
    ),
    "addmm": lambda x, n: torch.addmm(CENTRES[0], x.sin(), CENTRES[1:]).sin().sum(-1),
    "index_add": lambda x, n: (
        torch.zeros(len(x), 2, dtype=x.dtype)
        .index_add(1, torch.tensor([0, 1, 0]), x.sin())
        .sin()
        .sum(-1)
    ),
    "iteration over rows": lambda x, n: torch.stack([row.sin().sum() for row in x]),
    "repeated points": lambda x, n: n(x.repeat_interleave(3, 0)).reshape(len(x), 3).logsumexp(1),
    "expanded points": lambda x, n: (
        n(x.expand(3, *x.shape).reshape(-1, 3)).reshape(3, -1).logsumexp(0)
    ),
    "isinstance": lambda x, n: (x.sin() if isinstance(x, Tensor) else x.cos()).sum(-1),
    "vmap": lambda x, n: torch.func.vmap(lambda row: row.sin().sum())(x),
    "custom function": lambda x, n: Cube.apply(x).sum(-1),
    "eigenvalues": lambda x, n: (
        torch.linalg.eigvalsh(CENTRES[:3] @ CENTRES[:3].T + torch.diag_embed(x.exp())).log().sum(-1)
    ),
}


@pytest.mark.parametrize("probe", PROBES)
def test_explain_agrees_with_what_the_objective_does(probe: str) -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        return PROBES[probe](x, net)

    said = sm.explain(model, x, show=False).conclusion
    try:
        field = sm.LogDensityField(model, route="traced")
        sm.SlicedScoreMatchingVR()(field, x)
        traced = True
    except Untraceable:
        traced = False
    assert said.startswith("traced" if traced else "not traced")
    assert traced is (probe not in ("vmap", "custom function", "eigenvalues"))


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


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
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
    """With torch's own layer norm the gradient of double backward is wrong, and this sees it.

    The checks at the first use are switched off.
    """
    monkeypatch.setattr(compositions, "_WRONG", {})
    field = sm.LogDensityField(Normed(), route="reverse", check_smoothness=False)
    check = sm.check_model(field, x, sm.SlicedScoreMatchingVR(), generator, show=False)
    assert not check.passed
    assert check.errors["derivatives in x"] < 1e-5 < check.errors["Linear"]
    assert "wrong: " in str(check)


class Scaled(nn.Module):
    """A linear layer times ``|scale|``, written so that its gradient is NaN at zero."""

    def __init__(self, outputs: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, 4))
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T * self.scale.square().sqrt()


def test_a_gradient_of_nan_is_wrong_whatever_comes_after(generator: torch.Generator) -> None:
    """Another layer of the same kind, whose gradient is right, must not hide it."""
    layers = nn.Sequential(Scaled(4, 0.0), nn.Tanh(), Scaled(1, 1.0), nn.Flatten(0))
    field = sm.LogDensityField(layers, check_smoothness=False)
    x = torch.randn(3, 4, generator=generator)
    found = sm.diagnostics.check_model(field, x, sm.ScoreMatching(), generator, show=False)
    assert not found.passed


def test_kinks_are_reported(x: Tensor) -> None:
    check = sm.check_model(Normed(act=nn.ReLU), x, sm.SlicedScoreMatchingVR(), show=False)
    assert not check.passed
    assert check.rows == (("model", "refused"),)
    assert "net.2 ReLU" in str(check)


class Units(nn.Module):
    """A network of data in other units."""

    def __init__(self, unit: float = 1.0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x / self.unit).squeeze(-1)


class Fourier(Units):
    """Random Fourier features with a frozen matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(4) + 0.3, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x @ self.matrix).sin()).squeeze(-1)


class Gaussian(nn.Module):
    """No parameters at all."""

    def forward(self, x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(-1)


class Unused(Units):
    """Parameters that the output does not depend on."""

    def forward(self, x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(-1)


class SinglePrecision(Units):
    """A norm computed in float32, whatever the precision of the data."""

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return self.net(h.to(x.dtype)).squeeze(-1)


class LeakyByHand(Units):
    """A kink without an operation of its own."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.net[0](x)
        return torch.where(h > 0, h, 0.01 * h).sum(-1) - 0.5 * x.square().sum(-1)


@pytest.mark.parametrize("unit", [1e-3, 1e-2, 1.0, 1e2, 1e3])
def test_verdicts_do_not_depend_on_units(
    unit: float, x: Tensor, generator: torch.Generator
) -> None:
    check = sm.check_model(Units(unit), x * unit, sm.SlicedScoreMatchingVR(), generator, False)
    assert check.passed, str(check)


@pytest.mark.parametrize("model", [Fourier, Gaussian, Unused, SinglePrecision])
def test_right_models_of_every_kind_pass(model: type[nn.Module]) -> None:
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(6, 4, generator=g)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            check = sm.check_model(model(), x, sm.SlicedScoreMatchingVR(), g, show=False)
        assert check.passed, str(check)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_module_that_keeps_computed_tensors_passes(x: Tensor, generator: torch.Generator) -> None:
    model = Units()
    model.net[0] = nn.utils.weight_norm(model.net[0])
    objective = sm.SlicedScoreMatchingVR()
    objective(model, x)  # leaves a weight with a graph behind
    check = sm.check_model(model, x, objective, generator, show=False)
    assert check.passed, str(check)


def test_kinks_without_an_operation_of_their_own_are_reported(generator: torch.Generator) -> None:
    x = torch.randn(32, 4, generator=generator)
    check = sm.check_model(LeakyByHand(), x, sm.SlicedScoreMatchingVR(), generator, show=False)
    assert not check.passed
    assert "where" in str(check)


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


@pytest.mark.parametrize("diagnose", [sm.check_model, sm.explain, sm.variance_report])
def test_a_prompt_does_not_show_a_printed_table_again(
    diagnose: Callable[..., object], x: Tensor
) -> None:
    """A prompt shows the result of a call, which was a screenful of fields."""
    objective = () if diagnose is sm.explain else (sm.SlicedScoreMatchingVR(),)
    result = diagnose(Normed(), x, *objective, show=False)
    assert len(repr(result)) < 120 < len(str(result))
