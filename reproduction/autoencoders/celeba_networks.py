"""Networks for images, ``x: (N, 3, 64, 64)`` between -1 and 1.

=====================  ==================================================================
network                layers
=====================  ==================================================================
encoder                convolutions to m, 2m, 4m, 8m maps; dense 512; dense Dz (or 2 Dz)
implicit encoder       the same on [x, ReLU(dense(eps))], the noise as one more channel
decoder                dense 8m x 4 x 4; transposed convolutions to 4m, 2m, m, 3 maps; tanh
score given the image  as the implicit encoder, z in place of eps
score                  the same on the channel of z alone
=====================  ==================================================================

All kernels are 5 x 5 with stride 2 and padding 2, and m = 64; those of images are computed by
blocks (`blocks`). ReLU follows every layer but the
last, with these exceptions:

* Score networks have softplus. The published table has ReLU, the released program softplus; only
  softplus is right, because autograd misses the gradient of a divergence at kinks.
* ``as_released=True`` leaves out two ReLUs as the released program does: after the implicit
  encoder's last convolution and after the decoder's dense layer.

Arguments of the ``make_`` functions: ``latent_dim`` is Dz, ``size`` the side of the images,
``width`` m, ``log_std`` that of the errors of pixels; ``with_score_network=False`` is for scores
from an estimator; ``generator`` draws the initial weights.

Reference: Song et al. (2019), Appendix C.3.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from reproduction.autoencoders.blocks import BlockConv, BlockConvTranspose, convolve
from scorematching._checks import check_count
from scorematching.distributions.observations import NormalPixels
from scorematching.models import VAE, WAE, ImplicitVAE
from scorematching.models.networks import linear

Activation = Callable[[], nn.Module]


class ConditionalConv(nn.Module):
    """A network of a vector and an image, ``z: (N, C), x: (N, K, S, S) -> (N, outputs)``.

    A dense layer maps z to one more channel of the image, and convolutions follow. With many
    vectors per image, ``z: (N, M, C)``, the first convolution is applied to x only once.

    Args:
        dim: C, number of coordinates of z.
        channels: K, of the image; zero for no image.
        outputs: number of outputs; None is C.
        size: S, a multiple of 16.
        width: m, maps of the first convolution.
        activation: called once per layer; a score network's must be continuously differentiable.
        last_activation: whether there is one after the last convolution.
        generator: source of the initial weights; None is torch's default generator.

    Example:
        >>> net = ConditionalConv(dim=2, channels=3, size=16, width=4)
        >>> net(torch.zeros(5, 7, 2), torch.zeros(5, 3, 16, 16)).shape
        torch.Size([5, 7, 2])
    """

    def __init__(
        self,
        dim: int,
        channels: int = 3,
        outputs: int | None = None,
        size: int = 64,
        width: int = 64,
        activation: Activation = nn.ReLU,
        last_activation: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        """Build the layers."""
        super().__init__()
        check_count(dim, "dim", "it is the number of coordinates of z")
        self.dim, self.channels, self.size = dim, channels, size
        self.paint = nn.Sequential(
            linear(dim, size * size, generator), activation(), nn.Unflatten(1, (1, size, size))
        )
        net = make_encoder(
            outputs or dim, channels + 1, size, width, activation, last_activation, generator
        )
        self.first: Any = net[0]
        self.rest = net[1:]

    def forward(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        """The output, ``z: (N, *M, C), x: (N, channels, S, S) -> (N, *M, outputs)``."""
        self._check(z, x)
        painted = self.paint(z if z.ndim == 2 else z.flatten(0, -2))
        if x is not None and z.ndim > 2:
            h = self._first_of_many(painted, x, z.shape[1:-1].numel())
        else:
            h = self.first(painted if x is None else torch.cat([x, painted], 1))
        output: Tensor = self.rest(h)
        return output if z.ndim == 2 else output.unflatten(0, z.shape[:-1])

    def _first_of_many(self, painted: Tensor, x: Tensor, copies: int) -> Tensor:
        """The first convolution, ``painted: (N M, 1, S, S), x: (N, K, S, S) -> (N M, m, *)``."""
        of_x, of_z = self.first.weight.split([self.channels, 1], dim=1)
        constant = convolve(x, of_x)
        return convolve(painted, of_z, self.first.bias) + constant.repeat_interleave(copies, 0)

    def _check(self, z: Tensor, x: Tensor | None) -> None:
        image = (z.shape[0], self.channels, self.size, self.size)
        wanted = None if self.channels == 0 else image
        got = None if x is None else tuple(x.shape)
        if got != wanted or z.shape[-1] != self.dim:
            raise ValueError(
                f"z and x must have shapes (N, ..., {self.dim}) and {wanted}, got "
                f"{tuple(z.shape)} and {got}; give one image per row of z"
            )


class FullPrecision(nn.Module):
    """A layer in the precision of its weights, whatever the mixed precision of the others.

    In bf16, numbers near one differ by 0.008: too coarse for latents whose score is estimated.
    """

    def __init__(self, layer: nn.Module) -> None:
        """Keep the layer."""
        super().__init__()
        self.layer = layer

    def forward(self, h: Tensor) -> Tensor:
        """The layer's output."""
        with torch.autocast(h.device.type, enabled=False):
            output: Tensor = self.layer(h.to(next(self.layer.parameters()).dtype))
        return output


