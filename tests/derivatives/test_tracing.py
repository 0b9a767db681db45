"""Every way to write a model: traced, by double backward, and by one Hessian per point."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching import LogDensityField, SplitRademacher, VectorField, _directions
from scorematching._directions import Parts
from scorematching.derivatives.engine.stretch import Stretch
from scorematching.derivatives.engine.tape import Tape
from scorematching.derivatives.engine.trace import Untraceable
from scorematching.errors import PerformanceWarning
from tests import oracles
from tests.derivatives.ways import WAYS, Bank, Way
from tests.laws import assert_close
from tests.models_zoo import normal
from tests.tolerances import IDENTITY, ROUTES

Answers = dict[str, Tensor]

SOME = (
    "add more axes", "mul traced", "div column", "pow parameter", "matmul transposed on the left",
    "bmm", "einsum form", "conv2d", "conv_transpose1d", "pad number", "T square", "folded",
    "batch axis last", "chunk", "stack last with constants", "index tensor", "where", "gather",
    "softmax", "logsumexp", "std", "layer_norm module", "attention causal", "MultiheadAttention",
    "GRU by hand", "checkpoint", "deep kernel", "additive couplings", "sequential, in place",
    "linear",
)  # fmt: skip


def name(way: Way) -> str:
    return way.name.replace(" ", "_")


def directions(x: Tensor, num: int = 3) -> Tensor:
    return normal(num, *x.shape, generator=torch.Generator().manual_seed(2))


def by_oracle(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Answers:
    terms = [oracles.log_density_terms(f, x_i) for x_i in x]
    values, scores, hessians = map(torch.stack, zip(*terms))
    flat = v.flatten(2)
    curvature = torch.einsum("mna,nab,mnb->n", flat, hessians, flat) / len(v)
    trace = hessians.diagonal(dim1=1, dim2=2).sum(1)
    score = scores.reshape(x.shape)
    return {"value": values, "score": score, "curvature": curvature, "divergence": trace}


def by_field(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    v: Tensor,
    tolerance: float = ROUTES,
    **options: Any,
) -> Answers:
    field = LogDensityField(f, **options)
    value, only_score = field.log_density(x), field.score(x)
    score, curvature = field.score_and_curvature(x, v)
    again, divergence = field.score_and_divergence(x)
    assert_close(only_score, score, tolerance)
    assert_close(again, score, tolerance)
    return {"value": value, "score": score, "curvature": curvature, "divergence": divergence}


def gradient(answers: Answers, bank: Bank) -> Tensor:
    """The gradient, in all parameters, of a loss that weighs every answer at every point."""
    squared = answers["score"].flatten(1).square().sum(1)
    loss = 0.5 * squared + answers["curvature"] + 0.7 * answers["divergence"]
    weights = torch.arange(1.0, len(loss) + 1, dtype=torch.float64)
    parameters = [p for p in bank.parameters() if p.requires_grad]
    if not parameters:
        return torch.zeros(0, dtype=torch.float64)
    found = torch.autograd.grad(
        (weights * loss).sum(), parameters, allow_unused=True, retain_graph=True
    )
    pairs = zip(parameters, found)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def assert_answers(
    actual: Answers, expected: Answers, bank: Bank, tolerance: float = ROUTES
) -> None:
    for question, answer in expected.items():
        try:
            assert_close(actual[question], answer, tolerance)
        except AssertionError as error:
            raise AssertionError(f"{question}: {error}") from None
    assert_close(gradient(actual, bank), gradient(expected, bank), tolerance)


@pytest.mark.parametrize("route", ["auto", "reverse"])
def test_product_of_which_two_factors_are_zero(route: str) -> None:
    """``x_0 x_1 g(x_2)`` at ``x_0 = x_1 = 0`` has no score, but ``v'Hv = 2 v_0 v_1 g(x_2)``."""
    x = normal(6, 3, generator=torch.Generator().manual_seed(1)) * torch.tensor([0.0, 0.0, 1.0])
    v = directions(x)

    def product(x: Tensor) -> Tensor:
        return torch.cat([x[:, :2], torch.sin(x[:, 2:]) + 2], 1).prod(1)

    score, curvature = LogDensityField(product, route=route).score_and_curvature(x, v)
    assert_close(score, torch.zeros_like(x), ROUTES)
    assert_close(curvature, (2 * v[..., 0] * v[..., 1] * (torch.sin(x[:, 2]) + 2)).mean(0), ROUTES)


