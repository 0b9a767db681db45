"""Deep kernel exponential families on three UCI tables, trained by six objectives.

The seed determines the noise of dequantisation and smoothing, the initial weights and inducing
points, the order of batches and the noise of the objective. The rows for training, validation and
test are the same for all seeds. For one seed all objectives have the same data and the same initial
weights, so that their differences can be taken seed by seed.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from sklearn.mixture import GaussianMixture as MixtureFit
from torch import Tensor

from reproduction.dkef.fitting import DeepKernelConfig, DeepKernelFit, fit_dkef
from reproduction.dkef.uci_report import draw_figures, write_notes
from reproduction.experiment import Experiment, Job, Metrics
from reproduction.files import read_json
from reproduction.objectives import METHODS, objective
from reproduction.workers import full_precision
from scorematching._files import write_atomically
from scorematching.datasets import Dequantise, Split, Whiten, drop_correlated, load, paper_split
from scorematching.distributions import Distribution, Gaussian, GaussianMixture
from scorematching.errors import DivergedError, FolderInUseError
from scorematching.evaluation import importance_log_z, log_likelihood, score_matching_loss
from scorematching.models import DKEF
from scorematching.training.lock import locked

TABLES = ("parkinsons", "redwine", "whitewine")

OWN: dict[str, dict[str, Any]] = {
    "CP": {"distances": "differences"},
    # Cut short (ours): its loss falls by orders of magnitude while the SM loss explodes.
    "approximate BP": {"distances": "differences", "steps": 500},
}
"""Settings in which the layerwise baselines differ."""

SIGMAS = (
    *(0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.14, 0.16, 0.20),
    *(0.24, 0.28, 0.32, 0.40, 0.48, 0.56, 0.64, 1.28),
)
"""The paper's grid for denoising score matching, Appendix C.1."""

DATA, WEIGHTS, TRAINING, LOG_Z = range(4)  # independent random streams


@dataclass(frozen=True)
class Config:
    """Settings. Defaults are the paper's, with the section, or the released program's."""

    dataset: str = "redwine"  # 5.1
    objective: str = "SM"  # 5.1
    split_seed: int = 2019  # release; of the split into training, validation and test rows
    noise: float = 0.05  # C.1; standard deviation, added once to all points
    whiten_on: str = "train"  # release: "all", with the test points
    num_inducing: int = 200  # C.1
    num_kernels: int = 3  # C.1
    width: int = 30  # C.1
    bandwidth_as_released: bool = False  # C.1; True divides by 2 sigma in place of 2 sigma^2
    # The layerwise baselines depend on how the kernel is written; theirs is "differences".
    distances: str = "products"
    epochs: int = 500  # release; at most
    steps: int | None = None  # in place of epochs; 500 for approximate BP (ours)
    batch_size: int = 200  # C.1; half for alpha, half for the loss
    lr: float = 1e-2  # C.1
    max_norm: float | None = 100.0  # release
    patience: int | None = 200  # 5.1; steps
    validate_every: int = 10  # release: 1
    balanced: bool = False  # 5.1; True takes directions that are orthogonal across the batch
    select: str = "objective"  # 5.1; "score matching" selects by the exact loss
    sigma: str = "grid"  # C.1, of DSM; or a number
    grid_seeds: int = 2  # C.1
    grid_steps: int | None = None  # at most, for each model of the grid; None is as elsewhere
    log_z_samples: int = 1_000_000  # C.1
    proposal: str = "mixture"  # C.1: "normal"; see `make_proposal`
    precision: str = "float32"  # "float64" is about 1.6 times slower
    toy_points: int = 1000  # of distributions that are drawn


@full_precision()
def run(config: Config, job: Job) -> Metrics:
    """Train one model and evaluate it on the test points.

    Without tf32, whose rounding the linear equations for the weights would magnify.
    """
    x = prepare(config, job)
    sigma = choose_sigma(config, job) if config.objective == "DSM" else None
    model, fit = train_model(config, job, x, sigma, job.folder / "training")
    model.distances = "products"  # the same function, in a fraction of the memory
    test, valid = score_matching_loss(model, x.test), score_matching_loss(model, x.valid)
    training = fit.training if fit else None
    return {
        "test_sm": _finite(test.mean),
        "test_sm_se": _finite(test.standard_error),
        **_likelihood(config, job, model, x),
        "valid_sm": _finite(valid.mean),
        "valid_sm_se": _finite(valid.standard_error),
        "steps": training.steps if training else None,
        "best_step": training.best_step if training else None,
        "training_seconds": round(training.seconds, 1) if training else None,
        "lam": model.lam.item(),
        "trained_lam": fit.trained_lam if fit else None,
        "sigma": sigma,
        "diverged": fit is None,
    }


