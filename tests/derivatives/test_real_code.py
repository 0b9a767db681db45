"""Models as people write them: right answers, or a refusal that says what to do."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as D
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import scorematching as sm
from scorematching import LogDensityField, VectorField
from scorematching.errors import PerformanceWarning, SmoothnessError, WrongDerivativeError
from tests import oracles
from tests.laws import assert_close
from tests.models_zoo import normal
from tests.tolerances import FLOAT32, ROUTES

VR = sm.SlicedScoreMatchingVR()
Model = Callable[[Tensor], Tensor]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def built(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> Any:
    """A module whose constructor draws the same numbers every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().to(dtype)


def mlp(act: type[nn.Module] = nn.Tanh, dim: int = 3) -> nn.Sequential:
    return built(lambda: nn.Sequential(nn.Linear(dim, 8), act(), nn.Linear(8, 1)))


def points(*shape: int) -> Tensor:
    return normal(*shape, generator=seeded(0))


def assert_same_as(
    model: Any, truth: Any, module: nn.Module, x: Tensor, objective: sm.Objective = VR
) -> None:
    """Losses of a model and their gradient are those of another by double backward."""
    noise = objective.draw(x, seeded(1))
    fields = [
        f if isinstance(f, sm.Field) else LogDensityField(f, route=route)
        for f, route in ((model, "auto"), (truth, "reverse"))
    ]
    found, wanted = (partial(objective.loss, field, x, noise) for field in fields)
    assert found().dtype == x.dtype
    assert_close(found(), wanted(), ROUTES)
    gradients = [_real(oracles.parameter_gradient(f, module)) for f in (found, wanted)]
    assert_close(*gradients, ROUTES)


def _real(gradient: Tensor) -> Tensor:
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def is_traced(model: Any, x: Tensor) -> bool:
    field = model if isinstance(model, sm.Field) else LogDensityField(model)
    VR(field, x)
    return "reverse" not in field.model.findings.routes.values()


# ------------------------------------------------------------------- torch's own wrappers


def test_scripted_modules_at_every_call() -> None:
    # TorchScript replaces the graph from the second call on.
    net, x = mlp(), points(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        scripted = torch.jit.script(net)
    for _ in range(5):
        assert_same_as(lambda x: scripted(x).squeeze(-1), lambda x: net(x).squeeze(-1), net, x)
    assert is_traced(lambda x: scripted(x).squeeze(-1), x)


def test_scripted_kinks_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(mlp(nn.ReLU))
    with pytest.raises(SmoothnessError):
        VR(lambda x: scripted(x).squeeze(-1), points(32, 3))


CHECKPOINTED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "sequential": lambda net, x: checkpoint_sequential(net, 2, x, use_reentrant=False),
    "first layers": lambda net, x: net[2:](checkpoint(net[:2], x, use_reentrant=False)),
    "all layers": lambda net, x: checkpoint(net, x, use_reentrant=False),
    "last layers": lambda net, x: checkpoint(net[1:], net[0](x), use_reentrant=False),
}


@pytest.mark.parametrize("objective", [VR, sm.ScoreMatching()], ids=["VR", "SM"])
@pytest.mark.parametrize("how", CHECKPOINTED)
def test_checkpointed_layers(how: str, objective: sm.Objective) -> None:
    net = built(lambda: nn.Sequential(*mlp()[:2], nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))

    def model(x: Tensor) -> Tensor:
        return CHECKPOINTED[how](net, x).squeeze(-1)

    x = points(4, 3)
    assert_same_as(model, lambda x: net(x).squeeze(-1), net, x, objective)
    assert is_traced(model, x)


def test_compiled_modules_run_as_they_were_written() -> None:
    # Compiling the engine would take half a minute and fail; nothing is compiled.
    net, x = mlp(), points(4, 3)
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(net, backend=backend)
    assert_same_as(lambda x: compiled(x).squeeze(-1), lambda x: net(x).squeeze(-1), net, x)
    assert is_traced(lambda x: compiled(x).squeeze(-1), x)
    assert not graphs


@dataclass(eq=True)
class Declared(nn.Module):
    """A module that is a dataclass, and so has no hash."""

    dim: int = 3

    def __post_init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(self.dim, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sin()).squeeze(-1)