@pytest.mark.parametrize("way", WAYS, ids=name)
def test_every_route_gives_the_oracles_answers(way: Way) -> None:
    bank, x = Bank(), way.points()
    v, smooth = directions(x), not way.kinked
    truth = by_oracle(way.oracle(bank), x, v)
    for route in ("auto", "reverse"):
        options = {"route": route, "check_smoothness": smooth}
        with slow_ways_allowed(way):
            answers = by_field(way.density(bank), x, v, way.tolerance, **options)
        assert_answers(answers, truth, bank, way.tolerance)


@contextmanager
def slow_ways_allowed(way: Way) -> Iterator[None]:
    """A region without the warning about double backward, for ways that need not be traced."""
    with warnings.catch_warnings():
        if way.traced is not True:
            warnings.simplefilter("ignore", PerformanceWarning)
        yield


@pytest.mark.parametrize("way", [w for w in WAYS if w.traced], ids=name)
def test_no_traced_answer_depends_on_the_size_of_the_batch(way: Way) -> None:
    # Two points where the test above has three, so that other axes have their length.
    bank, x = Bank(), way.points()
    v, f = directions(x), way.density(bank)
    options = {"tolerance": way.tolerance, "route": "traced", "check_smoothness": False}
    with torch.no_grad():
        many = by_field(f, x, v, **options)
        few = by_field(f, x[:2], v[:, :2], **options)
    for question in many:
        assert_close(few[question], many[question][:2], way.tolerance)


@pytest.mark.parametrize("way", [w for w in WAYS if w.traced], ids=name)
def test_a_trace_has_the_models_value(way: Way) -> None:
    # That its derivatives are used follows above: double backward would have warned.
    bank, x = Bank(), way.points()
    f = way.density(bank)
    model = LogDensityField(f, route="traced").model
    _, y = model.trace(x.clone().requires_grad_(), None, partial(Tape, len(x)))
    assert_close(y.p, f(x), ROUTES)


class Axes(Tape):
    """Keeps every value of a trace, with the axis said to run over the points."""

    differentiates = True

    def __init__(self, num_points: int, graphs: Any = None) -> None:
        super().__init__(num_points, graphs)
        self.values: list[tuple[Tensor, int | None]] = []

    def emit(self, inputs: Any, y: Tensor, push: Any, second: Any, axis: int | None) -> Any:
        self.values.append((y.detach().clone(), axis))
        return super().emit(inputs, y, push, second, axis)


