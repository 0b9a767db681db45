"""Whole training steps: the same numbers as a loop written by hand."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scorematching import (
    CurvaturePropagation,
    DenoisingScoreMatching,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    VectorField,
    _directions,
)
from scorematching.capture import CapturedStep, compile_step
from scorematching.models import MLPDensity, ScoreNetwork
from tests.tolerances import FLOAT32, IDENTITY

Step = Callable[[Tensor], Tensor]
COMPILER_WARNINGS = pytest.mark.filterwarnings("ignore")
"""The compiler warns of its own deprecated parts."""

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def seeded(seed: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def density(device: str = "cpu", dtype: torch.dtype = torch.float64) -> MLPDensity:
    return MLPDensity(3, (8, 8), generator=seeded(0)).to(device, dtype)


def batches(
    num: int, n: int = 16, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    g = seeded(1)
    return [torch.randn(n, 3, generator=g, dtype=dtype).to(device) for _ in range(num)]


def by_hand(
    module: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    xs: list[Tensor],
    max_norm: float | None = None,
    ema_decay: float | None = None,
    generator: torch.Generator | None = None,
    wrap: Callable[[Any], Any] = lambda f: f,
) -> tuple[list[Tensor], list[Tensor]]:
    """A training loop as anyone would write it: losses, and the running average."""
    average = [p.detach().clone() for p in module.parameters()]
    losses = []
    for x in xs:
        optimizer.zero_grad()
        loss = objective(wrap(module), x, generator=generator).mean()
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        optimizer.step()
        if ema_decay is not None:
            with torch.no_grad():
                for a, p in zip(average, module.parameters()):
                    a.lerp_(p, 1 - ema_decay)
        losses.append(loss.detach())
    return losses, average


def assert_equal(actual: Any, expected: Any) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b), f"differs by {(a - b).abs().max().item():.3g}"


def assert_near(actual: Any, expected: Any, tolerance: float) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


OPTIONS: list[dict[str, float]] = [
    {},
    {"max_norm": 0.05},
    {"ema_decay": 0.9},
    {"max_norm": 0.05, "ema_decay": 0.9},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o) or "plain")
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_on_a_cpu_it_is_the_loop_to_the_last_digit(make: Any, options: dict[str, float]) -> None:
    ours, theirs = density(), density()
    step = CapturedStep(
        ours,
        SlicedScoreMatchingVR(),
        make(ours.parameters(), lr=0.01),
        generator=seeded(2),
        **options,
    )
    xs = batches(6)
    losses = [step(x) for x in xs]
    expected, average = by_hand(
        theirs,
        SlicedScoreMatchingVR(),
        make(theirs.parameters(), lr=0.01),
        xs,
        generator=seeded(2),
        **options,
    )
    assert_equal(losses, expected)
    assert_equal(ours.parameters(), theirs.parameters())
    if "ema_decay" in options:
        assert_equal(step.average, average)
        assert not all(torch.equal(a, p) for a, p in zip(step.average, ours.parameters()))
    else:
        assert step.average == []


def test_clipping_matters() -> None:
    # The options above are not vacuous: each changes the outcome.
    ends = []
    for max_norm in (None, 0.05):
        module = density()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        step = CapturedStep(
            module, ScoreMatching(), optimizer, max_norm=max_norm, generator=seeded(2)
        )
        for x in batches(3):
            step(x)
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert not torch.equal(*ends)


def test_a_field_goes_in_as_well_as_a_module() -> None:
    ours, theirs = (ScoreNetwork(3, (8,), generator=seeded(0)).double() for _ in range(2))
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (ours, theirs)]
    step = CapturedStep(
        VectorField(ours), SlicedScoreMatchingVR(), optimizers[0], generator=seeded(2)
    )
    xs = batches(4)
    losses = [step(x) for x in xs]
    expected, _ = by_hand(
        theirs,
        SlicedScoreMatchingVR(),
        optimizers[1],
        xs,
        generator=seeded(2),
        wrap=VectorField,
    )
    assert_equal(losses, expected)
    assert_equal(ours.parameters(), theirs.parameters())


def test_batches_of_any_shape_on_a_cpu() -> None:
    module = density()
    step = CapturedStep(
        module, SlicedScoreMatchingVR(), torch.optim.Adam(module.parameters(), lr=0.01)
    )
    for n in (16, 3, 16, 1):
        loss = step(torch.randn(n, 3, generator=seeded(n), dtype=torch.float64))
        assert loss.ndim == 0
        assert loss.isfinite()
        assert not loss.requires_grad


def test_bad_batches_are_refused() -> None:
    module = density()
    step = CapturedStep(module, ScoreMatching(), torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="x must be finite"):
        step(torch.full((2, 3), torch.nan, dtype=torch.float64))
    with pytest.raises(TypeError, match="floating-point"):
        step(torch.ones(2, 3, dtype=torch.int64))


# ----------------------------------------------------------------------------- compiled


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flattened step as the compiler gets it, without the time that compilation takes."""
    monkeypatch.setattr(torch, "compile", lambda f, **how: f)


