"""Forces of the posterior of latents in one pass on a GPU.

Annealed importance sampling follows the score of ``log p(z) + log p(x | z)`` some ten thousand
times for twenty thousand chains. With a decoder of two hidden layers of tanh units, logits l and
binary pixels it is::

    h1 = tanh(W1 z + b1),  h2 = tanh(W2 h1 + b2),  l = W3 h2 + b3
    g2 = (W3' (x - sigmoid(l))) (1 - h2^2),  g1 = (W2' g2) (1 - h1^2),  force = W1' g1 - z

Torch computes it in some fifteen steps, and each writes its result to memory; the logits of all
chains are the largest. Here one Triton program does all steps for some chains, and nearly all that
is between them stays on the chip. It takes blocks of the rows of W3 in turn: logits of a block of
pixels, their slopes, and what these add to g2. Blocks of hidden units are taken likewise, and h1 is
computed twice.

Products are of numbers in bfloat16 and are added in float32. Moves along such forces are exact, see
`scorematching.evaluation.ais`.

The order of the chains is that of `decoder_log_likelihood`: chain r belongs to image ``r mod N``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching._triton import is_available, program
from scorematching.evaluation import BernoulliPixels
from scorematching.types import Vector

# Set by `_triton.program` when a program is compiled.
tl: Any = None
hidden: Any = None
sigmoid: Any = None

_KINDS = [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
_MOST_LATENTS, _MOST_UNITS = 32, 256  # of the second layer; more may not fit on the chip


class Tuning(NamedTuple):
    """How the work is divided.

    Attributes:
        rows: chains of a program; a power of two, at least 16.
        block: pixels, or hidden units, at a time; likewise.
        warps: of a program.
        stages: blocks of weights that are on the chip or on their way there.
    """

    rows: int = 64
    block: int = 64
    warps: int = 4
    stages: int = 2


TUNING = Tuning()
"""Two programs of this size fit on a processor of an H200 by their registers and shared memory."""


class Layers(NamedTuple):
    """Weights of a decoder with two hidden layers: of L latents, H and K units, and D pixels.

    Attributes:
        W1: ``(H, L)``.
        b1: ``(H,)``.
        W2: ``(K, H)``.
        b2: ``(K,)``.
        W3: ``(D, K)``.
        b3: ``(D,)``.
    """

    W1: Tensor
    b1: Tensor
    W2: Tensor
    b2: Tensor
    W3: Tensor
    b3: Tensor


def force_options(model: Any, like: Tensor, precision: str | None) -> dict[str, Any]:
    """Arguments of `decoder_log_likelihood` and `decoder_bracket` for forces of a precision.

    Args:
        model: an auto-encoder.
        like: any tensor in its dtype and on its device.
        precision: None or "bf16".

    Returns:
        ``force``, the program of this module, for "bf16" where it applies; else
        ``force_precision``.
    """
    if precision != "bf16" or not applies(model.decoder, model.observation, like):
        return {"force_precision": precision}
    return {"force": force_maker(model.decoder)}


def applies(decoder: Any, observation: Any, like: Tensor) -> bool:
    """Whether the program computes the force: on a GPU with Triton, for such a decoder in float32.

    Args:
        decoder: must be a plain `nn.Sequential` of Linear, Tanh, Linear, Tanh, Linear.
        observation: must be `BernoulliPixels`, or None for them.
        like: any tensor in the decoder's dtype and on its device.
    """
    if not (like.is_cuda and like.dtype == torch.float32 and is_available()):
        return False
    if torch.cuda.get_device_capability(like.device) < (8, 0):  # without products in bfloat16
        return False
    if observation is not None and type(observation) is not BernoulliPixels:
        return False
    layers = layers_of(decoder)
    if layers is None or any(tensor.dtype != torch.float32 for tensor in layers):
        return False
    units, latents = layers.W2.shape[0], layers.W1.shape[1]
    return units <= _MOST_UNITS and latents <= _MOST_LATENTS


def layers_of(decoder: Any) -> Layers | None:
    """The weights of a decoder, detached; None if it has other layers."""
    parts: list[Any] = list(decoder) if type(decoder) is nn.Sequential else []
    if [type(part) for part in parts] != _KINDS:
        return None
    tensors = [tensor for part in parts[::2] for tensor in (part.weight, part.bias)]
    if any(tensor is None for tensor in tensors):
        return None
    return Layers(*(tensor.detach() for tensor in tensors))


def force_maker(decoder: nn.Module, tuning: Tuning = TUNING) -> Callable[[Tensor], Vector]:
    """The argument ``force`` of `decoder_log_likelihood`.

    Args:
        decoder: with the layers that `applies` asks for.
        tuning: of the program.

    Returns:
        A function from images ``(N, D)`` to the force, ``z: (C N, L) -> (C N, L)``. On a GPU with
        Triton it is that of the program, otherwise that of torch in the decoder's own precision.
    """
    layers = layers_of(decoder)
    if layers is None:
        raise TypeError(
            f"decoder must be an nn.Sequential of Linear, Tanh, Linear, Tanh, Linear, with biases, "
            f"got {type(decoder).__name__}; other decoders take force_precision"
        )

    def make(images: Tensor) -> Vector:
        if images.is_cuda and is_available():
            return _Fused(layers, images, tuning)
        return lambda z: plain_force(layers, images, z)

    return make


def plain_force(layers: Layers, images: Tensor, z: Tensor) -> Tensor:
    """The force in plain operations and in the dtype of its arguments.

    Args:
        layers: of the decoder.
        images: ``(N, D)``.
        z: latents, ``(C N, L)``.
    """
    W1, b1, W2, b2, W3, b3 = layers
    h1 = torch.tanh(F.linear(z, W1, b1))
    h2 = torch.tanh(F.linear(h1, W2, b2))
    logits = F.linear(h2, W3, b3)
    slopes = images - logits.sigmoid().reshape(-1, *images.shape)
    g2 = slopes.reshape(logits.shape) @ W3 * (1 - h2.square())
    return g2 @ W2 * (1 - h1.square()) @ W1 - z


class _Fused:
    """The force by the program, with copies of weights and images as it needs them.

    Weights are padded with zeros: units that are added have the value zero, and pixels and latents
    that are added have no weight.
    """

    def __init__(
        self,
        layers: Layers,
        images: Tensor,
        tuning: Tuning = TUNING,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        W1, b1, W2, b2, W3, b3 = layers
        self.num, self.latents, self.tuning = len(images), W1.shape[1], tuning
        L, K = (max(16, 1 << (n - 1).bit_length()) for n in (self.latents, len(W2)))
        H, D = (-(-n // tuning.block) * tuning.block for n in (len(W1), len(W3)))
        matrices = (W1, H, L), (W2.T, H, K), (W3, D, K), (images, self.num, D)
        vectors = (b1, H), (b2, K), (b3, D)
        self.matrices = [_padded(W, (h, w)).to(dtype) for W, h, w in matrices]
        self.vectors = [_padded(b, (n,)).float() for b, n in vectors]
        self.sizes = L, H, K, D

    def __call__(self, z: Tensor) -> Tensor:
        """Forces at latents, ``(C N, L) -> (C N, L)``."""
        z, tuning = z.detach().contiguous(), self.tuning
        found, programs = torch.empty_like(z), -(-len(z) // tuning.rows)
        second = self.matrices[0].new_empty(programs * tuning.rows, self.sizes[2])
        program(_force, _hidden, _sigmoid)[(programs,)](
            z,
            found,
            second,
            *self.matrices,
            *self.vectors,
            len(z),
            self.num,
            self.latents,
            *self.sizes,
            tuning.rows,
            tuning.block,
            num_warps=tuning.warps,
            num_stages=tuning.stages,
        )
        return found


def _padded(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A copy with zeros at the ends of its axes."""
    found = values.new_zeros(shape)
    found[tuple(slice(n) for n in values.shape)] = values
    return found