def prepare(config: Config, job: Job) -> Split:
    """Preprocessed training, validation and test points.

    Dequantisation (wine) and the choice of columns (Parkinsons) are fitted to the whole table,
    whitening to the training rows, or to all rows with ``whiten_on="all"``.
    """
    generator = job.generator(DATA, "cpu")
    rows = torch.Generator().manual_seed(config.split_seed)
    table = _table(config, job, generator)
    parts = paper_split(table, rows)
    if config.whiten_on not in ("train", "all"):
        raise ValueError(
            f'whiten_on must be "train" or "all", got {config.whiten_on!r}; "all" is as released'
        )
    whiten = Whiten.fit(parts.train if config.whiten_on == "train" else table)
    dtype = getattr(torch, config.precision)

    def smooth(x: Tensor) -> Tensor:
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return (whiten(x) + config.noise * eps).to(job.device, dtype)

    return Split(*map(smooth, parts))


def _table(config: Config, job: Job, generator: torch.Generator) -> Tensor:
    """The table, dequantised or with correlated columns left out."""
    if config.dataset not in TABLES:
        return load(config.dataset, num=config.toy_points, generator=generator).x
    x = load(config.dataset, job.data_dir).x
    if config.dataset == "parkinsons":
        return x[:, drop_correlated(x)]
    return Dequantise.fit(x, gaps=1.0, every_column=True)(x, generator)


def train_model(
    config: Config, job: Job, x: Split, sigma: float | None, folder: Path | None
) -> tuple[DKEF, DeepKernelFit | None]:
    """A trained model and its fit; if training diverged, the best weights before that, and None."""
    model = DKEF(
        x.train.shape[1],
        config.num_inducing,
        config.num_kernels,
        config.width,
        distances=config.distances,
        as_released=config.bandwidth_as_released,
        generator=job.generator(WEIGHTS, "cpu"),
    ).to(x.train)
    settings = DeepKernelConfig(
        epochs=config.epochs,
        steps=config.steps,
        batch_size=config.batch_size,
        lr=config.lr,
        max_norm=config.max_norm,
        validate_every=config.validate_every,
        patience=config.patience,
        select=config.select,
    )
    loss = objective(config.objective, sigma or 0.0, config.balanced)
    try:
        return model, fit_dkef(
            model,
            loss,
            x.train,
            x.valid,
            settings,
            generator=job.generator(TRAINING),
            folder=folder,
            resume=folder is not None,
            progress=job.progress,
        )
    except DivergedError:  # the model has the weights of the best validation
        return model, None


# The noise of denoising score matching.


def choose_sigma(config: Config, job: Job) -> float:
    """The sigma of the grid with the least mean validation SM loss; or ``config.sigma``.

    All runs of a variant share one grid of 17 values and two seeds. Each of its models writes its
    loss to a file beside the runs. Parallel runs each train models that no other is training, and
    read the others' files.
    """
    if config.sigma != "grid":
        return float(config.sigma)
    cells = [(sigma, seed) for sigma in SIGMAS for seed in range(config.grid_seeds)]
    found: dict[tuple[float, int], float] = {}
    while len(found) < len(cells):
        done = len(found)
        for cell in cells:
            loss = None if cell in found else _grid_loss(config, job, *cell)
            found |= {} if loss is None else {cell: loss}
        time.sleep(1.0 if len(found) == done else 0.0)  # other processes train the rest
    means = {
        sigma: sum(found[sigma, seed] for seed in range(config.grid_seeds)) / config.grid_seeds
        for sigma in SIGMAS
    }
    best = min(means, key=lambda sigma: means[sigma])
    _share(job.folder.parent / "sigma.json", {"sigma": best, "valid_sm": list(means.items())})
    return best


def _grid_loss(config: Config, job: Job, sigma: float, seed: int) -> float | None:
    """Validation SM loss of one model of the grid; None if another process is training it."""
    path = job.folder.parent / "sigma" / f"sigma-{sigma}-seed-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with locked(path.parent, path.with_suffix(".lock").name):
            if path.exists():
                known = read_json(path)
                if known["config"] == asdict(config):
                    return float(known["valid_sm"])
            loss = _train_for_grid(config, replace(job, seed=seed, progress=False), sigma)
            _share(path, {"valid_sm": loss, "config": asdict(config)})
            return loss
    except FolderInUseError:
        return None