OBJECTIVES: list[Objective] = [
    SlicedScoreMatchingVR(),
    SlicedScoreMatching(num_projections=3),
    ScoreMatching(),
    DenoisingScoreMatching(0.3),
]


def check_compiled(
    objective: Objective, tolerance: float, dtype: torch.dtype, device: str = "cpu", **options: bool
) -> None:
    ours, theirs = density(device, dtype), density(device, dtype)
    on_gpu = {"capturable": True} if device == "cuda" else {}
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01, **on_gpu) for m in (ours, theirs)]
    xs = batches(8, device=device, dtype=dtype)
    generator = torch.Generator(device)
    step = compile_step(ours, objective, optimizers[0], xs[0], generator=generator, **options)
    generator.manual_seed(2)  # noise may have been drawn to compile the step
    losses = [step(x) for x in xs]
    expected, _ = by_hand(theirs, objective, optimizers[1], xs, generator=seeded(2, device))
    assert_near(losses, expected, tolerance)
    assert_near(ours.parameters(), theirs.parameters(), tolerance)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("captured", [False, True])
def test_flattened_step(objective: Objective, captured: bool) -> None:
    check_compiled(objective, IDENTITY, torch.float64, captured=captured)


@pytest.mark.usefixtures("uncompiled")
def test_flattened_step_takes_new_directions_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known about the directions of the example is not used for others."""
    monkeypatch.setattr(_directions, "MIN_PRODUCTS", 0)
    check_compiled(SlicedScoreMatchingVR(num_projections=2), IDENTITY, torch.float64)


def test_noise_that_depends_on_the_model_cannot_be_flattened() -> None:
    model = density()
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(TypeError, match=r"draw its noise before.*train it eagerly"):
        compile_step(model, CurvaturePropagation(), optimizer, batches(1)[0])


@pytest.mark.usefixtures("uncompiled")
def test_frozen_parameters_stay_as_they_are() -> None:
    model = density()
    frozen = next(model.parameters()).requires_grad_(False)
    before = frozen.clone()
    trained = [p for p in model.parameters() if p.requires_grad]
    step = compile_step(model, ScoreMatching(), torch.optim.SGD(trained, 0.1), batches(1)[0])
    step(batches(1)[0])
    assert frozen.grad is None
    assert torch.equal(frozen, before)


@pytest.mark.usefixtures("uncompiled")
def test_flattened_step_of_a_score_network() -> None:
    ours, theirs = (ScoreNetwork(3, (8,), generator=seeded(0)).double() for _ in range(2))
    objective = ScoreMatching()  # no noise
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (ours, theirs)]
    xs = batches(3)
    step = compile_step(ours, objective, optimizers[0], xs[0], wrap=VectorField)
    losses = [step(x) for x in xs]
    expected, _ = by_hand(theirs, objective, optimizers[1], xs, wrap=VectorField)
    assert_near(losses, expected, IDENTITY)
    assert_near(ours.parameters(), theirs.parameters(), IDENTITY)


@pytest.mark.usefixtures("uncompiled")
def test_flattened_step_refuses_another_shape() -> None:
    module, xs = density(), batches(1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    step = compile_step(module, SlicedScoreMatchingVR(), optimizer, xs[0])
    with pytest.raises(ValueError, match=r"shape the step was compiled for, \(16, 3\)"):
        step(xs[0][:7])


@pytest.mark.usefixtures("uncompiled")
def test_flattened_step_leaves_frozen_parameters_alone() -> None:
    module, xs = density(), batches(3)
    module.location.requires_grad_(False)
    before = module.location.clone()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    step = compile_step(module, ScoreMatching(), optimizer, xs[0])
    for x in xs:
        step(x)
    assert torch.equal(module.location, before)
    assert module.location.grad is None


@pytest.mark.usefixtures("uncompiled")
def test_flattened_step_leaves_the_module_alone_until_it_is_called() -> None:
    module, x = density(), batches(1)[0]
    before = copy.deepcopy(module.state_dict())
    compile_step(module, SlicedScoreMatchingVR(), torch.optim.SGD(module.parameters(), lr=0.1), x)
    assert_equal(module.state_dict().values(), before.values())
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.usefixtures("uncompiled")
def test_smoothness_is_checked_before_compilation() -> None:
    module = MLPDensity(3, (8,), nn.ReLU, generator=seeded(0)).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="relu"):
        compile_step(module, SlicedScoreMatchingVR(), optimizer, batches(1)[0])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@COMPILER_WARNINGS
@pytest.mark.parametrize("objective", OBJECTIVES[:1], ids=lambda o: type(o).__name__)
def test_compiled_step(objective: Objective) -> None:
    check_compiled(objective, FLOAT32, torch.float32)


# ----------------------------------------------------------------------------- captured


def cuda_step(module: nn.Module, lr: Any = 0.01, **options: Any) -> CapturedStep:
    optimizer = torch.optim.Adam(module.parameters(), lr=lr, capturable=True)
    return CapturedStep(
        module, SlicedScoreMatchingVR(), optimizer, generator=seeded(2, "cuda"), **options
    )


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o) or "plain")
def test_captured_equals_eager(options: dict[str, float]) -> None:
    ours, theirs = density("cuda"), density("cuda")
    xs = batches(10, device="cuda")
    step = cuda_step(ours, **options)
    losses = [step(x) for x in xs]
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01, capturable=True)
    expected, average = by_hand(
        theirs,
        SlicedScoreMatchingVR(),
        optimizer,
        xs,
        generator=seeded(2, "cuda"),
        **options,
    )
    assert len(step.executor.recorded) == 1
    assert_near(losses, expected, 1e-9)
    assert_near(ours.parameters(), theirs.parameters(), 1e-9)
    if "ema_decay" in options:
        assert_near(step.average, average, 1e-9)


class Attention(nn.Module):
    """A log-density of five tokens with self-attention, ``(N, 5, 8) -> (N,)``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.last = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's output, summed over tokens."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        output: Tensor = self.last(torch.tanh(mixed.transpose(1, 2).flatten(2))).sum((1, 2))
        return output - 0.5 * x.square().sum((1, 2))


