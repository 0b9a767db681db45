"""Every mistake is answered by the right error, with a message in four parts.

Name of the argument, what it must be, what arrived, what to do: the table gives a piece of each,
and they must stand in the message in that order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching._checks import check_points
from scorematching.objectives import denoising

F64 = torch.float64
X = torch.arange(12, dtype=F64).reshape(4, 3) / 7
V = torch.ones(2, 4, 3, dtype=F64)
W = nn.Parameter(torch.ones(3, dtype=F64))


def normal(x: Tensor) -> Tensor:
    """A sound log-density."""
    return -0.5 * x.square().flatten(1).sum(-1)


DENSITY, FIELD = sm.LogDensityField(normal), sm.VectorField(torch.neg)

ALL = [
    sm.ScoreMatching(),
    sm.SlicedScoreMatching(),
    sm.SlicedScoreMatchingVR(),
    sm.SlicedScoreMatchingVR(beta=0.5),
    sm.DenoisingScoreMatching(sigma=0.1),
    sm.FiniteDifferenceSSM(),
    sm.MaximumLikelihood(),
    sm.NoiseContrastive(),
    sm.ApproximateBackprop(),
    sm.CurvaturePropagation(),
]
SECOND_ORDER = ALL[:4]
FIRST_ORDER = ALL[:5]


class Bad(NamedTuple):
    """A call that must fail, how, and four pieces of what it must say."""

    what: str
    call: Callable[[], Any]
    error: type[Exception]
    name: str
    wanted: str
    got: str
    advice: str

    @property
    def pattern(self) -> str:
        """The four pieces, in order."""
        return r"[\s\S]*".join(map(re.escape, self[3:]))


def with_nan(value: float, rows: int = 1) -> Tensor:
    """Points, the first few of them spoiled."""
    x = X.clone()
    x[:rows, 0] = value
    return x


# Points: the same door everywhere.

POINTS: list[tuple[str, Any, type[Exception], tuple[str, str, str]]] = [
    (
        "no batch axis",
        X[0],
        ValueError,
        ("must have shape (N, *event)", "got (3,)", "add a batch axis with {x}[None]"),
    ),
    (
        "a number",
        torch.tensor(1.0),
        ValueError,
        ("must have shape (N, *event)", "got ()", "add a batch axis with {x}[None, None]"),
    ),
    (
        "integers",
        torch.ones(4, 3, dtype=torch.int64),
        TypeError,
        ("must have a floating-point dtype", "got torch.int64", "convert it with {x}.float()"),
    ),
    (
        "booleans",
        torch.ones(4, 3, dtype=torch.bool),
        TypeError,
        ("must have a floating-point dtype", "got torch.bool", "convert it with {x}.float()"),
    ),
    (
        "complex numbers",
        torch.ones(4, 3, dtype=torch.complex64),
        TypeError,
        ("must have a floating-point dtype", "got torch.complex64", "torch.view_as_real({x})"),
    ),
    (
        "a sparse tensor",
        X.to_sparse(),
        TypeError,
        ("must be a dense tensor with values", "got one of layout torch.sparse", ".to_dense()"),
    ),
    (
        "points of several lengths",
        torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged),
        TypeError,
        ("must be a dense tensor with values", "got a nested one", "pad points of several"),
    ),
    (
        "no values",
        X.to("meta"),
        TypeError,
        ("must be a dense tensor with values", "got one on the meta device", "has memory"),
    ),
    (
        "an array",
        np.ones((4, 3)),
        TypeError,
        ("must be a torch.Tensor", "got ndarray", "torch.as_tensor({x}"),
    ),
    ("a list", [[1.0]], TypeError, ("must be a torch.Tensor", "got list", "torch.as_tensor({x}")),
    ("nothing", None, TypeError, ("must be a torch.Tensor", "got NoneType", "torch.as_tensor")),
    (
        "NaN",
        with_nan(math.nan),
        ValueError,
        ("must be finite", "got NaN or infinity in 1 of 4 points", "drop them with {x}[{x}.isfin"),
    ),
    (
        "infinity",
        with_nan(-math.inf, rows=3),
        ValueError,
        ("must be finite", "got NaN or infinity in 3 of 4 points", "drop them with {x}[{x}.isfin"),
    ),
    (
        "an empty batch",
        X[:0],
        ValueError,
        ("must hold at least one point", "got shape (0, 3)", "skip empty batches"),
    ),
    (
        "no coordinates",
        X[:, :0],
        ValueError,
        ("must hold at least one point with at least one coordinate", "got shape (4, 0)", "skip"),
    ),
]

DOORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{f"{type(o).__name__}": ("x", lambda x, o=o: o(normal, x)) for o in ALL},
    **{
        type(law).__name__: ("x", lambda x, law=law: law.sample(x))
        for law in (sm.Rademacher(), sm.Gaussian(), sm.Sphere())
    },
    "log_density": ("x", DENSITY.log_density),
    **{
        f"{field!r}.{question}": ("x", lambda x, field=field, q=question: _ask(field, q, x))
        for field in (DENSITY, FIELD)
        for question in (
            "score",
            "score_and_divergence",
            "score_and_curvature",
            "slice",
            "slice_by_differences",
        )
    },
    "parzen_sigma, train": ("x_train", lambda x: sm.parzen_sigma(x, X)),
    "parzen_sigma, valid": ("x_valid", lambda x: sm.parzen_sigma(X, x)),
}


def _ask(field: sm.Field, question: str, x: Any) -> Any:
    extra = {
        "score_and_curvature": (V,),
        "slice": (V,),
        "slice_by_differences": (V, 0.1),
    }
    return getattr(field, question)(x, *extra.get(question, ()))


def bad_points() -> list[Bad]:
    """Every kind of bad points at every door."""
    return [
        Bad(f"{door}: {what}", lambda f=f, x=x: f(x), error, arg, *(p.format(x=arg) for p in parts))
        for door, (arg, f) in DOORS.items()
        for what, x, error, parts in POINTS
    ]


# Directions and noise.


def bad_directions() -> list[Bad]:
    """Directions that do not go with the points."""
    shape, kind = ("must have shape (M, *x.shape)", "draw it with projection.sample(x)"), ValueError
    wrong = [
        ("fewer points", V[:, :3], kind, shape[0], "got (2, 3, 3)", shape[1]),
        ("fewer coordinates", V[..., :2], kind, shape[0], "got (2, 4, 2)", shape[1]),
        ("one point for all", V[:, :1], kind, shape[0], "got (2, 1, 3)", shape[1]),
        ("no direction", V[:0], kind, shape[0], "got (0, 4, 3)", shape[1]),
        ("an axis too many", V[None], kind, shape[0], "got (1, 2, 4, 3)", shape[1]),
        (
            "another dtype",
            V.float(),
            kind,
            "must have x's dtype and device (torch.float64, cpu)",
            "got (torch.float32, cpu)",
            "convert it with v.to(x)",
        ),
        (
            "an array",
            V.numpy(),
            TypeError,
            "must be a torch.Tensor of shape (M, N, *event)",
            "got ndarray",
            "draw it with projection.sample(x)",
        ),
    ]
    doors = {
        "curvature": lambda v: DENSITY.score_and_curvature(X, v),
        "slice": lambda v: FIELD.slice(X, v),
        "differences": lambda v: DENSITY.slice_by_differences(X, v, 0.1),
        "vector differences": lambda v: FIELD.slice_by_differences(X, v, 0.1),
        **{
            type(o).__name__ + f" {getattr(o, 'beta', '')}": lambda v, o=o: o.loss(DENSITY, X, v)
            for o in ALL
            if isinstance(o, sm.objectives.sliced.Sliced)
        },
    }
    return [
        Bad(f"{door}: {what}", lambda f=f, v=v: f(v), error, "v ", wanted, got, advice)
        for door, f in doors.items()
        for what, v, error, wanted, got, advice in wrong
    ]


def bad_noise() -> list[Bad]:
    """Noise of denoising score matching that would broadcast in silence."""
    dsm = sm.DenoisingScoreMatching(sigma=0.1)
    wrong = [("one row", V[0, :1], "(1, 3)"), ("an axis too many", V, "(2, 4, 3)")]
    return [
        Bad(
            f"noise: {what}",
            lambda v=v: dsm.loss(DENSITY, X, v),
            ValueError,
            "noise",
            "(4, 3)",
            f"got {got}",
            ";",
        )
        for what, v, got in wrong
    ]


# Options.


def bad_numbers() -> list[Bad]:
    """Numbers out of range."""
    doors: list[tuple[str, Callable[[Any], Any], str]] = [
        (
            "sigma",
            lambda value: sm.DenoisingScoreMatching(sigma=value),
            "for noise-free training use SlicedScoreMatching",
        ),
        ("eps", lambda value: sm.FiniteDifferenceSSM(eps=value), "0.1 suits whitened data"),
        ("eps", lambda value: sm.NoiseContrastive(eps=value), "0.1 suits whitened data"),
        ("step", lambda value: DENSITY.slice_by_differences(X, V, value), "0.01 is a good start"),
        ("step", lambda value: FIELD.slice_by_differences(X, V, value), "0.01 is a good start"),
    ]
    return [
        Bad(
            f"{name} = {v}", lambda f=f, v=v: f(v), ValueError, name, "positive", f"got {v}", advice
        )
        for name, f, advice in doors
        for v in (0.0, 0, -0.5, math.nan, math.inf)
    ]


def bad_kinds_of_number() -> list[Bad]:
    """What is no number at all is a TypeError, not a number out of range."""
    doors: list[tuple[str, Callable[[Any], Any]]] = [
        ("sigma", lambda value: sm.DenoisingScoreMatching(sigma=value)),
        ("eps", lambda value: sm.FiniteDifferenceSSM(eps=value)),
    ]
    return [
        Bad(f"{name} = {v!r}", lambda f=f, v=v: f(v), TypeError, name, "number", f"got {v!r}", ";")
        for name, f in doors
        for v in ("0.1", None)
    ]


def bad_counts() -> list[Bad]:
    """Numbers of directions."""
    doors: list[tuple[str, Callable[[Any], Any], str]] = [
        *(
            ("num_projections", lambda m, c=c: c(num_projections=m), "one per point is a good")
            for c in (
                sm.SlicedScoreMatching,
                sm.SlicedScoreMatchingVR,
                sm.FiniteDifferenceSSM,
                sm.NoiseContrastive,
            )
        ),
        *(
            ("num", lambda m, law=law: law.sample(X, num=m), "one direction per point is a good")
            for law in (sm.Rademacher(), sm.Gaussian(), sm.Sphere())
        ),
        ("every width", lambda m: sm.models.MLPDensity(m), "as positive integers"),
        ("every width", lambda m: sm.models.MLPDensity(3, hidden=(m,)), "as positive integers"),
        ("every width", lambda m: sm.models.ScoreNetwork(3, hidden=(m,)), "as positive integers"),
    ]
    too_few = [(0, ValueError, "must be at least 1"), (-2, ValueError, "must be at least 1")]
    no_count = [(v, TypeError, "must be an integer") for v in (1.0, 2.5, True, "3", None)]
    return [
        Bad(f"{name} = {v!r}", lambda f=f, v=v: f(v), error, name, wanted, f"got {v!r}", advice)
        for name, f, advice in doors
        for v, error, wanted in [*too_few, *no_count]
    ]


def bad_options() -> list[Bad]:
    """Laws, coefficients and switches."""
    sliced = [
        sm.SlicedScoreMatching,
        sm.SlicedScoreMatchingVR,
        sm.FiniteDifferenceSSM,
        sm.NoiseContrastive,
    ]
    laws = [
        Bad(
            f"projection = {v!r}",
            lambda c=c, v=v: c(projection=v),
            TypeError,
            "projection",
            "must be a Projection",
            f"got {v!r}",
            "use Rademacher(), Gaussian() or Sphere()",
        )
        for c in sliced
        for v in (None, "rademacher", sm.Rademacher)
    ]
    betas = [
        Bad(
            f"beta = {v!r}",
            lambda v=v: sm.SlicedScoreMatchingVR(beta=v),
            ValueError,
            "beta",
            'must be a finite number or "optimal"',
            f"got {v!r}",
            "1.0 is variance reduction",
        )
        for v in ("best", None, math.nan, math.inf, -math.inf, True, [1.0])
    ]
    switches = [
        Bad(
            f"{law.__name__}({name}={v!r})",
            lambda law=law, name=name, v=v: law(**{name: v}),
            TypeError,
            name,
            "True or False",
            f"got {v!r}",
            ";",
        )
        for law in (sm.Rademacher, sm.Sphere)
        for name in ("orthogonal", "balanced")
        for v in (4, None)
    ]
    return [*laws, *betas, *switches]


def bad_generators() -> list[Bad]:
    """A seed is not a generator."""
    doors: list[Callable[[Any], Any]] = [
        *(lambda g, o=o: o(normal, X, generator=g) for o in ALL),
        *(
            lambda g, law=law: law.sample(X, generator=g)
            for law in (sm.Rademacher(), sm.Gaussian(), sm.Sphere())
        ),
    ]
    return [
        Bad(
            f"generator = {v if isinstance(v, int) else type(v).__name__}",
            lambda f=f, v=v: f(v),
            TypeError,
            "generator",
            "must be a torch.Generator or None",
            f"got {type(v).__name__}",
            "use torch.Generator().manual_seed(seed)",
        )
        for f in doors
        for v in (0, np.random.default_rng(0))
    ]


# Models.


def bad_outputs() -> list[Bad]:
    """Models that return something else than one number, or one vector, per point."""
    one, event = "shape (4,)", "reduce over the event axes only"
    column = "end a one-column network with .squeeze(-1)"
    outputs: list[tuple[str, Callable[[Tensor], Any], type[Exception], str, str]] = [
        ("a scalar", lambda x: x.square().sum(), ValueError, "got ()", event),
        ("one row too few", lambda x: normal(x)[1:], ValueError, "got (", event),
        ("a column", lambda x: normal(x)[:, None], ValueError, "got (4, 1)", column),
        ("vectors", lambda x: -x, ValueError, "got (4, 3)", "wrap a score network in VectorField"),
        ("a number", lambda x: 0.0, TypeError, "got float", "return a tensor"),
        ("nothing", lambda x: None, TypeError, "got NoneType", "return a tensor"),
        ("a pair", lambda x: (normal(x), x), TypeError, "got tuple", "return a tensor"),
    ]
    return [
        Bad(
            f"{type(o).__name__}: {what}",
            lambda o=o, f=f: o(f, X),
            error,
            "the model",
            f"must return one log-density per point, {one if o in FIRST_ORDER else 'shape ('}",
            _many(got, o),
            advice,
        )
        for o in ALL
        for what, f, error, got, advice in outputs
    ]


def _many(got: str, objective: sm.Objective) -> str:
    """What arrived, where the model was given several copies of the batch."""
    return got if objective in FIRST_ORDER or "," not in got else "got ("


def bad_vectors() -> list[Bad]:
    """Vector fields that return something else than a vector per point."""
    outputs: list[tuple[str, Callable[[Tensor], Any], str]] = [
        ("log-densities", normal, "got (4,)"),
        ("a column", lambda x: x[:, :1], "got (4, 1)"),
        ("a scalar", lambda x: x.sum(), "got ()"),
    ]
    shapes = [
        Bad(
            f"{type(o).__name__}: {what} as vectors",
            lambda o=o, h=h: o(sm.VectorField(h), X),
            ValueError,
            "the vector field",
            "must return one vector per point, shape (",
            got if o in FIRST_ORDER else "got (",
            "wrap a log-density in LogDensityField instead",
        )
        for o in ALL[:6]
        for what, h, got in outputs
    ]
    nothing = [
        Bad(
            f"{type(o).__name__}: no tensor as vectors",
            lambda o=o: o(sm.VectorField(lambda x: None), X),
            TypeError,
            "the vector field",
            "must return a tensor of shape (",
            "got NoneType",
            "return a tensor",
        )
        for o in ALL[:6]
    ]
    return [*shapes, *nothing]


def bad_dependence() -> list[Bad]:
    """Models that ignore x, or hide that they do not."""
    densities: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("constant", lambda x: torch.zeros(len(x), dtype=F64)),
        ("detached", lambda x: normal(x.detach())),
        ("no_grad", torch.no_grad()(normal)),
        ("parameters only", lambda x: W.sum().expand(len(x))),
    ]
    vectors: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("constant", torch.zeros_like),
        ("detached", lambda x: -x.detach()),
        ("no_grad", torch.no_grad()(torch.neg)),
        ("parameters only", lambda x: W.expand_as(x)),
    ]
    many = sm.SlicedScoreMatching(num_projections=3)
    cases = [
        *((o, f"{what} density", f, "log-density") for what, f in densities for o in FIRST_ORDER),
        *(
            (o, f"{what} vectors", sm.VectorField(h), "vector field")
            for what, h in vectors
            for o in [*SECOND_ORDER, many]
        ),
    ]
    return [
        Bad(
            f"{type(o).__name__}: {what}",
            lambda o=o, model=model: o(model, X),
            ValueError,
            f"the {kind}",
            "must depend on x through differentiable operations",
            "got an output with no gradient in x",
            "check for .detach(), torch.no_grad() or an input that is never used",
        )
        for o, what, model, kind in cases
    ]


def bad_models() -> list[Bad]:
    """Models of the wrong kind for the objective."""
    unnormalised = sm.models.MLPDensity(3).double()
    score = "a score network has no density to compare: train it with SlicedScoreMatchingVR"
    return [
        *(
            Bad(
                f"{type(o).__name__}: not callable, {type(v).__name__}",
                lambda o=o, v=v: o(v, X),
                TypeError,
                "model",
                "must be callable",
                f"got {type(v).__name__}",
                "pass an nn.Module or a function",
            )
            for o in (sm.SlicedScoreMatchingVR(), sm.MaximumLikelihood())
            for v in (None, X)
        ),
        *(
            Bad(
                f"{field.__name__}: not callable",
                lambda field=field: field(None),
                TypeError,
                "model",
                "must be callable",
                "got NoneType",
                "pass an nn.Module or a function",
            )
            for field in (sm.LogDensityField, sm.VectorField)
        ),
        *(
            Bad(
                f"{field.__name__}: route {v!r}",
                lambda field=field, v=v: field(normal, route=v),
                ValueError,
                "route",
                'must be "auto", "traced" or "reverse"',
                f"got {v!r}",
                '"auto" suits all',
            )
            for field in (sm.LogDensityField, sm.VectorField)
            for v in ("forward", None)
        ),
        *(
            Bad(
                f"MaximumLikelihood: unnormalised {what}",
                lambda model=model: sm.MaximumLikelihood()(model, X),
                ValueError,
                "MaximumLikelihood",
                "needs a normalised model",
                "got LogDensityField(MLPDensity)",
                "train it with SlicedScoreMatchingVR",
            )
            for what, model in (
                ("model", unnormalised),
                ("field", sm.LogDensityField(unnormalised)),
            )
        ),
        *(
            Bad(
                f"{type(o).__name__}: score network",
                lambda o=o: o(FIELD, X),
                TypeError,
                type(o).__name__,
                "needs a log-density",
                "got VectorField(neg)",
                score,
            )
            for o in ALL[6:]
        ),
        *(
            Bad(
                f"{type(o).__name__}: terms",
                lambda o=o: o.terms(DENSITY, X, o.draw(X)),
                TypeError,
                type(o).__name__,
                "has no terms",
                "not of the form 0.5 |first|^2 + second",
                "use ScoreMatching, SlicedScoreMatching, SlicedScoreMatchingVR or",
            )
            for o in (sm.MaximumLikelihood(), sm.NoiseContrastive())
        ),
    ]


def bad_contexts() -> list[Bad]:
    """Conditional score networks."""
    free, given = sm.models.ScoreNetwork(3), sm.models.ScoreNetwork(3, context_dim=2)
    x, c = torch.zeros(4, 3), torch.zeros(4, 2)
    return [
        Bad(
            "no context",
            lambda: given(x),
            ValueError,
            "context",
            "must have one row per point, shape (4, 2)",
            "got None",
            "call the network with a context",
        ),
        Bad(
            "context in vain",
            lambda: free(x, c),
            ValueError,
            "context",
            "must have one row per point, shape (4, 0)",
            "got (4, 2)",
            "set context_dim=",
        ),
        Bad(
            "wider context",
            lambda: given(x, torch.zeros(4, 5)),
            ValueError,
            "context",
            "must have one row per point, shape (4, 2)",
            "got (4, 5)",
            "context_dim=",
        ),
        Bad(
            "fewer contexts than points",
            lambda: given(x, c[:1]),
            ValueError,
            "context",
            "(4, 2)",
            "got (1, 2)",
            ";",
        ),
        Bad(
            "negative context_dim",
            lambda: sm.models.ScoreNetwork(3, context_dim=-1),
            ValueError,
            "context_dim",
            "must be",
            "got -1",
            ";",
        ),
    ]


def bad_parzen() -> list[Bad]:
    """Held-out points that say nothing about sigma."""
    many = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    copies = (
        "must hold points that are not in x_train",
        "got copies only",
        "split the data before you repeat any of it",
    )
    return [
        Bad(
            "other events",
            lambda: sm.parzen_sigma(X, X[:, :2]),
            ValueError,
            "x_valid",
            "must hold points of the shape of x_train's, (3,)",
            "got (2,)",
            "split one tensor in two",
        ),
        Bad(
            "other axes",
            lambda: sm.parzen_sigma(X, X[:, None]),
            ValueError,
            "x_valid",
            "(3,)",
            "got (1, 3)",
            "split one tensor in two",
        ),
        Bad("copies", lambda: sm.parzen_sigma(X, X[:2]), ValueError, "x_valid", *copies),
        Bad("one point", lambda: sm.parzen_sigma(X[:1], X[:1]), ValueError, "x_valid", *copies),
        Bad("many copies", lambda: sm.parzen_sigma(many, many), ValueError, "x_valid", *copies),
        Bad(
            "copies far from the origin",
            lambda: sm.parzen_sigma(many + 1e4, many + 1e4),
            ValueError,
            "x_valid",
            *copies,
        ),
    ]


TABLE = [
    bad
    for part in (
        bad_points,
        bad_directions,
        bad_noise,
        bad_numbers,
        bad_kinds_of_number,
        bad_counts,
        bad_options,
        bad_generators,
        bad_outputs,
        bad_vectors,
        bad_dependence,
        bad_models,
        bad_contexts,
        bad_parzen,
    )
    for bad in part()
]


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.what)
def test_bad_input(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.pattern) as caught:
        bad.call()
    message = str(caught.value)
    assert "\n" not in message and message == message.strip()
    assert re.search(r"\S[;:] \S", message), "say what to do, after a semicolon"


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan])
def test_parzen_tolerance_ends(monkeypatch: pytest.MonkeyPatch, tolerance: float) -> None:
    """A bracket never shrinks to nothing: a tolerance that is not positive is refused."""
    evaluations = iter(range(2000))

    def counted(*args: Any) -> float:
        assert next(evaluations, None) is not None, "golden section without end"
        return likelihood(*args)

    likelihood = denoising._parzen_likelihood
    monkeypatch.setattr(denoising, "_parzen_likelihood", counted)
    with pytest.raises(ValueError, match=r"tolerance must be positive, got .*; "):
        sm.parzen_sigma(X[:2], X[2:], tolerance=tolerance)


# What looks unusual and is right.


@pytest.mark.parametrize("number", [1, np.float32(0.5), np.float64(0.5), np.int64(1)])
def test_numbers_of_any_make(number: Any) -> None:
    """A scalar that came out of an array is as good as Python's own."""
    assert sm.DenoisingScoreMatching(sigma=number)(normal, X).dtype == X.dtype
    assert sm.FiniteDifferenceSSM(eps=number)(normal, X).dtype == X.dtype
    assert sm.SlicedScoreMatchingVR(beta=number)(normal, X).dtype == X.dtype


