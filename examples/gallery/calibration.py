"""Which model is calibrated?

Held-out irises are ranked among samples of two models. A single Gaussian leaves the band, which a
right model stays in with probability 0.95; a kernel estimate stays inside.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_iris

import scorematching as sm

rng = np.random.default_rng(0)
X = load_iris().data[:, 2:] + rng.uniform(-0.05, 0.05, (150, 2))  # recorded to one decimal
X = X[rng.permutation(150)]

figure, axes = plt.subplots(1, 2, figsize=(9, 4.9), layout="constrained")
for ax, base in zip(axes, ("gaussian", "kde")):
    density = sm.DensityEstimator("none", base=base, random_state=0).fit(X[:75])
    sm.plot.calibration(density, X[75:], ax)
    ax.set_title(base)
plt.show()
