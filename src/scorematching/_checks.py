"""Every argument check, in one place.

Checked once, at the public door; inner code trusts. A message names the argument, what it must
be, what arrived and what to do about it.
"""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from scorematching._tracing import is_recording, is_transformed

_MIXED = {torch.float16, torch.bfloat16, torch.float32}
"""Types that autocast converts to each other."""


def check_points(x: Any, name: str = "x") -> None:
    """Require finite floating-point points ``(N, *event)`` with N >= 1."""
    check_batch(x, name)
    check_finite(x, name)


def check_coordinates(x: Any, dim: int, weight: Tensor) -> None:
    """Require points ``(..., dim)`` in a dtype that goes with the weights of a model."""
    check_type(x, Tensor, "x must be a torch.Tensor", "convert it with torch.as_tensor")
    if x.ndim == 0 or x.shape[-1] != dim:
        raise ValueError(
            f"x must have shape (N, {dim}), like the model, got {tuple(x.shape)}; images are "
            "flattened with x.flatten(1), or need a convolutional network"
        )
    # Half precision goes with single precision under autocast.
    if x.dtype != weight.dtype and not {x.dtype, weight.dtype} <= _MIXED:
        raise TypeError(
            f"x must have the dtype of the model, {weight.dtype}, got {x.dtype}; convert one of "
            f"them: x.to({weight.dtype}), or model.double()"
        )


def _is_dense(x: Tensor) -> bool:
    """Whether a tensor has one value at each place."""
    return x.layout == torch.strided and not x.is_nested and not x.is_meta


def _kind(x: Tensor) -> tuple[str, str]:
    """What a tensor is that is not dense, and advice, in words."""
    if x.is_nested:
        return "a nested one", "pad points of several lengths, and mask them in the model"
    if x.is_meta:
        return "one on the meta device", "put it on a device that has memory"
    return f"one of layout {x.layout}", "convert it with .to_dense()"


def check_batch(x: Any, name: str = "x") -> None:
    """Require floating-point points ``(N, *event)`` with N >= 1, whatever their values."""
    if (
        isinstance(x, Tensor)
        and x.is_floating_point()
        and _is_dense(x)
        and x.ndim > 1
        and x.numel()
    ):
        return  # the usual case, at every step
    advice = f"convert it with torch.as_tensor({name}, dtype=torch.float32)"
    check_type(x, Tensor, f"{name} must be a torch.Tensor", advice)
    if not x.is_floating_point():
        split = f"split it into real and imaginary parts, torch.view_as_real({name}).flatten(1)"
        raise TypeError(
            f"{name} must have a floating-point dtype, got {x.dtype}; "
            + (split if x.is_complex() else f"convert it with {name}.float()")
        )
    if not _is_dense(x):
        got, advice = _kind(x)
        raise TypeError(f"{name} must be a dense tensor with values, got {got}; {advice}")
    if x.ndim < 2:
        axis = "[None]" if x.ndim == 1 else "[None, None]"
        raise ValueError(
            f"{name} must have shape (N, *event), got {tuple(x.shape)}; "
            f"add a batch axis with {name}{axis}, or for N numbers an event axis with "
            f"{name}[:, None]"
        )
    if x.numel() == 0:
        raise ValueError(
            f"{name} must hold at least one point with at least one coordinate, "
            f"got shape {tuple(x.shape)}; skip empty batches"
        )


def check_finite(x: Tensor, name: str) -> None:
    """Require finite entries, where values can be read without waiting for a GPU."""
    if x.is_cuda or not can_read_values(x):
        return
    try:
        total = x.detach().sum().item()
    except RuntimeError as error:
        refuse_transforms(error)
        raise
    # A sum is quick, and finite only where its terms are; it may overflow, though.
    if not math.isfinite(total) and not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).flatten(1).any(1).sum())
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {bad} of {x.shape[0]} points; "
            f"drop them with {name}[{name}.isfinite().flatten(1).all(1)]"
        )


def check_initialised(weights: Iterable[Tensor]) -> None:
    """Require that weights have a size: those of lazy layers have none before the first points."""
    if any(map(is_lazy, weights)):
        raise ValueError(
            "the model must have weights of known sizes, got lazy layers that have not seen any "
            "points; call the model once before, with torch.no_grad(): model(x)"
        )


