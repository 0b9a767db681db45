"""Normalising flows of the package zuko, by maximum likelihood; needs the extra "flows"."""

from __future__ import annotations

import copy
import importlib.util
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching.distributions import Distribution, standard_normal_log_density
from scorematching.estimators.density.bases.seeds import seeded
from scorematching.estimators.density.bases.spline import Spline
from scorematching.estimators.density.bases.transformed import score_by_autograd
from scorematching.training import TrainConfig, train

KINDS = ("maf", "nsf")
"""Masked autoregressive flows, affine and with rational-quadratic splines."""

_MANY_COLUMNS = 32
_BINS = 8
_LR, _MAX_NORM, _INITIAL_SIZE = 1e-2, 5.0, 0.1
_MAX_EPOCHS, _MAX_STEPS = 150, 1500
_CHUNK = 4096


class FlowModule(nn.Module):
    """The log-density of a flow, of zuko's lazy transformation of points to normal noise."""

    normalised = True

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, x: Tensor) -> Tensor:
        """Log-density."""
        z, log_det = self.transform(None).call_and_ladj(x)
        return standard_normal_log_density(z) + log_det


class PresetFlow(FlowModule):
    """A flow of a kind ("maf", "nsf") that `fit_flow` trains, close to the normal at first."""

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__(_transform(kind, dim))
        self.kind, self.dim = kind, dim


class Flow(Distribution):
    """A trained flow, in double precision, as a distribution."""

    def __init__(self, module: FlowModule, dim: int) -> None:
        super().__init__(dim, like=next(module.parameters()).detach())
        self.module = module.requires_grad_(False)

    def _log_density(self, x: Tensor) -> Tensor:
        return torch.cat([self.module(part) for part in x.split(_CHUNK)])

    def _score(self, x: Tensor) -> Tensor:
        return score_by_autograd(self._log_density, x)

    @torch.no_grad()
    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        transform = copy.deepcopy(self.module.transform).float()  # twice as fast
        noise = self._normal((n, self.dim), generator).float()
        return torch.cat([invert(transform, part) for part in noise.split(_CHUNK)]).to(self._like)


def has_flows() -> bool:
    """Whether zuko is installed."""
    return importlib.util.find_spec("zuko") is not None


def fit_flow(
    kind: str,
    x: Tensor,
    x_valid: Tensor,
    generator: torch.Generator | None = None,
    max_steps: int = _MAX_STEPS,
) -> Flow:
    """A flow of maximum likelihood, stopped where the likelihood of other points is largest.

    Args:
        kind: "maf" or "nsf".
        x: training points ``(N, D)``.
        x_valid: held-out points ``(N', D)``.
        generator: source of randomness; None is torch's default generator.
        max_steps: steps, at most.

    Returns:
        The flow, in the dtype of the points.

    Raises:
        ImportError: if zuko is not installed.

    Example:
        >>> x = torch.randn(60, 2).double()
        >>> fit_flow("maf", x[:40], x[40:], max_steps=3)(x).shape
        torch.Size([60])
    """
    with seeded(generator):
        module = PresetFlow(kind, x.shape[1]).to(x.device)
    # More points per step where there are more, so that steps are used well.
    batch = min(len(x), 128 if len(x) < 1000 else 256 if len(x) < 10_000 else 512)
    per_epoch = max(1, len(x) // batch)
    config = TrainConfig(
        steps=min(max_steps, _MAX_EPOCHS * per_epoch),
        batch_size=batch,
        lr=_LR if batch < 256 or x.shape[1] >= _MANY_COLUMNS else 2 * _LR,
        max_norm=_MAX_NORM,
        validate_every=per_epoch if per_epoch < 50 else 50,
        patience=10 if len(x) < 1000 else 6,
    )
    train(
        module,
        lambda flow, batch, generator=None: -flow(batch),
        x.float(),
        config,
        validation=x_valid.float(),
        executor="eager",
        generator=generator,
    )
    return Flow(module.to(x.dtype), x.shape[1])


def _transform(kind: str, dim: int) -> Any:
    """An untrained transformation close to the identity."""
    # With few columns a small spline flow is as likely; with many its samples are told from data.
    small = kind == "nsf" and dim < _MANY_COLUMNS
    settings: dict[str, Any] = {
        "transforms": 2 if small else 3,
        "hidden_features": (64,) if small else (64, 64),
        "activation": nn.SiLU,
    }
    if kind == "nsf":
        settings |= {"univariate": Spline, "shapes": [(2, _BINS), (_BINS - 1,)]}
    transform = _zuko_flows().MAF(dim, **settings).transform
    with torch.no_grad():
        for network in transform.modules():
            if isinstance(network, nn.Sequential):
                for parameter in list(network.parameters())[-2:]:
                    parameter.mul_(_INITIAL_SIZE)
    return transform


def _zuko_flows() -> Any:
    """The module zuko.flows; importing it does not change torch's settings."""
    base = torch.distributions.Distribution
    kept = {name: vars(base)[name] for name in ("_validate_args", "arg_constraints")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, at its import
            import zuko.flows
    except ImportError as error:
        raise ImportError(
            'base must not be "maf" or "nsf" without the package zuko; pip install zuko, or '
            'leave base="auto", which works without it'
        ) from error
    finally:
        for name, value in kept.items():
            setattr(base, name, value)
    return zuko.flows


def invert(transform: Any, z: Tensor) -> Tensor:
    """The points that a composed autoregressive transformation maps to z, ``(N, D) -> (N, D)``.

    zuko's own inverse evaluates all columns D times. Here the parameters of a column are computed
    when those before it are known, and only they.
    """
    for layer in reversed(transform.transforms):
        # A flow of one column has layers without a network.
        z = _inverted(layer, z) if hasattr(layer, "hyper") else layer(None).inv(z)
    return z


def _inverted(layer: Any, y: Tensor) -> Tensor:
    x = torch.zeros_like(y)
    *first, last = layer.hyper
    hidden = nn.Sequential(*first)
    weights = (last.mask * last.weight).unflatten(0, (-1, layer.total))
    biases = last.bias.unflatten(0, (-1, layer.total))
    sizes = [math.prod(shape) for shape in layer.shapes]
    for j in layer.order.argsort().tolist():
        parts = F.linear(hidden(x), weights[j], biases[j]).split(sizes, -1)
        shaped = [p.reshape(len(y), *shape) for p, shape in zip(parts, layer.shapes)]
        x[:, j] = layer.univariate(*shaped).inv(y[:, j])
    return x