def test_counts_of_any_make() -> None:
    objective = sm.SlicedScoreMatching(num_projections=np.int64(2))
    assert objective.draw(X).shape == (2, 4, 3)
    assert sm.Rademacher().sample(X, num=np.int64(2)).shape == (2, 4, 3)


def test_sigma_is_found_far_from_the_origin() -> None:
    """Distances do not depend on where the origin is, nor does sigma."""
    both = torch.randn(120, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    train, valid = both[:60], both[60:]
    sigma = sm.parzen_sigma(train, valid)
    assert sm.parzen_sigma(train + 1e6, valid + 1e6) == pytest.approx(sigma, rel=1e-5)


@pytest.mark.parametrize("objective", SECOND_ORDER, ids=repr)
def test_linear_log_density_has_no_curvature(objective: sm.Objective) -> None:
    """Its score ignores x, which is no mistake: the loss is ``0.5 |w|^2``, or ``0.5 (v.w)^2``."""
    generator = torch.Generator().manual_seed(0)
    signs = objective.draw(X, generator)
    loss = objective.loss(sm.LogDensityField(lambda x: x @ W), X, signs)
    square = 0.5 * W.square().sum().expand(4)
    if signs is not None:
        projected = 0.5 * (signs * W).sum(-1).square().mean(0)
        beta = getattr(objective, "beta", 0.0)
        square = beta * square + (1 - beta) * projected
    torch.testing.assert_close(loss, square, rtol=1e-12, atol=0)


def test_every_part_of_a_message_counts() -> None:
    """The pattern of the table refuses a message that leaves one part out, or swaps two."""
    parts = ("sigma", "must be positive", "got 0.0", "use SlicedScoreMatching")
    pattern = Bad("", lambda: None, ValueError, *parts).pattern
    assert re.search(pattern, "sigma must be positive, got 0.0; use SlicedScoreMatching")
    for missing in range(4):
        rest = " ".join(part for i, part in enumerate(parts) if i != missing)
        assert not re.search(pattern, rest)
    assert not re.search(pattern, " ".join(reversed(parts)))


def test_points_may_be_so_large_that_their_sum_is_not_finite() -> None:
    check_points(torch.full((4, 2), 3e38))
    check_points(torch.full((4, 2), 6e4, dtype=torch.float16))


def features(x: Tensor) -> Tensor:
    """Those of a product of normal distributions, ``(N, D) -> (N, 2 D)``."""
    return torch.cat([x, -0.5 * x.square()], 1)


GAUSSIAN = sm.inference.models.Gaussian(1)
LOG_Z = sm.evaluation.LogZEstimate(0.0, 0.1, 1000.0, 1000)
NO_FUNCTIONS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "features": (
        lambda f: sm.closed_form.solve_linear(f, None, X, sm.ScoreMatching(), 0.1),
        "features must be callable",
        "pass a function",
    ),
    "base": (
        lambda f: sm.closed_form.solve_linear(features, f, X, sm.ScoreMatching(), 0.1),
        "base must be callable or None",
        "pass a function",
    ),
    "objective": (
        lambda f: sm.closed_form.solve_linear(features, None, X, f, 0.1),
        "objective must be an Objective",
        "pass ScoreMatching()",
    ),
    "score": (
        lambda f: sm.evaluation.fisher_divergence(normal, f, X),
        "score must be callable",
        "pass a function of points",
    ),
    "sliced score": (
        lambda f: sm.evaluation.sliced_fisher_divergence(normal, f, X),
        "score must be callable",
        "pass a function of points",
    ),
    "explain": (
        lambda f: sm.explain(normal, X, f, show=False),
        "objective must be an objective or None",
        "ScoreMatching()",
    ),
    "compare": (
        lambda f: sm.evaluation.compare(normal, torch.neg, X, f),
        "objective must be an objective or None",
        "SlicedScoreMatchingVR()",
    ),
    "log_weight": (
        lambda f: sm.inference.fit_robust(GAUSSIAN, X[:, :1], 0.1, log_weight=f),
        "log_weight must be callable or None",
        "(theta, x)",
    ),
    "network": (
        lambda f: sm.evaluation.feature_moments(f, X),
        "network must be callable",
        "pass a function of images",
    ),
    "solver": (
        lambda f: sm.kernels.fit_spectral(X, solver=f),
        "solver must be callable",
        "(mu, U)",
    ),
    "log_z": (
        lambda f: sm.evaluation.log_likelihood(normal, X, f),
        "log_z must be an estimate of log Z",
        "importance_log_z",
    ),
    "domain": (lambda f: sm.domains.restrict(DENSITY, f), "domain must be a domain", "Box"),
    "field": (
        lambda f: sm.domains.restrict(f, sm.domains.PositiveOrthant()),
        "field must be a Field",
        "LogDensityField",
    ),
    "generator": (
        lambda f: sm.datasets.paper_split(X, f),
        "generator must be a torch.Generator or None",
        "manual_seed",
    ),
    "sizes": (lambda f: sm.datasets.split(X, f), "sizes must be a sequence", "(0.8, 0.1, 0.1)"),
    "sigmas": (
        lambda f: sm.samplers.anneal(lambda x, sigma: -x, X, f, 0.1),
        "sigmas must be a sequence",
        "noise_levels",
    ),
    "bandwidths": (
        lambda f: sm.models.DKEF(2, 5, bandwidths=f),
        "bandwidths must be a sequence",
        "one for each kernel",
    ),
}


