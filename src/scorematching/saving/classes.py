"""Which classes can be saved, under which names, and where they are defined."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from scorematching.errors import SavedModelError

PACKAGE = "scorematching"

MODULES = {
    "ConditionalMLP": "models.networks",
    "DKEF": "models.dkef",
    "FeatureNetworks": "models.dkef",
    "GaussianBase": "distributions.bases",
    "GeneralisedGaussian": "distributions.bases",
    "ImplicitVAE": "models.autoencoders.vae",
    "KernelTilt": "estimators.density.tilt",
    "MLPDensity": "models.networks",
    "NICE": "models.nice",
    "NetworkTilt": "estimators.density.tilt",
    "PresetFlow": "estimators.density.bases.flow",
    "ScoreNetwork": "models.networks",
    "VAE": "models.autoencoders.vae",
    "WAE": "models.autoencoders.wae",
}
"""Modules, saved as the arguments of their constructors and their weights."""

RECORDS = {
    "ApproximateBackprop": "objectives.layerwise",
    "Banana": "distributions.curved",
    "Base": "kernels.exp_family",
    "BernoulliPixels": "distributions.observations",
    "Box": "domains.box",
    "Compose": "datasets.preprocess",
    "CurvaturePropagation": "objectives.layerwise",
    "DenoisingScoreMatching": "objectives.denoising",
    "FiniteDifferenceSSM": "objectives.finite_difference",
    "Flow": "estimators.density.bases.flow",
    "Funnel": "distributions.curved",
    "Gaps": "estimators.density.gaps",
    "Gaussian": "distributions.gaussian",
    "GaussianMixture": "distributions.gaussian",
    "IMQ": "kernels.radial",
    "Inverse": "estimators.density.scaling",
    "KernelDensity": "estimators.density.bases.kde",
    "KernelExpFamily": "kernels.exp_family",
    "LocalCurvatureSmoothing": "objectives.local_curvature",
    "MaximumLikelihood": "objectives.likelihood",
    "MultivariateT": "estimators.density.bases.student_t",
    "NICEDensity": "estimators.density.nice",
    "NoiseContrastive": "objectives.contrastive",
    "NoiseLadder": "objectives.denoising",
    "NormalPixels": "distributions.observations",
    "Normaliser": "estimators.density.normaliser",
    "PositiveOrthant": "domains.box",
    "RBF": "kernels.radial",
    "Rademacher": "projections",
    "Record": "training.progress",
    "Ring": "distributions.curved",
    "ScoreMatching": "objectives.exact",
    "Simplex": "domains.sphere",
    "SlicedScoreMatching": "objectives.sliced",
    "SlicedScoreMatchingVR": "objectives.sliced",
    "SpectralScore": "kernels.spectral",
    "SplitRademacher": "projections",
    "Stack": "estimators.density.stacking",
    "Standardise": "datasets.preprocess",
    "SteinScore": "kernels.stein",
    "StudentT": "distributions.student_t",
    "Table": "estimators.density.table",
    "Tilted": "estimators.density.tilted",
    "TrainResult": "training.result",
    "Transformed": "estimators.density.bases.transformed",
    "Whiten": "datasets.preprocess",
    "domains.sphere.Sphere": "domains.sphere",
    "projections.Gaussian": "projections",
    "projections.Sphere": "projections",
}
"""Other objects, saved as the fields of a dataclass, or else as their attributes.

A class that shares its name with another is listed with its module.
"""

ESTIMATORS = {
    "DensityEstimator": "estimators.density.estimator",
    "KernelExpFamilyEstimator": "estimators.kernel",
    "SlicedScoreEstimator": "estimators.sliced",
    "SpectralScoreEstimator": "estimators.kernel",
    "SteinScoreEstimator": "estimators.kernel",
}
"""Estimators, saved as their arguments and what `fit` has learned."""


def name_of(kind: type, table: dict[str, str]) -> str | None:
    """The name of a class in a table; None for any other class, subclasses included."""
    module = kind.__module__.removeprefix(f"{PACKAGE}.")
    for name in (kind.__qualname__, f"{module}.{kind.__qualname__}"):
        if table.get(name) == module:
            return name
    return None


def find_class(name: Any, table: dict[str, str]) -> Any:
    """The class of a name in a table.

    Raises:
        SavedModelError: if the table has no such name.
    """
    if not isinstance(name, str) or name not in table:
        raise SavedModelError(
            f"config.json must name classes that can be saved, got {name!r}; the folder was "
            "written by another program, or by a later version of the package"
        )
    return getattr(import_module(f"{PACKAGE}.{table[name]}"), name.split(".")[-1])
