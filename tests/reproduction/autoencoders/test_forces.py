"""Forces of the posterior of latents: in plain operations, in Triton's interpreter, on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reproduction.autoencoders import forces
from reproduction.autoencoders.forces import (
    Layers,
    Tuning,
    applies,
    force_maker,
    force_options,
    layers_of,
    plain_force,
)
from reproduction.autoencoders.mnist_networks import make_decoder, make_vae
from scorematching._triton import is_available
from scorematching.distributions.observations import BernoulliPixels, NormalPixels
from scorematching.evaluation import decoder_bracket, decoder_log_likelihood
from scorematching.evaluation.log_z import decoders
from tests.tolerances import ROUTES

F64 = torch.float64
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CASES: dict[str, tuple[int, tuple[int, int], int, int, int, Tuning]] = {
    "8 latents": (8, (32, 32), 50, 7, 13, Tuning()),
    "32 latents": (32, (32, 32), 784, 5, 3, Tuning()),
    "widths that are no powers of two": (3, (24, 40), 50, 9, 5, Tuning(16, 32)),
    "wide": (8, (256, 256), 784, 11, 6, Tuning(32, 128)),
    "one chain": (17, (16, 16), 1, 1, 1, Tuning(128, 16)),
}
"""Latents, widths, pixels, images, chains for each, and the division of the work."""


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def make_problem(
    latents: int, widths: tuple[int, int], dim: int, num: int, chains: int
) -> tuple[nn.Module, Tensor, Tensor]:
    """A decoder with weights of some size, images and latents; in float32."""
    noise = seeded(latents + dim)
    decoder = make_decoder(latents, dim, widths, noise)
    with torch.no_grad():
        for p in decoder.parameters():
            p.mul_(2.0)
    images = torch.bernoulli(torch.full((num, dim), 0.3), generator=noise)
    return decoder, images, torch.randn(num * chains, latents, generator=noise)


def exact_force(decoder: nn.Module, images: Tensor, z: Tensor) -> Tensor:
    """In plain operations and double precision."""
    layers = layers_of(decoder)
    assert layers is not None
    return plain_force(Layers(*(w.double() for w in layers)), images.double(), z.double())


def test_plain_operations_are_the_score_of_the_posterior() -> None:
    decoder, images, z = make_problem(3, (6, 5), 7, 4, 2)
    posterior = decoders._posterior(decoder.double(), None, images.double())
    leaf = z.double().requires_grad_()
    (score,) = torch.autograd.grad(posterior(leaf).sum(), leaf)
    found = exact_force(decoder, images, z)
    torch.testing.assert_close(found, score, rtol=0, atol=ROUTES)
    assert torch.equal(force_maker(decoder)(images.double())(z.double()), found)


# The program in Triton's interpreter, which must be chosen before Triton is imported.


def compare_in_interpreter(names: list[str]) -> None:
    """Run the program on a CPU, on numbers in float32: the interpreter cannot multiply others."""
    for name in names:
        *sizes, tuning = CASES[name]
        decoder, images, z = make_problem(*sizes)  # type: ignore[arg-type]
        layers = layers_of(decoder)
        assert layers is not None
        found = forces._Fused(layers, images, tuning, torch.float32)(z)
        expected = exact_force(decoder, images, z)
        assert found.shape == z.shape and found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=3e-5, msg=name)


@pytest.mark.skipif(not is_available(), reason="needs Triton, which comes with torch for GPUs")
def test_the_program_in_the_interpreter() -> None:
    code = f"from {__name__} import *; compare_in_interpreter({list(CASES)!r})"
    root = Path(forces.__file__).parents[2]
    paths = os.pathsep.join([str(root), *(p for p in sys.path if p)])
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, env=env, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# Where the program applies.


def test_there_is_no_program_on_a_cpu() -> None:
    """Results there are those of ``force_precision``."""
    model, images = make_vae(2, 5, (4, 4), seeded()), torch.ones(3, 5)
    assert not applies(model.decoder, model.observation, images)
    for precision in (None, "bf16"):
        assert force_options(model, images, precision) == {"force_precision": precision}


def test_decoders_with_other_layers_are_not_taken() -> None:
    linear, tanh = nn.Linear(3, 3), nn.Tanh()
    assert layers_of(nn.Sequential(linear, tanh, linear, tanh, linear)) is not None
    bare = nn.Linear(3, 3, bias=False)
    others: list[nn.Module] = [
        nn.Sequential(linear, nn.Sigmoid(), linear, tanh, linear),
        nn.Sequential(linear, tanh, linear),
        nn.Sequential(linear, tanh, linear, tanh, bare),
        nn.ModuleList([linear, tanh, linear, tanh, linear]),
        linear,
    ]
    for other in others:
        assert layers_of(other) is None
        with pytest.raises(TypeError, match=r"decoder must be an .* of Linear, Tanh"):
            force_maker(other)


def cuda_like(dtype: torch.dtype = torch.float32) -> Any:
    """What `applies` asks of a tensor on a GPU."""
    return SimpleNamespace(is_cuda=True, dtype=dtype, device=torch.device("cuda"))


def test_what_the_program_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forces, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    decoder = make_decoder(8, 784, (256, 256), None)
    assert applies(decoder, BernoulliPixels(), cuda_like())
    assert applies(decoder, None, cuda_like())
    assert not applies(decoder, NormalPixels(), cuda_like())
    assert not applies(decoder, None, cuda_like(F64))
    assert not applies(make_decoder(8, 784, (256, 257), None), None, cuda_like())
    assert not applies(make_decoder(33, 784, (256, 256), None), None, cuda_like())
    assert not applies(lambda z: z, None, cuda_like())
    model = make_vae(8, 784, (256, 256))
    assert list(force_options(model, cuda_like(), "bf16")) == ["force"]
    assert force_options(model, cuda_like(), None) == {"force_precision": None}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not applies(decoder, None, cuda_like())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(forces, "is_available", lambda: False)
    assert not applies(decoder, None, cuda_like())
    monkeypatch.setattr(forces, "is_available", lambda: True)
    assert not applies(decoder.double(), None, cuda_like())


# On a GPU.


def on_gpu(latents: int, num: int, chains: int) -> tuple[nn.Module, Tensor, Tensor]:
    decoder, *tensors = make_problem(latents, (256, 256), 784, num, chains)
    images, z = (tensor.cuda() for tensor in tensors)
    assert is_available(), "Triton comes with torch for GPUs"
    return decoder.cuda(), images, z


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("latents", [8, 32])
@pytest.mark.parametrize(("num", "chains"), [(1000, 20), (37, 7)])
def test_the_program_on_a_gpu(latents: int, num: int, chains: int) -> None:
    """To the rounding of numbers in bfloat16; with the images of others it is far off."""
    decoder, images, z = on_gpu(latents, num, chains)
    force = force_maker(decoder)(images)
    found, expected = force(z).double() + z, exact_force(decoder, images, z) + z
    scale = expected.square().mean().sqrt()
    assert (found - expected).square().mean().sqrt() < 0.01 * scale
    assert (found - expected).abs().max() < 0.1 * scale
    assert torch.equal(force(z), force(z))  # deterministic
    other = exact_force(decoder, images.roll(1, 0), z) + z
    assert (other - expected).square().mean().sqrt() > 0.1 * scale


@pytest.mark.gpu
@GPU
def test_the_program_can_be_recorded() -> None:
    decoder, images, z = on_gpu(8, 37, 7)
    force, static = force_maker(decoder)(images), torch.zeros_like(z)
    plain, graph = force(z), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = force(static)
    static.copy_(z)
    graph.replay()
    assert torch.equal(recorded, plain)


@pytest.mark.gpu
@GPU
def test_likelihoods_are_the_same() -> None:
    """To a few standard errors, with the same acceptance; so do those of the bracket."""
    model = make_vae(8, 784, (256, 256), seeded()).cuda()
    with torch.no_grad():
        for p in model.decoder.parameters():
            p.mul_(2.0)
    x = model.sample(64, seeded(1, "cuda"), observe=True)
    options = force_options(model, x, "bf16")
    assert list(options) == ["force"]
    a, b = (
        decoder_log_likelihood(
            model.decoder, x, 8, num_steps=100, batch_size=40, generator=seeded(3, "cuda"), **chosen
        )
        for chosen in (options, force_options(model, x, None))
    )
    variance = a.standard_error.square() + b.standard_error.square()
    scaled = (a.log_likelihood - b.log_likelihood) / variance.sqrt()
    assert scaled.abs().max() < 7 and abs(scaled.mean()) < 1
    assert a.acceptance == pytest.approx(b.acceptance, abs=0.03)
    bracket = decoder_bracket(model.decoder, 50, 8, x, generator=seeded(4, "cuda"), **options)
    assert abs(bracket.gap.mean) < 5 * bracket.gap.standard_error + 0.1
