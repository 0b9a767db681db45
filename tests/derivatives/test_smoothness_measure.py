"""Verdicts of the measurement of smoothness, against models whose smoothness is known.

The truth of every model is the order k of its score: -1 where the score jumps, 0 where its
derivative jumps, 1 where neither does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching.derivatives.smoothness.measure import Measurement, measure
from scorematching.derivatives.smoothness.probe import Probe
from scorematching.derivatives.smoothness.search import (
    Accuracy,
    bisect,
    draw_lines,
    quadrature,
    subdivide,
)
from tests.derivatives.smoothness_models import (
    MODULES,
    RNN,
    TABLE,
    Model,
    generator,
    normal,
    random_,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize(
    ("kind", "model", "order"),
    [pytest.param(k, m, o, id=f"{name}-{o}") for k, name, m, o in TABLE],
)
def test_table(
    kind: Literal["log-density", "vector field"], model: Model, order: int, dtype: torch.dtype
) -> None:
    for module in MODULES:
        module.to(dtype)
    found = measure(model, normal(16, 3, dtype=dtype), kind)
    assert (found.order, found.close_call) == (order, False), str(found)
    assert found.defect < 1e-4 if order == 1 else found.defect > 5e-3
    assert (found.precision, found.skipped, found.note) == ("float64", 0, "")


# Searches.


def test_quadrature_is_exact_for_polynomials() -> None:
    nodes, weights = quadrature()
    for k in range(len(nodes)):
        integrals = (nodes ** (k + 1) / (k + 1)).diff()
        torch.testing.assert_close(weights @ nodes**k, integrals, rtol=0, atol=1e-13)


@pytest.mark.parametrize("model", [lambda x: (x - 0.3).abs(), lambda x: ((x - 0.3) ** 2).sqrt()])
def test_intervals_contain_the_kink(model: Model) -> None:
    """By masks, if the kink has one, and by the defects of the fundamental theorem."""
    probe = Probe(lambda x: model(x).sum(-1), normal(64, 1), True, True, generator(0))
    lines, flips = draw_lines(probe, generator(1))
    accuracy = Accuracy.of(torch.float64)
    nodes = quadrature()[0][:, None].expand(-1, len(lines))
    levels = lines.levels(nodes)
    for found in (
        bisect(lines, flips, accuracy),
        subdivide(lines, levels, torch.ones(len(lines)).double(), accuracy)[0],
    ):
        ends = lines[found.line].points(torch.stack([found.low, found.low + found.width]))
        low, high = ends.reshape(2, -1).sort(0).values
        assert ((low <= 0.3) & (high >= 0.3)).all()
        assert len(found.line) >= 8 or not flips.start


def rare(c: float, hinge: Model) -> Model:
    """A normal density with one kink, where the first coordinate is c."""
    return lambda x: -0.5 * x.square().sum(-1) + hinge(x[:, 0] - c)


def share_of_lines(c: float, x: Tensor) -> float:
    probe = Probe(lambda x: x.sum(-1), x, True, True, generator(0))
    lines, _ = draw_lines(probe, generator(1))
    a, b = lines.points(torch.tensor([[0.0], [1.0]]).expand(2, len(lines))).unflatten(0, (2, -1))
    return float(((a[:, 0] - c) * (b[:, 0] - c) < 0).double().mean())


def rate(c: float, hinge: Model, seeds: int) -> float:
    found = [
        measure(rare(c, hinge), normal(128, 5, seed), "log-density", generator(seed)).order
        for seed in range(seeds)
    ]
    return sum(order == -1 for order in found) / seeds


MASKED, UNMASKED = F.relu, lambda z: (z * z).sqrt()


def test_kink_that_few_lines_meet_is_found_by_its_mask() -> None:
    shares = [share_of_lines(1.5, normal(128, 5, seed)) for seed in range(20)]
    assert sum(shares) / 20 < 0.05
    assert rate(1.5, MASKED, 10) == 1.0


@pytest.mark.slow
def test_rate_at_which_rare_kinks_are_found() -> None:
    """Of 200 that one line in 20 meets; without a mask, one of 64 lines has to meet it."""
    assert rate(1.5, MASKED, 200) == 1.0
    assert rate(1.5, UNMASKED, 200) > 0.92


# Error rates.

ACTIVATIONS: dict[str, tuple[Model, int]] = {
    "softplus": (F.softplus, 1),
    "silu": (F.silu, 1),
    "gelu": (F.gelu, 1),
    "tanh": (torch.tanh, 1),
    "sin(10 h)": (lambda h: torch.sin(10 * h), 1),
    "softplus 50": (lambda h: F.softplus(h, 50), 1),
    "log cosh by hand": (lambda h: h.abs() + torch.log1p(torch.exp(-2 * h.abs())), 1),
    "relu^3": (lambda h: F.relu(h) ** 3, 1),
    "elu": (F.elu, 0),
    "softsign": (F.softsign, 0),
    "relu^2": (lambda h: F.relu(h) ** 2, 0),
    "relu": (F.relu, -1),
    "mask": (lambda h: h * (h > 0), -1),
    "sqrt(square)": (lambda h: (h * h).sqrt(), -1),
    "selu": (F.selu, -1),
    "maximum": (lambda h: torch.maximum(h, 0.5 * h.flip(-1)), -1),
}


def random_data(n: int, d: int, which: int, g: torch.Generator) -> Tensor:
    x = torch.randn(n, d, generator=g)
    if which == 1:
        x = torch.tan(3.0 * (torch.rand(n, d, generator=g) - 0.5))
    if which == 2:
        x = 2 * torch.rand(n, d, generator=g)
    if which == 3:
        x = x @ torch.randn(d, d, generator=g) / d**0.5
    if which == 4:
        x = x * (torch.rand(n, d, generator=g) < 0.3)
    return x


def random_case(seed: int, act: Model) -> tuple[Model, Tensor]:
    """A network of random size, depth and weights on random data in random units, in float32."""
    g = generator(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=g))]

    n, d, width, depth = (
        pick(2, 4, 16, 128),
        pick(1, 2, 5, 20, 100),
        pick(8, 64, 256),
        pick(1, 2, 3),
    )
    gain, unit, share, norm = pick(0.5, 1.0, 2.0), pick(1.0, 1e-3, 1e3), pick(0, 0.5), pick(0, 0, 1)
    sizes = [d, *[width] * depth]
    layers = [
        (
            gain * torch.randn(b, a, generator=g) / a**0.5,
            0.5 * torch.randn(b, generator=g),
        )
        for a, b in pairwise(sizes)
    ]
    out = torch.randn(width, generator=g) / width**0.5
    x = unit * random_data(n, d, pick(0, 1, 2, 3, 4), g)

    def density(x: Tensor) -> Tensor:
        h = x / unit
        for weight, bias in layers:
            h = F.linear(h, weight, bias)
            h = act(F.layer_norm(h, h.shape[-1:]) if norm else h)
        return h @ out - share * (x / unit).square().sum(-1)

    return density, x


def assert_rate(name: str, seeds: range, single: bool) -> None:
    act, order = ACTIVATIONS[name]
    found = [measure_in(single, *random_case(seed, act)).order for seed in seeds]
    right = sum(o == order for o in found) / len(found)
    if order == 1:
        assert right == 1.0, [s for s, o in zip(seeds, found, strict=True) if o != 1]
    else:
        assert right >= (0.9 if single else 0.97), [
            s for s, o in zip(seeds, found, strict=True) if o != order
        ]


def measure_in(single: bool, model: Model, x: Tensor) -> Measurement:
    """Measure, if asked to in single precision, which a model can insist on."""

    def only_single(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return model(x)

    found = measure(only_single if single else model, x, "log-density")
    assert found.precision == ("float32" if single else "float64")
    return found


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_few_random_networks(name: str) -> None:
    assert_rate(name, range(1000, 1004), single=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("single", [False, True], ids=["double", "single"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_error_rate(name: str, single: bool) -> None:
    assert_rate(name, range(200), single)


@pytest.mark.parametrize(("act", "order"), [(F.softplus, 1), (F.elu, 0), (F.relu, -1)])
def test_single_precision(act: Model, order: int) -> None:
    """Where the model does not run in double precision."""
    weight = 0.6 * torch.randn(32, 3, generator=generator(0))
    model = lambda x: act(F.linear(x, weight)).sum(-1)  # noqa: E731
    assert measure_in(True, model, normal(64, 3, dtype=torch.float32)).order == order


@pytest.mark.parametrize("beta", [1e4, 1e7, 1e10])
def test_softplus_that_is_hardly_different_from_relu(beta: float) -> None:
    weight = 0.6 * torch.randn(32, 3, generator=generator(0), dtype=torch.float64)
    model = lambda x: F.softplus(F.linear(x, weight), beta).sum(-1)  # noqa: E731
    found = measure(model, normal(32, 3), "log-density")
    assert (found.order, found.close_call) == {
        1e4: (1, False),
        1e7: (-1, True),
        1e10: (-1, False),
    }[beta]


@pytest.mark.parametrize(("eps", "order"), [(1e-4, 1), (1e-6, 1), (1e-10, -1), (1e-12, -1)])
def test_a_bend_that_no_point_falls_into(eps: float, order: int) -> None:
    """The mean over points misses its curvature, as it misses that of ``|z|``."""
    model = lambda x: -torch.sqrt(x.square() + eps).sum(-1)  # noqa: E731
    assert measure(model, normal(64, 2), "log-density").order == order
    norm = lambda x: -torch.sqrt(x.square().sum(-1) + eps)  # noqa: E731  (bends at one point)
    assert measure(norm, normal(64, 3), "log-density").order == 1


def test_poles_far_from_few_points() -> None:
    """Lines that lead away from few points may meet poles, where no data are."""
    far = lambda x: (1 / (x - 6)).sum(-1) - x.square().sum(-1)  # noqa: E731
    assert measure(far, normal(6, 3), "log-density").order == 1
    between = lambda x: (1 / x).sum(-1) - x.square().sum(-1)  # noqa: E731
    assert measure(between, normal(64, 1), "log-density").order < 1


def test_few_points_of_a_model_with_a_support() -> None:
    """Lines that leave the support, which the model refuses, are replaced by others."""

    def model(x: Tensor) -> Tensor:
        if bool((x.abs() > 3).any()):
            raise ValueError("outside the support")
        return torch.log(4 - x).sum(-1)

    assert measure(model, normal(4, 2).clamp(-1, 1), "log-density").order == 1


# Suspects.


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (lambda x: F.relu(x).sum(-1), {"relu"}),
        (lambda x: torch.where(x > 0.1, x, 2 * x).sum(-1), {"gt", "where"}),
        (lambda x: x.clamp(-0.2, 0.3).sum(-1), {"clamp"}),
        (lambda x: x.abs().sum(-1), {"abs"}),
        (lambda x: x.max(-1).values, {"max"}),
        (lambda x: x.norm(p=1, dim=-1), {"norm"}),
        (lambda x: x.square().sqrt().sum(-1), {"sqrt"}),
        (lambda x: F.relu(x.exp()).sum(-1) + F.elu(x).sum(-1), {"elu"}),
        (lambda x: RNN(x[:, None])[0].flatten(1).sum(-1), {"rnn_relu"}),
        (lambda x: x.exp().sum(-1), set()),
    ],
)
def test_suspects_are_the_operations_at_the_jump(model: Model, names: set[str]) -> None:
    RNN.double()
    found = measure(model, normal(32, 3), "log-density")
    assert {s.split(" at ")[0] for s in found.suspects} == names
    assert all("test_smoothness_measure.py:" in s for s in found.suspects)


def test_suspects_are_named_by_their_place_in_the_model() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    found = measure(random_(net), normal(16, 3, dtype=torch.float32), "log-density")
    assert found.suspects == ("relu at 2.1 ReLU",)
    assert "the score jumps" in str(found)
    assert "relu at 2.1 ReLU" in str(found)


# What a callable may carry, and what must stay as it was.


@pytest.mark.parametrize(("act", "order"), [(F.softplus, 1), (F.elu, 0), (F.relu, -1)])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_context_of_n_rows(act: Model, order: int, n: int) -> None:
    context = normal(n, 8, seed=5)
    weight = normal(8, 3, seed=6)
    found = measure(lambda x: act(x @ weight.T + context).sum(-1), normal(n, 3), "log-density")
    assert found.order == order


def test_rows_that_are_known_by_their_position() -> None:
    """A larger batch works, but gives other values: evaluations keep to N rows."""
    scale = torch.tensor([1.0, -1.0], dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        return (x * scale[torch.arange(len(x)) % 2, None]).sin().sum(-1)

    assert measure(model, normal(7, 3), "log-density").order == 1
    assert not Probe(model, normal(7, 3), True, True, generator(0)).takes_any_rows


@pytest.mark.parametrize(("act", "order"), [(nn.Softplus(), 1), (nn.ReLU(), -1)])
def test_dropout_is_replayed_and_the_random_state_kept(act: nn.Module, order: int) -> None:
    net = random_(nn.Sequential(nn.Linear(3, 32), act, nn.Dropout(0.3), nn.Linear(32, 1)))
    state = torch.get_rng_state()
    found = measure(net, normal(24, 3, dtype=torch.float32), "log-density")
    assert found.order == order
    assert torch.equal(torch.get_rng_state(), state)


def test_random_models_are_reported() -> None:
    g = generator(0)
    model = lambda x: (x + torch.randn(x.shape, generator=g)).sin().sum(-1)  # noqa: E731
    found = measure(model, normal(8, 3), "log-density")
    assert (found.order, found.lines, found.close_call) == (1, 0, True)
    assert "not measured" in str(found)


class Moving(nn.Module):
    """A module that changes its buffers at every call: in place, and by assigning new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = random_(nn.Linear(3, 8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("power", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        self.count.add_(1)
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        self.power = 0.9 * self.power + 0.1 * h.detach().square().mean(0)
        return torch.tanh(h).sum(-1)


@pytest.mark.parametrize("training", [True, False])
def test_buffers_are_put_back(training: bool) -> None:
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 8))
    net = nn.Sequential(random_(spectral), nn.Tanh(), nn.Linear(8, 1)).train(training)
    for model in (net, Moving()):
        before = {name: (b, b.clone()) for name, b in model.named_buffers()}
        found = measure(model, normal(16, 3, dtype=torch.float32), "log-density")
        assert (found.order, found.precision) == (1, "float64")
        for name, b in model.named_buffers():
            assert b is before[name][0]
            assert torch.equal(b, before[name][1])


def test_batch_norm_in_training_mode_is_refused_and_left_alone() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
    with pytest.raises(ValueError, match="batch normalisation"):
        measure(net, normal(8, 3, dtype=torch.float32), "log-density")
    assert net[1].num_batches_tracked == 0
    assert measure(net.eval(), normal(8, 3, dtype=torch.float32), "log-density").order == 1


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_callers_state_does_not_matter(guard: Callable[[], Any]) -> None:
    net = random_(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)))
    with guard():
        x = normal(16, 3, dtype=torch.float32)
        found = measure(net, x, "log-density")
    assert found == measure(net, normal(16, 3, dtype=torch.float32), "log-density")
    assert found.order == -1
    assert not x.requires_grad
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