def test_modules_without_a_hash() -> None:
    model = built(Declared)

    def truth(x: Tensor) -> Tensor:
        return (x.sin() @ model.layer.weight.T + model.layer.bias).squeeze(-1)

    x = points(4, 3)
    noise = VR.draw(x, seeded(1))
    loss, wanted = (VR.loss(LogDensityField(f), x, noise) for f in (model, truth))
    assert_close(loss, wanted, ROUTES)
    (found,), (exact,) = (torch.autograd.grad(y.sum(), model.layer.weight) for y in (loss, wanted))
    assert_close(found, exact, ROUTES)


def wrapped(net: nn.Module) -> dict[str, Model]:
    parameters = dict(net.named_parameters())
    return {
        "functional_call": lambda x: torch.func.functional_call(net, parameters, (x,)),
        "DataParallel": nn.DataParallel(net),
        "partial": partial(lambda x, scale: net(x * scale), scale=1.0),
        "bound method": net.forward,
        "lambda": lambda x: net(x),
    }


@pytest.mark.parametrize("how", wrapped(mlp()))
def test_wrappers(how: str) -> None:
    net, x = mlp(), points(4, 3)
    model = wrapped(net)[how]
    assert_same_as(lambda x: model(x).squeeze(-1), lambda x: net(x).squeeze(-1), net, x)
    assert is_traced(lambda x: model(x).squeeze(-1), x)


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
def test_vmapped_ensembles() -> None:
    nets = nn.ModuleList([mlp(), mlp(nn.SiLU)])
    nets[1][1] = nn.Tanh()
    nets[1][0].weight.data *= 1.5
    stacked = torch.func.stack_module_state(list(nets))
    x = points(4, 3)

    def one(p: Any, b: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(nets[0], (p, b), (x,)).squeeze(-1)

    def model(x: Tensor) -> Tensor:
        return torch.func.vmap(one, in_dims=(0, 0, None))(*stacked, x).logsumexp(0)

    def truth(x: Tensor) -> Tensor:
        return torch.stack([net(x).squeeze(-1) for net in nets]).logsumexp(0)

    noise = VR.draw(x, seeded(1))
    loss, wanted = (VR.loss(LogDensityField(f), x, noise) for f in (model, truth))
    assert_close(loss, wanted, ROUTES)


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
@pytest.mark.parametrize("how", ["autograd", "functional"])
def test_score_networks_that_are_gradients(how: str) -> None:
    net, x = mlp(), points(4, 3)

    def by_autograd(x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.requires_grad_()
        return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]

    by_transform = torch.func.vmap(torch.func.grad(lambda z: net(z).squeeze()))
    field = VectorField(by_autograd if how == "autograd" else by_transform)
    assert_same_as(field, lambda x: net(x).squeeze(-1), net, x)


# ----------------------------------------------------------------------- everyday operations


def everyday(net: nn.Module) -> dict[str, Model]:
    """The same network, reached by code that models of every kind contain."""

    def head(h: Tensor) -> Tensor:
        return net(h).squeeze(-1)

    def buffered(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out[:] = x
        return head(out)

    eye = torch.eye(6, dtype=torch.float64)
    return {
        "Normal(0, 1).log_prob(x)": lambda x: D.Normal(0.0, 1.0).log_prob(x).sum(-1) + head(x),
        "Normal(x, 1).log_prob": lambda x: D.Normal(x, 1.0).log_prob(eye[0]).sum(-1) + head(x),
        "constant.to(x)": lambda x: head(x * torch.ones(6).to(x)),
        "sum(axis=)": lambda x: head(x) - 0.5 * x.square().sum(axis=-1),
        "as_tensor": lambda x: head(torch.as_tensor(x)),
        "ndimension": lambda x: head(x if x.ndimension() == 2 else x[None]),
        "softmax(dtype=)": lambda x: head(F.softmax(x, -1, dtype=torch.float64)),
        "empty_like": buffered,
        "hstack": lambda x: head(torch.hstack([x[:, :3], x[:, 3:]])),
        "linear(input=)": lambda x: head(F.linear(input=x, weight=eye)),
        "einsum ellipsis": lambda x: head(torch.einsum("...i,ij->...j", x, eye)),
        "cat with nothing": lambda x: head(torch.cat([torch.tensor([]), x], 1)),
        "double()": lambda x: head(x.double()),
        "add_": lambda x: head((x * 1).add_(1)),
        "isinstance": lambda x: head(x.sin() if isinstance(x, Tensor) else x.cos()),
    }


@pytest.mark.parametrize("how", everyday(mlp(dim=6)))
def test_everyday_code_is_traced_and_its_kinks_are_found(how: str) -> None:
    net, x = mlp(dim=6), points(32, 6)
    model = everyday(net)[how]
    assert_same_as(model, model, net, x)
    assert is_traced(model, x)
    with pytest.raises(SmoothnessError):
        VR(everyday(mlp(nn.ReLU, dim=6))[how], x)


def logistic(z: Tensor, target: float, weight: Any = None, positive: Any = None) -> Tensor:
    """Logits that are the points times weights, as in a logistic regression without a constant."""
    y = torch.full_like(z, target)
    return -F.binary_cross_entropy_with_logits(
        z, y, weight=weight, reduction="none", pos_weight=positive
    ).sum(-1)


WEIGHTS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

RIGHT_AT_ZEROS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "several exponents": (
        lambda x, w: (x[..., None] ** torch.arange(4) @ w).sum(1),
        lambda x, w: (w[0] + w[1] * x + w[2] * x**2 + w[3] * x**3).sum(1),
    ),
    "an exponent for each column": (
        lambda x, w: x.pow(WEIGHTS - 1) @ w[:3],
        lambda x, w: w[0] + w[1] * x[:, 1] + w[2] * x[:, 2].square(),
    ),
    "cross entropy of logits": (
        lambda x, w: logistic(x * w[0], 1.0),
        lambda x, w: F.logsigmoid(x * w[0]).sum(1),
    ),
    "weighted cross entropy": (
        lambda x, w: logistic(x * w[0], 0.25, WEIGHTS, WEIGHTS + 1),
        lambda x, w: (
            (0.25 * (WEIGHTS + 1) * F.logsigmoid(x * w[0]) + 0.75 * F.logsigmoid(-x * w[0]))
            @ WEIGHTS
        ),
    ),
}


@pytest.mark.parametrize("objective", [VR, sm.ScoreMatching()], ids=["VR", "SM"])
@pytest.mark.parametrize("how", RIGHT_AT_ZEROS)
def test_operations_that_are_right_at_zeros(how: str, objective: sm.Objective) -> None:
    x = points(12, 3)
    x[3:, 0], x[8:], w = 0.0, 0.0, nn.Parameter(points(4))
    module = nn.Module()
    module.w = w
    model, truth = (
        lambda x, f=f: f(x, w) - 0.5 * x.square().sum(1)  # a density, whatever the weights
        for f in RIGHT_AT_ZEROS[how]
    )
    assert_same_as(model, truth, module, x, objective)


def test_scores_of_cross_entropy_at_large_logits() -> None:
    """The derivative of softplus jumps by 2e-9 at 20, that of log(sigmoid) does not."""
    z = torch.tensor([-25.0, -20.1, -19.9, 19.9, 20.1, 25.0], dtype=torch.float64)[:, None]
    score, divergence = LogDensityField(lambda z: logistic(z, 0.25)).score_and_divergence(z)
    assert_close(score, 0.25 - torch.sigmoid(z), 1e-14)
    assert_close(divergence, -(torch.sigmoid(z) * torch.sigmoid(-z)).squeeze(1), 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("route", ["auto", "reverse"])
def test_running_sums_of_exponentials_far_apart(route: str, dtype: torch.dtype) -> None:
    """Those below one maximum by 120, or by 1000 in double precision, have a logarithm, too."""
    x = points(8, 4).to(dtype)
    apart = (1.0 if dtype == torch.float32 else 10.0) * torch.arange(-60, 61, 40).to(dtype)

    def model(x: Tensor) -> Tensor:
        return torch.logcumsumexp(x + apart, 1).sum(1)

    def by_hand(x: Tensor) -> Tensor:
        return sum((torch.logsumexp((x + apart)[:, :k], 1) for k in range(1, 5)), torch.zeros(()))

    found, wanted = (
        LogDensityField(f, route=route).score_and_divergence(x) for f in (model, by_hand)
    )
    for a, b in zip(found, wanted):
        assert_close(a, b, FLOAT32 if dtype == torch.float32 else ROUTES)


@pytest.mark.parametrize("objective", [VR, sm.ScoreMatching()], ids=["VR", "SM"])
@pytest.mark.parametrize("dim", [1, -1])
def test_running_sums_of_exponentials_with_masked_terms(objective: sm.Objective, dim: int) -> None:
    """Terms of minus infinity add nothing: first, in the middle and side by side."""
    x, w = points(8, 6), nn.Parameter(points(1)[:, None])
    masked = torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool)
    module = nn.Module()
    module.w = w

    def model(x: Tensor) -> Tensor:
        sums = torch.logcumsumexp((x * w).masked_fill(masked, -torch.inf), dim)
        return torch.where(sums > -torch.inf, sums, 0.0).sum(1)

    def by_hand(x: Tensor) -> Tensor:
        return 3 * x[:, 1] * w[0] + 2 * torch.logaddexp(x[:, 1] * w[0], x[:, 4] * w[0])

    assert_same_as(model, by_hand, module, x, objective)


MANY = sm.SlicedScoreMatchingVR(num_projections=3)


@pytest.mark.parametrize("objective", [VR, MANY, sm.ScoreMatching()], ids=["VR", "MANY", "SM"])
@pytest.mark.parametrize("length", [1, 2, 5, 33])
def test_running_sums_of_exponentials_of_any_length(length: int, objective: sm.Objective) -> None:
    x, w = points(6, length), nn.Parameter(points(length))
    module = nn.Module()
    module.w = w

    def model(x: Tensor) -> Tensor:
        return torch.logcumsumexp(3 * x * w, -1).sin().sum(1) - 0.5 * x.square().sum(1)

    def by_hand(x: Tensor) -> Tensor:
        sums = [torch.logsumexp((3 * x * w)[:, : k + 1], 1) for k in range(length)]
        return torch.stack(sums, 1).sin().sum(1) - 0.5 * x.square().sum(1)

    assert is_traced(model, x)
    assert_same_as(model, by_hand, module, x, objective)


class Written(TorchDispatchMode):
    """Counts the numbers that operations write."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.count += found.numel() if isinstance(found, Tensor) else 0
        return found


def test_running_sums_of_exponentials_write_few_numbers() -> None:
    """A step wrote 12 times as many as one of ``log(cumsum(exp(x - top)))``; now 3 times."""
    x, w = points(8, 256).float(), nn.Parameter(points(256).float())
    ways = {
        "traced": lambda x: torch.logcumsumexp(x * w, 1).sum(1),
        "reverse": lambda x: torch.log(torch.cumsum(torch.exp(x * w - 5), 1)).sum(1),
    }
    written = []
    for route, model in ways.items():
        field = LogDensityField(model, route=route, check_smoothness=False)
        with Written() as mode:
            VR(field, x, generator=seeded(0)).mean().backward()
        written.append(mode.count)
    assert written[0] < 5 * written[1]


class Bent(torch.autograd.Function):
    """``tanh`` whose backward pass is another autograd function, as those of CUDA kernels are."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return torch.tanh(z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return BentBack.apply(grads[0], *ctx.saved_tensors)


class BentBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(g, z)
        return g * (1 - torch.tanh(z) ** 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g, z), (h,) = ctx.saved_tensors, grads
        t = torch.tanh(z)
        return h * (1 - t * t), h * g * -2 * t * (1 - t * t)


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
@pytest.mark.parametrize("objective", [VR, MANY, sm.ScoreMatching()], ids=["VR", "MANY", "SM"])
@pytest.mark.parametrize("is_density", [True, False])
def test_custom_functions_that_call_others_backwards(
    is_density: bool, objective: sm.Objective
) -> None:
    """Several directions at once gave the right loss, and a gradient that missed a part of it."""
    layers = [nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1 if is_density else 3)]
    module = built(lambda: nn.ModuleList(layers))

    def network(x: Tensor, act: Any) -> Tensor:
        y = layers[2](act(layers[1](act(layers[0](x)))))
        return y.squeeze(1) if is_density else y

    make = LogDensityField if is_density else VectorField
    found = make(partial(network, act=Bent.apply))
    truth = make(partial(network, act=torch.tanh), route="reverse")
    assert_same_as(found, truth, module, points(8, 3), objective)


