"""Likelihoods that are computed in parts, and resumed."""

import hashlib

import pytest
import torch

from reproduction.autoencoders import annealing
from reproduction.autoencoders.mnist_networks import make_vae
from scorematching.evaluation import decoder_log_likelihood

SETTINGS = {"latent_dim": 2, "num_chains": 3, "num_steps": 6, "num_leapfrog": 2, "batch_size": 4}


def make_problem():
    model = make_vae(2, 5, (4,), torch.Generator().manual_seed(0))
    images = torch.bernoulli(torch.full((10, 5), 0.5), generator=torch.Generator().manual_seed(1))
    return model, images


def evaluate(model, images, folder, force=None):
    generator = torch.Generator().manual_seed(2)
    return annealing.annealed(model, images, SETTINGS, folder, generator, force), generator


def test_the_parts_are_those_of_one_call(tmp_path):
    model, images = make_problem()
    found, generator = evaluate(model, images, tmp_path)
    other, options = torch.Generator().manual_seed(2), {**SETTINGS}
    latent_dim = options.pop("latent_dim")
    whole = decoder_log_likelihood(model.decoder, images, latent_dim, generator=other, **options)
    assert torch.equal(found["log_likelihood"], whole.log_likelihood)
    assert torch.equal(found["standard_error"], whole.standard_error)
    assert torch.equal(found["effective_sample_size"], whole.effective_sample_size)
    assert torch.equal(generator.get_state(), other.get_state())


def test_an_interrupted_run_goes_on_after_the_last_part(tmp_path, monkeypatch):
    model, images = make_problem()
    expected, after = evaluate(model, images, tmp_path / "whole")
    parts, calls = annealing._evaluate, []

    def interrupted(model, part, *rest):
        calls.append(len(part))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return parts(model, part, *rest)

    monkeypatch.setattr(annealing, "_evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, images, tmp_path / "cut")
    found, generator = evaluate(model, images, tmp_path / "cut")
    assert calls == [4, 4, 4, 2]  # the first part is not computed again
    assert torch.equal(found["log_likelihood"], expected["log_likelihood"])
    assert torch.equal(generator.get_state(), after.get_state())
    evaluate(model, images, tmp_path / "cut")
    assert len(calls) == 4


def test_results_of_another_decoder_are_not_used(tmp_path):
    model, images = make_problem()
    first, _ = evaluate(model, images, tmp_path)
    with torch.no_grad():
        next(model.decoder.parameters()).mul_(3.0)
    second, _ = evaluate(model, images, tmp_path)
    assert not torch.equal(first["log_likelihood"], second["log_likelihood"])


def test_parts_with_other_forces_are_used(tmp_path):
    """They estimate the same, so results in float32 are not computed again in bfloat16."""
    model, images = make_problem()
    first, after = evaluate(model, images, tmp_path)
    second, generator = evaluate(model, images, tmp_path, "bf16")
    assert torch.equal(first["log_likelihood"], second["log_likelihood"])
    assert torch.equal(after.get_state(), generator.get_state())
    anew, generator = evaluate(model, images, tmp_path / "anew", "bf16")
    assert not torch.equal(first["log_likelihood"], anew["log_likelihood"])
    assert torch.equal(after.get_state(), generator.get_state())


def test_files_from_before_there_was_a_precision_are_read(tmp_path):
    """The digest holds the decoder, the images and these settings, nothing else."""
    model, images = make_problem()
    digest = hashlib.sha256(repr(sorted(SETTINGS.items())).encode())
    for tensor in (*model.decoder.state_dict().values(), images):
        digest.update(tensor.numpy().tobytes())
    evaluate(model, images, tmp_path, "bf16")
    stored = torch.load(tmp_path / annealing.FILE, weights_only=True)
    assert stored["belongs_to"] == digest.hexdigest()