@pytest.mark.parametrize(("act", "order"), [(torch.tanh, 1), (torch.relu, -1)])
def test_sparse_tensors_inside_a_model(act: Model, order: int) -> None:
    """They have no storage, by which changes in place are noticed."""

    def model(x: Tensor) -> Tensor:
        return act(3.0 * x).to_sparse().to_dense().sum(-1)

    assert measure(model, normal(16, 3), "log-density").order == order


def test_errors_of_the_model_propagate() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        measure(lambda x: nn.Linear(5, 1)(x), normal(8, 3, dtype=torch.float32), "log-density")


# Points.


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("act", [(F.softplus, 1), (F.elu, 0), (F.relu, -1)])
def test_units_do_not_matter(act: tuple[Model, int], unit: float) -> None:
    weight = normal(32, 3, seed=2)
    model = lambda x: act[0](x / unit @ weight.T).sum(-1)  # noqa: E731
    assert measure(model, unit * normal(16, 3), "log-density").order == act[1]


@pytest.mark.parametrize(
    "x",
    [
        normal(1, 3),
        torch.zeros(1, 3, dtype=torch.float64),
        normal(1, 3).expand(6, 3),
        torch.cat([normal(8, 1), torch.ones(8, 2, dtype=torch.float64)], 1),
        normal(2, 3),
    ],
    ids=["one", "zero", "equal", "constant coordinates", "two"],
)
@pytest.mark.parametrize(("act", "order"), [(F.softplus, 1), (F.relu, -1)])
def test_few_or_equal_points(x: Tensor, act: Model, order: int) -> None:
    weight, bias = normal(64, 3, seed=2), 0.3 * normal(1, 64, seed=4)
    found = measure(lambda x: act(x @ weight.T + bias).sum(-1), x, "log-density")
    assert (found.order, found.skipped) == (order, 0)