@pytest.mark.parametrize("name", NO_FUNCTIONS)
def test_numbers_in_place_of_functions_and_sequences(name: str) -> None:
    """They ended in errors of Python, such as "'float' object is not callable"."""
    call, wanted, advice = NO_FUNCTIONS[name]
    with pytest.raises(
        TypeError, match=f"{re.escape(wanted)}.*got (float|2.5); .*{re.escape(advice)}"
    ):
        call(2.5)


def test_arrays_of_images_and_unusable_estimates() -> None:
    with pytest.raises(TypeError, match=r"images must be a tensor or .* got ndarray; convert"):
        sm.evaluation.feature_moments(torch.nn.Flatten(), np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"min_effective must be a number, .* got nan"):
        sm.evaluation.log_likelihood(normal, X, LOG_Z, min_effective=math.nan)
    nothing = sm.evaluation.LogZEstimate(math.nan, math.nan, math.nan, 1000)
    with pytest.raises(ValueError, match=r"log_z must have an effective sample size .* got nan"):
        sm.evaluation.log_likelihood(normal, X, nothing)


def test_options_of_fields_are_checked() -> None:
    wrong: Any
    for wrong in ("no", None, 1):
        with pytest.raises(
            TypeError, match=r"check_smoothness must be True or False, got .*; False"
        ):
            sm.LogDensityField(normal, check_smoothness=wrong)
    for wrong in (True, -1, 1.0, "all"):
        with pytest.raises(TypeError, match=r"feature_axes must be None or a number of axes, got"):
            sm.LogDensityField(normal, feature_axes=wrong)


