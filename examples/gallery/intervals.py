"""Estimates with intervals.

A normal distribution truncated to positive values, fitted to three measurements of red wines. Bars
are 95% intervals of the entries of its precision.
"""

import matplotlib.pyplot as plt
import numpy as np

import scorematching as sm
from scorematching.inference import fit, models

wine = sm.datasets.load("redwine")
names = ("volatile acidity", "citric acid", "sulphates")
x = wine.x[:, [wine.columns.index(name) for name in names]]
x = x[(x > 0).all(1)]
result = fit(models.TruncatedGaussian(3), x / x.std(0))

shown = [i for i, name in enumerate(result.names) if name.startswith("precision")]
low, high = result.conf_int()[shown].T
middle = np.asarray(result.params)[shown]
figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
ax.errorbar(middle, range(len(shown)), xerr=[middle - low, high - middle], fmt="o", color="#2e8b57")
ax.axvline(0.0, color="0.6", linewidth=0.8)
ax.set_yticks(range(len(shown)), [result.names[i] for i in shown])
ax.set(xlabel="estimate and 95% interval", title=", ".join(names))
plt.show()
