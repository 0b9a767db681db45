"""Losses that draw their noise first: the digits of those that draw while they run."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import scorematching as sm
from reproduction.autoencoders import celeba_networks, mnist_networks
from scorematching.models import VAE, WAE
from scorematching.training import (
    Alternating,
    DrawnLoss,
    LossModule,
    ModelLoss,
    Phase,
    ScoreLoss,
    TrainConfig,
    score_first,
    train,
)
from scorematching.training.executors import CompiledGradients
from scorematching.training.executors.batches import batch_gradients
from scorematching.training.executors.precision import allows_bfloat16, round_products
from scorematching.training.executors.products import merge_products
from scorematching.training.step import Gradients
from tests.tolerances import FLOAT32, IDENTITY
from tests.training.problems import parameters, seeded

NEARLY_LINEAR = functools.partial(torch.optim.RMSprop, eps=10.0)
"""An optimiser whose steps are bounded, and nearly proportional to gradients below a hundred."""

SPLIT = sm.SlicedScoreMatchingVR(num_projections=2)
KINDS = {"vae": "make_vae", "implicit": "make_implicit_vae", "wae": "make_wae"}


def make(kind: str, images: bool = False, size: int = 16) -> Any:
    """A small model of digits, or of images with their channels last in memory."""
    networks: Any = celeba_networks if images else mnist_networks
    sizes = {"size": size, "width": 2} if images else {"dim": 6, "hidden": (8,)}
    model = getattr(networks, KINDS[kind])(latent_dim=3, generator=seeded(0), **sizes)
    if images:  # at their initial weights such small networks hardly depend on the noise
        for p in model.parameters():
            p.data *= 3
    return model.to(memory_format=torch.channels_last)


def points(images: bool = False, count: int = 16, size: int = 16) -> Tensor:
    if not images:
        return torch.rand(count, 6, generator=seeded(1)).round()
    x = 2 * torch.rand(count, 3, size, size, generator=seeded(1)) - 1
    return x.contiguous(memory_format=torch.channels_last)


# The formulas of losses that draw while they run, written out.


def elbo(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    mean, log_std = model.encoder(x).chunk(2, -1)
    z = mean + log_std.exp() * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
    kl = 0.5 * (mean.square() + (2 * log_std).exp() - 1).sum(-1) - log_std.sum(-1)
    return kl - model.observation.log_prob(model.decoder(z), x)


def latents(model: Any, x: Tensor, generator: Any) -> Tensor:
    if isinstance(model, WAE):
        return model.encoder(x)
    eps = torch.randn((len(x), model.noise_dim), generator=generator, dtype=x.dtype)
    return model.encoder(eps, x)


def of_rest(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    z = latents(model, x, generator)
    with torch.no_grad():
        s = model.score(z.detach(), x)
    entropy = (s * z).sum(-1)
    if isinstance(model, WAE):
        error = (x - model.decode(z)).square().flatten(1).sum(1)
        return error + model.lam * (entropy - model.log_prior(z))
    return entropy - model.log_prior(z) - model.observation.log_prob(model.decoder(z), x)


def of_score(objective: Any, model: Any, x: Tensor, generator: Any = None) -> Tensor:
    with torch.no_grad():
        z = latents(model, x, generator)
    return objective(sm.VectorField(lambda z: model.score(z, x)), z, generator)


def losses(kind: str, objective: Any = SPLIT) -> tuple[Any, Any]:
    """What `train` gets, and the same with the formulas above."""
    if kind == "vae":
        return ModelLoss(), elbo
    drawing = Phase(functools.partial(of_score, objective), "score_network")
    return score_first(objective), Alternating(drawing, Phase(of_rest, ("encoder", "decoder")))


@pytest.mark.parametrize("images", [False, True], ids=["digits", "images"])
@pytest.mark.parametrize("kind", KINDS)
def test_runs_have_the_digits_of_losses_that_draw_while_they_run(kind: str, images: bool) -> None:
    runs = []
    for loss in losses(kind):
        model, g = make(kind, images), seeded(2)
        config = TrainConfig(steps=3, batch_size=8, lr=1e-2, log_every=1)
        result = train(model, loss, points(images), config, generator=g)
        runs.append((parameters(model), [r.loss for r in result.history], g.get_state()))
    assert torch.equal(runs[0][0], runs[1][0]) and runs[0][1] == runs[1][1]
    assert torch.equal(runs[0][2], runs[1][2])


OBJECTIVES: dict[str, sm.Objective] = {
    "split": SPLIT,
    "gaussian": sm.SlicedScoreMatchingVR(sm.Gaussian()),
    "optimal": sm.SlicedScoreMatchingVR(beta="optimal"),
    "exact": sm.ScoreMatching(),
    "denoising": sm.DenoisingScoreMatching(0.1),
}


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("kind", ["implicit", "wae"])
def test_noise_is_drawn_in_the_same_order(kind: str, objective: sm.Objective) -> None:
    model, x = make(kind), points()
    loss, drawing = ScoreLoss(objective), functools.partial(of_score, objective)
    generators = [seeded(3) for _ in range(3)]
    expected = drawing(model, x, generators[0])
    assert torch.equal(loss(model, x, generators[1]), expected)
    assert torch.equal(loss.loss(model, x, loss.draw(model, x, generators[2])), expected)
    assert torch.equal(generators[0].get_state(), generators[2].get_state())


# Compiled.


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[GraphModule, list[Any]]]:
    """What would be compiled, each with the arguments of its calls."""
    found: list[tuple[GraphModule, list[Any]]] = []

    def keep(graph: GraphModule, dynamic: bool, options: Any) -> Callable[..., Any]:
        calls: list[Any] = []
        found.append((graph, calls))

        def call(*arguments: Any) -> Any:
            calls.append(arguments)
            return graph(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", keep)
    return found


@pytest.fixture
def medium() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


CASES = [
    (kind, images, precision)
    for kind in KINDS
    for images, precision in ((False, "float32"), (True, "bf16"))
]
MORE = [pytest.param(kind, True, "float32", marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.usefixtures("medium")
@pytest.mark.parametrize(("kind", "images", "precision"), [*CASES, *MORE])
def test_compiled_gradients(kind: str, images: bool, precision: str, graphs: Any) -> None:
    """Those of eager steps in every phase, before and after the weights have changed."""
    loss = losses(kind, sm.SlicedScoreMatchingVR(sm.Gaussian()))[0]
    model, x = make(kind, images), points(images)
    eager, compiled = (LossModule(model, loss, seeded(2), precision, False) for _ in range(2))
    ways = Gradients(eager), CompiledGradients(compiled)
    others = [
        gradients(Gradients(LossModule(model, loss, seeded(seed), precision)), x, 0, eager.parts[0])
        for seed in (3, 4)
    ]
    assert (others[0] - others[1]).norm() > 50 * FLOAT32 * others[0].norm()  # noise matters
    for _ in range(2):
        for phase, part in enumerate(eager.parts):
            expected, found = (gradients(way, x, phase, part) for way in ways)
            assert (found - expected).norm() < FLOAT32 * expected.norm()
            same = [p.grad is not None and p.grad.stride() == p.stride() for p in part]
            assert all(same)  # fused optimisers want that
            NEARLY_LINEAR(part, lr=1e-3).step()
    assert len(graphs) == (1 if kind == "vae" else 2)
    for graph, calls in graphs:
        assert_passes_keep_gradients(graph, calls[-1], exact=precision == "float32")


def gradients(way: Gradients, x: Tensor, phase: int, part: list[nn.Parameter]) -> Tensor:
    for p in way.losses.parameters():  # type: ignore[attr-defined]
        p.grad = None
    way(x, phase)
    return torch.cat([p.grad.flatten() for p in part if p.grad is not None])


def assert_passes_keep_gradients(graph: GraphModule, inputs: Any, exact: bool) -> None:
    """What is done to graphs on a GPU only, here with convolutions and products in bf16."""
    assert allows_bfloat16(graph)
    expected = graph(*inputs)
    for change in (merge_products, round_products, batch_gradients):
        change(graph)
        merged = exact and change is merge_products
        assert_near(graph(*inputs), expected, 1e-5 if merged else 0.02)


def assert_near(found: Any, expected: Any, tolerance: float) -> None:
    """Losses and gradients of the same shapes and dtypes, near as vectors."""
    pairs = [[a[0], *a[1]] for a in (found, expected)]
    assert [(t.shape, t.dtype) for t in pairs[0]] == [(t.shape, t.dtype) for t in pairs[1]]
    a, b = (torch.cat([t.flatten().float() for t in each]) for each in pairs)
    assert (a - b).norm() < tolerance * b.norm()


def run(kind: str, images: bool, precision: str, executor: str, **options: Any) -> Tensor:
    """Weights after three steps."""
    model = make(kind, images)
    config = TrainConfig(steps=3, batch_size=8, lr=1e-3, precision=precision)
    more: Any = {"optimizer": NEARLY_LINEAR, "generator": seeded(2), "executor": executor}
    result = train(model, losses(kind)[0], points(images), config, **{**more, **options})
    assert result.executor == executor
    return parameters(model)


@pytest.mark.usefixtures("graphs")
def test_compiled_run() -> None:
    eager, compiled = (run("implicit", False, "float32", e) for e in ("eager", "compiled"))
    moved = (eager - parameters(make("implicit"))).norm()
    assert (eager - compiled).norm() < FLOAT32 * moved


@pytest.mark.usefixtures("graphs")
def test_another_order_in_memory_is_compiled_anew() -> None:
    model, x = make("vae", images=True), points(images=True)
    compiled = CompiledGradients(LossModule(model, ModelLoss(), seeded(2), touch=False))
    for batch in (x, x.contiguous(), x):
        loss = compiled(batch, 0)
        assert loss.isfinite()
    assert len(compiled.compiled) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(("kind", "images", "precision"), [CASES[3], CASES[4]])
def test_compiled_for_real(kind: str, images: bool, precision: str) -> None:
    eager, compiled = (run(kind, images, precision, e) for e in ("eager", "compiled"))
    moved = (eager - parameters(make(kind, images))).norm()
    assert (eager - compiled).norm() < (0.05 if precision == "bf16" else FLOAT32) * moved


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(("kind", "images", "precision"), CASES)
def test_compiled_and_captured_on_a_gpu(kind: str, images: bool, precision: str) -> None:
    """Weights after some steps are those of eager steps, up to the rounding of tf32 or bf16.

    Images have 32 x 32 pixels, so that no map has a single one: of those torch 2.11 takes one order
    in memory for another, and compilation fails.
    """
    ends = []
    for executor in ("eager", "compiled+captured"):
        model, x = make(kind, images, 32).cuda(), points(images, size=32).cuda()
        config = TrainConfig(steps=8, batch_size=8, lr=1e-3, precision=precision)
        options: Any = {"generator": torch.Generator("cuda").manual_seed(2), "executor": executor}
        result = train(model, losses(kind)[0], x, config, optimizer=NEARLY_LINEAR, **options)
        assert result.executor == executor
        ends.append(parameters(model).cpu())
    moved = (ends[0] - parameters(make(kind, images, 32))).norm()
    assert (ends[0] - ends[1]).norm() < 0.1 * moved


# What cannot be compiled.


class ByValue(sm.SlicedScoreMatchingVR):
    """Directions whose lengths depend on the points."""

    def draw(self, x: Tensor, generator: Any = None) -> Tensor:
        return super().draw(x, generator) * x.abs().mean().sqrt()


class DrawsLate(ModelLoss):
    """A loss that draws while it runs, though its noise is given."""

    def loss(self, model: Any, batch: Tensor, noise: Any) -> Tensor:
        return super().loss(model, batch, torch.randn_like(noise))


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    ("kind", "loss", "error", "message"),
    [
        ("vae", DrawsLate(), TypeError, "draw its noise before"),
        ("implicit", score_first(ByValue()), ValueError, "nan from the eager ones"),
    ],
)
def test_falls_back_to_eager(kind: str, loss: Any, error: Any, message: str) -> None:
    config = TrainConfig(steps=3, batch_size=8)
    ends = []
    for executor in (("compiled", "eager"), "eager"):
        model = make(kind)
        result = train(model, loss, points(), config, generator=seeded(2), executor=executor)
        assert result.executor == "eager"
        ends.append(parameters(model))
    assert kind == "vae" or torch.equal(*ends)  # the other draws from torch's default generator
    with pytest.raises(error, match=message):
        train(make(kind), loss, points(), config, executor="compiled")


# Shared noise.


@pytest.mark.parametrize("kind", KINDS)
def test_noise_does_not_depend_on_the_number_of_parts(kind: str) -> None:
    """A batch in parts has the noise of the whole batch; noise drawn part by part is another."""
    whole = TrainConfig(steps=3, batch_size=8, lr=1e-2)
    for loss, same in zip(losses(kind), (True, False)):
        ends = []
        for config in (whole, replace(whole, accumulate=2)):
            model = make(kind).double()
            x = points().double()
            train(model, loss, x, config, generator=seeded(2), optimizer=torch.optim.SGD)
            ends.append(parameters(model))
        assert torch.allclose(ends[0], ends[1], rtol=0, atol=IDENTITY) is same


class Bare(nn.Module):
    """A model with losses that draw while they run, and no other method."""

    def __init__(self) -> None:
        super().__init__()
        inner = make("implicit")
        self.encoder, self.decoder = inner.encoder, inner.decoder
        self.score_network = inner.score_network
        self.inner = (inner,)

    def loss(self, x: Tensor, generator: Any = None) -> Tensor:
        return of_rest(self.inner[0], x, generator)

    def score_loss(self, x: Tensor, objective: Any, generator: Any = None) -> Tensor:
        return of_score(objective, self.inner[0], x, generator)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_models_that_draw_while_they_run(accumulate: int) -> None:
    """They have the digits of plain functions, in parts too, and are not compiled."""
    config, ends = TrainConfig(steps=3, batch_size=8, accumulate=accumulate), []
    model = make("implicit")
    for trained, loss in ((Bare(), score_first(SPLIT)), (model, losses("implicit")[1])):
        options: Any = {"generator": seeded(2), "executor": ("compiled", "eager")}
        assert train(trained, loss, points(), config, **options).executor == "eager"
        parts = (trained.encoder, trained.decoder, trained.score_network)
        ends.append(torch.cat([parameters(part) for part in parts]))
    assert torch.equal(*ends)


def test_shares_are_rows() -> None:
    model, x, rows = make("implicit"), points(), slice(1, None, 4)
    loss = ScoreLoss(SPLIT)
    noise = loss.draw(model, x, seeded(0))
    mine = loss.share(noise, x, rows)
    assert torch.equal(mine.encoder, noise.encoder[rows])
    assert torch.equal(mine.objective, noise.objective.as_subclass(Tensor)[:, rows])
    together = loss.loss(model, x, noise)[rows]
    torch.testing.assert_close(loss.loss(model, x[rows], mine), together)
    late = ScoreLoss(sm.CurvaturePropagation())
    assert late.share(late.draw(model, x, seeded(0)), x, rows) is None
    assert LossModule(model, score_first(sm.CurvaturePropagation())).draws_while_running(
        late.draw(model, x), phase=0
    )


class Pairs(DrawnLoss):
    """Noise in plain tuples."""

    def draw(self, model: Any, batch: Tensor, generator: Any = None) -> Any:
        a, b = (torch.randn(batch.shape, generator=generator, dtype=batch.dtype) for _ in range(2))
        return a, (b,)

    def loss(self, model: Any, batch: Tensor, noise: Any) -> Tensor:
        a, (b,) = noise
        return (model(batch + a) - b).square().sum(-1)


@pytest.mark.usefixtures("graphs")
def test_noise_in_tuples() -> None:
    ends, x = [], torch.randn(16, 3, generator=seeded(0), dtype=torch.float64)
    config = TrainConfig(steps=3, batch_size=8)
    for executor, accumulate in (("eager", 1), ("eager", 2), ("compiled", 1)):
        model = nn.Linear(3, 3).double()
        nn.init.eye_(model.weight)
        nn.init.zeros_(model.bias)
        options: Any = {"generator": seeded(1), "executor": executor}
        train(model, Pairs(), x, replace(config, accumulate=accumulate), **options)
        ends.append(parameters(model))
    for end in ends[1:]:
        assert torch.allclose(end, ends[0], rtol=0, atol=IDENTITY)


# Mixed precision and mistakes.


def test_noise_of_latents_is_not_rounded_to_bf16() -> None:
    """The encoder of digits returns bf16 in mixed precision; its noise has the points' dtype."""
    model, x, g = make("vae"), points(), seeded(0)
    assert isinstance(model, VAE)
    eps = torch.randn(16, 3, generator=seeded(0))
    with torch.autocast("cpu", torch.bfloat16):
        assert model.encoder(x).dtype == torch.bfloat16
        found = model.loss(x, g)
        assert torch.equal(found, model.loss(x, noise=eps))
        assert not torch.equal(found, model.loss(x, noise=eps.bfloat16()))


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("vae", lambda m, x: m.loss(x, noise=torch.zeros(16, 2))),
        ("vae", lambda m, x: m.encode(x, noise=torch.zeros(16, 2))),
        ("implicit", lambda m, x: m.loss(x, noise=torch.zeros(16, 2))),
        ("implicit", lambda m, x: m.encode(x, noise=torch.zeros(15, 3))),
        ("implicit", lambda m, x: m.encode(x, num=4, noise=torch.zeros(16, 3))),
    ],
)
def test_noise_of_the_wrong_shape(kind: str, call: Any) -> None:
    with pytest.raises(ValueError, match=r"noise must be normal numbers of shape \(16, .*got \(1"):
        call(make(kind), points())
