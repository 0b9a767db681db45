"""What the experiments with auto-encoders share: methods, rates and stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reproduction.autoencoders import training as autoencoders
from reproduction.autoencoders.mnist_networks import make_implicit_vae, make_vae, make_wae
from reproduction.autoencoders.training import (
    Settings,
    loss_for,
    optimizer_for,
    progress_of,
    train_model,
)
from reproduction.experiment import Job
from scorematching.kernels import fit_spectral, fit_stein
from scorematching.models import ImplicitVAE
from scorematching.training import TrainConfig, train
from tests.tolerances import IDENTITY, ROUTES

TINY = Settings(latent_dim=2, iterations=6, stage=2, batch_size=8, num_samples=5)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(), dtype=torch.float64)


def bits(num: int = 64) -> Tensor:
    return torch.rand(num, 5, generator=seeded(1)).round()


def implicit(with_network: bool = True) -> ImplicitVAE:
    return make_implicit_vae(2, 5, (6,), with_network, seeded(2))


def job(folder: Path) -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    return Job("VAE 8/SSM", 0, torch.device("cpu"), folder)


def as_it_is(batch: Tensor, generator: torch.Generator) -> Tensor:
    return batch


# Methods.


def estimate(method: str, z: Tensor, **settings: Any) -> Tensor:
    """The scores that the loss of a kernel method takes."""
    loss: Any = loss_for(replace(TINY, method=method, **settings))
    scores: Tensor = loss.score(z)
    return scores


@pytest.mark.parametrize("average", [True, False])
def test_spectral_is_that_of_the_estimators(average: bool) -> None:
    z = draws(4, 30, 3) * torch.tensor([0.1, 1.0, 2.0, 5.0])[:, None, None]
    found = estimate("Spectral", z, average_mass=average)
    plain = fit_spectral(z, include_diagonal=True, average_mass=average).at_samples()
    assert torch.allclose(found, plain, rtol=0, atol=ROUTES * plain.abs().max())
    other = fit_spectral(z, include_diagonal=True, average_mass=not average).at_samples()
    assert not torch.allclose(other, plain)


def test_kernels_compute_in_double_precision() -> None:
    z = draws(2, 40, 8).float()
    fits = (
        ("Stein", fit_stein(z.double(), include_diagonal=True)),
        ("Spectral", fit_spectral(z.double(), include_diagonal=True, average_mass=True)),
    )
    for method, fitted in fits:
        wide, found = fitted.at_samples(), estimate(method, z)
        assert found.dtype == torch.float32
        assert torch.equal(found, wide.float()) or torch.allclose(found.double(), wide, rtol=1e-6)


def test_a_set_of_samples_keeps_its_first_eigenpair() -> None:
    """Even where it has all the mass, as for samples that hardly differ."""
    z = draws(1, 6, 2)
    wanted = fit_spectral(z, num_eigen=1, include_diagonal=True).at_samples()
    assert torch.allclose(estimate("Spectral", z, mass=1e-6), wanted, atol=IDENTITY)


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="method must be one of ELBO, SSM"):
        loss_for(replace(TINY, method="MMD"))
    with pytest.raises(ValueError, match="WAE has no ELBO"):
        loss_for(replace(TINY, method="ELBO", model="WAE"))


def test_the_score_network_is_trained_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder is moved by the score network of this step, not of the last."""
    model, calls = implicit(), []
    real = {name: getattr(ImplicitVAE, name) for name in ("score_loss", "loss")}

    def weights() -> list[float]:
        assert model.score_network is not None
        return [w.sum().item() for w in (*model.score_network.parameters(), *model.parameters())]

    def spy(name: str) -> Any:
        def call(self: Any, *args: Any, **more: Any) -> Tensor:
            calls.append((name, weights()))
            result: Tensor = real[name](self, *args, **more)
            return result

        return call

    for name in real:
        monkeypatch.setattr(ImplicitVAE, name, spy(name))
    begin = weights()
    config = TrainConfig(steps=1, batch_size=8, lr=1e-2)
    train(model, loss_for(TINY), bits(), config, optimizer=torch.optim.RMSprop, generator=seeded())
    assert [name for name, _ in calls] == ["score_loss", "loss"]
    num = len(list(model.score_network.parameters()))  # type: ignore[union-attr]
    (_, first), (_, second), end = *calls, weights()
    assert first == begin and second[:num] != first[:num]  # the score network has moved
    encoder = [i for i, (name, _) in enumerate(model.named_parameters()) if "score" not in name]
    assert all(second[num + i] == first[num + i] for i in encoder)  # and nothing else
    assert end[:num] == second[:num] and end != second


