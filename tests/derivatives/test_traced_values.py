"""Traced values are tensors, and what bypasses them is known to bypass them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import TreeSpec

from scorematching import LogDensityField
from scorematching.derivatives.engine import decomposition
from scorematching.derivatives.engine.jet import Jet
from scorematching.derivatives.engine.pairing import Pairing
from scorematching.derivatives.engine.tape import Tape
from scorematching.derivatives.engine.trace import NeedsBuffers, Traced, Untraceable
from tests.derivatives.ways.habits import Cube
from tests.laws import assert_close
from tests.models_zoo import normal
from tests.tolerances import ROUTES

X = normal(4, 3, generator=torch.Generator().manual_seed(0))


def traced(x: Tensor = X) -> Traced:
    """Points on a tape that only follows."""
    return Traced(x.clone().requires_grad_(), None, Tape(len(x)), 0)


def test_a_traced_value_is_a_tensor() -> None:
    z = traced()
    assert isinstance(z, Tensor)
    assert torch.is_tensor(z)
    assert torch.is_floating_point(z)
    assert torch.as_tensor(z) is z
    assert isinstance(z * 2, Traced)


def test_it_has_the_properties_of_its_value() -> None:
    z = traced()
    assert (z.shape, z.dtype, z.device, z.ndim) == (X.shape, X.dtype, X.device, 2)
    assert (len(z), z.size(1), z.dim(), z.numel(), z.stride()) == (4, 3, 2, 12, (3, 1))
    assert z.requires_grad and z.is_contiguous() and not z.is_cuda
    assert float(z[0, 0].detach()) == float(X[0, 0])
    assert bool((z == X).all())
    assert (z.detach().numpy() == X.numpy()).all()
    assert repr(z)


def test_it_is_followed_through_lists_and_keywords() -> None:
    z = traced()
    assert isinstance(torch.cat([X, z], 1), Traced)
    assert isinstance(torch.stack(tensors=(z, X)), Traced)
    assert isinstance(F.linear(input=z, weight=torch.eye(3).double()), Traced)
    assert isinstance(torch.where(X > 0, X, z), Traced)


HIDDEN: dict[str, Callable[[Any], Any]] = {
    "vmap": torch.func.vmap(torch.sin),
    "torch.tensor": torch.tensor,
    "grad of a function": torch.func.grad(lambda z: z.sin().sum()),
    "jvp": lambda z: torch.func.jvp(torch.sin, (z,), (torch.ones_like(X),))[1],
    "vjp": lambda z: torch.func.vjp(torch.sin, z)[0],
    "jacrev": torch.func.jacrev(torch.sin),
    "custom function": Cube.apply,
    "functionalize": torch.func.functionalize(torch.sin),
    "sparse": lambda z: z.to_sparse(),
    "autograd inside": lambda z: torch.autograd.grad(z.sin().sum(), z)[0],
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("how", HIDDEN)
def test_what_torch_hides_is_known_to_be_hidden(how: str) -> None:
    def model(x: Any) -> Any:
        return HIDDEN[how](x * 1.5).sum(-1)

    for make in (partial(Jet, 4), partial(Pairing, X)):
        field = LogDensityField(model, route="traced", check_smoothness=False)
        with pytest.raises((Untraceable, RuntimeError)):
            field.model.trace(X.clone().requires_grad_(), X[None], make)


def test_numpy_sees_numbers_without_a_graph() -> None:
    """As on ordinary tensors: detached values are constants, others cannot be converted."""
    z = traced()
    assert np.allclose(np.asarray(z.detach()), X)
    with pytest.raises(RuntimeError, match="requires grad"):
        z.numpy()


def test_a_custom_function_is_named() -> None:
    with pytest.raises(Untraceable, match="Cube: a custom autograd function"):
        Cube.apply(traced())


def test_operations_under_no_grad_are_constants() -> None:
    z = traced()
    with torch.no_grad():
        y = z.sin()
    assert not isinstance(y, Traced)
    assert not y.requires_grad


def test_an_operation_that_writes_to_out_is_not_followed() -> None:
    with pytest.raises(Untraceable, match="out="):
        torch.sin(traced(), out=torch.empty_like(X))


def test_a_traced_value_written_into_a_plain_tensor_is_noticed() -> None:
    with pytest.raises(NeedsBuffers):
        torch.zeros(4, 3, dtype=X.dtype)[:] = traced()


def test_points_cannot_be_changed_in_place() -> None:
    def model(x: Tensor) -> Tensor:
        return x.mul_(2).sin().sum(1)

    before = X.clone()
    with pytest.raises(Untraceable, match="in place"):
        LogDensityField(model, route="traced", check_smoothness=False).score_and_curvature(X, X)
    assert torch.equal(X, before)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "diagonal": lambda h: h.diagonal(dim1=1, dim2=2),
    "linalg.diagonal": torch.linalg.diagonal,
    "unfold": lambda h: h.unfold(1, 2, 1),
    "view_as_complex": lambda h: torch.view_as_complex(h[..., :2].contiguous() * 1),
    "imag": lambda h: torch.complex(h, h).imag,
    "conj": torch.conj,
    "slice": lambda h: h[:, :2],
}


@pytest.mark.parametrize("how", VIEWS)
def test_a_view_cannot_be_changed_in_place(how: str) -> None:
    """What it shares the memory of would have to change too."""
    h = torch.sin(traced()).reshape(4, 3, 1) * torch.ones(3, dtype=X.dtype)
    view = VIEWS[how](h)
    with pytest.raises(Untraceable, match="in place"):
        view.mul_(2.0)


COPIES = [copy.copy, copy.deepcopy, lambda z: pickle.loads(pickle.dumps(z))]


@pytest.mark.parametrize("copies", COPIES, ids=["copy", "deepcopy", "pickle"])
def test_copies_are_not_half_of_a_traced_value(copies: Callable[[Any], Any]) -> None:
    """A copy is followed as the value is, or refused; never a tensor without its tangents."""
    try:
        y = copies(traced())
    except Exception:
        return
    assert isinstance(y, Traced)
    assert_close(y.p, X, ROUTES)


# -------------------------------------------------------------------------- decomposition


class Counted:
    """Counts how often a call is recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        record = decomposition._record

        def counted(func: Any, leaves: Any, spec: Any) -> Any:
            self.calls.append(func)
            return record(func, leaves, spec)

        monkeypatch.setattr(decomposition, "_record", counted)