def _force(  # type: ignore[no-untyped-def]
    latents,
    forces,
    second,
    W1,
    W2,
    W3,
    images,
    b1,
    b2,
    b3,
    rows,
    num,
    LATENTS: tl.constexpr,
    L: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The forces of some chains; on the device. W2 is transposed, ``(H, K)``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j, k, part = tl.arange(0, L)[None, :], tl.arange(0, K)[None, :], tl.arange(0, BLOCK)
    at, inside = row[:, None] * LATENTS + j, (row < rows)[:, None] & (j < LATENTS)
    z = tl.load(latents + at, inside, 0.0)
    low = z.to(W1.dtype.element_ty)
    total = tl.zeros([ROWS, K], tl.float32) + tl.load(b2 + k)
    for start in range(0, H, BLOCK):
        h = hidden(low, tl.load(W1 + (start + part)[:, None] * L + j), b1 + start + part)
        block = tl.load(W2 + (start + part)[:, None] * K + k)
        total = tl.dot(h.to(low.dtype), block, total)
    # To memory and back. The compiler keeps a matrix that was loaded in shared memory, but one that
    # was computed in registers; there are too few of them, and products would wait for each other.
    beside = second + row[:, None] * K + k
    tl.store(beside, (2 * sigmoid(2 * total) - 1).to(low.dtype))
    tl.debug_barrier()
    h2 = tl.load(beside)
    pixels = images + (row % num)[:, None] * D
    g = tl.zeros([ROWS, K], tl.float32)
    for start in range(0, D, BLOCK):
        block = tl.load(W3 + (start + part)[:, None] * K + k)
        logit = tl.dot(h2, tl.trans(block)) + tl.load(b3 + start + part)[None, :]
        x = tl.load(pixels + (start + part)[None, :]).to(tl.float32)
        g = tl.dot((x - sigmoid(logit)).to(low.dtype), block, g)
    units = h2.to(tl.float32)
    g2, force = (g * (1 - units * units)).to(low.dtype), -z
    for start in range(0, H, BLOCK):
        first = tl.load(W1 + (start + part)[:, None] * L + j)
        h = hidden(low, first, b1 + start + part)
        block = tl.load(W2 + (start + part)[:, None] * K + k)
        g1 = tl.dot(g2, tl.trans(block)) * (1 - h * h)
        force = tl.dot(g1.to(low.dtype), first, force)
    tl.store(forces + at, force, inside)


def _hidden(z, W, at):  # type: ignore[no-untyped-def]
    """A block of the first layer, ``(ROWS, BLOCK)``, of weights ``(BLOCK, L)``."""
    return 2 * sigmoid(2 * (tl.dot(z, tl.trans(W)) + tl.load(at)[None, :])) - 1


def _sigmoid(x):  # type: ignore[no-untyped-def]
    # The square of a reciprocal root takes fewer instructions than a division.
    root = tl.rsqrt(1 + tl.exp2(-1.4426950408889634 * x))
    return root * root
