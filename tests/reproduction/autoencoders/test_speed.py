"""Times of iterations on faces are those of the steps that table-celeba takes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from benchmarks.harness.kernels import kind_of
from benchmarks.harness.training import bare_step
from reproduction.autoencoders import celeba
from reproduction.autoencoders.speed import EXPERIMENT, Config
from reproduction.autoencoders.training import loss_for, optimizer_for
from reproduction.experiment import Job
from reproduction.run import Request, reproduce
from scorematching.training import LossModule


@pytest.mark.usefixtures("same_threads")
def test_a_rehearsal_measures_every_model(tmp_path: Path) -> None:
    only = ("VAE/ELBO tf32 captured", "VAE/SSM bf16 eager", "WAE/SSM tf32 eager")
    runs = reproduce(EXPERIMENT, Request(only=only, smoke=True, out=tmp_path, device="cpu"))
    assert len(runs) == 3
    for each in runs:
        assert each.metrics["ms"] > 0
        assert each.metrics["kernels"] == {} and each.metrics["between kernels"] is None


def test_rows_have_the_settings_of_the_table() -> None:
    """But for the precision that their names say."""
    for name in EXPERIMENT.variants:
        row, products, executor = name.split(" ")
        config, usual = EXPERIMENT.settings(name, {}), celeba.EXPERIMENT.settings(row, {})
        assert config.executor == executor
        usual = replace(usual, precision="bf16" if products == "bf16" else "float32")
        assert all(getattr(config, f.name) == getattr(usual, f.name) for f in fields(usual))


def test_a_timed_step_trains_all_parts(tmp_path: Path) -> None:
    sizes = {"size": 16, "width": 2, "latent_dim": 3, "batch_size": 4}
    config = replace(Config(precision="float32"), **sizes)  # type: ignore[arg-type]
    model = celeba.make_model(config, Job("VAE/SSM", 0, torch.device("cpu"), tmp_path))
    before = [p.detach().clone() for p in model.parameters()]
    losses = LossModule(model, loss_for(config), torch.Generator().manual_seed(0), touch=False)
    optimizer = optimizer_for(config, model)(list(model.parameters()), lr=1e-3)
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    bare_step(losses, optimizer, "eager", x)()
    assert all((p != q).any() for p, q in zip(model.parameters(), before))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nchw_tilesize", "convolutions"),
        ("cudnn::engines_precompiled::nchwToNhwcKernel", "convolutions"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", "matrix products"),
        ("triton_poi_fused_convolution_relu_0", "elementwise"),
    ],
)
def test_kinds_of_kernels(name: str, kind: str) -> None:
    assert kind_of(name) == kind
