"""The loop: the same digits as one written by hand; validation, divergence, precision."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import scorematching as sm
from scorematching.errors import DivergedError
from scorematching.training import (
    LossModule,
    TrainConfig,
    TrainResult,
    learning_rate,
    load_weights,
    train,
)
from scorematching.training.weights import is_finite
from tests.tolerances import IDENTITY
from tests.training.problems import (
    EVERYTHING,
    density,
    digits,
    noisy,
    parameters,
    points,
    run_everything,
    seeded,
)


def by_hand(config: TrainConfig) -> tuple[nn.Module, Tensor, list[float], list[float]]:
    """The run of `run_everything`, written out: best averaged model, weights, losses."""
    model, x, held_out, g = density(), points(), points(30, seed=3), seeded(2)
    objective, adam = sm.SlicedScoreMatchingVR(), torch.optim.Adam(model.parameters())
    average = copy.deepcopy(model)
    best, losses, validations, batches = model, [], [], []
    for step in range(config.steps or 0):
        if not batches:
            order = torch.randperm(len(x), generator=g)
            batches = [x[rows] for rows in order.split(config.batch_size)]
        batch = noisy(batches.pop(0), g)
        adam.param_groups[0]["lr"] = learning_rate(config, step, config.steps or 0)
        adam.zero_grad()
        loss = objective(model, batch, generator=g).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.max_norm or math.inf)
        adam.step()
        losses.append(loss.item())
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 1 - (config.ema_decay or 0.0))
        if (step + 1) % config.validate_every == 0 or step + 1 == config.steps:
            with torch.no_grad():
                same = seeded(2)  # the same noise every time, of the transform too
                loss = objective(average, noisy(held_out, same), same).mean()
                validations.append(loss.item())
            if validations[-1] == min(validations):
                best = copy.deepcopy(average)
    return best, parameters(model), losses, validations


def test_same_digits_as_by_hand() -> None:
    best, _, losses, validations = by_hand(EVERYTHING)
    model, result = run_everything(None)
    assert torch.equal(parameters(model), parameters(best))
    assert [r.validation for r in result.history if r.validation is not None] == validations
    assert result.best_loss == min(validations) and result.best_step == 37
    start = 0
    for record in result.history:
        part = losses[start : record.step]
        assert record.loss == sum(part) / len(part)
        start = record.step


def test_without_validation_or_average_the_last_weights() -> None:
    """The same steps as by hand; validation and averaging do not change them."""
    _, last, losses, _ = by_hand(EVERYTHING)
    model = density()
    config = TrainConfig(
        steps=37, batch_size=8, lr=0.02, schedule="cosine", warmup=3, max_norm=1.0, log_every=1
    )
    objective = sm.SlicedScoreMatchingVR()
    result = train(model, objective, points(), config, transform=noisy, generator=seeded(2))
    assert torch.equal(parameters(model), last)
    assert [r.loss for r in result.history] == losses
    assert result.best_step is None and not result.stopped_early


def test_average_is_handed_back() -> None:
    model, plain = density(), density()
    config = TrainConfig(steps=1, batch_size=40, lr=0.1, ema_decay=0.75)
    train(model, sm.ScoreMatching(), points(), config, generator=seeded(0))
    train(plain, sm.ScoreMatching(), points(), TrainConfig(steps=1, batch_size=40, lr=0.1))
    first, last = parameters(density()), parameters(plain)
    assert torch.allclose(parameters(model), 0.75 * first + 0.25 * last, rtol=0, atol=IDENTITY)


def test_learning_rate_of_schedule() -> None:
    config = TrainConfig(steps=110, lr=2.0, schedule="cosine", warmup=10)
    rates = [learning_rate(config, step, 110) for step in range(110)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert max(rates) == rates[10] == 2.0 and rates[60] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True) and 0 < rates[-1] < 1e-3
    constant = TrainConfig(steps=5, lr=2.0)
    assert {learning_rate(constant, step, 5) for step in range(5)} == {2.0}


def test_optimizer_gets_the_rate_of_the_schedule() -> None:
    """Plain gradient descent moves by the rate times the gradient."""
    model, config = density(), TrainConfig(epochs=1, batch_size=40, lr=0.1, warmup=4)
    gradients = torch.autograd.grad(
        sm.ScoreMatching()(model, points()).mean(), list(model.parameters()), allow_unused=True
    )
    before = [p.detach().clone() for p in model.parameters()]
    result = train(model, sm.ScoreMatching(), points(), config, optimizer=torch.optim.SGD)
    assert result.steps == 1
    for p, b, g in zip(model.parameters(), before, gradients):
        moved = torch.zeros_like(p) if g is None else -0.1 / 4 * g
        assert torch.allclose(p - b, moved, rtol=0, atol=IDENTITY)


def test_epochs_see_every_point_once() -> None:
    seen: list[Tensor] = []

    def watch(batch: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(batch)
        return batch

    x = points(10)
    config = TrainConfig(epochs=3, batch_size=4, drop_last=False)
    result = train(density(), sm.ScoreMatching(), x, config, transform=watch)
    assert [len(batch) for batch in seen] == [4, 4, 2] * 3 and result.points == 30
    for epoch in range(3):
        rows = torch.cat(seen[3 * epoch : 3 * epoch + 3])
        assert torch.equal(rows.unique(dim=0), x.unique(dim=0))
    assert not torch.equal(seen[0], seen[3])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_number_may_come_first_in_a_batch(accumulate: int) -> None:
    """Such as a level of noise for all points; the rows of the number were counted."""

    def loss(model: Any, batch: Any, generator: Any = None) -> Tensor:
        return sm.ScoreMatching()(model, batch["level"] * batch["x"])

    batches = [{"level": torch.tensor(0.5), "x": part} for part in points().split(8)]
    config = TrainConfig(steps=3, accumulate=accumulate)
    assert train(density(), loss, batches, config).points == 3 * 8


def test_iterable_of_batches() -> None:
    """The batches as they come, again in every epoch."""
    batches = list(points().split(8))
    model, result = density(), density()
    train(model, sm.ScoreMatching(), batches, TrainConfig(epochs=2))
    adam = torch.optim.Adam(result.parameters(), lr=1e-3)
    for batch in batches * 2:
        adam.zero_grad()
        sm.ScoreMatching()(result, batch).mean().backward()
        adam.step()
    assert torch.equal(parameters(model), parameters(result))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_loader_of_a_dataset_of_points(accumulate: int) -> None:
    """Its batches are lists of one tensor; those with labels, too, are refused."""
    x, config = points(), TrainConfig(epochs=2, accumulate=accumulate)
    wrapped, plain = density(), density()
    for model, data in ((wrapped, TensorDataset(x)), (plain, x)):
        loader = DataLoader(data, batch_size=8, shuffle=True, generator=seeded(4))
        train(model, sm.SlicedScoreMatchingVR(), loader, config, generator=seeded(5))
    assert torch.equal(parameters(wrapped), parameters(plain))
    labelled = DataLoader(TensorDataset(x, torch.arange(len(x))), batch_size=8)
    with pytest.raises(TypeError, match="DataLoader of several tensors"):
        train(plain, sm.SlicedScoreMatchingVR(), labelled, config)


def test_score_network_in_a_field_and_with_a_context() -> None:
    """A field around a module, and an objective of one's own for batches of two tensors."""
    x = points().float()
    network = sm.models.ScoreNetwork(2, hidden=(8,), generator=seeded(0))
    conditional = sm.models.ScoreNetwork(2, (8,), context_dim=2, generator=seeded(0))
    sliced, config = sm.SlicedScoreMatchingVR(), TrainConfig(steps=60, lr=0.02, log_every=20)

    def of_pairs(net: Any, batch: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
        field = sm.VectorField(lambda z: net(z, batch[1]))
        return sliced(field, batch[0], generator)

    for model, objective, data in [
        (sm.VectorField(network), sliced, [x]),
        (conditional, of_pairs, [(x, torch.ones_like(x))]),
    ]:
        history = train(model, objective, data, config, generator=seeded(0)).history
        assert history[-1].loss < history[0].loss - 1


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    """Stops after two validations that are no better, and goes back to the best weights."""
    losses, seen = iter([3.0, 1.0, math.nan, 1.0, 0.0]), []
    model = density()

    def validation(given: nn.Module) -> float:
        assert given is model and not given.training and not torch.is_grad_enabled()
        seen.append(parameters(given))
        return next(losses)

    config = TrainConfig(steps=99, batch_size=8, validate_every=3, patience=2, ema_decay=0.5)

    def run(resume: bool) -> TrainResult:
        return train(
            model,
            sm.SlicedScoreMatchingVR(),
            points(),
            config,
            validation=validation,
            generator=seeded(0),
            folder=tmp_path,
            resume=resume,
        )

    result = run(resume=False)
    assert (result.steps, result.best_step, result.best_loss) == (12, 6, 1.0)
    assert result.stopped_early and model.training
    assert torch.equal(parameters(model), seen[1]) and not torch.equal(seen[1], seen[3])
    model = density(seed=4)
    assert run(resume=True).best_step == 6 and len(seen) == 4  # it knows that it has ended
    assert torch.equal(parameters(model), seen[1])
    loaded = density(seed=5)
    assert load_weights(loaded, tmp_path) == 6 and torch.equal(parameters(loaded), seen[1])
    assert load_weights(loaded, tmp_path, "last") == 12
    assert torch.equal(parameters(loaded), seen[3])


def test_validation_objective() -> None:
    """Held-out points are judged by the objective that is given for them."""
    held_out, model = points(30, seed=3), density()
    config = TrainConfig(steps=1, batch_size=8, ema_decay=0.5)
    result = train(
        model,
        sm.DenoisingScoreMatching(sigma=0.1),
        points(),
        config,
        validation=held_out,
        validation_objective=sm.ScoreMatching(),
    )
    assert result.best_loss is not None
    truth = sm.evaluation.score_matching_loss(model, held_out).mean
    assert math.isclose(result.best_loss, truth, rel_tol=IDENTITY)


def test_held_out_points_are_transformed() -> None:
    """The best weights are those for the distribution that is trained on."""

    def shrink(batch: Tensor, generator: torch.Generator) -> Tensor:
        return 0.1 * batch

    def run(**options: Any) -> tuple[nn.Module, TrainResult]:
        model, config = density(), TrainConfig(steps=60, batch_size=8, lr=0.05, validate_every=5)
        arguments = {"transform": shrink, "generator": seeded(0), **options}
        return model, train(model, sm.ScoreMatching(), points(), config, **arguments)

    held_out = points(30, seed=3)
    model, result = run(validation=held_out)
    truth = sm.ScoreMatching()(model, 0.1 * held_out).mean().item()
    assert result.best_loss == pytest.approx(truth, rel=IDENTITY)
    by_function = run(validation=lambda model: sm.ScoreMatching()(model, 0.1 * held_out).mean())
    assert result.best_step == by_function[1].best_step
    assert torch.equal(parameters(model), parameters(by_function[0]))
    raw = run(validation=lambda model: sm.ScoreMatching()(model, held_out).mean())[1]
    assert raw.best_step != result.best_step  # the raw points would have chosen other weights


def test_held_out_points_may_be_of_another_type_before_the_transform() -> None:
    pixels = (points(30).abs() * 100).to(torch.uint8)
    config = TrainConfig(steps=2, batch_size=8)
    result = train(
        density(),
        sm.ScoreMatching(),
        pixels,
        config,
        validation=pixels,
        transform=lambda batch, generator: batch.double() / 100,
    )
    assert result.best_loss is not None and math.isfinite(result.best_loss)


# Divergence.


def diverging(at: int, infinite: float = math.nan) -> Any:
    calls = 0

    def objective(model: Any, x: Tensor, generator: Any = None) -> Tensor:
        nonlocal calls
        calls += 1
        losses = sm.ScoreMatching()(model, x)
        return losses * infinite if calls == at else losses

    return objective


@pytest.mark.parametrize("infinite", [math.nan, math.inf])
def test_divergence_restores_the_last_good_state(infinite: float, tmp_path: Path) -> None:
    config = TrainConfig(steps=50, batch_size=8, checkpoint_every=10, ema_decay=0.5)
    model, good, loaded = density(), density(), density()
    with pytest.raises(DivergedError, match="step 17") as caught:
        train(
            model,
            diverging(17, infinite),
            points(),
            config,
            generator=seeded(0),
            folder=tmp_path,
        )
    shorter = TrainConfig(steps=16, batch_size=8, log_every=1)
    history = train(good, sm.ScoreMatching(), points(), shorter, generator=seeded(0)).history
    assert caught.value.step == 17 and caught.value.last_finite_loss == history[-1].loss
    good = density()
    train(
        good, sm.ScoreMatching(), points(), TrainConfig(steps=10, batch_size=8), generator=seeded(0)
    )
    assert torch.equal(parameters(model), parameters(good))
    assert load_weights(loaded, tmp_path, "last") == 10


def test_divergence_of_the_weights_alone() -> None:
    """A last step that ruins the weights at a finite loss; nothing ever sees the next loss."""
    model = density()
    start = parameters(model)
    config = TrainConfig(steps=1, batch_size=8, lr=1e300)
    twice = functools.partial(torch.optim.SGD, weight_decay=1e300)
    with pytest.raises(DivergedError) as caught:
        train(model, sm.ScoreMatching(), points(), config, optimizer=twice)
    assert caught.value.step == 2 and math.isfinite(caught.value.last_finite_loss or math.nan)
    assert torch.equal(parameters(model), start)


def test_divergence_leaves_the_best_validation() -> None:
    """Weights of step 8, where validation was best; the only checkpoint is that of the start."""
    model, until = density(), density()
    losses = iter([3.0, 1.0, 2.0])
    config = TrainConfig(steps=40, batch_size=8, validate_every=4, checkpoint_every=1000)
    with pytest.raises(DivergedError):
        train(
            model,
            diverging(15, math.inf),
            points(),
            config,
            validation=lambda module: next(losses),
            generator=seeded(0),
        )
    shorter = TrainConfig(steps=8, batch_size=8)
    train(until, sm.ScoreMatching(), points(), shorter, generator=seeded(0))
    assert torch.equal(parameters(model), parameters(until))


# Precision, modules, state of the process.


def test_bf16_learns() -> None:
    model = density().float()
    config = TrainConfig(steps=60, batch_size=40, lr=0.02, precision="bf16", log_every=20)
    result = train(model, sm.SlicedScoreMatchingVR(), points().float(), config, generator=seeded(0))
    assert result.history[-1].loss < result.history[0].loss - 1
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_bf16_computes_in_bf16() -> None:
    x = points().float()
    low = LossModule(density().float(), sm.ScoreMatching(), precision="bf16")(x)
    high = LossModule(density().float(), sm.ScoreMatching())(x)
    assert 1e-5 < (low - high).abs().max() < 0.5


def test_loss_module_touches_every_parameter() -> None:
    """Unused parameters get zeros, even where they are infinite; used ones what they had."""
    plain, touched = density(), density()
    for model in (plain, touched):
        model.net[-1].bias.data.fill_(math.inf)
    x = points()
    sm.SlicedScoreMatching()(plain, x, seeded(0)).mean().backward()
    LossModule(touched, sm.SlicedScoreMatching(), seeded(0))(x).mean().backward()
    assert plain.net[-1].bias.grad is None
    for p, t in zip(plain.parameters(), touched.parameters()):
        assert t.grad is not None
        assert torch.equal(t.grad, torch.zeros_like(t) if p.grad is None else p.grad)


def test_default_generator_and_nothing_else_is_left_changed() -> None:
    """Without a generator torch's own is drawn from, as torch.randn would."""
    x, config = points(), TrainConfig(steps=3, batch_size=8)
    kept = x.clone()
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.set_state(seeded(2).get_state())
        a = density()
        train(a, sm.SlicedScoreMatching(), x, config)
    b, before = density(), torch.get_rng_state()
    train(b, sm.SlicedScoreMatching(), x, config, generator=seeded(2))
    assert torch.equal(parameters(a), parameters(b)) and torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), before)