@pytest.mark.parametrize("method", ["Stein", "Spectral"])
def test_kernels_see_many_latents_of_a_point_or_one_of_many_points(method: str) -> None:
    shapes = []
    real = getattr(autoencoders, method.lower())

    def spy(z: Tensor, **settings: Any) -> Tensor:
        shapes.append(tuple(z.shape))
        scores: Tensor = real(z, **settings)
        return scores

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoencoders, method.lower(), spy)
        loss_for(replace(TINY, method=method))(implicit(False), bits(8), generator=seeded())
        wae = make_wae(2, 5, (6,), False, generator=seeded(2))
        loss_for(replace(TINY, method=method, model="WAE"))(wae, bits(8), generator=seeded())
    assert shapes == [(8, 5, 2), (1, 8, 2)]


@pytest.mark.parametrize(("kind", "method"), [("VAE", "Stein"), ("WAE", "Spectral")])
def test_losses_of_kernels_can_be_compiled(
    kind: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their noise is drawn first. The flattened gradients are run without the compiler."""
    monkeypatch.setattr(torch, "compile", lambda f, **how: f)
    losses: dict[str, list[float]] = {}
    for executor in ("eager", "compiled"):
        wae = make_wae(2, 5, (6,), False, generator=seeded(2))
        config = replace(TINY, method=method, model=kind)
        result = train(
            implicit(False) if kind == "VAE" else wae,
            loss_for(config),
            bits(),
            TrainConfig(steps=3, batch_size=8, lr=1e-3, log_every=1),
            executor=executor,
            generator=seeded(),
        )
        assert result.executor == executor
        losses[executor] = [record.loss for record in result.history]
    assert losses["compiled"] == pytest.approx(losses["eager"], rel=1e-4)


def test_two_rates_are_two_optimisers() -> None:
    """Of the encoder and decoder one, of the score network the other."""
    models = [implicit(), implicit()]
    config = replace(TINY, score_lr=1e-4)
    one = optimizer_for(config, models[0])(list(models[0].parameters()), lr=1e-3)
    named = [dict(model.named_parameters()) for model in models]
    two = [
        torch.optim.RMSprop([p], lr=1e-4 if "score_network" in name else 1e-3)
        for name, p in named[1].items()
    ]
    for k in range(3):
        for p in (p for each in named for p in each.values()):
            p.grad = torch.full_like(p, k - 0.5)
        one.step()
        for optimizer in two:
            optimizer.step()
    for name, p in named[0].items():
        torch.testing.assert_close(p, named[1][name])
    assert optimizer_for(TINY, models[0]) is torch.optim.RMSprop


# Stages.


def staged(folder: Path, config: Settings = TINY, stop_at: int | None = None) -> Any:
    """Train a small model; optionally be interrupted while it is evaluated."""
    explicit = config.method == "ELBO"
    model: Any = make_vae(2, 5, (6,), seeded(2)) if explicit else implicit()
    marks = []

    def evaluate(mark: int) -> dict[str, Any]:
        marks.append(mark)
        if mark == stop_at:
            raise KeyboardInterrupt
        return {"sum": sum(p.sum().item() for p in model.parameters())}

    try:
        seen = train_model(model, bits(), as_it_is, config, job(folder), evaluate)
    except KeyboardInterrupt:
        return None, marks, model
    return seen, marks, model


def test_stages_leave_the_digits_alone(tmp_path: Path) -> None:
    weights = []
    for stage in (2, 5, 6):
        seen, marks, model = staged(tmp_path / str(stage), replace(TINY, stage=stage))
        assert marks == [*range(stage, 6, stage), 6] and seen["iterations"] == 6
        assert progress_of(seen)["executor"] == "eager"
        weights.append([p.detach().clone() for p in model.parameters()])
    for other in weights[1:]:
        assert all(torch.equal(a, b) for a, b in zip(weights[0], other))


def test_an_interrupted_run_evaluates_only_what_it_has_not(tmp_path: Path) -> None:
    whole, _, _ = staged(tmp_path / "whole")
    assert staged(tmp_path / "broken", stop_at=4)[1] == [2, 4]
    resumed, marks, _ = staged(tmp_path / "broken")
    assert marks == [4, 6]
    for mark in ("2", "4", "6"):
        assert resumed["stages"][mark]["sum"] == whole["stages"][mark]["sum"]
    again, marks, model = staged(tmp_path / "broken")
    assert marks == [] and again == resumed
    assert sum(p.sum().item() for p in model.parameters()) == whole["stages"]["6"]["sum"]


def test_a_run_stops_where_its_time_is_up(tmp_path: Path) -> None:
    seen, marks, _ = staged(tmp_path, replace(TINY, max_seconds=1e-9))
    assert marks == [2] and seen["iterations"] == 2


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    wild = replace(TINY, method="ELBO", lr=1e30)
    seen, marks, model = staged(tmp_path, wild)
    assert marks == [] and seen["diverged_at"] is not None and seen["iterations"] == 0
    assert all(p.isfinite().all() for p in model.parameters())
    assert staged(tmp_path, wild)[0] == seen