class Checkpointed(nn.Module):
    """A network of two blocks whose inner values are not kept, if asked for."""

    def __init__(self, block: Callable[[], nn.Module], width: int, keep: bool) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(1, width), nn.Linear(width, 1)
            self.blocks = nn.ModuleList([block(), block()])
        self.keep = keep
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x.unsqueeze(-1))
        for block in self.blocks:
            z = block(z) if self.keep else checkpoint(block, z, use_reentrant=False)
        return self.last(z).sum((1, 2)) - 0.5 * x.square().sum(1)


class Attention(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z + F.scaled_dot_product_attention(z, torch.sin(z), z)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.SiLU()),
    "rms": lambda: nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.GELU()),
    "softmax": lambda: nn.Sequential(nn.Linear(8, 8), nn.LogSoftmax(-1), nn.Softmax(-1)),
    "attention": Attention,
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True),
}


@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"), reason="before torch 2.8"
)
@pytest.mark.parametrize("objective", [VR, MANY, sm.ScoreMatching()], ids=["VR", "MANY", "SM"])
@pytest.mark.parametrize("route", ["auto", "traced", "reverse"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_checkpointed_norms_and_attention(kind: str, route: str, objective: sm.Objective) -> None:
    """Checkpoints ran torch's own norms again, and reported another number of saved tensors."""
    x = points(6, 4)
    noise = objective.draw(x, seeded(1))
    found = []
    for keep, way in ((False, route), (True, "reverse")):
        model = Checkpointed(BLOCKS[kind], 8, keep)
        loss = objective.loss(LogDensityField(model, route=way), x, noise)
        loss.mean().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append(torch.cat([loss.detach(), *(g.flatten() for g in gradients)]))
    assert_close(*found, ROUTES)


def mills(t: float) -> tuple[float, float, float]:
    """First, second and third derivative of log ndtr at -t, by the continued fraction for t > 0.

    With ``g = phi / ndtr = t + k`` and ``k = 1 / (t + c)``, ``c = 2 / (t + 3 / (t + ...))``, the
    second derivative is ``-g k`` and ``1 - g k = k (c - k)``, without differences of large numbers.
    """
    c = 0.0
    for n in range(3000, 1, -1):
        c = n / (t + c)
    k = 1 / (t + c)
    g = t + k
    return g, -g * k, g * k * (k - (c - k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("route", ["auto", "reverse"])
def test_log_ndtr_far_to_the_left(route: str, dtype: torch.dtype) -> None:
    """The curvature at -315 was 466 in single precision, by both routes."""
    t = torch.tensor([0.5, 3.0, 5.9, 6.1, 17.9, 18.1, 100.0, 315.0], dtype=dtype)
    truth = torch.tensor([mills(each) for each in t.tolist()], dtype=torch.float64)
    first, second, third = truth.T
    shift = nn.Parameter(torch.zeros((), dtype=dtype))
    field = LogDensityField(lambda x: torch.special.log_ndtr(x[:, 0] + shift), route=route)
    score, divergence = field.score_and_divergence(-t[:, None])
    (gradient,) = torch.autograd.grad((divergence * t**3).mean(), shift)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-8
    torch.testing.assert_close(score[:, 0].double(), first, rtol=tolerance, atol=0.0)
    torch.testing.assert_close(divergence.double(), second, rtol=tolerance, atol=0.0)
    wanted = (third * t.double() ** 3).mean()
    torch.testing.assert_close(gradient.double(), wanted, rtol=10 * tolerance, atol=0.0)


class Attention(nn.Module):
    """Attention with a key of zeros beside those of the sequence."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(
            8, 2, batch_first=True, add_zero_attn=True, dropout=dropout
        )

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = self.layer(x, x, x, need_weights=False)[0]
        return scale * y.flatten(1).sin().sum(-1) - 0.5 * x.flatten(1).square().sum(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        return self(x)


@pytest.mark.parametrize("how", ["module", "bound method", "partial", "dropout"])
def test_attention_with_a_key_of_zeros(how: str) -> None:
    x = points(4, 3, 8)
    module = built(partial(Attention, 1e-12 if how == "dropout" else 0.0))
    ways = {"bound method": module.log_prob, "partial": partial(module, scale=1.0)}
    assert_same_as(ways.get(how, module), module, module, x)


class Spectral(nn.Module):
    """The spectral convolution of Fourier neural operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex128))
        self.layer = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.fft.irfft(torch.fft.rfft(self.layer(x)) * self.weight, n=8)
        return torch.tanh(h).sum(-1) - 0.5 * x.square().sum(-1)


class Phase(nn.Module):
    """Features of a characteristic function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.view_as_real(torch.exp(1j * self.layer(x)))
        return features.flatten(1).sum(-1) - 0.5 * x.square().sum(-1)


@pytest.mark.parametrize("objective", [VR, sm.ScoreMatching()], ids=["VR", "SM"])
@pytest.mark.parametrize("model", [Spectral, Phase])
def test_complex_intermediates(model: type[nn.Module], objective: sm.Objective) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = model()
    x = points(4, 8)
    noise = objective.draw(x, seeded(1))
    for parameter in module.parameters():
        gradients = []
        for route in ("auto", "reverse"):
            loss = objective.loss(LogDensityField(module, route=route), x, noise)
            assert loss.dtype == torch.float64
            gradients.append(_real(torch.autograd.grad(loss.mean(), parameter)[0]))
        assert_close(*gradients, ROUTES)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize(
    "objective", [sm.SlicedScoreMatching(num_projections=3), sm.ScoreMatching()]
)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_matrices(layout: torch.layout, objective: sm.Objective) -> None:
    """Torch takes one direction at a time through them."""
    layer, x = built(lambda: nn.Linear(4, 4)), points(5, 4)
    ring = 2 * torch.eye(4, dtype=torch.float64) - torch.eye(4, dtype=torch.float64)[[1, 2, 3, 0]]

    def energy(x: Tensor, matrix: Tensor) -> Tensor:
        return torch.sin((matrix @ layer(x).T).T).sum(1) - 0.5 * x.square().sum(1)

    sparse = ring.to_sparse(layout=layout)
    truth = partial(energy, matrix=ring)
    assert_same_as(lambda x: energy(x, sparse), truth, layer, x, objective)


def test_the_spectral_norm_of_a_matrix() -> None:
    layer, x = built(lambda: nn.Linear(8, 4)), points(4, 3, 8)

    def model(x: Tensor, scale: float = 1.0) -> Tensor:
        norms = torch.linalg.norm(layer(x), ord=2, dim=(-2, -1))
        return -scale * norms - 0.5 * x.flatten(1).square().sum(-1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        assert_same_as(partial(model, scale=1.0), model, layer, x)


# --------------------------------------------------------------------------- precision


CASTS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "half": lambda net, x: net(x.half().float()),
    "bfloat16": lambda net, x: net(x.bfloat16().float()),
    "autocast": lambda net, x: _autocast(net, x),
}


def _autocast(net: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x).float()


@pytest.mark.parametrize("how", CASTS)
def test_lower_precision_inside_a_model(how: str) -> None:
    net, x = mlp(nn.SiLU).float(), points(16, 3).float()

    def model(x: Tensor) -> Tensor:
        return CASTS[how](net, x).squeeze(-1)

    noise = VR.draw(x, seeded(1))
    with torch.no_grad():
        wanted = VR.loss(LogDensityField(lambda x: net(x).squeeze(-1)), x, noise)
        found = VR.loss(LogDensityField(model), x, noise)
    assert is_traced(model, x)
    assert_close(found, wanted, 3e-2)


# ---------------------------------------------------------- derivatives that are not there


class Adjoint(torch.autograd.Function):
    """Euler steps of an ODE whose backward pass is solved without a graph, as adjoints are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, field: Any) -> Tensor:
        ctx.field = field
        ctx.save_for_backward(x)
        return euler(field, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (g,) = torch.autograd.grad(euler(ctx.field, x), x, grads[0].detach())
        return g.detach(), None


def euler(field: Any, x: Tensor) -> Tensor:
    for _ in range(5):
        x = x + 0.2 * field(x)
    return x


@pytest.fixture
def drift() -> nn.Module:
    return built(lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)))