def check_spacing(x: Tensor, sizes: Sequence[float], name: str, most: float) -> None:
    """Require that numbers near x are close together beside what is added to them.

    Half of the points decide, for each coordinate, so that one far out is no mistake.

    Args:
        x: points ``(N, *event)``.
        sizes: of what is added, one or one for each coordinate.
        name: of the argument that they come from.
        most: the largest spacing that leaves enough digits, relative to the size.
    """
    x, eps = x.detach(), torch.finfo(x.dtype).eps
    if eps * x.abs().max().item() <= most * min(sizes):  # the usual case
        return
    near = x.abs().flatten(1).sort(dim=0).values[(len(x) - 1) // 2].double()
    spacing = eps * near.log2().floor().exp2()
    size = torch.tensor(sizes, dtype=spacing.dtype, device=x.device).expand_as(spacing)
    lost = spacing > most * size
    if bool(lost.any()):
        i = int(torch.where(lost, spacing / size, 0.0).argmax())
        raise ValueError(
            f"{name} must give steps of at least {float(spacing[i] / most):.2g}, got "
            f"{float(size[i]):.2g}, which are lost in rounding where |x| is {float(near[i]):.3g} "
            f"and {x.dtype} numbers are {float(spacing[i]):.2g} apart; centre the data, "
            "x - x.mean(0), or use float64"
        )


def refuse_transforms(error: Exception) -> None:
    """Say what an error of torch means, if it comes from a transform of `torch.func`."""
    if is_transformed():
        raise RuntimeError(
            "objectives and fields take derivatives themselves, by autograd, and must not be "
            "called inside torch.func.grad, vmap or another transform; call the objective outside "
            "and differentiate its losses, one per point, with torch.autograd.grad"
        ) from error


def can_read_values(x: Tensor) -> bool:
    """Whether values can be read: not in a step that is being captured or compiled."""
    return not is_recording(x)


def check_directions(v: Any, x: Tensor) -> None:
    """Require directions ``(M, N, *event)``, or ``(N, *event)``, that go with points ``x``."""
    advice = "draw it with projection.sample(x)"
    check_type(v, Tensor, "v must be a torch.Tensor of shape (M, N, *event)", advice)
    shape, wanted = v.shape, x.shape
    if shape != wanted and (shape[1:] != wanted or shape[0] == 0):
        raise ValueError(
            f"v must have shape (M, *x.shape) = (M, {', '.join(map(str, wanted))}), "
            f"got {tuple(shape)}; {advice}"
        )
    if v.dtype != x.dtype or v.device != x.device:
        raise ValueError(
            f"v must have x's dtype and device ({x.dtype}, {x.device}), "
            f"got ({v.dtype}, {v.device}); convert it with v.to(x)"
        )


def check_device(value: Any) -> torch.device:
    """The device of a name, None being the CPU; requires that this machine has it."""
    try:
        device = torch.device("cpu" if value is None else value)
        torch.empty(1, device=device).item()
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f'device must be "cpu" or another device of this machine, such as "cuda", got '
            f'{value!r} ({str(error).splitlines()[0]}); try device="cpu"'
        ) from error
    return device


def check_generator(generator: Any, x: Any, name: str = "x") -> None:
    """Require None or a generator on the device of ``x``, anything with a device."""
    if generator is None:
        return
    advice = "use torch.Generator().manual_seed(seed)"
    check_type(generator, torch.Generator, "generator must be a torch.Generator or None", advice)
    if generator.device.type != x.device.type:
        raise ValueError(
            f"generator must live on the device of {name} ({x.device}), got {generator.device}; "
            f"use torch.Generator(device={str(x.device)!r})"
        )


def check_positive(value: Any, name: str, advice: str) -> None:
    """Require a finite number above zero."""
    if not is_number(value):
        raise TypeError(f"{name} must be a positive number, got {value!r}; {advice}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}; {advice}")


def check_share(value: Any, name: str, advice: str) -> None:
    """Require a number strictly between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r}; {advice}")


def check_count(value: Any, name: str, advice: str) -> None:
    """Require an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}; {advice}")
    if int(value) < 1:
        raise ValueError(f"{name} must be at least 1, got {value}; {advice}")