def test_result() -> None:
    result = run_everything(None)[1]
    assert result.steps == 37 and result.points == 37 * 8 and result.seconds > 0
    assert result.points_per_second == result.points / result.seconds
    assert digits(run_everything(None)) == digits(run_everything(None))


@pytest.mark.gpu
@pytest.mark.parametrize("make", [torch.optim.RMSprop, torch.optim.Adam])
def test_captured_steps_are_eager_steps(make: Any, tmp_path: Path) -> None:
    """To rounding, for the same optimiser: one that is capturable rounds differently."""

    def capturable(parameters: Any, lr: float) -> torch.optim.Optimizer:
        rate = torch.tensor(lr, dtype=torch.float64, device="cuda")
        return make(parameters, lr=rate, capturable=True)

    def run(capture: bool, steps: int, folder: Path | None = None, resume: bool = False) -> Tensor:
        g = torch.Generator("cuda").manual_seed(0)
        model = density().cuda()
        config = TrainConfig(
            steps=steps,
            batch_size=8,
            lr=0.02,
            warmup=5,
            max_norm=1.0,
            ema_decay=0.8,
            checkpoint_every=10,
            validate_every=7,
        )
        train(
            model,
            sm.SlicedScoreMatchingVR(),
            points().cuda(),
            config,
            validation=points(30, seed=3).cuda(),
            optimizer=make if capture else capturable,
            executor="captured" if capture else "eager",
            generator=g,
            folder=folder,
            resume=resume,
        )
        return parameters(model).cpu()

    captured, eager = run(True, 35), run(False, 35)
    assert torch.allclose(captured, eager, rtol=0, atol=IDENTITY)
    run(True, 20, tmp_path)
    resumed = run(True, 35, tmp_path, resume=True)
    assert torch.allclose(resumed, captured, rtol=0, atol=IDENTITY)


