"""Parts trained in turn: the digits of two optimisers in a loop by hand, captured or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from reproduction.autoencoders.mnist_networks import make_implicit_vae, make_wae
from scorematching.kernels import fit_stein
from scorematching.models import WAE, ImplicitVAE
from scorematching.training import (
    Alternating,
    LossModule,
    Phase,
    TrainConfig,
    TrainResult,
    score_first,
    train,
)
from scorematching.training.executors import Captured
from scorematching.training.step import Gradients, Step
from tests.tolerances import IDENTITY, ROUTES
from tests.training.problems import (
    Interrupted,
    digits,
    interrupted,
    parameters,
    seeded,
)

SLICED = sm.SlicedScoreMatchingVR(sm.Gaussian())


def make(cls: Any = ImplicitVAE, seed: int = 0) -> Any:
    network = make_wae if cls is WAE else make_implicit_vae
    return network(2, dim=6, hidden=(8,), generator=seeded(seed)).double()


def intensities(count: int = 40, seed: int = 1) -> Tensor:
    return torch.rand(count, 6, generator=seeded(seed), dtype=torch.float64)


def binarised(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.bernoulli(x, generator=generator)


CONFIG = TrainConfig(
    steps=17, batch_size=8, lr=0.01, checkpoint_every=5, log_every=1, validate_every=6
)


def run(
    folder: Path | None = None,
    resume: bool = False,
    objective: Any = None,
    config: TrainConfig = CONFIG,
    optimizer: Any = torch.optim.RMSprop,
    transform: Callable[..., Tensor] = binarised,
    cls: Any = ImplicitVAE,
    seed: int = 2,
) -> tuple[nn.Module, TrainResult]:
    model = make(cls)
    objective = score_first() if objective is None else objective
    result = train(
        model,
        objective,
        intensities(),
        config,
        transform=transform,
        optimizer=optimizer,
        generator=seeded(seed),
        folder=folder,
        resume=resume,
    )
    return model, result


# The loop by hand: the paper's algorithm, with nothing of the package but the models.


def by_hand(
    optimizer: Any = torch.optim.RMSprop,
    stale: bool = False,
    max_norm: float | None = None,
    cls: Any = ImplicitVAE,
) -> tuple[nn.Module, list[float]]:
    """Two optimisers, one step each; ``stale`` is what it must not be."""
    model, x, g, losses = make(cls), intensities(), seeded(2), []
    rest = [*model.encoder.parameters(), *model.decoder.parameters()]
    of_score = optimizer(model.score_network.parameters(), lr=0.01)
    of_rest = optimizer(rest, lr=0.01)
    batches: list[Tensor] = []
    for _ in range(17):
        if not batches:
            order = torch.randperm(len(x), generator=g)
            batches = list(x[order].split(8))
        batch = binarised(batches.pop(0), g)
        z = model.encode(batch, g)  # with its graph: gradients that nobody uses
        score_loss = SLICED(sm.VectorField(lambda z, b=batch: model.score(z, b)), z, g).mean()
        of_score.zero_grad()
        score_loss.backward()
        clip(model.score_network.parameters(), max_norm)
        if not stale:
            of_score.step()
        z = model.encode(batch, g)
        s = model.score(z, batch).detach()
        error = (batch - model.decode(z)).square().sum(1)
        prior = -model.log_prior(z) + (s * z).sum(1)
        of_vae = -model.log_likelihood(z, batch) + prior
        loss = (of_vae if cls is ImplicitVAE else error + 10 * prior).mean()
        of_rest.zero_grad()
        loss.backward()
        clip(rest, max_norm)
        of_rest.step()
        if stale:
            of_score.step()
        losses.append(loss.item())
    return model, losses


def clip(weights: Any, max_norm: float | None) -> None:
    if max_norm is not None:
        nn.utils.clip_grad_norm_(list(weights), max_norm)


def far(a: nn.Module, b: nn.Module) -> float:
    return (parameters(a) - parameters(b)).abs().max().item()


OPTIMIZERS = [torch.optim.RMSprop, torch.optim.Adam, torch.optim.SGD]


@pytest.mark.parametrize("cls", [ImplicitVAE, WAE])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.__name__)
def test_as_by_hand_with_two_optimisers(optimizer: Any, cls: Any) -> None:
    hand, losses = by_hand(optimizer, cls=cls)
    model, result = run(optimizer=optimizer, cls=cls)
    assert far(model, hand) < IDENTITY
    assert [r.loss for r in result.history] == pytest.approx(losses, rel=IDENTITY)


def test_clipping_is_by_phase() -> None:
    config = TrainConfig(steps=17, batch_size=8, lr=0.01, max_norm=0.1)
    model, _ = run(config=config)
    assert far(model, by_hand(max_norm=0.1)[0]) < IDENTITY
    assert far(model, by_hand()[0]) > 1e-3  # the norm was above


def test_each_phase_sees_what_the_one_before_has_done() -> None:
    """The scores of the improved network, not those of a step ago."""
    assert far(run()[0], by_hand(stale=True)[0]) > 1e-6


def test_a_phase_moves_its_own_parts_alone() -> None:
    """Though its loss reaches the others, and though momentum would carry them on."""

    def everything(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        return model.loss(x, generator=generator) + model.score(model.encode(x), x).square().sum(1)

    momentum = functools.partial(torch.optim.SGD, momentum=0.9)
    before = make()
    for part in ("encoder", "decoder", "score_network"):
        others = {"encoder", "decoder", "score_network"} - {part}
        model = make()
        for name in others:
            getattr(model, name).requires_grad_(False)
        train(model, everything, intensities(), TrainConfig(steps=3, batch_size=8, lr=1e-3))
        for name in others:
            assert far(getattr(model, name), getattr(before, name)) == 0
    # The same with nothing frozen: the last phase finds score and decoder where the first left
    # them.
    moves: list[Tensor] = []

    def watched(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        moves.append(torch.cat([parameters(model.score_network), parameters(model.decoder)]))
        return everything(model, x)

    phases = [
        Phase(everything, ("score_network", "decoder")),
        Phase(watched, "encoder"),
        Phase(watched, "encoder"),
    ]
    train(
        make(),
        Alternating(*phases),
        intensities(),
        TrainConfig(steps=3, batch_size=8, lr=1e-3),
        optimizer=momentum,
    )
    pairs = list(zip(moves[::2], moves[1::2]))
    assert len(pairs) == 3 and all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(moves[0], moves[2])


class Tied(nn.Module):
    """An auto-encoder whose decoder is the transpose of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.decoder = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.scale = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.decoder.weight = self.encoder.weight


