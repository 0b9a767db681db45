"""Conditional scores.

One score network for three species of iris, given which species it is. The arrows are its score
in the plane of two measurements, the points are the flowers of that species.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_iris

import scorematching as sm
from scorematching.training import TrainConfig, train

g = torch.Generator().manual_seed(0)
iris = load_iris()
z = torch.tensor(iris.data[:, :2], dtype=torch.float32)
z = (z - z.mean(0)) / z.std(0) + 0.1 * torch.randn(z.shape, generator=g)
species = torch.nn.functional.one_hot(torch.tensor(iris.target)).float()
objective = sm.SlicedScoreMatchingVR()


def conditional(network, batch, generator=None):
    """The loss of z given the species, which are the last three columns."""
    field = sm.VectorField(lambda z: network(z, batch[:, 2:]))
    return objective(field, batch[:, :2], generator=generator)


network = sm.models.ScoreNetwork(dim=2, context_dim=3, hidden=(32,), generator=g)
config = TrainConfig(steps=300, batch_size=75, lr=5e-3, schedule="cosine")
train(network, conditional, torch.cat([z, species], 1), config, generator=g)

figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
for i, ax in enumerate(axes):
    given = torch.eye(3)[i]
    field = sm.VectorField(lambda z, given=given: network(z, given.expand(len(z), 3)))
    sm.plot.score_field(field, z[iris.target == i], ax=ax, reach=0.7)
    ax.set(title=iris.target_names[i], xlabel="sepal length", ylabel="sepal width")
    ax.set(xlim=(-2.5, 3.2), ylim=(-3.0, 3.5))
plt.show()
