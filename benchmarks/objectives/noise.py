"""Time times variance of a loss and of its gradient.

At a fixed budget of time, the variance of an average is proportional to the time of one estimate
times its variance. Variances are over directions alone; the points are fixed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import scorematching as sm
from benchmarks.harness.timing import interleaved
from benchmarks.objectives import contenders
from benchmarks.objectives.contenders import IID, Contender, gradient_step
from benchmarks.objectives.models import Mlp, Normal

REFERENCE = "torchebm SSM M=5 signs"
"""The default of torchebm."""


def measure(
    peers: dict[str, Any], repeats: int, rounds: int, device: str, seed: int, quick: bool
) -> list[dict[str, Any]]:
    """Rows of time and variance, on a Gaussian and on a trained network."""
    problems = {
        "normal": ("Gaussian, D=5, N=50", gaussian(device), 10 * repeats),
        "mlp": ("trained MLP, N=128", trained_mlp(device, seed, quick), repeats),
    }
    rows = []
    for name, (about, (model, x), num) in problems.items():
        found = [_row(c, model, num) for c in _contenders(peers, model, x)]
        steps = [gradient_step(c, model) for c in _contenders(peers, model, x)]
        times = interleaved(steps, rounds, 2, device, seed)
        for row, seconds in zip(found, times):
            rows.append({"problem": name, "about": about, "seconds": seconds, **row})
    return _with_costs(rows)


def gaussian(device: str) -> tuple[nn.Module, Tensor]:
    """A Gaussian with precision ``P = B B' / 5 + I / 2``, and points from N(0, P), a poor fit."""
    g = torch.Generator().manual_seed(1)
    b = torch.randn(5, 5, dtype=torch.float64, generator=g)
    precision = b @ b.T / 5 + 0.5 * torch.eye(5, dtype=torch.float64)
    z = torch.randn(50, 5, dtype=torch.float64, generator=g)
    x = z @ torch.linalg.cholesky(precision).T
    return Normal(precision.float()).to(device), x.float().to(device)


def trained_mlp(device: str, seed: int, quick: bool) -> tuple[nn.Module, Tensor]:
    """A network after 300 steps of training on a mixture of two correlated Gaussians."""
    dim, width, batch, steps = (6, 8, 16, 3) if quick else (100, 256, 128, 300)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, mix = Mlp(dim, width), torch.eye(dim) + 0.5 * torch.randn(dim, dim) / dim**0.5
        shift = 2 * torch.randn(2, dim)
        x = torch.randn(steps + 1, batch, dim) @ mix + shift[torch.randint(2, (steps + 1, batch))]
        model, x = model.to(device), x.to(device)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for points in x[1:]:
            optimizer.zero_grad()
            sm.SlicedScoreMatchingVR()(model, points).mean().backward()
            optimizer.step()
    return model, x[0]


def _contenders(peers: dict[str, Any], model: nn.Module, x: Tensor) -> list[Contender]:
    first = sm.SlicedScoreMatching(IID)
    second = sm.SlicedScoreMatchingVR(IID)
    third = sm.SlicedScoreMatchingVR()
    found = [
        Contender("ours", "SSM", "signs", 1, lambda: first(model, x).mean()),
        Contender("ours", "SSM-VR", "signs", 1, lambda: second(model, x).mean()),
        Contender("ours", "SSM-VR", "balanced", 1, lambda: third(model, x).mean()),
    ]
    if "torchebm" in peers:
        found += contenders.torchebm(peers["torchebm"], model, x, (1, 5))
    if "ebmkit" in peers:
        found += contenders.ebmkit(peers["ebmkit"], model, x, (1,))
    return found


def _row(contender: Contender, model: nn.Module, repeats: int) -> dict[str, Any]:
    """Standard deviation of the loss, and total variance of its parameter gradient."""
    parameters = list(model.parameters())
    losses: list[float] = []
    total: Any = 0.0
    squares: Any = 0.0
    for _ in range(repeats):
        loss = contender.loss()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = torch.cat([g.flatten() for g in gradients if g is not None]).double()
        losses.append(loss.item())
        total, squares = total + flat, squares + flat.square()
    variance = (squares - total.square() / repeats).sum().item() / (repeats - 1)
    return {
        "label": contender.label,
        "library": contender.library,
        "objective": contender.objective,
        "law": contender.law,
        "num": contender.num,
        "repeats": repeats,
        "loss_mean": torch.tensor(losses).mean().item(),
        "loss_variance": torch.tensor(losses, dtype=torch.float64).var().item(),
        "gradient_variance": variance,
    }


def _with_costs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the time x variance of the reference divided by that of each row."""
    for row in rows:
        same = [r for r in rows if r["problem"] == row["problem"] and r["label"] == REFERENCE]
        for what in ("loss", "gradient"):
            key = f"{what}_variance"
            row[f"{what}_gain"] = _cost(same[0], key) / _cost(row, key) if same else None
    return rows


def _cost(row: dict[str, Any], key: str) -> float:
    return row["seconds"]["median"] * row[key]
