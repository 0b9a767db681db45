"""Mixed precision, where torch computes some functions of bf16 numbers in float32.

On a GPU autocast does so for softplus, exp, pow and others, on a CPU for none of them. Here
softplus is treated on the CPU as on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import scorematching as sm

CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


@pytest.fixture
def wide_softplus() -> Iterator[None]:
    """Softplus of bf16 in float32 under autocast, as on a GPU."""

    def softplus(z: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
        with torch._C._ExcludeDispatchKeyGuard(CPU):
            wide = z.float() if z.dtype == torch.bfloat16 else z
            return torch.ops.aten.softplus.default(wide, beta, threshold)

    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    library.impl("softplus", softplus)
    yield
    library._destroy()


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def network(outputs: int, convolutions: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 16)]
    if convolutions:
        layers += [nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.Softplus()]
        layers += [nn.Flatten(), nn.Linear(12, 16)]
    net = nn.Sequential(*layers, nn.Softplus(), nn.Linear(16, outputs)).double()
    g = torch.Generator().manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, 0, p[0].numel() ** -0.5, generator=g)
    return net


def loss_and_gradient(net: nn.Module, x: Tensor, v: Tensor, route: str = "auto") -> Tensor:
    """In mixed precision where the network is float32."""
    outputs = net[-1].out_features  # type: ignore[index]
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.dtype == torch.float32):
        field: Any = sm.VectorField(net, route=route)
        if outputs == 1:
            field = sm.LogDensityField(lambda x: net(x).squeeze(-1), route=route)
        loss = sm.SlicedScoreMatchingVR().loss(field, x, v.to(x.dtype)).mean()
    gradients = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    found = [loss, *(g for g in gradients if g is not None)]
    return torch.cat([t.detach().flatten() for t in found]).double().cpu()


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.usefixtures("wide_softplus")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("convolutions", [False, True])
@pytest.mark.parametrize("outputs", [1, 4])
def test_softplus_in_mixed_precision(outputs: int, convolutions: bool, device: str) -> None:
    """Its own rule is used; losses and gradients are those in float64, up to rounding to bf16."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    v = sm.Gaussian().sample(x, 2, torch.Generator().manual_seed(2))
    net = network(outputs, convolutions)
    exact = loss_and_gradient(net, x, v)
    net, x, v = net.float().to(device), x.float().to(device), v.to(device)
    loss_and_gradient(net, x, v)
    with Counting() as counting:
        mixed = loss_and_gradient(net, x, v)
    assert "log1p" not in counting.names and "where" not in counting.names
    assert counting.names.count("softplus") <= 4 * (3 if convolutions else 2)
    twice = relative(loss_and_gradient(net, x, v, "reverse"), exact)
    assert relative(mixed, exact) < max(0.02, 2 * twice)
    assert torch.cosine_similarity(mixed, exact, 0) > 0.999


class Contraction(nn.Module):
    """A log-density with an operation that is decomposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64).reshape(4, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensordot(x, self.weight, 1).tanh().sum(-1)


def test_decompositions_in_mixed_precision_are_not_kept_for_others() -> None:
    """After a use under autocast every later one was in bf16."""
    model, objective = Contraction(), sm.ScoreMatching()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    expected = objective(Contraction(), x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = objective(model, x)
    assert 1e-4 < relative(mixed.detach(), expected.detach()) < 0.05
    assert relative(objective(model, x).detach(), expected.detach()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "objective", [sm.SlicedScoreMatching(), sm.SlicedScoreMatchingVR(beta=0.5)], ids=["SSM", "beta"]
)
def test_projected_scores_stay_in_single_precision(
    objective: sm.SlicedScoreMatching, dtype: torch.dtype
) -> None:
    """Their squares overflow in float16, where the log-density needs no mixed precision itself."""
    x = 0.01 * torch.randn(8, 400, generator=torch.Generator().manual_seed(0))
    field = sm.LogDensityField(lambda x: -0.5 * (x / 0.01).square().sum(1))
    v = objective.draw(x, torch.Generator().manual_seed(1))
    wanted = objective.loss(field, x, v).detach()
    with torch.autocast("cpu", dtype):
        found = objective.loss(field, x, v).detach()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("seed", [6, 38, 56])
def test_rounding_to_half_precision_is_no_kink(seed: int) -> None:
    """Smoothness is measured without autocast: one in twenty of such networks was refused."""
    g = torch.Generator().manual_seed(seed)
    objective, x = sm.SlicedScoreMatchingVR(), torch.randn(40, 3, generator=g)
    smooth = sm.models.ScoreNetwork(3, (32, 32), generator=g)
    kinked = sm.models.ScoreNetwork(3, (32, 32), activation=nn.ReLU, generator=g)
    with torch.autocast("cpu", torch.bfloat16):
        assert objective(sm.VectorField(smooth), x, generator=g).isfinite().all()
        with pytest.raises(sm.SmoothnessError):
            objective(sm.VectorField(kinked), x, generator=g)


@pytest.mark.parametrize(
    "objective",
    [
        sm.ScoreMatching(),
        sm.SlicedScoreMatchingVR(),
        sm.SlicedScoreMatchingVR(beta=0.5),
        sm.DenoisingScoreMatching(0.01),
        sm.LocalCurvatureSmoothing(sigma=0.01),
    ],
    ids=repr,
)
def test_squares_of_a_score_network_in_half_precision(objective: sm.Objective) -> None:
    """Its scores are in float16, in which the sums of their squares were infinite."""
    x = torch.randn(8, 100, generator=torch.Generator().manual_seed(0))
    network = nn.Linear(100, 100)
    with torch.no_grad():
        network.weight.copy_(-100 * torch.eye(100))
        network.bias.zero_()
    field, noise = sm.VectorField(network), objective.draw(x, torch.Generator().manual_seed(1))
    wanted = objective.loss(field, x, noise).detach()
    assert wanted.amax() > torch.finfo(torch.float16).max
    with torch.autocast("cpu", torch.float16):
        found = objective.loss(field, x, noise).detach()
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    "objective", [sm.SlicedScoreMatching(), sm.SlicedScoreMatchingVR(beta=0.5)]
)
def test_a_score_network_in_double_precision_of_single_points(objective: sm.Objective) -> None:
    """Plain sliced score matching ended in an error of torch about scalar types."""
    network, x = nn.Linear(3, 3).double(), torch.randn(5, 3)
    v = objective.draw(x)
    found = objective.loss(sm.VectorField(lambda x: network(x.double())), x, v)
    wanted = objective.loss(sm.VectorField(network), x.double(), v.double())
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