def _train_for_grid(config: Config, job: Job, sigma: float) -> float:
    """Validation SM loss of a new model; infinite if training diverged."""
    x = prepare(config, job)
    steps = config.steps if config.grid_steps is None else config.grid_steps
    model, fit = train_model(replace(config, steps=steps), job, x, sigma, None)
    loss = score_matching_loss(model, x.valid).mean if fit else math.inf
    return loss if math.isfinite(loss) else math.inf


def _share(path: Path, content: Any) -> None:
    """Write a file that other processes may write at the same time, with the same content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode())


# Likelihood.


def make_proposal(config: Config, job: Job, x_train: Tensor) -> Distribution:
    """The proposal of importance sampling.

    "normal" is N(0, 4 I), the base of the model, as in the release: its weights are bounded, but
    in 11 to 15 dimensions a million samples have an effective size of 100 or less. "mixture" gives
    it the weight 0.1, N(0, 2 I) the weight 0.1, and the rest to 20 normal components fitted to the
    training points, with covariances multiplied by 1.5.
    """
    d = x_train.shape[1]
    eye = torch.eye(d, dtype=torch.float64)
    if config.proposal == "normal":
        return Gaussian(torch.zeros(d, dtype=torch.float64), 4 * eye).to(
            device=x_train.device, dtype=x_train.dtype
        )
    if config.proposal != "mixture":
        raise ValueError(
            f'proposal must be "mixture" or "normal", got {config.proposal!r}; '
            '"mixture" is nearer to the density'
        )
    components = MixtureFit(20, reg_covar=0.01, max_iter=50, tol=1e-2, random_state=job.seed)
    components.fit(x_train.double().cpu().numpy())
    weights, means, covariances = map(
        torch.as_tensor, (components.weights_, components.means_, components.covariances_)
    )
    weights = torch.cat([0.8 * weights, torch.full((2,), 0.1, dtype=torch.float64)])
    return GaussianMixture(
        weights / weights.sum(),
        torch.cat([means, torch.zeros(2, d, dtype=torch.float64)]),
        torch.cat([1.5 * covariances, torch.stack([2 * eye, 4 * eye])]),
    ).to(device=x_train.device, dtype=x_train.dtype)


def _likelihood(config: Config, job: Job, model: DKEF, x: Split) -> Metrics:
    """Test log-likelihood, or the reason why it was refused."""
    proposal = make_proposal(config, job, x.train)
    found: Metrics = {"test_ll": None, "test_ll_se": None, "test_ll_refused": None}
    try:
        log_z = importance_log_z(
            model, proposal, config.log_z_samples, generator=job.generator(LOG_Z)
        )
        found |= {"log_z": _finite(log_z.log_z), "log_z_se": _finite(log_z.standard_error)}
        found["log_z_effective"] = round(log_z.effective_sample_size, 1)
        ll = log_likelihood(model, x.test, log_z)
    except ValueError as refusal:
        return found | {"test_ll_refused": str(refusal)}
    return found | {"test_ll": _finite(ll.mean), "test_ll_se": _finite(ll.standard_error)}


def _finite(value: float) -> float | None:
    """The number if it is finite, which JSON requires; else None."""
    return value if math.isfinite(value) else None


def _variants() -> dict[str, dict[str, Any]]:
    return {
        f"{table}/{method}": {"dataset": table, "objective": method, **OWN.get(method, {})}
        for table in TABLES
        for method in METHODS
    }


EXPERIMENT = Experiment(
    name="figure-dkef",
    summary="Deep kernel exponential families on UCI tables: SM loss and log-likelihood.",
    config=Config,
    variants=_variants(),
    smoke={
        "dataset": "banana",
        "toy_points": 200,
        "num_inducing": 10,
        "width": 4,
        "steps": 4,
        "batch_size": 40,
        "validate_every": 2,
        "grid_seeds": 1,
        "grid_steps": 1,
        "log_z_samples": 5000,
    },
    run=run,
    columns={
        "test_sm": "SM loss, test",
        "test_ll": "log-likelihood, test",
        "log_z_effective": "samples of log Z, effective",
        "valid_sm": "SM loss, validation",
        "best_step": "best step",
        "sigma": "sigma",
    },
    plot=draw_figures,
    notes=write_notes,
)