@pytest.mark.parametrize("objective", [VR, sm.ScoreMatching()], ids=["VR", "SM"])
@pytest.mark.parametrize("training", [True, False])
def test_an_adjoint_method_is_refused(
    drift: nn.Module, training: bool, objective: sm.Objective
) -> None:
    x = points(6, 3)

    def model(x: Tensor) -> Tensor:
        return -0.5 * Adjoint.apply(x, drift).square().sum(-1)

    with torch.set_grad_enabled(training), pytest.raises(WrongDerivativeError) as caught:
        objective(model, x)
    for advice in ("odeint", "FiniteDifferenceSSM", "differentiate"):
        assert advice in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_adjoint_method_is_refused_where_kinks_are_accepted(
    drift: nn.Module, dtype: torch.dtype
) -> None:
    drift = drift.to(dtype)

    def model(x: Tensor) -> Tensor:
        return -0.5 * Adjoint.apply(x, drift).square().sum(-1)

    with pytest.raises(WrongDerivativeError):
        VR(LogDensityField(model, check_smoothness=False), points(6, 3).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(10))
def test_a_wide_kinked_network_is_accepted_where_kinks_are(seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 512), nn.LeakyReLU(), nn.Linear(512, 1)
    ).to(dtype)
    field = LogDensityField(
        lambda x: net(x).squeeze(-1) - x.square().sum(-1), check_smoothness=False
    )
    loss = VR(field, torch.randn(16, 20, dtype=dtype))
    assert loss.isfinite().all()


