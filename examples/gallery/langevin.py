"""Langevin chains on a learned score.

A score network learns a ring of points. Chains start from noise and take unadjusted Langevin steps
with that score.
"""

import matplotlib.pyplot as plt
import torch

import scorematching as sm
from scorematching.samplers import langevin
from scorematching.training import TrainConfig, train

g = torch.Generator().manual_seed(0)
x = sm.distributions.Ring(radius=2.0, width=0.25).sample(2000, g).float()
network = sm.models.ScoreNetwork(dim=2, hidden=(64, 64), generator=g)
config = TrainConfig(steps=400, batch_size=200, lr=5e-3, schedule="cosine")
train(sm.VectorField(network), sm.SlicedScoreMatchingVR(), x, config, generator=g)

figure, axes = plt.subplots(1, 4, figsize=(13, 3.5), layout="constrained", sharex=True, sharey=True)
z = 2.0 * torch.randn(500, 2, generator=g)
steps = 0
for ax, until in zip(axes, (0, 20, 200)):
    while steps < until:
        z, _ = langevin.step(z, network, step_size=0.1, generator=g)
        steps += 1
    ax.scatter(*z.T.detach(), s=4, color="#2e8b57")
    ax.set_title(f"{until} steps")
axes[-1].scatter(*x[:500].T, s=4, color="0.3")
axes[-1].set(title="data", xlim=(-4.5, 4.5), ylim=(-4.5, 4.5))
plt.show()
