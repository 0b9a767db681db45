"""The ridge penalty of a linear model, by the held-out loss of all penalties."""

import math

import torch
from torch import Tensor

from scorematching.closed_form import QuadraticForm

_GRID, _REFINEMENTS = 241, 4


class RidgePath:
    """Weights and held-out loss as functions of the ridge penalty.

    With ``G = U diag(g) U'`` of the training points, ``alpha(lam) = -U (U'b / (g + lam))``.

    Args:
        train: the loss that alpha minimises, with a penalty.
        valid: the held-out loss, without one.

    Example:
        If both losses are the same, no penalty is best.

        >>> form = QuadraticForm(torch.eye(2), torch.ones(2), torch.tensor(0.0), count=1)
        >>> path = RidgePath(form, form)
        >>> torch.allclose(path.alpha(1.0), torch.tensor(-0.5).double()), path.best() < 1e-6
        (True, True)
    """

    def __init__(self, train: QuadraticForm, valid: QuadraticForm) -> None:
        g, self.basis = torch.linalg.eigh(train.G.double())
        self.g, self.rotated_b = g.clamp(min=0), train.b.double() @ self.basis
        self.valid_G = self.basis.mT @ valid.G.double() @ self.basis
        self.valid_b = valid.b.double() @ self.basis
        self.constant = valid.constant.double()
        top = max(self.g[-1].item(), torch.finfo(torch.float64).tiny)
        # Below the rounding of G a penalty has no effect; far above G alpha is zero.
        self.range = (math.log10(top * torch.finfo(train.G.dtype).eps), math.log10(top) + 3)

    def alpha(self, lam: float) -> Tensor:
        """The weights at a penalty, ``(L,)``."""
        return -self.basis @ (self.rotated_b / (self.g + lam))

    def loss(self, lam: float) -> float:
        """The held-out loss at a penalty."""
        return self._losses(torch.tensor([lam], dtype=self.g.dtype, device=self.g.device)).item()

    def best(self) -> float:
        """The penalty of least held-out loss: a grid of log lam, refined around its minimum."""
        low, high = self.range
        for _ in range(_REFINEMENTS):
            log_lam = torch.linspace(low, high, _GRID, dtype=self.g.dtype, device=self.g.device)
            least, width = int(self._losses(10**log_lam).argmin()), (high - low) / (_GRID - 1)
            centre = log_lam[least].item()
            low, high = max(low, centre - width), min(high, centre + width)
        return float(10**centre)

    def _losses(self, lam: Tensor) -> Tensor:
        """Held-out losses at penalties, ``(K,) -> (K,)``."""
        a = -self.rotated_b / (self.g + lam[:, None])
        return 0.5 * ((a @ self.valid_G) * a).sum(1) + a @ self.valid_b + self.constant
