"""A table and samples of it.

A mixture is fitted to four measurements of red wines and drawn from. Samples are compared with
wines that were not used.
"""

import matplotlib.pyplot as plt
import torch

import scorematching as sm

wine = sm.datasets.load("redwine")
columns = [wine.columns.index(name) for name in ("fixed acidity", "density", "pH", "alcohol")]
order = torch.randperm(len(wine.x), generator=torch.Generator().manual_seed(0))
X = wine.x[order][:, columns].numpy()

density = sm.DensityEstimator("none", base="mixture", dequantise=True, random_state=0)
density.fit(X[:300])
samples = density.sample(700, random_state=0)
sm.plot.pairs(X[300:], samples, names=[wine.columns[i] for i in columns])
plt.show()