def test_decompositions_are_remembered_by_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    cell = nn.GRUCell(3, 2).double()

    def model(x: Tensor) -> Tensor:
        return cell(cell(x) @ torch.ones(2, 3, dtype=x.dtype)).sum(1)

    field = LogDensityField(model, route="traced", check_smoothness=False)
    field.score_and_curvature(X, X)
    assert len(counted.calls) == 1  # two calls of one shape
    LogDensityField(model, route="traced", check_smoothness=False).score_and_curvature(X, X)
    assert len(counted.calls) == 1  # kept with the model
    field.score_and_curvature(X[:2], X[:2])
    assert len(counted.calls) == 2  # another shape


def test_decompositions_depend_on_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)

    def model(x: Tensor) -> Tensor:
        return sum(torch.renorm(x.exp(), 2, 0, limit).sum(1) for limit in (0.5, 0.9, 0.5))

    field = LogDensityField(model, route="traced", check_smoothness=False)
    found = field.score_and_curvature(X, X)
    assert len(counted.calls) == 2
    wanted = LogDensityField(model, route="reverse", check_smoothness=False)
    for a, b in zip(found, wanted.score_and_curvature(X, X)):
        assert_close(a, b, ROUTES)


def test_random_operations_are_not_frozen_by_decomposition() -> None:
    """A recorded graph must not repeat the random numbers of its recording."""

    def model(x: Tensor) -> Tensor:
        return F.gumbel_softmax(x).square().sum(1)

    field = LogDensityField(model, route="traced", check_smoothness=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            first, second = (field.score_and_curvature(X, X)[0] for _ in range(2))
        except Untraceable:
            return
    assert not torch.equal(first, second)


def test_decompositions_by_a_torch_with_fewer_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.6 has not all of the norms that are decomposed; the others still are."""
    monkeypatch.setattr(decomposition, "_NORMS", ("native_layer_norm", "a_norm_of_later_versions"))
    assert torch.ops.aten.native_layer_norm.default in decomposition._table.__wrapped__()


def test_decompositions_by_a_torch_whose_structures_have_no_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it is before torch 2.7; the key of a call says all the same how its arguments nest."""
    monkeypatch.setattr(TreeSpec, "__hash__", None)
    known: dict[Any, Any] = {}
    for shapes in ((2, 2), [2, 2], (4,), (2, 2)):
        assert decomposition.decompose(torch.unflatten, (torch.ones(3, 4), 1, shapes), {}, known)
    assert len(known) == 3