@pytest.mark.parametrize("num", [1, 4])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, GPU])])
def test_attention_is_traced_while_it_is_recorded(device: str, num: int) -> None:
    """Otherwise there is a `PerformanceWarning` with the reason."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Attention().to(device)
    adam = torch.optim.Adam(model.parameters(), lr=0.03, capturable=device == "cuda")
    objective, generator = SlicedScoreMatchingVR(num_projections=num), seeded(2, device)
    step = CapturedStep(model, objective, adam, generator=generator)
    x = torch.randn(6, 5, 8, generator=seeded(1)).to(device)
    losses = [step(x).item() for _ in range(12)]
    assert losses[-1] < losses[0]


@pytest.mark.gpu
@GPU
@COMPILER_WARNINGS
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_compiled_and_captured_equals_eager(objective: Objective) -> None:
    check_compiled(objective, FLOAT32, torch.float32, "cuda", captured=True)


@pytest.mark.gpu
@GPU
@COMPILER_WARNINGS
def test_compiled_and_captured_at_a_new_learning_rate_and_another_shape() -> None:
    xs, rates = batches(9, device="cuda"), [0.01] * 5 + [0.1] * 2 + [0.01] * 2
    ours, theirs = density("cuda"), density("cuda")
    optimizers = [
        torch.optim.Adam(m.parameters(), lr=0.01, capturable=True) for m in (ours, theirs)
    ]
    steps = [
        compile_step(m, ScoreMatching(), o, xs[0], captured=captured)
        for m, o, captured in zip((ours, theirs), optimizers, (True, False))
    ]
    losses, expected = (with_schedule(s, o, xs, rates) for s, o in zip(steps, optimizers))
    assert_near(losses, expected, 1e-9)
    with pytest.raises(ValueError, match="shape the step was compiled for"):
        steps[0](xs[0][:5])
    assert torch.isfinite(steps[0](xs[0]))


@pytest.mark.gpu
@GPU
def test_captured_with_the_default_generator() -> None:
    ours, theirs = density("cuda"), density("cuda")
    xs = batches(8, device="cuda")
    optimizers = [
        torch.optim.Adam(m.parameters(), lr=0.01, capturable=True) for m in (ours, theirs)
    ]
    with torch.random.fork_rng(devices=["cuda"]):
        torch.cuda.manual_seed(0)
        step = CapturedStep(ours, SlicedScoreMatchingVR(), optimizers[0])
        losses = [step(x) for x in xs]
        torch.cuda.manual_seed(0)
        expected, _ = by_hand(theirs, SlicedScoreMatchingVR(), optimizers[1], xs)
    assert_near(losses, expected, 1e-9)


@pytest.mark.gpu
@GPU
def test_another_shape_is_recorded_anew() -> None:
    ours, theirs = density("cuda"), density("cuda")
    xs = [*batches(5, device="cuda"), *batches(2, 7, device="cuda"), *batches(2, device="cuda")]
    step = cuda_step(ours)
    losses = [step(x) for x in xs]
    assert len(step.executor.recorded) == 2
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01, capturable=True)
    expected, _ = by_hand(
        theirs, SlicedScoreMatchingVR(), optimizer, xs, generator=seeded(2, "cuda")
    )
    assert_near(losses, expected, 1e-9)


def with_schedule(
    step: Step, optimizer: torch.optim.Optimizer, xs: list[Tensor], rates: list[float]
) -> list[Tensor]:
    losses = []
    for x, rate in zip(xs, rates):
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        losses.append(step(x))
    return losses


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_a_new_learning_rate_takes_effect(as_tensor: bool) -> None:
    xs, rates = batches(9, device="cuda"), [0.01] * 5 + [0.1] * 2 + [0.01] * 2
    ours, theirs = density("cuda"), density("cuda")
    lr = torch.tensor(0.01, device="cuda", dtype=torch.float64) if as_tensor else 0.01
    step = cuda_step(ours, lr=lr)
    losses = with_schedule(step, step.optimizer, xs, rates)
    assert len(step.executor.recorded) == (1 if as_tensor else 2)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01, capturable=True)
    generator = seeded(2, "cuda")

    def eager(x: Tensor) -> Tensor:
        return by_hand(theirs, SlicedScoreMatchingVR(), optimizer, [x], generator=generator)[0][0]

    assert_near(losses, with_schedule(eager, optimizer, xs, rates), 1e-9)


@pytest.mark.gpu
@GPU
def test_an_optimizer_that_is_not_capturable_is_refused() -> None:
    module = density("cuda")
    with pytest.raises(ValueError, match="optimizer must be capturable"):
        CapturedStep(module, SlicedScoreMatchingVR(), torch.optim.Adam(module.parameters(), lr=0.1))


class Reading(nn.Module):
    """A model that reads a value while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        factor = 2.0 if self.scale.item() > 0 else 1.0
        return -factor * self.scale * x.square().sum(-1)