def spline(seed: int) -> Model:
    """A C1 cubic spline with knots in [-3, 3]: the curvature jumps at six of them."""
    g = generator(seed)
    widths, values, slopes = (torch.randn(k, generator=g, dtype=torch.float64) for k in (7, 8, 8))
    widths = 6 * torch.softmax(0.3 * widths, 0)
    knots = F.pad(widths.cumsum(0), (1, 0)) - 3

    def f(x: Tensor) -> Tensor:
        k = torch.searchsorted(knots, x.detach()).clamp(1, 7) - 1
        z, w = (x - knots[k]) / widths[k], widths[k]
        y = (2 * z**3 - 3 * z**2 + 1) * values[k] + (3 * z**2 - 2 * z**3) * values[k + 1]
        y = y + (z**3 - 2 * z**2 + z) * w * slopes[k] + (z**3 - z**2) * w * slopes[k + 1]
        return (0.05 * y - 0.5 * x**2).sum(-1)

    return f


def test_kinks_of_a_spline_near_one_point() -> None:
    """One point tells nothing about the spread, so lines lead away from it; few miss the kinks."""
    found = [measure(spline(k), normal(1, 1, seed=k), "log-density").order for k in range(20)]
    assert found.count(0) >= 18


@pytest.mark.parametrize("n", [6, 12, 64])
@pytest.mark.parametrize("dim", [1, 2])
def test_jumps_are_judged_on_lines_of_one_length(n: int, dim: int) -> None:
    """Far away a quartic varies so much that the jump would be a weak one, which is accepted."""

    def model(x: Tensor) -> Tensor:
        return 0.04 * x[:, 0].clamp(min=0).square() - 0.05 * x.square().square().sum(-1)

    found = measure(model, normal(n, dim), "log-density")
    assert (found.order, found.close_call) == (0, False)