def test_what_the_refusal_advises_works(drift: nn.Module) -> None:
    x = points(6, 3)

    def unrolled(x: Tensor) -> Tensor:
        return -0.5 * euler(drift, x).square().sum(-1)

    def adjoint(x: Tensor) -> Tensor:
        return -0.5 * Adjoint.apply(x, drift).square().sum(-1)

    assert_same_as(unrolled, unrolled, drift, x)
    assert is_traced(unrolled, x)
    differences = sm.FiniteDifferenceSSM(eps=1e-2)
    noise = differences.draw(x, seeded(1))
    losses = [differences.loss(LogDensityField(f), x, noise) for f in (adjoint, unrolled)]
    assert_close(*losses, ROUTES)


class Solved(torch.autograd.Function):
    """A score network that returns its value and a zero derivative in x by mistake."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x) * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.zeros_like(x), (grads[0] * torch.sin(x)).sum(0)


def test_a_score_with_a_wrong_derivative_is_refused() -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(WrongDerivativeError):
        VR(VectorField(lambda x: Solved.apply(x, weight)), points(6, 3))


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
def test_operations_that_torch_cannot_differentiate_twice_are_refused() -> None:
    with pytest.raises((NotImplementedError, sm.SmoothnessError)):
        VR(lambda x: torch.cdist(x[:, None], x.new_zeros(1, 1, 3), p=1).flatten(), points(4, 3))


def test_equilibrium_models() -> None:
    """A fixed point found under no_grad counts as a constant; unrolled it has derivatives."""
    inner = built(lambda: nn.ModuleList([nn.Linear(6, 6), nn.Linear(3, 6)]))
    inner[0].weight.data *= 0.3
    x = points(4, 3)

    def step(z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(inner[0](z) + inner[1](x))

    def solve(x: Tensor) -> Tensor:
        z = torch.zeros(len(x), 6, dtype=x.dtype)
        for _ in range(30):
            z = step(z, x)
        return z

    def one_step(x: Tensor) -> Tensor:
        with torch.no_grad():
            z = solve(x)
        return step(z, x).sum(-1)

    def unrolled(x: Tensor) -> Tensor:
        return solve(x).sum(-1)

    for model in (one_step, unrolled):
        field = LogDensityField(model, check_smoothness=False)
        reverse = LogDensityField(model, check_smoothness=False, route="reverse")
        assert_same_as(field, reverse, inner, x)
    with pytest.raises(WrongDerivativeError, match="cut from the graph"):
        VR(one_step, x)


# ------------------------------------------------------------------------------- randomness


class DropPath(nn.Module):
    """Stochastic depth: drops whole rows."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty(len(x), 1).bernoulli_(0.5).div_(0.5)


