"""Complex intermediates: Fourier transforms, phases, pairs of real numbers."""

from __future__ import annotations

from typing import Any

import torch

from tests.derivatives.ways.base import Way, constants


def weights(p: Any, *shape: int) -> Any:
    """Complex numbers from two parameters."""
    return torch.complex(p(*shape), p(*shape, k=1))


def phase(z: Any, p: Any) -> Any:
    """Points on the unit circle, complex."""
    return torch.exp(1j * (z * p(3)))


def pairs(z: Any, p: Any) -> Any:
    """Pairs of coordinates as complex numbers, ``(N, 4) -> (N, 2)``."""
    return torch.view_as_complex(z.reshape(-1, 2, 2)) * weights(p, 2)


def short_time(z: Any, p: Any) -> Any:
    window = torch.linspace(0.5, 1.0, 4, dtype=torch.float64)
    return torch.stft(z, 4, 2, window=window, return_complex=True).real * p(3, 1)


fft = torch.fft

COMPLEX = [
    Way("rfft", lambda z, p: fft.irfft(fft.rfft(z) * weights(p, 2), n=3)),
    Way("fft", lambda z, p: fft.ifft(fft.fft(z) * weights(p, 3)).real),
    Way("fft2", lambda z, p: fft.ifft2(fft.fft2(z) * weights(p, 2, 3)).real, event=(2, 3)),
    Way(
        "rfft2",
        lambda z, p: fft.irfft2(fft.rfft2(z) * weights(p, 2, 2), s=(2, 3)),
        event=(2, 3),
    ),
    Way(
        "fftn",
        lambda z, p: fft.ifftn(fft.fftn(z, dim=(1, 2)) * weights(p, 2, 3), dim=(1, 2)).imag,
        event=(2, 3),
    ),
    Way(
        "rfftn",
        lambda z, p: fft.irfftn(fft.rfftn(z, dim=(1, 2)) * weights(p, 2, 2), s=(2, 3), dim=(1, 2)),
        event=(2, 3),
    ),
    Way("hfft", lambda z, p: fft.hfft(fft.ihfft(z) * p(2), n=3)),
    Way("fftshift", lambda z, p: fft.fftshift(z * p(3), dim=1)),
    Way("ifftshift", lambda z, p: fft.ifftshift(z, dim=1) * p(3)),
    Way("stft", short_time, event=(4,)),
    Way("phase", lambda z, p: torch.view_as_real(phase(z, p))),
    Way("imag", lambda z, p: phase(z, p).imag + phase(z, p).real.square()),
    Way("conj", lambda z, p: (phase(z, p).conj() * weights(p, 3)).real),
    Way("conj_physical", lambda z, p: (torch.conj_physical(phase(z, p)) * weights(p, 3)).real),
    Way("resolve_conj", lambda z, p: (phase(z, p).conj().resolve_conj() * weights(p, 3)).real),
    Way("resolve_neg", lambda z, p: phase(z, p).conj().imag.resolve_neg() * p(3), traced=None),
    Way("conjugate transpose", lambda z, p: (phase(z, p).mH.T * weights(p, 3)).real),
    Way("view_as_complex", lambda z, p: torch.view_as_real(pairs(z, p)), event=(4,)),
    Way("complex product", lambda z, p: (pairs(z, p) * phase(z[:, :3], p)[:, :2]).real, event=(4,)),
    Way("complex square", lambda z, p: pairs(z, p).square().imag, event=(4,)),
    Way("complex modulus", lambda z, p: (3 + pairs(z, p)).abs(), event=(4,), traced=None),
    Way("complex angle", lambda z, p: (3 + pairs(z, p)).angle(), event=(4,), traced=None),
    Way("complex logarithm", lambda z, p: torch.log(9 + pairs(z, p)).imag, event=(4,)),
    Way(
        "torch.complex",
        lambda z, p: torch.complex(z, torch.sin(z * p(3))).square().real,
        traced=None,
    ),
    Way("torch.polar", lambda z, p: torch.polar(z.exp(), z * p(3)).imag, traced=None),
    Way("complex matmul", lambda z, p: (phase(z, p) @ weights(p, 3, 2)).imag),
    Way(
        "spectral convolution",
        lambda z, p: torch.tanh(fft.irfft(fft.rfft(z @ p(4, 4)) * weights(p, 3), n=4)),
        event=(4,),
    ),
    Way("cosine transform", lambda z, p: fft.fft(torch.cat([z, z.flip(1)], 1)).real * constants(6)),
]
