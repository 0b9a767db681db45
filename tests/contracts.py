"""What every member of a family promises, whatever else it does.

A family is found by introspection: the concrete subclasses of its base that the package exports.
A new member is therefore under contract the moment it is exported. A new family adds a base to
`FAMILIES` and a class of laws here, and a two-line test class in test_contracts.py.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

FAMILIES: dict[str, type] = {
    "Projection": sm.Projection,
    "Field": sm.Field,
    "Objective": sm.Objective,
}
"""Bases whose members have a contract. Later families (estimators, samplers) add theirs."""

EVENTS: list[tuple[int, ...]] = [(1,), (3,), (2, 1, 2)]
"""A number, a vector and a small image."""


def members(base: type) -> list[type]:
    """Concrete subclasses of a base among the package's public names."""
    public = (getattr(sm, name) for name in sm.__all__)
    classes = {c for c in public if inspect.isclass(c) and issubclass(c, base) and c is not base}
    return sorted((c for c in classes if not inspect.isabstract(c)), key=lambda c: c.__name__)


def bases() -> list[type]:
    """Public classes that exist to be subclassed: what must be a family."""
    public = [c for c in (getattr(sm, name) for name in sm.__all__) if inspect.isclass(c)]
    public = [c for c in public if not issubclass(c, Exception)]
    return [c for c in public if any(d is not c and issubclass(d, c) for d in public)]


# Instances of a member: its defaults, and each option changed on its own.

OPTIONS: dict[str, list[Any]] = {
    "projection": [sm.Sphere(orthogonal=True, balanced=True)],
    "num_projections": [3],
    "sigma": [0.5, 0.1],
    "beta": [0.0, 0.3, "optimal"],
    "eps": [0.2],
    "max_memory": [1],
    "domain": [sm.domains.Box(-8.0, 8.0, h="min(x^2, 60)")],
}
"""Values to try by name of option; true-or-false options need no entry."""


def variations(member: type) -> list[Any]:
    """Instances of a frozen dataclass: one with defaults, and one for every other value."""
    fields = [f for f in dataclasses.fields(member) if f.init]
    required = {f.name: _options(member, f)[0] for f in fields if _is_required(f)}
    changed = ({f.name: value} for f in fields for value in _options(member, f))
    instances = [member(**{**required, **change}) for change in [{}, *changed]]
    return list(dict.fromkeys(instances))


def combinations(member: type) -> list[Any]:
    """Instances of a frozen dataclass with every combination of its true-or-false options."""
    names = [f.name for f in dataclasses.fields(member) if f.init]
    choices = itertools.product([False, True], repeat=len(names))
    return [member(**dict(zip(names, choice, strict=True))) for choice in choices]


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _options(member: type, field: dataclasses.Field[Any]) -> list[Any]:
    if isinstance(field.default, bool):
        return [False, True]
    assert field.name in OPTIONS, f"give OPTIONS values of {member.__name__}'s {field.name}"
    return OPTIONS[field.name]


# Models to ask: smooth, curved, not symmetric, for any event.


class Density(nn.Module):
    """A log-density, ``(N, *event) -> (N, *F)``."""

    def __init__(self, event: tuple[int, ...], features: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.features = features
        d, outputs = torch.Size(event).numel(), torch.Size(features).numel()
        self.net = nn.Sequential(nn.Linear(d, 7), nn.Softplus(), nn.Linear(7, outputs))
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        y = self.net(flat) - 0.5 * flat.square().sum(-1, keepdim=True)
        return y.reshape(x.shape[0], *self.features)


class Vectors(nn.Module):
    """A vector field that is not a gradient, ``(N, *event) -> (N, *event)``."""

    def __init__(self, event: tuple[int, ...]) -> None:
        super().__init__()
        d = torch.Size(event).numel()
        self.net = nn.Sequential(nn.Linear(d, 7), nn.Tanh(), nn.Linear(7, d))
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.flatten(1)).reshape(x.shape) - x


def _initialise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.7, generator=generator)