def test_settings_of_early_stopping_are_checked() -> None:
    """A patience of NaN never stopped."""
    with pytest.raises(TypeError, match="patience must be an integer, got nan; None never stops"):
        sm.training.EarlyStopping(patience=math.nan)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_improvement must be positive, got nan; zero counts"):
        sm.training.EarlyStopping(min_improvement=math.nan)


def test_half_precision_without_decompositions() -> None:
    """Torch has no Cholesky factors and no quantiles of half precision."""
    for half in (torch.float16, torch.bfloat16):
        mean, covariance = torch.zeros(2, dtype=half), torch.eye(2, dtype=half)
        with pytest.raises(
            TypeError, match=r"covariance must be in single or double .*\.float\(\)"
        ):
            sm.distributions.Gaussian(mean, covariance)
        rounded = torch.tensor([[1.0], [2.0], [2.0], [3.0]], dtype=half)
        assert sm.datasets.Dequantise.fit(rounded).width == 0.5


def test_sequences_of_counts_and_widths_are_named() -> None:
    wrong: Any = 2.5
    with pytest.raises(ValueError, match=r"num_projections must be a non-empty sequence, got 2\.5"):
        sm.variance_report(normal, X, sm.SlicedScoreMatching(), wrong, show=False)
    with pytest.raises(TypeError, match=r"hidden must be a sequence of widths, .* got 2\.5"):
        sm.SlicedScoreEstimator(hidden=wrong).fit(ARRAYS)
    with pytest.raises(TypeError, match=r"batch_size must be an integer, got 2\.5; 128 suits"):
        sm.SlicedScoreEstimator(batch_size=wrong).fit(ARRAYS)
    with pytest.raises(ValueError, match=r"X must vary by more than 1e-150, .*; divide them"):
        sm.KernelExpFamilyEstimator().fit(1e-200 * ARRAYS)