@pytest.mark.parametrize("objective", [sm.FiniteDifferenceSSM(), sm.NoiseContrastive()])
@pytest.mark.parametrize("layer", [DropPath, nn.Dropout, nn.AlphaDropout])
def test_random_models_are_refused_where_calls_are_compared(
    layer: type[nn.Module], objective: sm.Objective
) -> None:
    net = mlp()
    model = nn.Sequential(net[0], net[1], layer(), net[2], nn.Flatten(0))
    with pytest.raises(ValueError, match=r"same answer at every call.*model\.eval"):
        objective(model, points(16, 3))
    assert objective(model.eval(), points(16, 3)).shape == (16,)


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
@pytest.mark.parametrize(
    "drop",
    [
        lambda h: F.dropout(h, 0.5, True),
        lambda h: F.dropout1d(h, 0.5, True),
        lambda h: F.dropout2d(h[..., None], 0.5, True)[..., 0],
        lambda h: F.dropout3d(h[..., None, None], 0.5, True)[..., 0, 0],
        lambda h: torch.feature_dropout(h, 0.5, True),
        lambda h: F.alpha_dropout(h, 0.5, True),
        lambda h: h * torch.bernoulli(torch.full_like(h, 0.5)),
        lambda h: h + 0.3 * torch.randn_like(h),
    ],
    ids="dropout dropout1d dropout2d dropout3d feature_dropout alpha_dropout mask noise".split(),
)
@pytest.mark.parametrize("objective", [VR, sm.ScoreMatching()], ids=["VR", "SM"])
def test_random_layers_draw_once_for_all_derivatives(drop: Any, objective: sm.Objective) -> None:
    layer, x = built(lambda: nn.Linear(3, 4)), points(4, 2, 3)

    def model(x: Tensor) -> Tensor:
        return torch.sin(drop(torch.tanh(layer(x)))).sum((1, 2)) - x.square().sum((1, 2))

    noise, answers = objective.draw(x, seeded(1)), []
    objective.loss(LogDensityField(model), x, noise)  # decides the route
    for route in ("auto", "reverse"):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            loss = objective.loss(LogDensityField(model, route=route), x, noise)
            answers.append((loss, torch.autograd.grad(loss.sum(), layer.weight)[0]))
    for found, wanted in zip(*answers):
        assert_close(found, wanted, ROUTES)