class FieldCase(NamedTuple):
    """A way to write down a field: its class, its model, its feature axes and its route."""

    member: type
    model: Callable[[tuple[int, ...]], nn.Module]
    features: tuple[int, ...] = ()
    route: str = "auto"

    def __repr__(self) -> str:
        features = list(self.features) or ""
        return f"{self.member.__name__}{features} {self.route}"

    def build(self, event: tuple[int, ...]) -> tuple[Any, nn.Module]:
        """The field and the module inside it."""
        module = self.model(event)
        return self.member(module, route=self.route), module


FIELD_CASES = [
    FieldCase(sm.LogDensityField, Density),
    FieldCase(sm.LogDensityField, lambda event: Density(event, (2,)), (2,)),
    FieldCase(sm.LogDensityField, lambda event: Density(event, (1, 2)), (1, 2)),
    FieldCase(sm.VectorField, Vectors),
    FieldCase(sm.LogDensityField, Density, route="reverse"),
    FieldCase(sm.VectorField, Vectors, route="reverse"),
]
"""At least one per member of the family of fields."""


# Small tools of the laws.


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def points(n: int, event: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    """Points that are the same every time."""
    return torch.randn(n, *event, generator=seeded(1), dtype=torch.float64).to(dtype)


def reversed_memory(x: Tensor) -> Tensor:
    """The same tensor with its axes laid out in memory the other way round."""
    back = tuple(reversed(range(x.ndim)))
    return x.permute(back).contiguous().permute(back)


def without_gradients() -> list[Any]:
    """The two ways to say that no gradient is wanted."""
    return [torch.no_grad, torch.inference_mode]


def assert_same(a: Any, b: Any, tolerance: float = IDENTITY) -> None:
    """Equal values, tensor by tensor, to a tolerance relative to the largest."""
    for left, right in zip(_tensors(a), _tensors(b), strict=True):
        assert left.shape == right.shape and left.dtype == right.dtype
        scale = max(1.0, float(right.detach().abs().amax()))
        torch.testing.assert_close(left, right, rtol=0, atol=tolerance * scale)


def assert_equal(a: Any, b: Any) -> None:
    """Equal to the last digit."""
    assert_same(a, b, tolerance=0)


def _tensors(value: Any) -> Iterable[Tensor]:
    return (value,) if isinstance(value, Tensor) else value


def slopes(function: Callable[[Tensor], Tensor], x: Tensor, step: float = 1e-3) -> Tensor:
    """Gradient of a number in x by differences of fourth order, one coordinate at a time."""
    unit = torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape) * step
    near = torch.stack([function(x + e) - function(x - e) for e in unit]).detach()
    far = torch.stack([function(x + 2 * e) - function(x - 2 * e) for e in unit]).detach()
    return ((8 * near - far) / (12 * step)).reshape(x.shape)


def weighted(value: Tensor) -> Tensor:
    """A sum in which no two entries count the same."""
    return (value.flatten() * torch.arange(1, value.numel() + 1).to(value).sqrt()).sum()


@contextmanager
def untouched(*tensors: Tensor) -> Iterator[None]:
    """A region that must leave tensors as they were: digits, flags and gradients."""

    def state() -> list[tuple[Any, ...]]:
        return [(t._version, t.requires_grad, t.is_leaf, t.tolist()) for t in tensors]

    before, gradients = state(), [t.grad for t in tensors]
    digits = [None if g is None else g.clone() for g in gradients]
    yield
    assert state() == before, "changed a tensor of the caller"
    for tensor, gradient, copy in zip(tensors, gradients, digits, strict=True):
        assert tensor.grad is gradient, "replaced a gradient of the caller"
        assert gradient is None or torch.equal(gradient, copy), "added to a gradient of the caller"