def test_batch_sizes_of_numpy() -> None:
    """Torch's own split takes integers of Python only."""
    size, g = np.int64(3), torch.Generator().manual_seed(0)
    pixels = sm.models.NormalPixels()
    moments = sm.evaluation.feature_moments(torch.nn.Flatten(), X, batch_size=size)  # type: ignore[arg-type]
    found = sm.evaluation.decoder_log_likelihood(
        torch.nn.Identity(),
        X,
        3,
        pixels,
        2,
        2,
        batch_size=size,
        generator=g,  # type: ignore[arg-type]
    )
    modes = sm.evaluation.importance_log_likelihood(
        torch.nn.Identity(),
        X,
        lambda x: x[None],
        pixels,
        20,
        batch_size=size,
        generator=g,  # type: ignore[arg-type]
    )
    assert moments.count == len(found.log_likelihood) == len(modes.log_likelihood) == 4


ARRAYS = np.random.default_rng(0).uniform(1, 2, (6, 3))
TAKE_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "compare": lambda x: sm.evaluation.compare(normal, torch.neg, x).a.mean,
    "Gaussian": lambda x: sm.distributions.Gaussian(x[1], np.eye(3)).mean,
    "GaussianMixture": lambda x: sm.distributions.GaussianMixture([1 / 6] * 6, x, 1.0).means,
    "Dequantise": lambda x: sm.datasets.Dequantise(0.1)(x, torch.Generator().manual_seed(0)),
    "Simplex": sm.domains.Simplex.interior,
}


