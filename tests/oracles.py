"""Slow oracles: one sample at a time, full Hessians, no code shared with the package.

Every loss takes a model of batches, points ``x: (N, *event)`` and the noise, and returns ``(N,)``.
Directions v (or noise eps) are ``(M, N, *event)``, or ``(N, *event)`` for M = 1; losses are
averaged over M. A log-density is ``f: (N, *event) -> (N,)``, a score network
``h: (N, *event) -> (N, *event)``. Inside, one point is a flat vector of D numbers, its score is
``(D,)`` and the Jacobian of its score, ``jac``, ``(D, D)``: for a log-density, the Hessian.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

Model = Callable[[Tensor], Tensor]


def log_density_terms(f: Model, x_i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value ``()``, score ``(D,)`` and Hessian ``(D, D)`` of a log-density at one point."""

    def value(flat: Tensor) -> Tensor:
        return f(flat.reshape(1, *x_i.shape))[0]

    flat = x_i.detach().reshape(-1)
    score = jacobian(value, flat, create_graph=True)
    return value(flat), score, hessian(value, flat, create_graph=True)


def vector_terms(h: Model, x_i: Tensor) -> tuple[Tensor, Tensor]:
    """Score ``(D,)`` and Jacobian ``jac[a, b] = d h_a / d x_b`` of a score network at one point."""

    def score(flat: Tensor) -> Tensor:
        return h(flat.reshape(1, *x_i.shape)).reshape(-1)

    flat = x_i.detach().reshape(-1)
    return score(flat), jacobian(score, flat, create_graph=True)


# The losses at one point, as in the textbook.


def _score_matching(s: Tensor, jac: Tensor) -> Tensor:
    return 0.5 * s.dot(s) + jac.trace()


def _sliced(s: Tensor, jac: Tensor, v: Tensor) -> Tensor:
    return 0.5 * v.dot(s) ** 2 + v.dot(jac @ v)


def _sliced_vr(s: Tensor, jac: Tensor, v: Tensor, beta: float) -> Tensor:
    control = 0.5 * v.dot(s) ** 2 - 0.5 * s.dot(s)
    return _sliced(s, jac, v) - beta * control


def _denoising(s: Tensor, eps: Tensor, sigma: float) -> Tensor:
    # 0.5 |s + eps / sigma|^2 without its last term 0.5 |eps|^2 / sigma^2, which no parameter moves.
    return 0.5 * s.dot(s) + eps.dot(s) / sigma


# Log-densities.


def score_matching(f: Model, x: Tensor) -> Tensor:
    """``|s|^2 / 2 + tr H``."""
    return torch.stack([_score_matching(*log_density_terms(f, x_i)[1:]) for x_i in x])


def sliced(f: Model, x: Tensor, v: Tensor) -> Tensor:
    """``(v.s)^2 / 2 + v'Hv``."""

    def one(x_i: Tensor, v_i: Tensor) -> Tensor:
        _, s, hess = log_density_terms(f, x_i)
        return _sliced(s, hess, v_i.reshape(-1))

    return _average(one, x, v)


def sliced_vr(f: Model, x: Tensor, v: Tensor, beta: float = 1.0) -> Tensor:
    """``(v.s)^2 / 2 + v'Hv - beta ((v.s)^2 / 2 - |s|^2 / 2)``."""

    def one(x_i: Tensor, v_i: Tensor) -> Tensor:
        _, s, hess = log_density_terms(f, x_i)
        return _sliced_vr(s, hess, v_i.reshape(-1), beta)

    return _average(one, x, v)


def denoising(f: Model, x: Tensor, eps: Tensor, sigma: float) -> Tensor:
    """``|s|^2 / 2 + eps.s / sigma`` with the score at ``x + sigma eps``."""

    def one(x_i: Tensor, eps_i: Tensor) -> Tensor:
        _, s, _ = log_density_terms(f, x_i + sigma * eps_i)
        return _denoising(s, eps_i.reshape(-1), sigma)

    return _average(one, x, eps)


def finite_difference(f: Model, x: Tensor, v: Tensor, step: float) -> Tensor:
    """`sliced` with central differences: ``v.s`` and ``v'Hv`` of ``t -> f(x + t v)`` at t = 0."""

    def one(x_i: Tensor, v_i: Tensor) -> Tensor:
        ahead, here, behind = (f((x_i + t * v_i)[None])[0] for t in (step, 0.0, -step))
        slope = (ahead - behind) / (2 * step)
        bend = (ahead - 2 * here + behind) / step**2
        return 0.5 * slope**2 + bend

    return _average(one, x, v)


