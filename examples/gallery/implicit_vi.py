"""Implicit variational inference.

A network fed with noise learns a posterior with two modes from the score of its own draws. Blue:
the exact posterior; dots: draws.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import scorematching as sm
from scorematching.kernels import fit_stein

g = torch.Generator().manual_seed(0)
torch.manual_seed(0)  # of the initial weights


def log_joint(z):
    """A standard normal prior, and 3.5 = z_1^2 + z_2 + noise observed."""
    return -0.5 * z.square().sum(-1) - 0.5 * (3.5 - z[:, 0].square() - z[:, 1]).square()


network = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 2))
optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
for _ in range(800):
    eps = torch.randn(100, 4, generator=g)
    z = eps[:, :2] + network(eps)
    score = fit_stein(z.detach()).at_samples()
    loss = sm.entropy_surrogate(z, score) - log_joint(z).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

eps = torch.randn(1000, 4, generator=g)
draws = (eps[:, :2] + network(eps)).detach()
ax = sm.plot.density(log_joint, draws, depth=6.0)
ax.set(xlabel="$z_1$", ylabel="$z_2$", title="draws on the exact posterior")
plt.show()
