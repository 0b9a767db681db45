"""Any object with a log-density and samples as a base."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from sklearn.base import clone
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.seeds import draw_seed, seeded
from scorematching.estimators.density.bases.transformed import score_by_autograd

_STEP = 1e-4


class Given(Distribution):
    """A density that was written elsewhere.

    Args:
        source: with ``log_prob`` (tensors; differentiable) or ``score_samples`` (arrays; its
            score is taken by central differences), and with ``sample``.
        like: a tensor of the dtype and device of the points, with D columns.

    Example:
        >>> from sklearn.neighbors import KernelDensity
        >>> kde = KernelDensity().fit([[0.0], [1.0]])
        >>> p = Given(kde, torch.zeros(1, 1).double())
        >>> p.sample(3).shape, round(p.score(torch.full((1, 1), 0.5).double()).item(), 6)
        (torch.Size([3, 1]), 0.0)
    """

    def __init__(self, source: Any, like: Tensor) -> None:
        super().__init__(like.shape[1], like=like)
        self.source = source

    def _log_density(self, x: Tensor) -> Tensor:
        if hasattr(self.source, "log_prob"):
            value = self._log_prob(x)
            value = value.sum(-1) if value.ndim == 2 else value
        else:
            value = torch.as_tensor(self.source.score_samples(x.detach().cpu().numpy())).to(x)
        if value.shape != x.shape[:1]:
            raise ValueError(f"log-densities of shape {tuple(value.shape)} for {len(x)} points")
        return value

    def _log_prob(self, x: Tensor) -> Tensor:
        try:
            value: Tensor = self.source.log_prob(x.to(self._like))
            return value
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # shapes that no one checked: importing zuko ends checks
            raise ValueError(str(error)) from error

    def _score(self, x: Tensor) -> Tensor:
        if hasattr(self.source, "log_prob"):
            return score_by_autograd(self._log_density, x)
        columns = []
        for step in _STEP * torch.eye(self.dim, dtype=x.dtype, device=x.device):
            near, far = self._log_density(x + step), self._log_density(x - step)
            columns.append((near - far) / (2 * _STEP))
        return torch.stack(columns, 1)

    @torch.no_grad()
    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        with seeded(generator):
            found = self._draw(n, generator)
        found = found[0] if isinstance(found, tuple) else found  # scikit-learn's mixture: (x, y)
        x = torch.as_tensor(found).to(self._like).reshape(n, self.dim)
        # scikit-learn's mixture sorts its samples by component, and some of them may be left out.
        return x[torch.randperm(n, generator=generator, device=x.device)]

    def _draw(self, n: int, generator: torch.Generator | None) -> Any:
        names = inspect.signature(self.source.sample).parameters
        if "random_state" in names:
            return self.source.sample(n, random_state=draw_seed(generator))
        if "generator" in names:
            return self.source.sample(n, generator=generator)
        if hasattr(self.source, "random_state"):  # a mixture draws from its own
            return clone_with_seed(self.source, draw_seed(generator)).sample(n)
        shape = (n,) if isinstance(self.source, torch.distributions.Distribution) else n
        return self.source.sample(shape)


def clone_with_seed(source: Any, seed: int) -> Any:
    """A fitted estimator with another random state."""
    other = type(source)(**{**source.get_params(deep=False), "random_state": seed})
    fitted = {k: v for k, v in vars(source).items() if k not in other.get_params(deep=False)}
    vars(other).update(fitted)
    return other


def fit_given(source: Any, x: Tensor) -> Given:
    """A base from an object: fitted to points ``(N, D)`` if it has ``fit``, else as it is."""
    if hasattr(source, "fit"):
        source = clone(source).fit(x.cpu().numpy())
    return Given(source, x)


def is_given(base: Any) -> bool:
    """Whether a base is an object with a log-density and samples, rather than a name."""
    if isinstance(base, type):
        return False
    evaluates = hasattr(base, "log_prob") or hasattr(base, "score_samples")
    return evaluates and hasattr(base, "sample")
