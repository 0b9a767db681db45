"""The losses that are timed: this library's, other libraries', and nested autograd by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import scorematching as sm
from benchmarks.harness.timing import Step

PEERS = {"torchebm": ("torchebm.losses", "0.8.9"), "ebmkit": ("ebm.losses", "0.16.0")}
"""Import name and the version that the committed numbers belong to."""

SIGMA = 0.1
IID = sm.Rademacher(orthogonal=False, balanced=False)


@dataclass(frozen=True)
class Contender:
    """One loss of one library on one model.

    Attributes:
        library: "ours", another library, or "bare" for nested torch.autograd.grad.
        objective: "DSM", "SSM", "SSM-VR" or "SM".
        law: name of the distribution of the directions.
        num: M, directions per point; zero where there are none.
        loss: the mean loss of the batch, ready to be differentiated.
    """

    library: str
    objective: str
    law: str
    num: int
    loss: Callable[[], Tensor]

    @property
    def label(self) -> str:
        """A short name, unique within a model."""
        num = f" M={self.num}" if self.num else ""
        law = f" {self.law}" if self.law else ""
        return f"{self.library} {self.objective}{num}{law}"


def gradient_step(contender: Contender, model: nn.Module) -> Step:
    """The step to time: zero gradients, mean loss, backward."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        contender.loss().backward()

    return step


def load_peers(wanted: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """The other libraries that are installed, and why the rest are left out."""
    found, skipped = {}, {}
    for name, (module, _) in PEERS.items():
        try:
            if not wanted:
                raise ImportError("left out on request")
            found[name] = importlib.import_module(module)
        except ImportError as error:
            skipped[name] = str(error)
    return found, skipped


def ours(model: Any, x: Tensor, nums: tuple[int, ...]) -> Iterator[Contender]:
    """This library: its default directions, and independent signs as in torchebm."""

    def make(objective: sm.Objective, name: str, law: str, num: int) -> Contender:
        return Contender("ours", name, law, num, lambda: objective(model, x).mean())

    yield make(sm.DenoisingScoreMatching(sigma=SIGMA), "DSM", "", 0)
    for num in nums:
        yield make(sm.SlicedScoreMatchingVR(num_projections=num), "SSM-VR", "balanced", num)
    for num in nums:
        yield make(sm.SlicedScoreMatchingVR(IID, num), "SSM-VR", "signs", num)
    yield make(sm.SlicedScoreMatching(IID), "SSM", "signs", 1)


def bare(model: nn.Module, x: Tensor, nums: tuple[int, ...], vector: bool) -> Iterator[Contender]:
    """Losses written by hand: nested torch.autograd.grad on x repeated M times."""

    def score(x: Tensor) -> Tensor:
        return model(x) if vector else _gradient(model(x).sum(), x)

    def denoising() -> Tensor:
        noise = torch.randn_like(x)
        s = score((x + SIGMA * noise).requires_grad_(not vector))
        return 0.5 * (s + noise / SIGMA).flatten(1).square().sum(-1).mean()

    def sliced(num: int) -> Tensor:
        tiled = x.repeat(num, *[1] * (x.ndim - 1)).requires_grad_()
        v = torch.randint_like(tiled, 2) * 2 - 1
        s = score(tiled)
        curvature = (_gradient((s * v).sum(), tiled) * v).flatten(1).sum(-1)
        return (0.5 * s.flatten(1).square().sum(-1) + curvature).mean()

    yield Contender("bare", "DSM", "", 0, denoising)
    for num in nums:
        yield Contender("bare", "SSM-VR", "signs", num, partial(sliced, num))


def torchebm(
    module: Any, model: nn.Module, x: Tensor, nums: tuple[int, ...]
) -> Iterator[Contender]:
    """Plain SSM, its only sliced loss; it sums over the last axis, so images are flattened."""
    energy, flat = FlatEnergy(model, x.shape[1:]), x.flatten(1)
    for num in nums:
        loss = module.SlicedScoreMatching(
            energy, n_projections=num, projection_type="rademacher", device=x.device
        )
        yield Contender("torchebm", "SSM", "signs", num, partial(loss, flat))


def ebmkit(module: Any, model: nn.Module, x: Tensor, nums: tuple[int, ...]) -> Iterator[Contender]:
    """SSM-VR along Gaussian directions, the only ones it has; they share the first gradient."""
    for num in nums:
        loss = module.SlicedScoreMatching(n_projections=num, vr=True)
        yield Contender("ebmkit", "SSM-VR", "normal", num, partial(_ebmkit_loss, loss, model, x))


def _ebmkit_loss(loss: Any, model: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = loss(lambda z: -model(z), x).loss
    return result


def exact(peers: dict[str, Any], model: nn.Module, x: Tensor) -> Iterator[Contender]:
    """Exact score matching of this library and of others."""
    objective = sm.ScoreMatching()
    yield Contender("ours", "SM", "", 0, lambda: objective(model, x).mean())
    if "torchebm" in peers:
        loss = peers["torchebm"].ScoreMatching(FlatEnergy(model, x.shape[1:]), device=x.device)
        yield Contender("torchebm", "SM", "", 0, lambda: loss(x.flatten(1)))
    if "ebmkit" in peers:
        by_loop = peers["ebmkit"].ExactScoreMatching()
        yield Contender("ebmkit", "SM", "", 0, lambda: by_loop(lambda z: -model(z), x).loss)


class FlatEnergy(nn.Module):
    """Minus a log-density of flattened points, the interface of torchebm."""

    def __init__(self, model: nn.Module, event: torch.Size) -> None:
        super().__init__()
        self.model, self.event = model, event

    def forward(self, x: Tensor) -> Tensor:
        """Energies ``(N,)``."""
        return -self.model(x if len(self.event) == 1 else x.view(-1, *self.event))


def _gradient(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, create_graph=True)[0]
