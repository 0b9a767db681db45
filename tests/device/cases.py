"""What users do on a GPU, each a function of the device.

A case returns what must be the same on every device: tensors on the device of the points, and
numbers or arrays of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching import closed_form, evaluation, inference, kernels, samplers
from scorematching.evaluation import Fixed
from scorematching.training import TrainConfig, score_first, train

Case = Callable[[torch.device], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Add a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def noise(device: torch.device, seed: int = 0) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def points(device: torch.device, num: int = 40, dim: int = 3) -> Tensor:
    """Correlated normal points in double precision."""
    x = torch.randn(num, dim, dtype=torch.float64, generator=noise(device, 1), device=device)
    return x @ (torch.eye(dim, dtype=x.dtype, device=device) + 0.3)


def network(device: torch.device, dim: int = 3) -> nn.Module:
    model = sm.models.MLPDensity(dim, hidden=(8, 8), generator=torch.Generator().manual_seed(2))
    return model.double().to(device)


def score_network(device: torch.device, context_dim: int = 0) -> nn.Module:
    g = torch.Generator().manual_seed(2)
    model = sm.models.ScoreNetwork(3, hidden=(8,), context_dim=context_dim, generator=g)
    return model.double().to(device)


def normal(x: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


OBJECTIVES: dict[str, sm.Objective] = {
    "exact": sm.ScoreMatching(),
    "sliced": sm.SlicedScoreMatching(num_projections=2),
    "sphere": sm.SlicedScoreMatchingVR(sm.Sphere(orthogonal=True, balanced=True), 2),
    "gaussian": sm.SlicedScoreMatchingVR(sm.Gaussian(), 3, beta="optimal"),
    "split": sm.SlicedScoreMatchingVR(sm.SplitRademacher(), 1),
    "denoising": sm.DenoisingScoreMatching(0.3, control_variate=True),
    "ladder": sm.DenoisingScoreMatching(sm.NoiseLadder((1.0, 0.3))),
    "differences": sm.FiniteDifferenceSSM(eps=0.01),
    "smoothing": sm.LocalCurvatureSmoothing(sigma=0.1),
    "propagation": sm.CurvaturePropagation(),
    "backprop": sm.ApproximateBackprop(),
    "contrastive": sm.NoiseContrastive(eps=0.5),
    "box": sm.SlicedScoreMatchingVR(domain=sm.domains.Box(-9.0, 9.0)),
}


def _losses(name: str) -> Case:
    def losses(device: torch.device) -> Any:
        model = score_network(device, context_dim=1) if name == "ladder" else network(device)
        field = sm.VectorField(model) if name == "ladder" else model
        values = OBJECTIVES[name](field, points(device), generator=noise(device))
        values.mean().backward()
        return values, [p.grad for p in model.parameters()]

    return losses


CASES |= {f"losses_{name}": _losses(name) for name in OBJECTIVES}


class Energies(nn.Module):
    """Layers that people use, summed to a log-density of images ``(N, 1, 8, 8)``."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 4)
        self.norm = nn.GroupNorm(2, 4)
        self.mix = nn.TransformerEncoderLayer(4, 2, 8, 0.0, nn.functional.gelu, batch_first=True)
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        patches = nn.functional.unfold(x, 3, padding=1)  # (N, 9, 64)
        h = nn.functional.silu(self.norm(self.first(patches.mT).mT))
        h = self.mix(h[..., ::4].mT).logsumexp(1)
        return self.last(h).squeeze(1) - x.flatten(1).square().sum(1)


