"""Digits from noise.

A network that takes the level of noise learns the scores of handwritten digits by denoising.
Annealed Langevin steps turn noise into digits.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import scorematching as sm
from scorematching.training import TrainConfig, train

g = torch.Generator().manual_seed(0)
torch.manual_seed(0)  # of the initial weights
x = torch.tensor(load_digits().data, dtype=torch.float32) / 16


class Denoiser(nn.Module):
    """The score of digits with noise: (clean image - x) / sigma^2."""

    def __init__(self, width: int = 256) -> None:
        """Build the network."""
        super().__init__()
        layers = [nn.Linear(65, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 64))

    def forward(self, x, sigma):
        """Scores at one level for all images, or one for each."""
        sigma = torch.as_tensor(sigma, dtype=x.dtype).expand(len(x), 1)
        scaled = x / (1 + sigma.square()).sqrt()
        return (self.net(torch.cat([scaled, sigma.log()], 1)) - x) / sigma.square()


levels = sm.samplers.noise_levels(largest=2.0, smallest=0.08, num=10)
objective = sm.DenoisingScoreMatching(sm.NoiseLadder(tuple(levels)))
network = Denoiser()
config = TrainConfig(steps=600, batch_size=150, lr=3e-3, schedule="cosine", ema_decay=0.99)
train(sm.VectorField(network), objective, x, config, generator=g)

noise = 2.0 * torch.randn(20, 64, generator=g)
drawn, _ = sm.samplers.anneal(network, noise, levels, step_size=0.05, num_steps=40, generator=g)
with torch.no_grad():  # remove what is left of the noise
    drawn = drawn + levels[-1] ** 2 * network(drawn, levels[-1])

figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 4.2), layout="constrained")
for ax, images, title in ((upper, x, "data"), (lower, drawn, "drawn from noise")):
    framed = nn.functional.pad(images[:20].clamp(0, 1).reshape(2, 10, 8, 8), (1, 1, 1, 1))
    sheet = framed.permute(0, 2, 1, 3).reshape(20, 100)
    ax.imshow((1 - sheet).numpy(), cmap="gray")
    ax.set_title(title)
    ax.axis("off")
plt.show()
