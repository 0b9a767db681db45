"""Scores from samples.

The score of a banana-shaped distribution from 300 samples, by a kernel estimate and by a network,
beside the truth.
"""

import matplotlib.pyplot as plt
import torch

import scorematching as sm

g = torch.Generator().manual_seed(0)
truth = sm.distributions.Banana()
x = truth.sample(300, g)
X = x.double().numpy()

fields = {
    "truth": truth,
    "Stein": sm.SteinScoreEstimator().fit(X),
    "sliced": sm.SlicedScoreEstimator(hidden=(64,), max_steps=500, lr=5e-3, random_state=0).fit(X),
}
figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained", sharey=True)
for ax, (name, field) in zip(axes, fields.items()):
    sm.plot.score_field(field, x if name == "truth" else X, ax=ax)
    ax.set_title(name)
plt.show()