def noise_contrastive(f: Model, x: Tensor, v: Tensor) -> Tensor:
    """``-log sigmoid(f(x) - f(x - v)) - log sigmoid(f(x) - f(x + v))``."""

    def one(x_i: Tensor, v_i: Tensor) -> Tensor:
        here, behind, ahead = (f(y[None])[0] for y in (x_i, x_i - v_i, x_i + v_i))
        # -log sigmoid(a) = log(1 + exp(-a))
        return (1 + (behind - here).exp()).log() + (1 + (ahead - here).exp()).log()

    return _average(one, x, v)


def maximum_likelihood(f: Model, x: Tensor) -> Tensor:
    """``-log p(x)``."""
    return torch.stack([-f(x_i[None])[0] for x_i in x])


# Score networks.


def vector_score_matching(h: Model, x: Tensor) -> Tensor:
    """``|h|^2 / 2 + tr dh/dx``."""
    return torch.stack([_score_matching(*vector_terms(h, x_i)) for x_i in x])


def vector_sliced(h: Model, x: Tensor, v: Tensor) -> Tensor:
    """``(v.h)^2 / 2 + v' dh/dx v``."""
    return _average(lambda x_i, v_i: _sliced(*vector_terms(h, x_i), v_i.reshape(-1)), x, v)


def vector_sliced_vr(h: Model, x: Tensor, v: Tensor, beta: float = 1.0) -> Tensor:
    """``(v.h)^2 / 2 + v' dh/dx v - beta ((v.h)^2 / 2 - |h|^2 / 2)``."""
    return _average(lambda x_i, v_i: _sliced_vr(*vector_terms(h, x_i), v_i.reshape(-1), beta), x, v)


def vector_denoising(h: Model, x: Tensor, eps: Tensor, sigma: float) -> Tensor:
    """``|h|^2 / 2 + eps.h / sigma`` with h at ``x + sigma eps``."""

    def one(x_i: Tensor, eps_i: Tensor) -> Tensor:
        s, _ = vector_terms(h, x_i + sigma * eps_i)
        return _denoising(s, eps_i.reshape(-1), sigma)

    return _average(one, x, eps)


def vector_finite_difference(h: Model, x: Tensor, v: Tensor, step: float) -> Tensor:
    """`vector_sliced` with central means and differences of ``t -> v.h(x + t v)`` at t = 0."""

    def one(x_i: Tensor, v_i: Tensor) -> Tensor:
        ahead, behind = (h((x_i + t * v_i)[None])[0].mul(v_i).sum() for t in (step, -step))
        slope = (ahead + behind) / 2
        bend = (ahead - behind) / (2 * step)
        return 0.5 * slope**2 + bend

    return _average(one, x, v)


def _average(one: Callable[[Tensor, Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    """Mean over M of a loss of one point and one direction, ``(M, N, *event) -> (N,)``."""
    v = v[None] if v.ndim == x.ndim else v
    assert v.shape[1:] == x.shape, f"v must be (M, *x.shape), got {v.shape} for {x.shape}"
    rows = [torch.stack([one(x_i, v_i) for v_i in v[:, i]]).mean() for i, x_i in enumerate(x)]
    return torch.stack(rows)


# Parameter gradients.


def parameter_gradient(loss_fn: Callable[[], Tensor], module: nn.Module) -> Tensor:
    """Gradient of ``loss_fn().mean()`` by autograd, all parameters in one vector ``(P,)``."""
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss_fn().mean(), parameters, allow_unused=True)
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])


def finite_difference_gradient(
    loss_fn: Callable[[], Tensor], module: nn.Module, step: float = 1e-5
) -> Tensor:
    """`parameter_gradient` by central differences, 2 P evaluations; float64 parameters only."""
    slopes = []
    for parameter in module.parameters():
        assert parameter.dtype == torch.float64, "differences of 1e-5 need float64 parameters"
        original = parameter.detach().clone()
        for index in range(parameter.numel()):
            losses = []
            for shift in (step, -step):
                shifted = original.flatten().clone()
                shifted[index] += shift
                parameter.data.copy_(shifted.view(original.shape))
                losses.append(loss_fn().detach().mean())
            slopes.append((losses[0] - losses[1]) / (2 * step))
        parameter.data.copy_(original)
    return torch.stack(slopes)