def check_log_density(y: Any, x: Tensor, feature_axes: int | None) -> None:
    """Require a model's output ``(N, *F)`` for points ``x: (N, *event)``."""
    if isinstance(y, Tensor) and y.ndim == 1 and y.shape[0] == x.shape[0] and not feature_axes:
        return  # the usual case, at every step
    wanted = f"one log-density per point, shape ({x.shape[0]},)"
    check_type(y, Tensor, f"the model must return {wanted}", "return a tensor")
    if y.ndim == 0 or y.shape[0] != x.shape[0]:
        raise ValueError(
            f"the model must return {wanted}, got {tuple(y.shape)}; "
            "reduce over the event axes only, not over the batch"
        )
    if feature_axes is not None and y.ndim - 1 != feature_axes:
        raise ValueError(
            f"the model must return {wanted}, got {tuple(y.shape)}; end a one-column network "
            "with .squeeze(-1), and wrap a score network in VectorField"
        )


def check_vector(h: Any, x: Tensor) -> None:
    """Require a vector field's output to have the shape of its points."""
    if isinstance(h, Tensor) and h.shape == x.shape:  # the usual case, at every step
        return
    wanted = f"the vector field must return a tensor of shape {tuple(x.shape)}"
    check_type(h, Tensor, wanted, "return a tensor")
    wanted = "the vector field must return one vector per point, shape {} like x"
    check_shape(h, x.shape, wanted, "wrap a log-density in LogDensityField instead")


def check_depends(depends: bool, what: str) -> None:
    """Require that a model's output depends on its points."""
    if not depends:
        raise ValueError(
            f"the {what} must depend on x through differentiable operations, got an output with no "
            "gradient in x; check for .detach(), torch.no_grad() or an input that is never used"
        )


def check_choice(value: Any, name: str, choices: Iterable[str], advice: str) -> None:
    """Require one of several names."""
    if value not in (known := tuple(choices)):
        *others, last = (f'"{choice}"' for choice in known)
        names = f"{', '.join(others)} or {last}"
        raise ValueError(f"{name} must be {names}, got {value!r}; {advice}")


def check_flag(value: Any, name: str, advice: str) -> None:
    """Require True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}; {advice}")


def check_type(value: Any, kinds: Any, wanted: str, advice: str) -> None:
    """Require an object of a class, or of one of several; ``wanted`` begins the message."""
    if not isinstance(value, kinds):
        raise TypeError(f"{wanted}, got {type(value).__name__}; {advice}")


def check_shape(value: Any, shape: Sequence[int | None], wanted: str, advice: str) -> None:
    """Require a tensor of a shape, in which None stands for any length.

    The message has the shape in place of the braces in ``wanted``.
    """
    got = tuple(value.shape) if isinstance(value, Tensor) else None
    if got is None or len(got) != len(shape) or any(n not in (m, None) for n, m in zip(shape, got)):
        found = got if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{wanted.format(tuple(shape))}, got {found}; {advice}")


def torch_numbers(value: Any, name: str) -> Any:
    """Arrays and data frames as an array that torch takes; tensors, lists and numbers as they are.

    Torch has no negative strides, no other order of bytes and no objects, and it takes masked
    entries for numbers.
    """
    if np.ma.is_masked(value):
        raise ValueError(
            f"{name} must have no masked entries, got {np.ma.count_masked(value)}; drop these "
            "points, or fill in what is missing"
        )
    if isinstance(value, Tensor) or not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    wide = array.dtype.kind == "O" or array.dtype.itemsize > 8
    wanted = np.float64 if wide else array.dtype.newbyteorder("=")
    try:
        if array.dtype.kind in "biufO":
            return np.array(array, dtype=wanted, order="C")
    except (TypeError, ValueError):
        pass  # an object that is no number
    raise TypeError(
        f"{name} must hold real numbers, got {array.dtype}; convert it with "
        f"{name}.astype(float), missing values to NaN"
    )


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python's or numpy's making."""
    return isinstance(value, Real) and not isinstance(value, bool)


def dates_in(values: Any) -> tuple[str, Any]:
    """Where an array or a data frame has dates or durations, in words, and their type or None."""
    named = hasattr(values, "columns") and hasattr(values, "dtypes")
    types = values.dtypes if named else [getattr(values, "dtype", None)]
    columns = values.columns if named else [None]
    found = [
        (c, each) for c, each in zip(columns, types) if getattr(each, "kind", "") in ("m", "M")
    ]
    where = f" in {', '.join(repr(name) for name, _ in found[:5])}" if named else ""
    return where, found[0][1] if found else None