@pytest.fixture
def no_arbitrary_numbers() -> Iterator[None]:
    """Memory that a model leaves uninitialised holds NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning")
@pytest.mark.usefixtures("no_arbitrary_numbers")
@pytest.mark.parametrize("way", [w for w in WAYS if w.traced], ids=name)
def test_the_axis_of_points_is_where_the_points_are(way: Way) -> None:
    # Where one point moves, no value may change outside its own part of the axis.
    bank, x = Bank(), way.points()
    there = torch.cat([x[:1] + 0.01, x[1:]])
    model = LogDensityField(way.density(bank), route="traced").model
    tapes = [model.trace(z.clone().requires_grad_(), None, partial(Axes, 3))[0] for z in (x, there)]
    for (a, axis), (b, _) in zip(*[tape.values for tape in tapes], strict=True):
        if axis is not None:
            others = [t.movedim(axis, 0).reshape(3, -1)[1:] for t in (a, b)]
            assert torch.allclose(*others, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("way", [w for w in WAYS if w.traced is False], ids=name)
def test_not_traced(way: Way) -> None:
    bank, x = Bank(), way.points()
    field = LogDensityField(way.density(bank), route="traced", check_smoothness=False)
    with pytest.raises(Untraceable):
        field.score_and_curvature(x, directions(x))


# ----------------------------------------------------------------- other questions, same table


SUBSET = [w for w in WAYS if w.name in SOME]


@pytest.mark.parametrize("way", SUBSET, ids=name)
def test_score_networks(way: Way) -> None:
    bank, x = Bank(), way.points()
    h, v = way.vector(bank), directions(x)
    terms = [oracles.vector_terms(way.vector(bank, trusted=True), x_i) for x_i in x]
    score, jac = map(torch.stack, zip(*terms))
    flat = v.flatten(2)
    curvature = torch.einsum("mna,nab,mnb->n", flat, jac, flat) / len(v)
    divergence = jac.diagonal(dim1=1, dim2=2).sum(1)
    truth = {"score": score.reshape(x.shape), "curvature": curvature, "divergence": divergence}
    for route in ("traced", "reverse"):
        field = VectorField(h, route=route)
        s, curvature = field.score_and_curvature(x, v)
        _, trace = field.score_and_divergence(x)
        answers = {"score": s, "curvature": curvature, "divergence": trace}
        assert_answers(answers, truth, bank)


@pytest.mark.parametrize("way", SUBSET, ids=name)
def test_features(way: Way) -> None:
    # Several outputs go by jets, forward; each column is a log-density of its own.
    bank, x = Bank(), way.points()
    v, both = directions(x), way.features(bank, trusted=True)
    field = LogDensityField(way.features(bank), feature_axes=1, route="traced")
    s, curvature = field.score_and_curvature(x, v)
    again, trace = field.score_and_divergence(x)
    assert s.shape == again.shape == (len(x), 2, *x.shape[1:])
    for k in range(2):
        truth = by_oracle(lambda y, k=k: both(y)[:, k], x, v)
        answers = {"score": s[:, k], "curvature": curvature[:, k], "divergence": trace[:, k]}
        del truth["value"]
        assert_answers(answers, truth, bank)
        assert_close(again[:, k], truth["score"], ROUTES)


@pytest.mark.parametrize("way", SUBSET, ids=name)
@pytest.mark.parametrize("kind", ["density", "vector", "features"])
def test_one_direction_at_a_time(way: Way, kind: str) -> None:
    # Next to no memory: chunks of one direction, recomputed in the backward pass.
    bank, x = Bank(), way.points()
    f = getattr(way, kind)(bank)
    field = (VectorField if kind == "vector" else LogDensityField)(f, route="traced")

    def ask(max_memory: int | None) -> Answers:
        s, trace = field.score_and_divergence(x, max_memory=max_memory)
        if kind == "features":
            s, trace = s.flatten(0, 1), trace.flatten()
        return {"score": s, "divergence": trace, "curvature": trace}

    assert_answers(ask(1), ask(None), bank, IDENTITY)
    with torch.no_grad():
        assert_close(ask(1)["divergence"], ask(None)["divergence"], IDENTITY)


def test_few_directions_are_recomputed_and_not_kept() -> None:
    bank, calls = Bank(), []
    x = normal(2, 4, generator=torch.Generator().manual_seed(0))

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return torch.tanh(x @ bank(4, 3)).sum(1)

    field = LogDensityField(f, route="traced", check_smoothness=False)
    _, trace = field.score_and_divergence(x, max_memory=1)
    forward = len(calls)
    trace.sum().backward()
    assert forward == 5  # a survey and four directions
    assert len(calls) == 9


# ------------------------------------------------------------------- layers that read x itself


def frozen(weight: Tensor) -> Tensor:
    return weight.detach()


FIRST: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda x, p: torch.sin(F.linear(x, p(5, 3), p(5))) @ p(5, k=1),
    "linear without bias": lambda x, p: torch.sin(F.linear(x, p(5, 3))) @ p(5),
    "linear, frozen": lambda x, p: torch.sin(F.linear(x, frozen(p(5, 3)))) @ p(5),
    "everything frozen": lambda x, p: torch.sin(F.linear(x, frozen(p(5, 3)))).sum(1) + p(1) * 0,
    "two layers": lambda x, p: (torch.sin(F.linear(x, p(5, 3))) * F.linear(x, p(5, 3, k=1))).sum(1),
    "one layer twice": lambda x, p: sum(torch.sin(F.linear(x, p(5, 3)) + k).sum(1) for k in (0, 1)),
    "layer and skip": lambda x, p: torch.sin(F.linear(x, p(3, 3)) + x).sum(1) - x.square() @ p(3),
    "layer unused": lambda x, p: (F.linear(x, p(5, 3)), torch.sin(x * p(3)).sum(1))[1],
    "layer, linear to the end": lambda x, p: F.linear(x, p(1, 3)).squeeze(1) + (x**2) @ p(3),
    "only linear": lambda x, p: F.linear(x, p(1, 3)).squeeze(1),
    "layer detached": lambda x, p: (F.linear(x, p(3, 3)).detach() * torch.sin(x)).sum(1) * p(1)[0],
    "square": lambda x, p: x.square() @ p(3),
    "product with itself": lambda x, p: (x * x) @ p(3),
    "einsum": lambda x, p: torch.einsum("na,ab,nb->n", x, p(3, 3), x),
}


@pytest.mark.parametrize("route", ["auto", "traced", "reverse"])
@pytest.mark.parametrize("name", FIRST)
def test_models_that_read_x_themselves(name: str, route: str) -> None:
    bank, x = Bank(), normal(3, 3, generator=torch.Generator().manual_seed(0))
    v = directions(x)

    def f(x: Tensor) -> Tensor:
        return FIRST[name](x, bank)

    answers = by_field(f, x, v, route=route, check_smoothness="detached" not in name)
    truth = by_oracle(f, x, v)
    for question, answer in truth.items():
        assert_close(answers[question], answer, ROUTES)
    if name != "only linear":
        assert_close(gradient(answers, bank), gradient(truth, bank), ROUTES)


@pytest.mark.parametrize("name", [n for n in FIRST if n != "everything frozen"])
def test_points_that_are_being_differentiated(name: str) -> None:
    # The points come from an encoder, which gets its gradient through every answer.
    bank, u = Bank(), normal(3, 3, generator=torch.Generator().manual_seed(0))
    shift = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    v = directions(u)

    def gradient_in_points(route: str) -> Tensor:
        whole = "detached" not in name
        field = LogDensityField(lambda x: FIRST[name](x, bank), check_smoothness=whole, route=route)
        s, curvature = field.score_and_curvature(torch.tanh(u + shift), v)
        again, trace = field.score_and_divergence(torch.tanh(u + shift))
        loss = (
            s.square().sum(1)
            + curvature
            + trace
            + (again * field.score(torch.tanh(u + shift))).sum(1)
        )
        (found,) = torch.autograd.grad(loss.sum(), shift, allow_unused=True)
        return torch.zeros_like(shift) if found is None else found

    assert_close(gradient_in_points("auto"), gradient_in_points("reverse"), ROUTES)


def test_a_first_layer_of_images() -> None:
    bank, x = Bank(), normal(3, 2, 4, generator=torch.Generator().manual_seed(0))
    v = directions(x)

    def f(x: Tensor) -> Tensor:
        return torch.sin(F.linear(x, bank(5, 4), bank(5))).sum((1, 2)) * bank(1)[0]

    assert_answers(by_field(f, x, v, route="traced"), by_oracle(f, x, v), bank)


# ------------------------------------------------------------------ split directions

BY_PARTS: dict[str, tuple[int, Callable[[Tensor, Bank], Tensor]]] = {
    "linear": (1, lambda x, w: torch.sin(F.linear(x.flatten(1), w(5, 8), w(5)))),
    "two at once": (
        2,
        lambda x, w: torch.sin(F.linear(x.flatten(1), w(5, 8))) * F.linear(x.view(-1, 8), w(5, 8)),
    ),
    "scaled first": (0, lambda x, w: torch.sin(F.linear(3 * x.flatten(1), w(5, 8)))),
    "along the last axis": (0, lambda x, w: torch.sin(F.linear(x, w(5, 4))).flatten(1)),
    "folded": (0, lambda x, w: torch.sin(F.linear(x.reshape(-1, 4), w(5, 4))).reshape(len(x), -1)),
}
"""How many layers read the points themselves, and a model."""


@pytest.mark.parametrize("model", BY_PARTS)
@pytest.mark.parametrize("num", [2, 3, 8])
def test_layers_take_directions_by_parts(
    monkeypatch: pytest.MonkeyPatch, model: str, num: int
) -> None:
    bank, x = Bank(), normal(3, 2, 4, generator=torch.Generator().manual_seed(0))
    v = SplitRademacher().sample(x, num, torch.Generator().manual_seed(1))
    layers, features = BY_PARTS[model]
    calls, through = [], Parts.through

    def counted(self: Parts, weight: Tensor) -> Tensor:
        calls.append(weight.shape)
        return through(self, weight)

    def f(x: Tensor) -> Tensor:
        return features(x, bank).sum(1) * bank(1)[0]

    monkeypatch.setattr(Parts, "through", counted)
    monkeypatch.setattr(_directions, "MIN_PRODUCTS", 0)
    by_parts = by_field(f, x, v, route="traced")
    assert len(calls) == layers
    assert_answers(by_parts, by_oracle(f, x, v), bank)


# --------------------------------------------------------------------------- row spaces


class Funnel(nn.Module):
    """All of x goes through one linear layer with fewer outputs than inputs."""

    def __init__(self, outputs: int | None) -> None:
        super().__init__()
        self.first = nn.Linear(6, 2).double()
        self.last = nn.Linear(2, outputs or 1).double()
        self.outputs = outputs
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(1)
        y = torch.sin(self.last(torch.tanh(2 * self.first(x)).square() * 3))
        return y if self.outputs else y.squeeze(-1)


def funnel(outputs: int | None = None) -> tuple[Funnel, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Funnel(outputs), torch.randn(3, 6, dtype=torch.float64)


def test_row_space_is_enough_to_evaluate() -> None:
    module, x = funnel()
    truth = by_oracle(module, x, x[None])
    module.calls.clear()
    with torch.no_grad():
        field = LogDensityField(module, route="traced", check_smoothness=False)
        s, trace = field.score_and_divergence(x, max_memory=1)
    assert len(module.calls) == 3  # a survey, and two directions instead of six
    assert_close(s, truth["score"], ROUTES)
    assert_close(trace, truth["divergence"], ROUTES)


def test_row_space_of_a_score_network() -> None:
    module, x = funnel(outputs=6)
    truth = torch.stack([oracles.vector_terms(module, x_i)[1].trace() for x_i in x])
    module.calls.clear()
    with torch.no_grad():
        field = VectorField(module, route="traced", check_smoothness=False)
        _, trace = field.score_and_divergence(x, max_memory=1)
    assert len(module.calls) == 3
    assert_close(trace, truth, ROUTES)


def test_row_space_of_features() -> None:
    module, x = funnel(outputs=4)
    with torch.no_grad():
        s, trace = LogDensityField(module, route="traced").score_and_divergence(x)
        wanted, exact = LogDensityField(module, route="reverse").score_and_divergence(x)
    assert_close(s, wanted, ROUTES)
    assert_close(trace, exact, ROUTES)


def test_row_space_is_not_enough_where_x_is_read_twice() -> None:
    module, x = funnel()

    def f(x: Tensor) -> Tensor:
        return module(x) - x.square().sum(-1)

    with torch.no_grad():
        _, trace = LogDensityField(f, route="traced").score_and_divergence(x)
    assert_close(trace, by_oracle(f, x, x[None])["divergence"], ROUTES)


def test_row_space_is_not_taken_to_train() -> None:
    module, x = funnel()
    trace = LogDensityField(module, route="traced").score_and_divergence(x)[1]
    truth = by_oracle(module, x, x[None])["divergence"]
    gradients = (torch.autograd.grad(t.sum(), [*module.parameters()][:3]) for t in (trace, truth))
    for found, wanted in zip(*gradients):
        assert_close(found, wanted, ROUTES)


# ------------------------------------------------------------------------------- randomness


def dropout_net(bank: Bank, drop: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.sin(drop(torch.tanh(x @ bank(3, 8))) @ bank(8, 2)).sum(1)


@pytest.mark.parametrize("route", ["traced", "reverse", "auto"])
def test_dropout_has_one_mask_for_all_streams(route: str) -> None:
    bank, x = Bank(), normal(4, 3, generator=torch.Generator().manual_seed(0))
    v = directions(x)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        mask = F.dropout(torch.ones(4, 8, dtype=torch.float64), 0.5, True)
        torch.manual_seed(3)
        net = dropout_net(bank, lambda h: F.dropout(h, 0.5, True))
        s, curvature = LogDensityField(net, route=route).score_and_curvature(x, v)
    masked = LogDensityField(dropout_net(bank, lambda h: mask * h), route="reverse")
    wanted, exact = masked.score_and_curvature(x, v)
    assert_close(s, wanted, ROUTES)
    assert_close(curvature, exact, ROUTES)


@pytest.mark.parametrize("max_memory", [1, None])
def test_dropout_has_one_mask_for_a_whole_trace(max_memory: int | None) -> None:
    x = normal(3, 4, generator=torch.Generator().manual_seed(0))
    field = LogDensityField(lambda x: F.dropout(x, 0.5, True).square().sum(1))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        s, trace = field.score_and_divergence(x, max_memory)
    assert 0 < (s == 0).sum() < 12
    assert_close(trace, (s / x).sum(1), IDENTITY)


# --------------------------------------------------------------------------- around the model


def test_batch_normalisation_in_training_mode_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Softplus(), nn.Linear(4, 1))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for route in ("auto", "traced", "reverse"):
        field = LogDensityField(lambda x: net(x).squeeze(-1), route=route)
        with pytest.raises(ValueError, match="batch normalisation in training mode"):
            field.score_and_curvature(x, x)


def test_a_context_network_may_use_what_torch_gets_wrong() -> None:
    # The encoder's layer norm is evaluated again in the backward pass of every chunk.
    bank = Bank()
    x = normal(2, 3, generator=torch.Generator().manual_seed(0))
    context = normal(2, 4, generator=torch.Generator().manual_seed(1))
    encoder = bank.net("encoder", lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)))

    def f(x: Tensor) -> Tensor:
        return torch.sin(x * encoder(context)).sum(1)

    def gradients(max_memory: int | None) -> list[Tensor]:
        trace = LogDensityField(f, route="traced").score_and_divergence(x, max_memory)[1]
        return list(torch.autograd.grad(trace.sum(), [*encoder.parameters()]))

    for found, wanted in zip(gradients(1), gradients(None)):
        assert_close(found, wanted, ROUTES)


def test_the_points_stay_as_they_are() -> None:
    x = normal(3, 3, generator=torch.Generator().manual_seed(0))
    before = x.clone()

    def f(x: Tensor) -> Tensor:
        x = F.silu(x, inplace=True) if x.requires_grad is None else F.silu(x * 1, inplace=True)
        return F.relu(x, True).pow(3).sum(1)

    LogDensityField(f).score_and_curvature(x, x)
    assert torch.equal(x, before)
    assert not x.requires_grad


@pytest.mark.parametrize("route", ["auto", "traced"])
def test_an_error_of_the_model_is_raised_again(route: str) -> None:
    def broken(x: Tensor) -> Tensor:
        raise KeyError("the model's own error")

    x = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(KeyError, match="the model's own error"):
        LogDensityField(broken, route=route).score_and_curvature(x, x)


def test_a_model_that_ignores_x_is_refused() -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    for route in ("auto", "traced", "reverse"):
        with pytest.raises(ValueError, match="must depend on x"):
            LogDensityField(lambda x: weight * 2, route=route).score_and_curvature(x, x)


@pytest.mark.parametrize("route", ["auto", "traced", "reverse"])
def test_a_linear_model_has_no_curvature(route: str) -> None:
    x = normal(2, 3, generator=torch.Generator().manual_seed(0))
    field = LogDensityField(lambda x: 2 * x.sum(1), route=route)
    for s, second in (field.score_and_curvature(x, x), field.score_and_divergence(x)):
        assert torch.equal(s, torch.full_like(x, 2))
        assert torch.equal(second, torch.zeros(2, dtype=torch.float64))


def test_stretched_tangents_and_their_derivatives() -> None:
    g = torch.Generator().manual_seed(0)
    u, d = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((3, 2, 4), (2, 4)))
    pushed, square = Stretch.apply(u, d)
    torch.testing.assert_close(pushed, d * u)
    torch.testing.assert_close(square, u.square().mean(0))
    leaves = u.requires_grad_(), d.requires_grad_()
    assert torch.autograd.gradcheck(Stretch.apply, leaves)
    assert torch.autograd.gradgradcheck(Stretch.apply, leaves)
    for part in (0, 1):  # one result alone
        assert torch.autograd.gradcheck(lambda *x: Stretch.apply(*x)[part], leaves)  # noqa: B023


UPLOADS: dict[str, Callable[[Tensor], Tensor]] = {
    "masked_fill": lambda z: torch.masked_fill(z.exp(), z > 0, -1.0),
    "number to a power": lambda z: 2.0**z,
    "copysign": lambda z: torch.copysign(z.exp(), -1.0),
    "xlogy": lambda z: torch.special.xlogy(z, 2.0) + torch.special.xlogy(2.0, z.exp()),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_numbers_are_not_copied_to_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph cannot hold a copy from the CPU, which `torch.as_tensor` of a number is."""
    f, x = UPLOADS[name], normal(4, 3, generator=torch.Generator().manual_seed(0))
    field = LogDensityField(lambda x: f(x).sum(1), route="traced", check_smoothness=False)
    expected = by_oracle(lambda x: f(x).sum(1), x, directions(x))["curvature"]

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a number was copied")

    monkeypatch.setattr(torch, "as_tensor", refuse)
    monkeypatch.setattr(torch, "tensor", refuse)
    assert_close(field.score_and_curvature(x, directions(x))[1], expected, ROUTES)
