"""Estimates with their covariance: standard errors, intervals and tests, by statsmodels' names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scorematching._checks import is_number
from scorematching.inference.parameters import as_float64, column_names
from scorematching.inference.summary import Summary

Array = np.ndarray[Any, np.dtype[np.float64]]


class NamedValues(Mapping[str, float]):
    """Numbers by name and by position; `numpy.asarray` and `pandas.Series` take them.

    Args:
        names: of the numbers.
        values: as many numbers.

    Example:
        >>> values = NamedValues(["a", "b"], np.array([1.0, 2.0]))
        >>> values["b"], values[0], np.asarray(values).sum().item()
        (2.0, 1.0, 3.0)
    """

    def __init__(self, names: Sequence[str], values: Array) -> None:
        """Keep both."""
        self._values = dict(zip(names, np.asarray(values, dtype=np.float64).tolist(), strict=True))

    def __getitem__(self, key: str | int) -> float:
        return self._values[key] if isinstance(key, str) else [*self._values.values()][key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array([*self._values.values()], dtype=dtype or np.float64)

    def __repr__(self) -> str:
        return f"NamedValues({self._values})"


class WaldTest(NamedTuple):
    """A Wald test of linear restrictions.

    Attributes:
        statistic: ``(R theta - q)' (R C R')^-1 (R theta - q)``.
        df: number of restrictions, the degrees of freedom of its chi-square distribution.
        pvalue: the chance of a larger statistic if the restrictions hold.

    Example:
        >>> found = Estimates(["a"], torch.tensor([2.0]), torch.tensor([[1.0]]))
        >>> found.wald_test(["a"]).statistic
        4.0
    """

    statistic: float
    df: int
    pvalue: float


class Estimates:
    """Numbers that are asymptotically normal about the truth.

    Args:
        names: of the P numbers.
        values: the estimates ``(P,)``.
        covariance: of the estimates ``(P, P)``.

    Example:
        >>> found = Estimates(["a"], torch.tensor([2.0]), torch.tensor([[1.0]]))
        >>> round(found.pvalues["a"], 4), found.conf_int(0.05).round(3).tolist()
        (0.0455, [[0.04, 3.96]])
    """

    def __init__(self, names: Sequence[str], values: Tensor, covariance: Tensor) -> None:
        """Keep the numbers."""
        self.names = tuple(names)
        if repeated := [name for name, count in Counter(self.names).items() if count > 1]:
            raise ValueError(
                f"names must differ, got {repeated[0]!r} twice or more; give each number its own"
            )
        self._values = values.detach().double()
        self._covariance = covariance.detach().double()

    @property
    def params(self) -> NamedValues:
        """The estimates by name."""
        return self._named(self._values)

    @property
    def bse(self) -> NamedValues:
        """Standard errors."""
        return self._named(self._covariance.diagonal().sqrt())

    @property
    def tvalues(self) -> NamedValues:
        """Estimates over their standard errors."""
        return self._named(self._z())

    @property
    def pvalues(self) -> NamedValues:
        """Two-sided p-values of the hypotheses that a parameter is zero, by the normal law."""
        return self._named(torch.special.erfc(self._z().abs() / 2**0.5))

    def cov_params(self) -> Array:
        """The covariance of the estimates, ``(P, P)``."""
        return self._covariance.numpy().copy()

    def conf_int(self, alpha: float = 0.05) -> Array:
        """Intervals that cover the truth with probability ``1 - alpha``, ``(P, 2)``."""
        if not is_number(alpha) or not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha!r}; 0.05 means 95%")
        half = -torch.special.ndtri(torch.tensor(alpha / 2, dtype=torch.float64))
        half = half * self._covariance.diagonal().sqrt()
        return torch.stack([self._values - half, self._values + half], 1).numpy()

    def wald_test(self, R: Any, q: Any = 0.0) -> WaldTest:
        """Test the linear restrictions ``R theta = q``.

        Args:
            R: ``(k, P)`` or ``(P,)`` numbers, or names of parameters to be tested one for one.
            q: ``(k,)`` numbers, or one for all.

        Raises:
            ValueError: if shapes do not match, or the restrictions are not independent.
        """
        matrix = self._restrictions(R)
        off = matrix @ self._values - _finite(q, "q")
        if off.shape != (len(matrix),):
            raise ValueError(
                f"q must be a number or hold one number per restriction, {len(matrix)}, got shape "
                f"{np.shape(q)}; leave it out to test for zero"
            )
        covariance = matrix @ self._covariance @ matrix.T
        # In units of standard errors, so that parameters of different size can be tested together.
        errors = covariance.diagonal().sqrt()
        scaled, off = covariance / errors / errors[:, None], off / errors
        if bool((errors == 0).any()) or _rank(scaled) < len(matrix):
            raise ValueError(
                "R must have independent rows, no more than there are points or clusters, got "
                "restrictions that follow from each other; remove some of them"
            )
        statistic = off @ torch.linalg.solve(scaled, off)
        df = torch.tensor(len(matrix) / 2, dtype=torch.float64)
        pvalue = torch.special.gammaincc(df, statistic / 2)
        return WaldTest(float(statistic), len(matrix), float(pvalue))

    def summary(self, alpha: float = 0.05) -> Summary:
        """A table of all estimates: text, HTML in notebooks, LaTeX by `Summary.as_latex`."""
        return Summary("Estimates", (), self._rows(alpha), 1 - alpha)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.summary().as_html()

    def __repr__(self) -> str:
        return str(self.summary())

    def _rows(self, alpha: float) -> tuple[tuple[str, tuple[float, ...]], ...]:
        columns = (self.params, self.bse, self.tvalues, self.pvalues)
        numbers = np.column_stack([*map(np.asarray, columns), self.conf_int(alpha)])
        return tuple(zip(self.names, map(tuple, numbers.tolist()), strict=True))

    def _restrictions(self, R: Any) -> Tensor:
        if isinstance(R, str):
            R = [R]
        R = _in_order(R, self.names)
        if _are_names(R):
            R = np.eye(len(self.names))[[self._position(name) for name in R]]
        matrix = torch.atleast_2d(_finite(R, "R"))
        if matrix.ndim != 2 or len(matrix) == 0 or matrix.shape[1] != len(self.names):
            raise ValueError(
                f"R must have one column per parameter, shape (k, {len(self.names)}), got "
                f"{tuple(matrix.shape)}; or pass names of parameters"
            )
        return matrix

    def _position(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"R must name parameters, got {name!r}; they are {list(self.names)}")
        return self.names.index(name)

    def _z(self) -> Tensor:
        return self._values / self._covariance.diagonal().sqrt()

    def _named(self, values: Tensor) -> NamedValues:
        return NamedValues(self.names, values.numpy())


def _in_order(R: Any, names: tuple[str, ...]) -> Any:
    """Restrictions, with those of a table in the order of the parameters."""
    if isinstance(R, Mapping):
        raise TypeError(
            "R must be names of parameters or numbers, got a dict, whose values would be left "
            "out; pass names as R and values as q, such as wald_test([*hypotheses], "
            "[*hypotheses.values()])"
        )
    columns = column_names(R)
    if columns is None:
        return R
    if sorted(columns) != sorted(names):
        raise ValueError(
            f"R must have a column for every parameter, {list(names)[:5]}, got "
            f"{list(columns)[:5]}; columns of zeros stand for those that are not tested"
        )
    return R[list(names)].to_numpy()


def _are_names(R: Any) -> bool:
    """Whether these are names of parameters."""
    is_list = isinstance(R, Iterable) and getattr(R, "ndim", None) != 0
    return is_list and all(isinstance(name, str) for name in R)


def _finite(values: Any, name: str) -> Tensor:
    """Numbers of a test as a tensor, refused unless they are finite."""
    found = as_float64(values, name)
    if not bool(found.isfinite().all()):
        raise ValueError(f"{name} must be finite, got {values!r}; leave out what is not known")
    return found


def _rank(matrix: Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix, hermitian=True))


def transformed(
    names: Sequence[str], function: Callable[[Tensor], Tensor], values: Tensor, covariance: Tensor
) -> Estimates:
    """A function of estimates, ``g(theta)``, with covariance ``G C G'``, G its derivative."""
    with torch.inference_mode(False), torch.enable_grad():
        theta = values.detach().clone().requires_grad_()
        y = function(theta)
        if not y.requires_grad:
            raise ValueError(
                "g must return a differentiable function of the parameters, got numbers that do "
                "not depend on them for autograd; use operations of torch on theta"
            )
        if not bool(y.isfinite().all()):
            raise ValueError(
                f"g must be finite at the estimates, got {y.tolist()}; choose a function that is "
                "defined there"
            )
        rows = [torch.autograd.grad(each, theta, retain_graph=True)[0] for each in y]
    jacobian = torch.stack(rows)
    return Estimates(names, y.detach(), jacobian @ covariance @ jacobian.T)