@pytest.mark.gpu
@GPU
def test_a_model_that_reads_values_is_refused() -> None:
    module = Reading().to("cuda")
    step = cuda_step(module, warmup=1)
    xs = batches(2, device="cuda")
    step(xs[0])
    with pytest.raises(RuntimeError, match=r"cannot be captured.*remove \.item\(\)"):
        step(xs[1])


@pytest.mark.gpu
@GPU
def test_a_failed_recording_leaves_the_default_generator_usable() -> None:
    """It belongs to every graph, though the step draws from a generator of its own."""
    step = cuda_step(Reading().to("cuda"), warmup=1)
    xs = batches(2, device="cuda")
    step(xs[0])
    with torch.random.fork_rng(devices=["cuda"]):
        torch.cuda.manual_seed(0)
        expected = torch.rand(3, device="cuda")
        torch.cuda.manual_seed(0)
        with pytest.raises(RuntimeError, match="cannot be captured"):
            step(xs[1])
        assert torch.equal(torch.rand(3, device="cuda"), expected)


@pytest.mark.gpu
@GPU
def test_losses_are_not_overwritten_by_later_steps() -> None:
    module = density("cuda")
    step = cuda_step(module)
    losses = [step(x) for x in batches(8, device="cuda")]
    assert torch.stack(losses).unique().numel() == 8