@contextmanager
def global_randomness_untouched() -> Iterator[None]:
    """A region that must not draw from torch's default generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before), "drew from the global generator"


class FrozenContract:
    """A member is a value: it cannot be changed, equals its like and prints as it is written."""

    def test_repr_evaluates_to_an_equal_member(self, member: Any) -> None:
        names = {name: getattr(sm.domains, name) for name in sm.domains.__all__}
        names |= {name: getattr(sm, name) for name in sm.__all__}
        again = eval(repr(member), names)
        assert again == member and again is not member and hash(again) == hash(member)
        assert type(again) is type(member)

    def test_options_tell_members_apart(self, member: Any) -> None:
        others = [m for m in variations(type(member)) if repr(m) != repr(member)]
        assert member not in others

    def test_frozen(self, member: Any) -> None:
        for name in [*(f.name for f in dataclasses.fields(member)), "anything"]:
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(member, name, None)


class ProjectionContract(FrozenContract):
    """Directions ``(M, N, *event)`` with ``E[v v'] = I``, from the generator and nothing else."""

    GRID = (
        *itertools.product([1, 2, 5], [(1,), (2,), (3,), (8,)], [1, 2, 9]),
        *itertools.product([1, 4], [(2, 3, 2), (1, 1), (1, 4, 1)], [1, 3]),
    )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_shape_dtype_device(self, member: Any, dtype: torch.dtype) -> None:
        for n, event, num in self.GRID:
            x = torch.zeros(n, *event, dtype=dtype)
            v = member.sample(x, num=num, generator=seeded())
            assert (v.shape, v.dtype, v.device) == ((num, n, *event), dtype, x.device)
            assert v.isfinite().all() and not v.requires_grad

    def test_one_direction_unless_told(self, member: Any) -> None:
        assert member.sample(torch.zeros(4, 3)).shape == (1, 4, 3)

    def test_generator_decides(self, member: Any) -> None:
        x = points(6, (5,))
        with global_randomness_untouched():
            first, again, other = (member.sample(x, 2, generator=seeded(k)) for k in (3, 3, 4))
        assert_equal(first, again)
        assert not torch.equal(first, other)

    def test_default_generator_without_one(self, member: Any) -> None:
        x = points(6, (5,))
        with torch.random.fork_rng():
            first, again = (member.sample(x, 2) for _ in map(torch.manual_seed, (3, 3)))
            other = member.sample(x, 2)
        assert_equal(first, again)
        assert not torch.equal(first, other)

    def test_only_the_form_of_points_matters(self, member: Any) -> None:
        x = points(4, (2, 3)).requires_grad_()
        with untouched(x):
            v = member.sample(x, 2, generator=seeded())
        assert_equal(v, member.sample(reversed_memory(x), 2, generator=seeded()))
        assert_equal(v, member.sample(torch.zeros(4, 2, 3).double(), 2, generator=seeded()))
        assert v.data_ptr() != x.data_ptr()

    def test_single_precision_is_the_same_law(self, member: Any) -> None:
        v = member.sample(points(4, (4,), torch.float32), 3, generator=seeded())
        half = member.sample(points(4, (4,), torch.bfloat16), 3, generator=seeded())
        assert torch.equal(half, v.bfloat16())

    def test_second_moment_is_the_identity(self, member: Any) -> None:
        """``E[v v'] = I`` for every direction of a batch, each on its own."""
        n, num, d = 2, 3, 3
        generator = seeded(5)
        x = points(n, (d,))
        v = torch.stack([member.sample(x, num, generator=generator) for _ in range(2200)])
        products = v[..., :, None] * v[..., None, :]
        truth = torch.eye(d).expand(num, n, d, d)
        assert_mean(products, truth, detect=0.3)

    def test_directions_are_uncorrelated(self, member: Any) -> None:
        """``E[v w'] = 0`` for two directions of a batch: all pairs, summed up coordinate-wise."""
        generator = seeded(6)
        x = points(2, (3,))
        draws = [member.sample(x, 2, generator=generator).reshape(4, 3) for _ in range(2500)]
        v = torch.stack(draws)
        pairs = torch.stack([v[:, i] * v[:, j] for i, j in itertools.combinations(range(4), 2)], 1)
        assert_mean(pairs, 0.0, detect=0.25)


class FieldContract:
    """Answers of the right shape, the same however and wherever x comes from."""

    N, M = 4, 3

    def questions(self, v: Tensor) -> dict[str, Callable[[Any, Tensor], Any]]:
        """Everything a field can be asked, given directions."""
        return {
            "score": lambda field, x: field.score(x),
            "score_and_divergence": lambda field, x: field.score_and_divergence(x),
            "score_and_curvature": lambda field, x: field.score_and_curvature(x, v),
            "slice": lambda field, x: field.slice(x, v),
            "slice_by_differences": lambda field, x: field.slice_by_differences(x, v, 0.1),
        }

    def case(self, member: FieldCase, event: tuple[int, ...]) -> tuple[Any, nn.Module, Tensor, Any]:
        """A field, its module, points and the questions."""
        field, module = member.build(event)
        v = torch.randn(self.M, self.N, *event, generator=seeded(2), dtype=torch.float64)
        return field, module, points(self.N, event), self.questions(v)

    @pytest.mark.parametrize("event", EVENTS)
    def test_shapes(self, member: FieldCase, event: tuple[int, ...]) -> None:
        n, m, f = self.N, self.M, member.features
        shapes = {
            "score": [(n, *f, *event)],
            "score_and_divergence": [(n, *f, *event), (n, *f)],
            "score_and_curvature": [(n, *f, *event), (n, *f)],
            "slice": [(n, *f, m), (n, *f)],
            "slice_by_differences": [(n, *f, m), (n, *f)],
        }
        field, _, x, questions = self.case(member, event)
        for name, ask in questions.items():
            answer = list(_tensors(ask(field, x)))
            assert [tuple(part.shape) for part in answer] == shapes[name], name
            assert all(part.dtype == x.dtype and part.isfinite().all() for part in answer)

    @pytest.mark.parametrize("event", EVENTS)
    def test_one_direction_needs_no_axis(self, member: FieldCase, event: tuple[int, ...]) -> None:
        field, _, x, _ = self.case(member, event)
        v = points(self.N, event)
        assert_equal(field.slice(x, v), field.slice(x, v[None]))
        assert_equal(field.score_and_curvature(x, v), field.score_and_curvature(x, v[None]))
        short, full = (field.slice_by_differences(x, w, 0.1) for w in (v, v[None]))
        assert_equal(short, full)

    @pytest.mark.parametrize("mode", without_gradients())
    @pytest.mark.parametrize("event", EVENTS)
    def test_same_values_without_gradients(
        self, member: FieldCase, event: tuple[int, ...], mode: Any
    ) -> None:
        field, _, x, questions = self.case(member, event)
        for ask in questions.values():
            expected = ask(field, x)
            with mode():
                answer = ask(field, x.clone())
            assert not any(part.requires_grad for part in _tensors(answer))
            assert_same(answer, [part.detach() for part in _tensors(expected)])

    @pytest.mark.parametrize("event", EVENTS)
    def test_caller_keeps_x_and_parameters(self, member: FieldCase, event: tuple[int, ...]) -> None:
        field, module, x, questions = self.case(member, event)
        wanted = x.clone().requires_grad_()
        wanted.grad = torch.ones_like(wanted)
        for ask in questions.values():
            with untouched(x, wanted, *module.parameters()), global_randomness_untouched():
                ask(field, x)
                ask(field, wanted)

    @pytest.mark.parametrize("event", EVENTS)
    def test_memory_layout_does_not_matter(self, member: FieldCase, event: tuple[int, ...]) -> None:
        field, _, x, questions = self.case(member, event)
        for ask in questions.values():
            assert_same(ask(field, reversed_memory(x)), ask(field, x))

    @pytest.mark.parametrize("event", EVENTS)
    def test_rows_are_independent(self, member: FieldCase, event: tuple[int, ...]) -> None:
        """Points in another order, or fewer of them, have the same answers."""
        field, _, x, _ = self.case(member, event)
        v = torch.randn(self.M, *x.shape, generator=seeded(2), dtype=x.dtype)
        for rows in (torch.tensor([2, 0, 3, 1]), torch.tensor([1]), torch.tensor([3, 3])):
            here, there = self.questions(v), self.questions(v[:, rows])
            for name in here:
                expected = [part[rows] for part in _tensors(here[name](field, x))]
                assert_same(there[name](field, x[rows]), expected, tolerance=1e-11)

    @pytest.mark.parametrize("event", EVENTS)
    def test_questions_agree(self, member: FieldCase, event: tuple[int, ...]) -> None:
        """One field behind all questions: a slice is a projected score, a trace a sum of slices."""
        field, _, x, _ = self.case(member, event)
        d, f = x[0].numel(), member.features
        v = torch.randn(self.M, *x.shape, generator=seeded(2), dtype=x.dtype)
        score, curvature = field.score_and_curvature(x, v)
        flat = score.reshape(self.N, -1, d)
        projected = torch.stack([(flat * w.reshape(self.N, 1, d)).sum(-1) for w in v], -1)
        assert_same(field.slice(x, v), (projected.reshape(self.N, *f, self.M), curvature))
        assert_same(field.score(x), score)
        basis = torch.eye(d, dtype=x.dtype).reshape(d, 1, *event).expand(d, *x.shape)
        trace = d * field.score_and_curvature(x, basis)[1]
        assert_same(field.score_and_divergence(x), (score, trace))

    @pytest.mark.parametrize("event", EVENTS)
    def test_connected_to_points_that_want_gradients(
        self, member: FieldCase, event: tuple[int, ...]
    ) -> None:
        """The gradient of an answer in x itself, against differences."""
        field, _, _, _ = self.case(member, event)
        x = points(2, event)
        v = torch.randn(self.M, *x.shape, generator=seeded(2), dtype=x.dtype)
        for ask in self.questions(v).values():

            def number(y: Tensor, ask: Callable[[Any, Tensor], Any] = ask) -> Tensor:
                return sum(weighted(part) for part in _tensors(ask(field, 2 * y)))

            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(number(leaf), leaf, allow_unused=True)
            assert gradient is not None, "cut off from the points"
            assert_same(gradient, slopes(number, x), tolerance=ROUTES)

    def test_repr_names_the_model(self, member: FieldCase) -> None:
        field, module = member.build((3,))
        assert repr(field) == f"{member.member.__name__}({type(module).__name__})"


class ObjectiveContract(FrozenContract):
    """One loss per point, deterministic once the noise is drawn, and nothing else changed."""

    N = 6

    def cases(
        self, member: Any, event: tuple[int, ...] = (3,), dtype: torch.dtype = torch.float64
    ) -> Iterator[tuple[Any, nn.Module, Tensor]]:
        """A model, the module inside it and points: a log-density, and a score net if accepted."""
        x = points(self.N, event, dtype)
        density, vectors = Density(event).to(dtype), Vectors(event).to(dtype)
        yield density, density, x
        yield sm.LogDensityField(density), density, x
        if takes_vector_fields(member):
            yield sm.VectorField(vectors), vectors, x

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("event", EVENTS)
    def test_one_loss_per_point(
        self, member: Any, event: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        for model, _, x in self.cases(member, event, dtype):
            for batch in (x, x[:1]):
                loss = member(model, batch, generator=seeded())
                assert (loss.shape, loss.dtype) == (batch.shape[:1], dtype)
                assert loss.isfinite().all() and loss.requires_grad

    def test_call_is_draw_then_loss(self, member: Any) -> None:
        for model, module, x in self.cases(member):
            field = model if isinstance(model, sm.Field) else sm.LogDensityField(module)
            noise = member.draw(x, seeded())
            assert_equal(member(model, x, generator=seeded()), member.loss(field, x, noise))

    def test_drawn_noise_decides(self, member: Any) -> None:
        """All randomness is in the noise: the same noise again is the same loss again."""
        for model, module, x in self.cases(member):
            field = model if isinstance(model, sm.Field) else sm.LogDensityField(module)
            with global_randomness_untouched():
                noise = member.draw(x, seeded())
                first, again = (member.loss(field, x, noise) for _ in range(2))
            assert_equal(first, again)

    def test_terms_give_the_loss_or_say_why_not(self, member: Any) -> None:
        field, x = sm.LogDensityField(Density((3,))), points(self.N, (3,))
        noise = member.draw(x, seeded())
        if type(member).terms is sm.Objective.terms:
            with pytest.raises(TypeError, match=f"{type(member).__name__} has no terms"):
                member.terms(field, x, noise)
            return
        first, second = member.terms(field, x, noise)
        assert first.shape[0] == x.shape[0] and first.ndim == 2 and second.shape == x.shape[:1]
        if getattr(member, "beta", 1.0) == 1.0:
            loss = member.loss(field, x, member.draw(x, seeded()))
            assert_same(0.5 * first.square().sum(-1) + second, loss)

    @pytest.mark.parametrize("event", EVENTS)
    def test_batching_does_not_matter(self, member: Any, event: tuple[int, ...]) -> None:
        """Given the noise, a point's loss does not know its neighbours."""
        if not knows_one_point(member):
            return
        for model, module, x in self.cases(member, event):
            field = model if isinstance(model, sm.Field) else sm.LogDensityField(module)
            noise = member.draw(x, seeded())
            whole = member.loss(field, x, noise)
            cuts = [slice(0, 1), slice(1, 4), slice(4, self.N)]
            parts = [member.loss(field, x[cut], _rows(noise, cut, x)) for cut in cuts]
            assert_same(torch.cat(parts), whole, tolerance=1e-11)

    @pytest.mark.parametrize("event", EVENTS)
    def test_noise_can_be_shared(self, member: Any, event: tuple[int, ...]) -> None:
        """The losses of some points with their share of the noise are those in the whole batch."""
        if not knows_one_point(member):
            return
        for model, module, x in self.cases(member, event):
            field = model if isinstance(model, sm.Field) else sm.LogDensityField(module)
            noise, rows = member.draw(x, seeded()), slice(1, None, 3)
            mine = member.share(noise, x, rows)
            if mine is None and noise is not None:  # it is drawn while the model runs
                assert isinstance(member, sm.CurvaturePropagation)
                continue
            part = member.loss(field, x[rows], mine)
            assert_same(part, member.loss(field, x, noise)[rows], tolerance=1e-11)

    def test_one_direction_needs_no_axis(self, member: Any) -> None:
        """Noise ``(1, N, *event)`` may come as ``(N, *event)``."""
        field, x = sm.LogDensityField(Density((2, 2))), points(self.N, (2, 2))
        noise = member.draw(x, seeded())
        if isinstance(noise, Tensor) and noise.shape[:1] == (1,):
            assert_equal(member.loss(field, x, noise[0]), member.loss(field, x, noise))

    def test_generator_decides(self, member: Any) -> None:
        # Five coordinates: with three, three orthogonal directions give the exact trace.
        for model, _, x in self.cases(member, event=(5,)):
            with global_randomness_untouched():
                first, again, other = (member(model, x, generator=seeded(k)) for k in (3, 3, 4))
            assert_equal(first, again)
            if member.draw(x, seeded()) is None:
                assert_equal(first, other)
            else:
                assert (first - other).abs().max() > 1e-3

    def test_default_generator_without_one(self, member: Any) -> None:
        for model, _, x in self.cases(member):
            with torch.random.fork_rng():
                first, again = (member(model, x) for _ in map(torch.manual_seed, (3, 3)))
            assert_equal(first, again)

    @pytest.mark.parametrize("mode", without_gradients())
    @pytest.mark.parametrize("event", EVENTS)
    def test_same_values_without_gradients(
        self, member: Any, event: tuple[int, ...], mode: Any
    ) -> None:
        for model, _, x in self.cases(member, event):
            expected = member(model, x, generator=seeded()).detach()
            with mode():
                loss = member(model, x.clone(), generator=seeded())
            assert not loss.requires_grad
            assert_same(loss, expected)

    def test_caller_keeps_x_and_parameters(self, member: Any) -> None:
        for model, module, x in self.cases(member):
            wanted = x.clone().requires_grad_()
            wanted.grad = torch.ones_like(wanted)
            kept, *others = module.parameters()
            kept.grad = torch.ones_like(kept)
            with untouched(x, wanted, kept, *others):
                member(model, x, generator=seeded())
                member(model, wanted, generator=seeded())

    def test_modes_are_left_alone(self, member: Any) -> None:
        for model, module, x in self.cases(member):
            for mode in (nullcontext, *without_gradients()):
                with mode():
                    before = _modes(module)
                    member(model, x, generator=seeded())
                    assert _modes(module) == before

    @pytest.mark.parametrize("event", EVENTS)
    def test_parameter_gradients(self, member: Any, event: tuple[int, ...]) -> None:
        """Finite everywhere, and not all zero; a log-density's last bias may have none."""
        for model, module, x in self.cases(member, event):
            member(model, x, generator=seeded()).mean().backward()
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            assert len(gradients) >= len(list(module.parameters())) - 1
            assert all(g.isfinite().all() for g in gradients)
            assert any((g != 0).any() for g in gradients)

    def test_gradient_in_points(self, member: Any) -> None:
        """The loss stays connected to points that want a gradient (an encoder's output, say)."""
        if pools_the_batch(member):
            return
        for model, module, x in self.cases(member):
            field = model if isinstance(model, sm.Field) else sm.LogDensityField(module)
            x = x[:2]

            def number(y: Tensor, field: Any = field) -> Tensor:
                return weighted(member.loss(field, 2 * y, member.draw(y, seeded())))

            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(number(leaf), leaf, allow_unused=True)
            assert gradient is not None, "cut off from the points"
            assert_same(gradient, slopes(number, x), tolerance=ROUTES)

    def test_context_goes_in_by_closure(self, member: Any) -> None:
        """A model with a context per point, of N rows: the loss of each point with its own."""
        context = torch.randn(self.N, 3, generator=seeded(8), dtype=torch.float64)
        density, vectors = Density((6,)), Vectors((6,))
        x = points(self.N, (3,))

        def joint(rows: slice) -> Callable[[Tensor], Tensor]:
            return lambda z: torch.cat([z, context[rows]], -1)

        def field(rows: slice, kind: type) -> Any:
            if kind is sm.LogDensityField:
                return kind(lambda z: density(joint(rows)(z)))
            return kind(lambda z: vectors(joint(rows)(z))[:, :3])

        kinds = [sm.LogDensityField] + [sm.VectorField] * takes_vector_fields(member)
        for kind in kinds:
            noise = member.draw(x, seeded())
            whole = member.loss(field(slice(None), kind), x, noise)
            assert whole.shape == (self.N,)
            if knows_one_point(member):
                one = slice(2, 3)
                alone = member.loss(field(one, kind), x[one], _rows(noise, one, x))
                assert_same(alone, whole[one], tolerance=1e-11)


def takes_vector_fields(objective: Any) -> bool:
    """Whether a score network will do; an objective that needs a density says so."""
    try:
        objective(sm.VectorField(torch.neg), torch.zeros(1, 1), generator=seeded())
    except TypeError as error:
        assert "needs a log-density" in str(error)
        return False
    return True


def pools_the_batch(objective: Any) -> bool:
    """Whether a point's loss depends on its neighbours by design: beta is estimated on them."""
    return getattr(objective, "beta", None) == "optimal"


def knows_one_point(objective: Any) -> bool:
    """Whether noise can be cut by rows and the loss of a point depends on its own row only."""
    noise = objective.draw(torch.zeros(2, 1), seeded())
    return not pools_the_batch(objective) and (noise is None or isinstance(noise, Tensor))


def _rows(noise: Any, rows: slice, x: Tensor) -> Any:
    """The noise of some of the points, ``(N, *event)`` or ``(M, N, *event)``; None stays None."""
    if noise is None:
        return None
    return noise[rows] if noise.shape == x.shape else noise[:, rows]


def _modes(module: nn.Module) -> tuple[Any, ...]:
    flags = [p.requires_grad for p in module.parameters()]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), module.training, flags
