"""Determinants, inverses, solutions and factorisations of matrices."""

from __future__ import annotations

from typing import Any

import torch

from tests.derivatives.ways.base import Way, constants

EYE = torch.eye(3, dtype=torch.float64)


def general(z: Any, p: Any) -> Any:
    """Invertible matrices ``(N, 3, 3)`` with determinants of one sign."""
    return 2 * EYE + 0.3 * torch.sin(z).unsqueeze(2) * (z * p(3)).unsqueeze(1)


def positive(z: Any, p: Any) -> Any:
    """Positive definite matrices ``(N, 3, 3)``."""
    a = general(z, p)
    return a @ a.mT + EYE


def triangular(z: Any, p: Any) -> Any:
    """Invertible lower triangular matrices ``(N, 3, 3)``."""
    return general(z, p).tril()


def column(z: Any, p: Any) -> Any:
    """Right-hand sides ``(N, 3, 1)``."""
    return torch.sin(z * p(3)).unsqueeze(2)


def cofactors(z: Any, p: Any) -> Any:
    """The determinant of `general` from its entries, ``(N,)``."""
    a = general(z, p)
    rows = [a[:, i] for i in range(3)]
    return (rows[0] * torch.linalg.cross(rows[1], rows[2])).sum(1)


LINALG = [
    Way("logdet", lambda z, p: torch.logdet(positive(z, p))),
    Way("logdet method", lambda z, p: positive(z, p).logdet()),
    Way("slogdet", lambda z, p: torch.slogdet(general(z, p))[1]),
    Way("slogdet, negative", lambda z, p: torch.linalg.slogdet(-general(z, p)).logabsdet),
    Way("slogdet, sign", lambda z, p: (lambda s: s[0] * s[1])(torch.linalg.slogdet(general(z, p)))),
    Way(
        "det",
        lambda z, p: torch.det(general(z, p)) / 9,
        written_out=lambda z, p: cofactors(z, p) / 9,
    ),
    Way(
        "linalg.det",
        lambda z, p: torch.linalg.det(-general(z, p)) / 9,
        written_out=lambda z, p: -cofactors(z, p) / 9,
    ),
    Way("inverse", lambda z, p: torch.inverse(general(z, p))),
    Way("linalg.inv", lambda z, p: torch.linalg.inv(general(z, p))),
    Way("linalg.inv_ex", lambda z, p: torch.linalg.inv_ex(general(z, p))[0]),
    Way("solve", lambda z, p: torch.linalg.solve(general(z, p), column(z, p))),
    Way("solve a vector", lambda z, p: torch.linalg.solve(general(z, p), z * p(3))),
    Way("solve a constant", lambda z, p: torch.linalg.solve(general(z, p), constants(3, 2))),
    Way(
        "solve by a constant",
        lambda z, p: torch.linalg.solve(2 * EYE + 0.1 * p(3, 3), column(z, p)),
    ),
    Way(
        "solve from the right",
        lambda z, p: torch.linalg.solve(general(z, p), column(z, p).mT, left=False),
        traced=None,
    ),
    Way("solve_ex", lambda z, p: torch.linalg.solve_ex(general(z, p), column(z, p)).result),
    Way("cholesky", lambda z, p: torch.linalg.cholesky(positive(z, p))),
    Way(
        "cholesky upper",
        lambda z, p: torch.linalg.cholesky(positive(z, p), upper=True),
        traced=None,
    ),
    Way("cholesky_ex", lambda z, p: torch.linalg.cholesky_ex(positive(z, p))[0]),
    Way("cholesky_solve", lambda z, p: torch.cholesky_solve(column(z, p), triangular(z, p))),
    Way(
        "cholesky_solve upper",
        lambda z, p: torch.cholesky_solve(column(z, p), triangular(z, p).mT, upper=True),
    ),
    Way("cholesky_inverse", lambda z, p: torch.cholesky_inverse(triangular(z, p))),
    Way(
        "cholesky_inverse upper",
        lambda z, p: torch.cholesky_inverse(triangular(z, p).mT, upper=True),
        written_out=lambda z, p: torch.linalg.inv(triangular(z, p) @ triangular(z, p).mT),
    ),
    Way(
        "solve_triangular",
        lambda z, p: torch.linalg.solve_triangular(triangular(z, p), column(z, p), upper=False),
    ),
    Way(
        "solve_triangular by a constant",
        lambda z, p: torch.linalg.solve_triangular(
            2 * EYE + p(3, 3).triu(), column(z, p), upper=True
        ),
    ),
    Way(
        "solve_triangular from the right",
        lambda z, p: torch.linalg.solve_triangular(
            triangular(z, p), column(z, p).mT, upper=False, left=False
        ),
        traced=None,
    ),
    Way(
        "solve_triangular, units on the diagonal",
        lambda z, p: torch.linalg.solve_triangular(
            triangular(z, p), column(z, p), upper=False, unitriangular=True
        ),
        traced=None,
    ),
    Way("matrix_power", lambda z, p: torch.linalg.matrix_power(general(z, p), 3) / 30),
    Way("matrix_exp", lambda z, p: torch.matrix_exp(0.3 * general(z, p))),
    Way(
        "eigvalsh",
        lambda z, p: torch.linalg.eigvalsh(positive(z, p)).log().sum(1),
        traced=None,
        written_out=lambda z, p: torch.logdet(positive(z, p)),
    ),
    Way(
        "svdvals",
        lambda z, p: torch.linalg.svdvals(general(z, p)).log().sum(1),
        traced=None,
        written_out=lambda z, p: cofactors(z, p).log(),
    ),
    Way("qr", lambda z, p: torch.linalg.qr(general(z, p)).R.square().sum(1), traced=None),
    Way("pinv", lambda z, p: torch.linalg.pinv(general(z, p)), traced=None),
    Way("spectral norm", lambda z, p: torch.linalg.norm(general(z, p), 2, (1, 2)), traced=None),
    Way("nuclear norm", lambda z, p: torch.linalg.matrix_norm(general(z, p), "nuc"), traced=None),
    Way("matrix_norm", lambda z, p: torch.linalg.matrix_norm(general(z, p))),
    Way("norm of matrices", lambda z, p: torch.linalg.norm(general(z, p), dim=(1, 2))),
    Way(
        "tensorsolve",
        lambda z, p: torch.stack(
            [torch.linalg.tensorsolve(a, b) for a, b in zip(general(z, p), z * p(3))]
        ),
    ),
    Way(
        "householder_product",
        lambda z, p: torch.linalg.householder_product(general(z, p).tril(-1), torch.sin(z * p(3))),
        traced=None,
    ),
    Way(
        "mahalanobis",
        lambda z, p: torch.linalg.solve_triangular(2 * EYE + p(3, 3).tril(), z.T, upper=False).T,
    ),
]