def test_a_weight_of_two_parts_is_trained_by_the_phases_of_both() -> None:
    """A phase of the second part left it where it was."""

    def error(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        return (model.decoder(model.scale(x)) - x).square().sum(1)

    def first(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        return model.scale(x).square().sum(1)

    config = TrainConfig(steps=1, batch_size=40, lr=0.1)
    models = [Tied(), Tied()]
    models[1].load_state_dict(models[0].state_dict())
    x, options = intensities(), {"optimizer": torch.optim.SGD}
    phases = Phase(first, "scale"), Phase(error, "decoder")
    train(models[0], Alternating(*phases), x, config, **options)
    for loss, weight in ((first, models[1].scale.weight), (error, models[1].encoder.weight)):
        (gradient,) = torch.autograd.grad(loss(models[1], x).mean(), weight)
        weight.data -= 0.1 * gradient
    assert far(*models) < IDENTITY


def test_one_phase_is_an_ordinary_run() -> None:
    def loss(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        return model.loss(x, lambda z: fit_stein(z).at_samples(), 5, generator)

    whole = ("encoder", "decoder", "score_network")
    alternating = run(objective=Alternating(Phase(loss, whole)))
    assert digits(alternating) == digits(run(objective=loss))


def test_average_once_per_step() -> None:
    config = TrainConfig(steps=1, batch_size=40, lr=0.01, ema_decay=0.75)
    averaged, plain = (
        run(config=config)[0],
        run(config=TrainConfig(steps=1, batch_size=40, lr=0.01))[0],
    )
    expected = 0.75 * parameters(make()) + 0.25 * parameters(plain)
    assert torch.allclose(parameters(averaged), expected, rtol=0, atol=IDENTITY)


def test_called_it_is_the_last_loss() -> None:
    """Which is what is recorded, and what held-out points are judged by."""
    model, x = make(), intensities().round()
    assert torch.equal(score_first()(model, x, seeded(0)), model.loss(x, generator=seeded(0)))
    assert torch.equal(
        LossModule(model, score_first(), seeded(0))(x), model.loss(x, generator=seeded(0))
    )
    held_out = intensities(30, seed=5).round()
    result = train(
        model,
        score_first(),
        x,
        TrainConfig(steps=2, batch_size=8),
        validation=held_out,
        generator=seeded(3),
    )
    assert result.best_loss is not None
    last = model.loss(held_out, generator=seeded(3)).mean().item()
    assert result.best_loss == pytest.approx(last, rel=IDENTITY)


# Interrupted runs.


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.__name__)
@pytest.mark.parametrize("steps", [5, 12])
def test_resumed_run_has_the_same_digits(steps: int, optimizer: Any, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(tmp_path, transform=interrupted(steps, binarised), optimizer=optimizer)
    resumed = run(tmp_path, resume=True, seed=99, optimizer=optimizer)
    assert digits(resumed) == digits(run(optimizer=optimizer))


# A GPU.


def steps(device: str, captured: bool) -> list[Tensor]:
    """Losses, weights and averages of a few steps."""
    model, g = make().to(device), torch.Generator(device).manual_seed(0)
    losses = LossModule(model, score_first(), g)
    rate = torch.tensor(0.01, dtype=torch.float64, device=device)
    optimizer = torch.optim.RMSprop(model.parameters(), rate, capturable=device == "cuda")
    step = Step(Gradients(losses), optimizer, losses.parts, max_norm=1.0, ema_decay=0.9)
    execute = Captured(step, g) if captured else step
    means = [execute(intensities(8, k).round().to(device)) for k in range(12)]
    return [torch.stack(means), parameters(model), torch.cat([a.flatten() for a in step.average])]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_captured_step_is_the_eager_step(device: str) -> None:
    """On a CPU nothing is captured, but it is what would be."""
    eager, captured = (steps(device, captured) for captured in (False, True))
    for a, b in zip(eager, captured):
        assert torch.allclose(a, b, rtol=0, atol=ROUTES)
    assert eager[0].unique().numel() == 12


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True])
def test_captured_run(exact: bool, tmp_path: Path) -> None:
    """The whole alternating step as one graph, resumed too."""

    def go(steps: int, folder: Path | None = None, resume: bool = False) -> TrainResult:
        model = make_implicit_vae(8, generator=seeded(0)).cuda()
        x = torch.rand(1280, 784, generator=seeded(1)).cuda()
        result = train(
            model,
            score_first(sm.ScoreMatching() if exact else None),
            x,
            TrainConfig(steps=steps, lr=1e-3, log_every=50, checkpoint_every=50),
            executor="captured",
            transform=binarised,
            optimizer=torch.optim.RMSprop,
            generator=torch.Generator("cuda").manual_seed(0),
            folder=folder,
            resume=resume,
        )
        return result

    whole = go(150)
    go(100, tmp_path)
    resumed = go(150, tmp_path, resume=True)
    assert [r.loss for r in resumed.history] == pytest.approx(
        [r.loss for r in whole.history], rel=1e-3
    )
    assert whole.history[-1].loss < whole.history[0].loss


# Mistakes.


def nothing(model: Any, x: Tensor, generator: Any = None) -> Tensor:
    return model.loss(x)


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (
            [Phase(nothing, "decodr")],
            r"trains must name parts .* got \('decodr',\) for ImplicitVAE",
        ),
        ([Phase(nothing, "enc")], "with decoder, encoder, score_network"),
        ([Phase(nothing, ("encoder", "decoder"))], r"got none for score_network\.first\.weight"),
    ],
)
def test_names_that_do_not_fit(phases: list[Phase], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(make(), Alternating(*phases), intensities(), TrainConfig(steps=1, batch_size=8))


def test_phases_that_are_none() -> None:
    for phases in ([], [nothing]):
        with pytest.raises(TypeError, match="phases must be one Phase or more"):
            Alternating(*phases)
