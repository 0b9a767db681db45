"""Directions: how much noise do they add?

Variance of the loss due to random directions on a small network, for three kinds of directions.
Balanced signs cost the same as the others.
"""

import matplotlib.pyplot as plt
import torch

import scorematching as sm

g = torch.Generator().manual_seed(0)
wine = sm.datasets.load("redwine").x
x = sm.datasets.Whiten.fit(wine)(wine)[:128].float()
model = sm.models.MLPDensity(dim=11, hidden=(64, 64), generator=g)
exact = sm.ScoreMatching()(model, x).mean().detach()

kinds = {
    "balanced signs": sm.Rademacher(),
    "independent signs": sm.Rademacher(balanced=False),
    "normal": sm.Gaussian(),
}
nums = (1, 2, 4, 8)
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for (name, projection), colour in zip(kinds.items(), ("#2e8b57", "#d1601c", "#7b52ab")):
    deviations = []
    for num in nums:
        objective = sm.SlicedScoreMatchingVR(projection, num_projections=num)
        losses = [objective(model, x, generator=g).mean().detach() - exact for _ in range(40)]
        deviations.append(torch.stack(losses).square().mean().sqrt())
    ax.loglog(nums, deviations, "o-", color=colour, label=name)
ax.set_xticks(nums, [str(num) for num in nums])
ax.set(xlabel="directions per point", ylabel="error of the mean loss of 128 points")
ax.minorticks_off()
figure.legend(loc="outside lower center", ncols=3, frameon=False)
plt.show()
