"""Unusual rows.

Breast tumours by two of their measurements. The tenth with the least density is marked. Malignant
tumours are more frequent among them than among all, although the labels were never used.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

import scorematching as sm

data = load_breast_cancer()
X = np.log(data.data[:, [0, 4]])  # mean radius, mean smoothness
density = sm.DensityEstimator("none", base="gaussian", random_state=0).fit(X)
unusual = density.predict(X) == -1

ax = sm.plot.density(density, X)
marked, all_rows = (100 * (target == 0).mean() for target in (data.target[unusual], data.target))
ax.scatter(*X[unusual].T, s=24, facecolors="none", edgecolors="#b03a2e")
ax.set(xlabel="log mean radius", ylabel="log mean smoothness")
ax.set_title(f"malignant: {marked:.0f}% of unusual rows, {all_rows:.0f}% of all")
plt.show()