def test_steep_networks_near_few_points_are_not_cut() -> None:
    weights = [normal(k, 64, seed=k + i) / k**0.5 for i, k in enumerate((100, 64))]

    def model(x: Tensor) -> Tensor:
        for weight in weights:
            x = torch.sin(10 * x @ weight)
        return x.sum(-1)

    assert not measure(model, 10 * normal(31, 100), "log-density").cut


def test_lines_stay_where_the_points_are() -> None:
    """Between positive points a logarithm is finite, and a clamp below them is not active."""
    x = normal(64, 3).exp()
    found = measure(lambda x: x.clamp(min=1e-6).log().square().sum(-1), x, "log-density")
    assert (found.order, found.skipped) == (1, 0)


def test_lines_that_are_not_finite_are_skipped() -> None:
    found = measure(lambda x: x.log().sum(-1), normal(64, 1), "log-density")
    assert found.order == 1
    assert found.lines > 0
    assert found.lines + found.skipped == 64
    nowhere = measure(lambda x: x.sum(-1) * math.nan, normal(64, 1), "log-density")
    assert (nowhere.lines, nowhere.skipped) == (0, 64)
    assert "not finite" in str(nowhere)


def test_singular_points_are_not_kinks() -> None:
    """In two dimensions no line meets the origin, even if one of the points is there."""
    x = torch.cat([torch.zeros(1, 2, dtype=torch.float64), normal(31, 2)])
    assert measure(lambda x: -x.norm(dim=-1), x, "log-density").order == 1