# ----------------------------------------------------------------------------- points


def test_rows_of_a_batch_are_answered_as_if_alone() -> None:
    net, x = mlp(), points(4, 3)
    v = VR.draw(x, seeded(1))
    field = LogDensityField(lambda x: net(x).squeeze(-1))
    alone = [VR.loss(field, x[i : i + 1], v[:, i : i + 1]) for i in range(4)]
    assert_close(VR.loss(field, x, v), torch.cat(alone), ROUTES)


def test_memory_formats_do_not_matter() -> None:
    net = built(lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 2, 1)))
    x = points(2, 2, 4, 4)
    v = torch.ones(1, *x.shape, dtype=x.dtype)
    images = [x, x.to(memory_format=torch.channels_last), x.mT.contiguous().mT]
    first, *others = (VR.loss(VectorField(net), image, v) for image in images)
    for loss in others:
        assert_close(loss, first, ROUTES)


def test_single_precision_is_traced_too() -> None:
    net, x = mlp(nn.SiLU), points(8, 3)
    noise = VR.draw(x, seeded(1))
    wanted = VR.loss(LogDensityField(lambda x: net(x).squeeze(-1)), x, noise)
    single = mlp(nn.SiLU).float()
    field = LogDensityField(lambda x: single(x).squeeze(-1))
    found = VR.loss(field, x.float(), noise.float())
    assert_close(found.double(), wanted, FLOAT32)


# ------------------------------------------------------------------------------ speed


def unrolled(cell: nn.Module) -> Model:
    def f(x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 64)
        for t in range(x.shape[1]):
            h = cell(x[:, t], h)
        return h.sum(-1)

    return f


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell])
def test_the_route_taken_is_not_much_slower_than_the_other(cell: Any) -> None:
    module = built(partial(cell, 8, 64), torch.float32)
    x, parameters = torch.randn(32, 12, 8, generator=seeded(0)), list(module.parameters())
    model, noise = unrolled(module), VR.draw(x, seeded(1))

    def seconds(route: str) -> float:
        field = LogDensityField(model, route=route)
        taken = []
        for _ in range(20):
            start = time.perf_counter()
            torch.autograd.grad(VR.loss(field, x, noise).mean(), parameters, allow_unused=True)
            taken.append(time.perf_counter() - start)
        return min(taken)

    assert seconds("auto") < 1.5 * seconds("reverse")