@pytest.mark.parametrize("name", TAKE_ARRAYS)
def test_arrays_in_any_order_of_memory_and_bytes(name: str) -> None:
    """Torch takes neither negative strides, nor other bytes or objects; its errors name nothing."""
    call = TAKE_ARRAYS[name]
    wanted = np.asarray(call(ARRAYS))
    backwards = ARRAYS[::-1, ::-1].copy()[::-1, ::-1]
    for x in (backwards, ARRAYS.astype(">f8"), ARRAYS.astype(object), ARRAYS.astype(np.longdouble)):
        np.testing.assert_allclose(np.asarray(call(x), dtype=float), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", TAKE_ARRAYS)
def test_masked_entries_and_text_are_no_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=r"must have no masked entries, got .*; drop these points"):
        TAKE_ARRAYS[name](np.ma.masked_greater(ARRAYS, 1.2))
    with pytest.raises(TypeError, match=r"must hold real numbers, got <U.*astype\(float\)"):
        TAKE_ARRAYS[name](ARRAYS.astype(str))


def test_transforms_around_objectives_are_named() -> None:
    """Torch's own message spoke of requires_grad_ and of data-dependent control flow."""

    def loss(w: Tensor, x: Tensor = X) -> Tensor:
        return sm.ScoreMatching()(lambda x: (w * x.sin()).sum(-1), x).sum()

    for call in (
        lambda: torch.func.grad(loss)(W.detach()),
        lambda: torch.func.jacrev(loss)(W.detach()),
        lambda: torch.func.vmap(lambda x: loss(W, x[None]))(X),
    ):
        with pytest.raises(RuntimeError, match=r"not be called inside torch\.func\.grad, vmap"):
            call()