def test_images_and_features() -> None:
    conv = random_(nn.Conv2d(1, 3, 3, padding=1)).double()
    images = normal(6, 64).reshape(6, 1, 8, 8)
    assert measure(lambda x: F.silu(conv(x)).sum((1, 2, 3)), images, "log-density").order == 1
    assert measure(lambda x: F.relu(conv(x)).sum((1, 2, 3)), images, "log-density").order == -1
    kinked = lambda x: torch.stack([x.sin(), x.cos(), F.relu(x)], 1).flatten(2)  # noqa: E731
    assert measure(kinked, normal(16, 3), "log-density").order == -1
    assert measure(lambda x: kinked(x)[:, :2], normal(16, 3), "log-density").order == 1


def test_generator_decides() -> None:
    x, model = normal(64, 3), linear_density
    first, second = (measure(model, x, "log-density", generator(1)) for _ in range(2))
    assert first == second == measure(model, x, "log-density", generator(1))
    assert first.defect != measure(model, x, "log-density", generator(2)).defect


def linear_density(x: Tensor) -> Tensor:
    return torch.tanh(x @ torch.ones(3, 4, dtype=x.dtype)).sum(-1)


@pytest.mark.gpu
@pytest.mark.parametrize(("act", "order"), [(F.softplus, 1), (F.elu, 0), (F.relu, -1)])
def test_on_a_gpu(act: Model, order: int) -> None:
    net = random_(nn.Linear(3, 32)).cuda()
    x = normal(64, 3, dtype=torch.float32).cuda()
    state = torch.cuda.get_rng_state()
    found = measure(lambda x: act(net(x)).sum(-1), x, "log-density")
    assert (found.order, found.precision) == (order, "float64")
    # On a GPU dropout draws other masks in double precision, which is then another model.
    dropped = measure(lambda x: F.dropout(act(net(x)), 0.2).sum(-1), x, "log-density")
    assert (dropped.order, dropped.precision) == (order, "float32")
    assert torch.equal(torch.cuda.get_rng_state(), state)


class Caching(nn.Module):
    """A log-density that keeps a tensor for the next batch of the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(2, 4), nn.Linear(4, 1)
        self.offset: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.offset is None or len(self.offset) != len(x):
            self.offset = 0.3 * torch.ones(len(x), 4, dtype=x.dtype)
        out: Tensor = self.last(torch.tanh(self.layer(x) + self.offset)).squeeze(-1)
        return out


def test_tensors_that_a_model_keeps_are_left_as_they_were() -> None:
    """One in double precision stayed, and the next use ended in an error of torch about dtypes."""
    model, x = Caching(), torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    model(x)
    before = model.offset
    assert measure(model, x, "log-density").precision == "float64"
    assert model.offset is before
