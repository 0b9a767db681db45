"""A Gaussian model with unknown precision, and what Theorem 3 says about its estimates.

With ``log p(x) = -x' L x / 2`` up to a constant and parameters ``L_ij, i <= j``, the gradient of
the sliced loss of a point is a quadratic form in its direction, ``psi_p = v' A_p(x) v``, with
``A_p = -E_p + sym(L x (E_p x)')`` and ``E_p = dL / dtheta_p``. For Rademacher directions

    H_pq = tr(E_p L^-1 E_q)                                     the second derivative,
    V_pq = Cov(tr A_p, tr A_q)                                  sum_ij V_ij of the theorem,
    W_pq = E sum_{i != j} (A_p)_ij (A_q)_ij                     sum_{i != j} W_ij,

and the covariance of ``sqrt(N) theta`` is ``H^-1 (V + 2/M W) H^-1``. With variance reduction the
direction meets ``-E_p`` alone, so W is that of ``-E_p``.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

import scorematching as sm
from scorematching.inference import models

PRECISION = torch.tensor([[2.0, 0.6, 0.0], [0.6, 1.5, -0.4], [0.0, -0.4, 1.0]], dtype=torch.float64)
"""The precision of all data sets."""

SLICED = {"SSM": sm.SlicedScoreMatching, "SSM-VR": sm.SlicedScoreMatchingVR}


def model() -> models.Gaussian:
    """The model, with its mean at zero."""
    return models.Gaussian(len(PRECISION), centred=True)


def truth() -> Tensor:
    """The parameters, in the model's order."""
    rows, columns = np.triu_indices(len(PRECISION))
    return PRECISION[rows, columns]


def draw(num: int, generator: torch.Generator) -> Tensor:
    """Points of the law with this precision, ``(N, D)``."""
    z = torch.randn(num, len(PRECISION), generator=generator, dtype=torch.float64)
    return _from_normal(z)


def theory(variance_reduced: bool, num_projections: float) -> Tensor:
    """The covariance of ``sqrt(N) (theta - truth)``, ``(P, P)``.

    Args:
        variance_reduced: SSM-VR in place of SSM.
        num_projections: M; infinite for exact score matching.
    """
    basis = _basis()
    weights, x = _quadrature()
    gradients = PRECISION @ x[..., None]  # (Q, D, 1)
    outer = gradients * (basis[:, None] @ x[:, :, None]).transpose(-1, -2)  # (P, Q, D, D)
    forms = 0.5 * (outer + outer.transpose(-1, -2)) - basis[:, None]
    traces = forms.diagonal(dim1=-2, dim2=-1).sum(-1)
    data = torch.einsum("pq,rq,q->pr", traces, traces, weights)  # their mean is zero
    met = -basis[:, None].expand_as(forms) if variance_reduced else forms
    mixed = met - torch.diag_embed(met.diagonal(dim1=-2, dim2=-1))
    directions = torch.einsum("pqij,rqij,q->pr", mixed, mixed, weights)
    hessian = torch.einsum("pij,jk,rki->pr", basis, torch.linalg.inv(PRECISION), basis)
    half = torch.linalg.solve(hessian, data + 2 / num_projections * directions)
    return torch.linalg.solve(hessian, half.T)


def _basis() -> Tensor:
    """The derivative of the precision by every parameter, ``(P, D, D)``."""
    eye = torch.eye(len(PRECISION), dtype=torch.float64)
    pairs = itertools.combinations_with_replacement(range(len(PRECISION)), 2)
    outer = torch.stack([torch.outer(eye[i], eye[j]) for i, j in pairs])
    return torch.maximum(outer, outer.transpose(-1, -2))


def _quadrature() -> tuple[Tensor, Tensor]:
    """Weights ``(Q,)`` and points ``(Q, D)``: exact means of polynomials of degree five."""
    points, weights = np.polynomial.hermite_e.hermegauss(3)
    grid = itertools.product(zip(points, weights / weights.sum()), repeat=len(PRECISION))
    nodes = torch.tensor(list(grid), dtype=torch.float64)  # (Q, D, 2)
    return nodes[..., 1].prod(-1), _from_normal(nodes[..., 0])


def _from_normal(z: Tensor) -> Tensor:
    root = torch.linalg.cholesky(PRECISION).T
    return torch.linalg.solve_triangular(root, z.T, upper=True).T
