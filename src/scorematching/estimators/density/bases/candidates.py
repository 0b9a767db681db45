"""The list of candidates that ``base="auto"`` chooses from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.flow import fit_flow, has_flows
from scorematching.estimators.density.bases.gaussian import fit_gaussian
from scorematching.estimators.density.bases.kde import fit_kde
from scorematching.estimators.density.bases.mixture import fit_mixture
from scorematching.estimators.density.bases.student_t import fit_student_t
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.estimators.density.scaling import robust_whiten
from scorematching.estimators.density.selection import Candidate, Fit

NAMES = ("gaussian", "student-t", "kde", "mixture", "maf", "nsf")
"""Bases by name; "auto" is all of them, flows where zuko is installed."""

_COMPONENTS = (2, 3, 4, 6, 9, 13, 20)
_POINTS_PER_COMPONENT, _MIN_FLOW_POINTS = 8, 50


@dataclass(frozen=True)
class Family:
    """Candidates in order of complexity.

    Attributes:
        candidates: the simplest first; the search ends where the likelihood falls.
        slow: whether each is tried on one fold first.
    """

    candidates: Sequence[Candidate]
    slow: bool = False


def whitened(fit: Fit) -> Fit:
    """The same fit at whitened points."""

    def fit_whitened(x: Tensor, held: Tensor, generator: torch.Generator) -> Distribution:
        whiten = robust_whiten(x)
        return Transformed(fit(whiten(x), whiten(held), generator), whiten)

    return fit_whitened


def families(base: Any, n: int) -> list[Family]:
    """The candidates of a base for n points: "auto", a name of `NAMES`, or a list of names.

    Raises:
        ValueError: if a name is unknown.
    """
    several = isinstance(base, Iterable) and not isinstance(base, str)
    given = list(base) if several else [base]
    names = [name for i, name in enumerate(given) if name not in given[:i]]
    if names == ["auto"]:
        names = [name for name in NAMES if name not in ("maf", "nsf") or has_flows()]
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise ValueError(
            f'base must be "auto", one or several of {", ".join(NAMES)}, or an object with '
            f'log_prob or score_samples and sample, got {base!r}; "auto" chooses'
        )
    found = [Family([candidate]) for name in names for candidate in _simple(name)]
    if "mixture" in names:
        found += mixtures(n)
    flows = [kind for kind in ("nsf", "maf") if kind in names]
    if flows and (n >= _MIN_FLOW_POINTS or not found):
        found.append(Family(_flows(flows), slow=True))
    return found or [Family(_simple("gaussian"))]


def _simple(name: str) -> list[Candidate]:
    """Candidates without a number to choose."""

    def kde(x: Tensor, held: Tensor, g: torch.Generator) -> Distribution:
        return fit_kde(x, g)

    # An imagined point keeps a normal and a heavy-tailed part in the stacks of small tables.
    return {
        "gaussian": [
            Candidate("gaussian", lambda x, held, g: fit_gaussian(x), prior=1.0),
            Candidate("gaussian, not shrunk", lambda x, held, g: fit_gaussian(x, shrink=False)),
        ],
        "student-t": [Candidate("student-t", lambda x, held, g: fit_student_t(x), prior=1.0)],
        "kde": [Candidate("kde", kde), Candidate("kde, whitened", whitened(kde))],
    }.get(name, [])


def mixtures(n: int) -> list[Family]:
    """Gaussian mixtures, by number of components."""
    counts = [k for k in _COMPONENTS if k * _POINTS_PER_COMPONENT <= n]
    kinds = (
        ("full", 1e-6, False),
        ("full", 0.03, True),
        ("full", 0.2, True),
        ("tied", 1e-6, True),
        ("diag", 1e-3, False),
    )
    return [Family([_mixture(k, *kind) for k in counts]) for kind in kinds if counts]


def _mixture(count: int, covariance: str, ridge: float, white: bool) -> Candidate:
    def fit(x: Tensor, held: Tensor, g: torch.Generator) -> Distribution:
        return fit_mixture(x, count, covariance, ridge, g)

    name = f"mixture of {count}, {covariance}, ridge {ridge:g}"
    return Candidate(name + (", whitened" if white else ""), whitened(fit) if white else fit)


def _flows(kinds: Sequence[str]) -> list[Candidate]:
    """Normalising flows; the mean of those of all folds is better than a single one."""
    return [Candidate(kind, partial(fit_flow, kind), averaged=True) for kind in kinds]
