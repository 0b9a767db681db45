"""Estimators as their arguments and what `fit` has learned."""

from __future__ import annotations

from typing import Any

import torch

from scorematching.saving.classes import ESTIMATORS, find_class, name_of
from scorematching.saving.values import Decoder, Encoder


def is_estimator(model: Any) -> bool:
    """Whether an object is one of the package's estimators, not of a subclass."""
    return name_of(type(model), ESTIMATORS) is not None


def encode_estimator(estimator: Any, encoder: Encoder) -> dict[str, Any]:
    """An estimator as JSON; its tensors go to the encoder.

    Raises:
        TypeError: if an argument or a part is of a class that cannot be saved.
    """
    arguments = estimator.get_params(deep=False)
    fitted = {name: value for name, value in vars(estimator).items() if name not in arguments}
    return {
        "kind": "estimator",
        "class": name_of(type(estimator), ESTIMATORS),
        "arguments": encoder.attributes(arguments, ""),
        "fitted": encoder.attributes(fitted, ""),
    }


def decode_estimator(node: dict[str, Any], decoder: Decoder) -> Any:
    """The estimator of what `encode_estimator` returned."""
    arguments = decoder.attributes(node["arguments"])
    device = torch.device(decoder.device)
    if torch.device(arguments["device"] or "cpu") != device:
        arguments["device"] = str(device)
    estimator = find_class(node["class"], ESTIMATORS)(**arguments)
    vars(estimator).update(decoder.attributes(node["fitted"]))
    return estimator