@case
def layers(device: torch.device) -> Any:
    x = torch.randn(4, 1, 8, 8, dtype=torch.float64, generator=noise(device), device=device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Energies().double().to(device)
    values = sm.SlicedScoreMatchingVR()(model, x, generator=noise(device))
    values.mean().backward()
    return values, [p.grad for p in model.parameters()], sm.ScoreMatching()(model, x)


@case
def mixtures(device: torch.device) -> Any:
    """Operations with numbers, indices, decompositions and masks."""
    centres = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3).to(device)
    scales = 1.5 * torch.eye(3, dtype=torch.float64, device=device)

    def log_density(x: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(scales @ scales.mT)
        y = torch.linalg.solve_triangular(factor, x.mT, upper=False).mT
        d = torch.where(x[:, :1] > 40, x, y)[:, None, :] - centres
        far = d.square().sum(2).masked_fill(d[..., 0] > 40, 9.0)
        return torch.logsumexp(-0.5 * far, 1) + torch.xlogy(2.0, x.square().sum(1) + 1)

    return sm.ScoreMatching()(log_density, points(device))


@case
def reports(device: torch.device) -> Any:
    model, x = network(device), points(device)
    sm.explain(model, x, sm.SlicedScoreMatchingVR(), show=False)
    assert sm.check_model(model, x, sm.SlicedScoreMatchingVR(), show=False)
    objective = sm.SlicedScoreMatchingVR()
    sm.variance_report(model, x, objective, (1, 2), 4, generator=noise(device), show=False)


@case
def training(device: torch.device) -> Any:
    """A run that is interrupted goes on to the same weights as one that is not."""
    x, found = points(device, 64), []
    with TemporaryDirectory() as folder:
        for steps in ((12,), (6, 12)):
            for last in steps:
                model = network(device)
                config = TrainConfig(
                    steps=last, batch_size=16, checkpoint_every=6, validate_every=3, ema_decay=0.9
                )
                run = Path(folder) / str(len(steps))
                train(
                    model,
                    sm.SlicedScoreMatchingVR(),
                    x,
                    config,
                    validation=x[:8],
                    generator=noise(device),
                    folder=run,
                    resume=True,
                    progress=False,
                )
            found.append([p.detach() for p in model.parameters()])
    return found


@case
def auto_encoders(device: torch.device) -> Any:
    images = (torch.rand(6, 9, generator=noise(device), device=device) < 0.5).double()
    pixels = sm.models.BernoulliPixels()
    g = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder, encoder = nn.Linear(2, 9), nn.Linear(9, 4)
        codes = nn.Linear(9, 2)
    vae = sm.models.VAE(encoder, decoder, pixels, 2).double().to(device)
    implicit = sm.models.ImplicitVAE(
        sm.models.ConditionalMLP(2, 9, (8,), generator=g),
        decoder,
        pixels,
        2,
        sm.models.ConditionalMLP(2, 9, (8,), generator=g),
    )
    score = sm.models.ScoreNetwork(2, (8,), generator=g)
    wae = sm.models.WAE(codes, decoder, pixels, 2, score).double().to(device)
    loss = score_first(sm.SlicedScoreMatchingVR())
    for model in (implicit.double().to(device), wae):
        config = TrainConfig(steps=3, batch_size=3)
        train(model, loss, images, config, generator=noise(device), progress=False)
    return vae.loss(images, generator=noise(device)), list(implicit.parameters())


@case
def chains(device: torch.device) -> Any:
    x = points(device)
    target = samplers.target_of(normal)
    state, found = samplers.start(target, x), []
    for step in (samplers.mala.step, samplers.hmc.step):
        state, info = step(state, target, 0.3, generator=noise(device))
        found.append((state.x, info.acceptance))
    adapted = samplers.begin_adaptation(0.3)
    for _ in range(3):
        state, info = samplers.mala.step(state, target, adapted.step_size, noise(device))
        adapted = samplers.adapt(adapted, info.acceptance)
    moved, _ = samplers.langevin.step(x, lambda z: -z, 0.1, generator=noise(device))
    levels = samplers.noise_levels(1.0, 0.1, 3)
    drawn, _ = samplers.anneal(lambda z, s: -z, x, levels, 0.01, 3, noise(device))
    return found, state.x, moved, drawn


@case
def kernel_estimates(device: torch.device) -> Any:
    x = points(device)
    stein, spectral = kernels.fit_stein(x), kernels.fit_spectral(x)
    family = kernels.fit_kernel_exp_family(x)
    few = kernels.fit_kernel_exp_family(x, inducing=x[:10])
    nu = kernels.fit_nu_method(x)
    fits = (stein.at_samples(), spectral.at_samples(), spectral.score(x[:5]))
    return *fits, family.score(x[:5]), few.score(x[:5]), nu.score(x[:5])


@case
def likelihoods(device: torch.device) -> Any:
    x, start = points(device, 20), sm.distributions.Gaussian(torch.zeros(3), torch.eye(3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 9)).double().to(device)
    start = sm.distributions.Gaussian(x.new_zeros(3), torch.eye(3).to(x))
    log_z = evaluation.ais_log_z(normal, start, 16, 10, generator=noise(device))
    simple = evaluation.importance_log_z(normal, start, 500, 100, generator=noise(device))
    images = (torch.rand(4, 9, generator=noise(device), device=device) < 0.5).double()
    annealed = evaluation.decoder_log_likelihood(
        decoder, images, 2, num_chains=4, num_steps=8, generator=noise(device)
    )
    bracket = evaluation.decoder_bracket(
        decoder, 3, 2, images, num_chains=4, num_steps=8, generator=noise(device)
    )
    modes = evaluation.importance_log_likelihood(
        decoder, images, lambda x: x[None, :, :2] - 0.5, num_samples=50, generator=noise(device)
    )
    held_out = evaluation.log_likelihood(normal, x, simple)
    single = log_z.log_z, simple.log_z, held_out.mean, bracket.gap.mean
    return single, annealed.log_likelihood, modes.log_likelihood


@case
def tests_of_fit(device: torch.device) -> Any:
    x = points(device, 30)
    ksd = evaluation.kernel_stein_discrepancy(normal, x)
    test = evaluation.ksd_test(Fixed(normal), x, num_bootstrap=20, generator=noise(device))
    thin = evaluation.stein_thin(x, lambda z: -z, 5)
    controlled = evaluation.control_variate(lambda z: z.square().sum(1), x, lambda z: -z)
    loss = evaluation.score_matching_loss(network(device), x)
    true = evaluation.fisher_divergence(network(device), lambda z: -z, x)
    sliced = evaluation.sliced_fisher_divergence(
        network(device), lambda z: -z, x, generator=noise(device)
    )
    compared = evaluation.compare(normal, network(device), x)
    distances = evaluation.kernel_distance(x, x + 1), evaluation.frechet_distance(x, x + 1)
    numbers = ksd, test.p_value, controlled.controlled.mean, loss.mean, true.mean, sliced.mean
    return numbers, thin, compared.difference.mean, distances[0].mean, distances[1]


@case
def fits(device: torch.device) -> Any:
    """Estimates of parameters are numbers of the CPU; features stay where they are."""
    x = points(device)
    gaussian = inference.models.Gaussian(3).to(device)
    found = inference.fit(gaussian, x)
    robust = inference.fit_robust(gaussian, x, 0.1)
    features = closed_form.solve_linear(
        lambda z: torch.cat([z, -z.square()], 1), None, x, sm.ScoreMatching(), 0.0
    )
    estimates = [*found.params.values(), *robust.params.values(), *found.cov_params().flat]
    return [float(number) for number in estimates], features


@case
def models(device: torch.device) -> Any:
    x = points(device)
    g = torch.Generator().manual_seed(0)
    flow = sm.models.NICE(3, (8,), 2, generator=g).double().to(device)
    dkef = sm.models.DKEF(3, 5, 2, 4, generator=g).double().to(device)
    distributions = [
        sm.distributions.Banana(3),
        sm.distributions.Funnel(3),
        sm.distributions.Ring(dim=3),
        sm.distributions.StudentT(3, 4.0),
    ]
    values = [d.to(device, torch.float64).log_density(x) for d in distributions]
    losses = sm.SlicedScoreMatchingVR()(flow, x, generator=noise(device))
    return losses, flow.sample(4, noise(device)), dkef(x), sm.ScoreMatching()(dkef, x), values


@case
def saved_models(device: torch.device) -> Any:
    model = network(device)
    with TemporaryDirectory() as folder:
        sm.save(model, Path(folder) / "model")
        loaded = sm.load(Path(folder) / "model", device=device)
    return loaded(points(device)), model(points(device))


@case
def entropies(device: torch.device) -> Any:
    x = points(device).requires_grad_()
    sm.entropy_surrogate(x, score_network(device)(x).detach()).mean().backward()
    return x.grad


@case
def estimators(device: torch.device) -> Any:
    """Arrays of the CPU in, arrays out, with the work on the device."""
    x = points(torch.device("cpu"), 60).numpy()
    few: dict[str, Any] = {"max_steps": 10, "random_state": 0, "device": str(device)}
    where = {"device": str(device)}
    fitted = [
        sm.SteinScoreEstimator(**where).fit(x),
        sm.SpectralScoreEstimator(**where).fit(x),
        sm.KernelExpFamilyEstimator(**where).fit(x),
        sm.SlicedScoreEstimator((8,), **few).fit(x),
        sm.DensityEstimator("mlp", hidden=(8,), **few).fit(x),
    ]
    return [e.grad_log_density(x[:4]).tolist() for e in fitted]


def leaves_a_constant_behind(device: torch.device) -> Any:
    return points(device) + torch.ones(3)


def returns_to_the_cpu(device: torch.device) -> Any:
    return points(device).cpu()


def draws_on_the_cpu(device: torch.device) -> Any:
    return torch.randn(3, generator=noise(torch.device("cpu")), device=device)


def has_other_digits(device: torch.device) -> Any:
    return points(device) * (1 if device.type == "cpu" else 1.001)


PLANTED: list[Case] = [
    leaves_a_constant_behind,
    returns_to_the_cpu,
    draws_on_the_cpu,
    has_other_digits,
]
"""What must be found to be wrong."""