def make_encoder(
    outputs: int,
    channels: int,
    size: int,
    width: int,
    activation: Activation = nn.ReLU,
    last_activation: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Four convolutions and two dense layers, ``(N, channels, S, S) -> (N, outputs)``."""
    _check_size(size, width)
    layers: list[nn.Module] = []
    for a, b in pairwise([channels, width, 2 * width, 4 * width, 8 * width]):
        kind = BlockConv if a == channels else nn.Conv2d
        layers += [_drawn(kind, a, b, generator), activation()]
    if not last_activation:
        layers.pop()
    features = 8 * width * (size // 16) ** 2
    layers += [nn.Flatten(), linear(features, 512, generator), activation()]
    return nn.Sequential(*layers, FullPrecision(linear(512, outputs, generator)))


def make_decoder(
    latent_dim: int,
    channels: int,
    size: int,
    width: int,
    as_released: bool = False,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A dense layer and four transposed convolutions, ``(N, Dz) -> (N, channels, S, S)``."""
    _check_size(size, width)
    start = (8 * width, size // 16, size // 16)
    layers: list[nn.Module] = [linear(latent_dim, torch.Size(start).numel(), generator)]
    layers += [] if as_released else [nn.ReLU()]
    layers.append(nn.Unflatten(1, start))
    for a, b in pairwise([8 * width, 4 * width, 2 * width, width, channels]):
        kind = BlockConvTranspose if b == channels else nn.ConvTranspose2d
        layers += [_drawn(kind, a, b, generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Tanh())


def _drawn(
    kind: type[nn.Conv2d] | type[nn.ConvTranspose2d],
    inputs: int,
    outputs: int,
    generator: torch.Generator | None,
) -> nn.Module:
    """A convolution 5 x 5 / 2 with torch's usual initial weights, drawn from ``generator``."""
    more = {"output_padding": 1} if issubclass(kind, nn.ConvTranspose2d) else {}
    options = {"stride": 2, "padding": 2, "device": torch.get_default_device(), **more}
    layer = nn.utils.skip_init(kind, inputs, outputs, 5, **options)
    # For transposed convolutions, too, torch counts the second axis of the weight as inputs.
    bound = layer.weight[0].numel() ** -0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def _check_size(size: int, width: int) -> None:
    check_count(size, "size", "images of the paper have 64 x 64 pixels")
    check_count(width, "width", "64 maps as in the paper")
    if size % 16:
        raise ValueError(
            f"size must be a multiple of 16, got {size}; four strides of two divide it by that"
        )


def make_vae(
    latent_dim: int = 32,
    size: int = 64,
    width: int = 64,
    log_std: float = -0.602,
    as_released: bool = False,
    generator: torch.Generator | None = None,
) -> VAE:
    """The paper's variational auto-encoder with a Gaussian encoder for faces."""
    encoder = make_encoder(2 * latent_dim, 3, size, width, generator=generator)
    decoder = make_decoder(latent_dim, 3, size, width, as_released, generator)
    return VAE(encoder, decoder, NormalPixels(log_std), latent_dim)


def make_implicit_vae(
    latent_dim: int = 32,
    size: int = 64,
    width: int = 64,
    log_std: float = -0.602,
    with_score_network: bool = True,
    score_activation: Callable[[], nn.Module] = nn.Softplus,
    as_released: bool = False,
    generator: torch.Generator | None = None,
) -> ImplicitVAE:
    """The paper's variational auto-encoder with an implicit encoder for faces.

    The published table has ReLU for ``score_activation``, which `score_loss` accepts only with
    ``check_smoothness=False``.
    """

    def conditional(activation: Callable[[], nn.Module], last: bool) -> nn.Module:
        return ConditionalConv(latent_dim, 3, latent_dim, size, width, activation, last, generator)

    encoder = conditional(nn.ReLU, not as_released)
    decoder = make_decoder(latent_dim, 3, size, width, as_released, generator)
    score_network = conditional(score_activation, True) if with_score_network else None
    return ImplicitVAE(encoder, decoder, NormalPixels(log_std), latent_dim, score_network)


def make_wae(
    latent_dim: int = 32,
    size: int = 64,
    width: int = 64,
    log_std: float = -0.602,
    with_score_network: bool = True,
    score_activation: Callable[[], nn.Module] = nn.Softplus,
    lam: float = 10.0,
    as_released: bool = False,
    generator: torch.Generator | None = None,
) -> WAE:
    """The paper's Wasserstein auto-encoder for faces; ``lam`` is the weight of the divergence."""
    encoder = make_encoder(latent_dim, 3, size, width, generator=generator)
    decoder = make_decoder(latent_dim, 3, size, width, as_released, generator)
    score_network = (
        ConditionalConv(
            latent_dim, 0, latent_dim, size, width, score_activation, generator=generator
        )
        if with_score_network
        else None
    )
    return WAE(encoder, decoder, NormalPixels(log_std), latent_dim, score_network, lam)
