"""Two moons.

An energy network is trained by sliced score matching on points alone. Left: the points; middle: the
log-density it learned; right: its score.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn

import scorematching as sm
from scorematching.training import TrainConfig, train

g = torch.Generator().manual_seed(0)
x = torch.tensor(make_moons(1500, noise=0.08, random_state=0)[0], dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)

model = sm.models.MLPDensity(dim=2, hidden=(64, 64), activation=nn.SiLU, generator=g)
config = TrainConfig(steps=500, batch_size=150, lr=1e-2, schedule="cosine", ema_decay=0.98)
train(model, sm.SlicedScoreMatchingVR(), x, config, generator=g)

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
left.scatter(*x.T, s=4, color="0.3")
left.set(title="points", xlim=(-2.2, 2.2), ylim=(-2.4, 2.4))
sm.plot.density(model, x, ax=middle, depth=10.0)
middle.set_title("learned log-density")
sm.plot.score_field(model, x, ax=right, reach=0.4)
right.set_title("its score")
plt.show()