@pytest.mark.gpu
def test_optimizer_that_cannot_be_captured() -> None:
    """Runs eagerly, unless capture is insisted on."""
    model, x = density().cuda(), points().cuda()
    config = TrainConfig(steps=8, batch_size=8)
    result = train(model, sm.SlicedScoreMatching(), x, config, optimizer=torch.optim.SGD)
    assert result.steps == 8
    assert result.executor == "eager"
    with pytest.raises(ValueError, match="needs a capturable optimiser such as Adam, got SGD"):
        train(
            model,
            sm.SlicedScoreMatching(),
            x,
            config,
            optimizer=torch.optim.SGD,
            executor="captured",
        )


@pytest.mark.gpu
def test_divergence_is_seen_though_losses_are_read_later() -> None:
    model, x = density().cuda().float(), points().cuda().float()
    config = TrainConfig(steps=100, batch_size=8, lr=1e20, log_every=40)
    with pytest.raises(DivergedError) as caught:
        train(model, sm.ScoreMatching(), x, config)
    assert 2 <= caught.value.step < 40
    assert torch.equal(parameters(model).cpu(), parameters(density().float()))


@pytest.mark.parametrize("reduce", [lambda x: x.mean(), lambda x: x], ids=["mean", "coordinates"])
def test_parts_need_the_loss_of_every_point(reduce: Any) -> None:
    """A mean of each part counted as the loss of one point: the gradient was far too small."""

    def loss(model: Any, batch: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return reduce((batch - model.weight).square())

    model, config = torch.nn.Linear(2, 1).double(), TrainConfig(steps=1, batch_size=8)
    train(model, loss, points(), config)
    with pytest.raises(ValueError, match=r"the loss of every point, of shape \(4,\), got shape"):
        train(model, loss, points(), TrainConfig(steps=1, batch_size=8, accumulate=2))
    with pytest.raises(ValueError, match="the objective must return the loss of every point"):
        train(model, loss, points(), config, validation=points())


class Waves(nn.Module):
    """A log-density all of whose weights are complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(2, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        z = x.to(torch.complex128) @ self.weight
        return -(z.real.square() + z.imag.square()).sum(-1)


def test_complex_weights_are_trained_and_checked() -> None:
    """No weight was looked at: an error of torch, or no error where weights were not finite."""
    model = Waves()
    config = TrainConfig(steps=20, batch_size=20, lr=0.1)
    train(model, sm.ScoreMatching(), points(), config, generator=seeded(0))
    assert float((model.weight.detach() - torch.eye(2)).abs().max()) > 0.1
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    assert not is_finite(model)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_trains_where_gradients_are_switched_off(mode: Any) -> None:
    """As in a function for evaluation; points may have been made there."""
    want, found = density(), density()
    config = TrainConfig(steps=4, batch_size=10, ema_decay=0.5, validate_every=2)
    objective = sm.SlicedScoreMatchingVR()
    train(want, objective, points(), config, validation=points(30), generator=seeded(2))
    with mode():
        x, held_out = points(), points(30)
        train(found, objective, x, config, validation=held_out, generator=seeded(2))
        assert not torch.is_grad_enabled()
    assert torch.equal(parameters(found), parameters(want))
