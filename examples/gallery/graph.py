"""Which measurements depend on each other?

A sparse graph of 13 measurements of Italian wines: an edge means dependence given all others. Its
width grows with the squared partial correlation; green is positive, red negative.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import scorematching as sm

wine = load_wine()
model = sm.inference.GraphicalModel(ebic_gamma=1.0).fit(wine.data)
root = np.sqrt(np.diag(model.precision_))
partial = -model.precision_ / np.outer(root, root)

angles = 2 * np.pi * np.arange(len(root)) / len(root)
places = np.stack([np.cos(angles), np.sin(angles)], 1)
figure, ax = plt.subplots(figsize=(6, 5.4), layout="constrained")
for i, j in np.argwhere(np.triu(model.graph_, 1)):
    colour = "#2e8b57" if partial[i, j] > 0 else "#b03a2e"
    ax.plot(*places[[i, j]].T, color=colour, linewidth=0.3 + 20 * partial[i, j] ** 2, zorder=1)
ax.scatter(*places.T, s=60, color="white", edgecolors="0.3", zorder=2)
for name, (a, b) in zip(wine.feature_names, 1.12 * places):
    side = "left" if a > 0.2 else "right" if a < -0.2 else "center"
    ax.text(a, b, name.replace("_", " ").split("/")[0], ha=side, va="center", fontsize=8)
ax.set(xlim=(-1.9, 1.9), ylim=(-1.3, 1.3), aspect="equal")
ax.axis("off")
plt.show()
