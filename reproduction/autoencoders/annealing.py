"""Likelihoods of test images, some at a time; those that are done outlast an interruption."""

from __future__ import annotations

import hashlib
import io
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproduction.autoencoders.forces import force_options
from scorematching._files import write_atomically
from scorematching.evaluation import decoder_log_likelihood

FILE = "annealing.pt"
"""In the folder of a run: results so far, the state of the generator, and what they belong to."""

Parts = dict[str, Any]


def annealed(
    model: Any,
    images: Tensor,
    settings: dict[str, Any],
    folder: Path,
    generator: torch.Generator,
    force_precision: str | None = None,
) -> Parts:
    """`decoder_log_likelihood` of images, ``(N, D)``, resumed after the last part that is done.

    Args:
        model: an auto-encoder.
        images: binary, on the model's device.
        settings: ``batch_size``, of the parts, and other numbers for `decoder_log_likelihood`.
        folder: of the run.
        generator: source of randomness, left as if all parts had been computed now.
        force_precision: as for `decoder_log_likelihood`; "bf16" is by a program of its own where
            `forces.applies`.

    Returns:
        For each image, ``(N,)``: ``log_likelihood``, ``standard_error``, ``effective_sample_size``;
        for each part ``acceptance`` and ``seconds``.
    """
    # The precision of forces is not in the digest: with any forces the weights have the same mean,
    # so that parts computed with forces in float32 and in bfloat16, by whatever program, belong
    # together.
    size, belongs_to = settings["batch_size"], _digest(model, images, settings)
    done = _read(folder / FILE, belongs_to) or {"belongs_to": belongs_to, "parts": []}
    if done["parts"]:
        generator.set_state(done["generator"])
    for part in images.split(size)[len(done["parts"]) :]:
        done["parts"].append(_evaluate(model, part, settings, generator, force_precision))
        done["generator"] = generator.get_state()
        _write(folder / FILE, done)
    return {name: torch.cat([part[name] for part in done["parts"]]) for name in done["parts"][0]}


def _evaluate(
    model: Any,
    images: Tensor,
    settings: dict[str, Any],
    generator: torch.Generator,
    force_precision: str | None,
) -> dict[str, Tensor]:
    began = time.perf_counter()
    numbers = {**settings, **force_options(model, images, force_precision)}
    latent_dim = numbers.pop("latent_dim")
    found = decoder_log_likelihood(
        model.decoder, images, latent_dim, model.observation, generator=generator, **numbers
    )
    acceptance = torch.tensor([found.acceptance])
    return {
        "log_likelihood": found.log_likelihood.cpu(),
        "standard_error": found.standard_error.cpu(),
        "effective_sample_size": found.effective_sample_size.cpu(),
        "acceptance": acceptance,
        "seconds": torch.tensor([time.perf_counter() - began]),
    }


def _digest(model: Any, images: Tensor, settings: dict[str, Any]) -> str:
    """What identifies results: the decoder's weights, the images and the settings."""
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    for tensor in (*model.decoder.state_dict().values(), images):
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path, belongs_to: str) -> Parts | None:
    """Earlier results, if they are of the same decoder, images and settings."""
    if not path.exists():
        return None
    found: Parts = torch.load(path, weights_only=True)
    return found if found["belongs_to"] == belongs_to else None


def _write(path: Path, done: Parts) -> None:
    buffer = io.BytesIO()
    torch.save(done, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
