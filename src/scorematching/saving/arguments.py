"""Modules as the arguments of their constructors, read from the instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Factory:
    """An argument that is called for every new activation.

    Attributes:
        example: one of the activations it has made.
    """

    example: nn.Module


def _layers(layers: list[Any]) -> Arguments:
    """Widths and activation of linear layers with activations between them."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    found: Arguments = {"hidden": tuple(layer.out_features for layer in linear[:-1])}
    return {**found, "activation": Factory(layers[1])} if len(layers) > 1 else found


def _mlp_density(model: Any) -> Arguments:
    return {"dim": len(model.location), **_layers(list(model.net))}


def _score_network(model: Any) -> Arguments:
    layers = list(model.net)
    about = {"dim": layers[-1].out_features, "context_dim": model.context_dim}
    return {**about, **_layers(layers)}


def _conditional_mlp(model: Any) -> Arguments:
    layers = [model.first, *model.rest]
    about = {"dim": model.dim, "context_dim": model.context_dim}
    return {**about, "outputs": layers[-1].out_features, **_layers(layers)}


def _nice(model: Any) -> Arguments:
    hidden = _layers(list(model.shifts[0]))["hidden"]
    about = {"dim": model.dim, "num_couplings": len(model.shifts), "prior": model.prior}
    return {**about, "hidden": hidden}


def _dkef(model: Any) -> Arguments:
    num_kernels, width = model.networks.shape
    return {
        "dim": model.dim,
        "num_inducing": model.num_inducing,
        "num_kernels": num_kernels,
        "width": width,
        "bandwidths": (10**model.log10_bandwidth).tolist(),
        "base": model.base,
        "lam": model.lam.item(),
        "distances": model.distances,
        "as_released": model.as_released,
    }


def _feature_networks(model: Any) -> Arguments:
    num, width = model.shape
    return {"dim": model.first.shape[1], "num": num, "width": width}


def _generalised_gaussian(model: Any) -> Arguments:
    return {"dim": len(model.location)}  # scales are weights


def _network_tilt(model: Any) -> Arguments:
    layers = list(model.net)
    return {"dim": layers[0].in_features, "hidden": _layers(layers)["hidden"]}


def _attributes(*names: str) -> Callable[[Any], Arguments]:
    """Arguments that the instance keeps under their own names."""
    return lambda model: {name: getattr(model, name) for name in names}


_LATENT = ("encoder", "decoder", "observation", "latent_dim")

ARGUMENTS: Mapping[str, Callable[[Any], Arguments]] = MappingProxyType(
    {
        "ConditionalMLP": _conditional_mlp,
        "DKEF": _dkef,
        "FeatureNetworks": _feature_networks,
        "GaussianBase": _attributes("scale"),
        "GeneralisedGaussian": _generalised_gaussian,
        "ImplicitVAE": _attributes(*_LATENT, "score_network", "noise_dim"),
        "KernelTilt": _attributes("model"),
        "MLPDensity": _mlp_density,
        "NICE": _nice,
        "NetworkTilt": _network_tilt,
        "PresetFlow": _attributes("kind", "dim"),
        "ScoreNetwork": _score_network,
        "VAE": _attributes(*_LATENT),
        "WAE": _attributes(*_LATENT, "score_network", "lam"),
    }
)
"""From an instance to its arguments, by the name of the class."""
