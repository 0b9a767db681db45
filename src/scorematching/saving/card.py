"""The model card, README.md: what the model is, what it was fitted to, how to load it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Any

from torch import nn

_PACKAGES = ("torch", "numpy", "scikit-learn", "safetensors", "zuko")
_SHOWN = 20


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, where installed."""
    own = import_module("scorematching").__version__
    found = {"scorematching": own, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def card(model: Any, used: Mapping[str, str], notes: str) -> str:
    """The text of the card."""
    name = type(model).__name__
    sections = {
        "Model": _model(model),
        "Data": _data(model),
        "Parts of the base, by weight": _table(getattr(model, "weights_", {})),
        "Held-out numbers": _held_out(model),
        "Versions": _table(used),
        "Notes": notes.strip(),
    }
    parts = [f"# {name}", f"A {name} saved by scorematching.", _LOAD.strip()]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join(parts) + "\n"


_LOAD = """
```python
import scorematching as sm

model = sm.load("path of this folder")
```

The folder holds no code. Its files are compared with the checksums in `config.json` when they are
loaded, so a changed file is refused, this one included.
"""


def _model(model: Any) -> str:
    if isinstance(model, nn.Module):
        weights = sum(p.numel() for p in model.parameters())
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})
        return _table({"parameters": weights, "dtype": ", ".join(dtypes)})
    if not hasattr(model, "get_params"):
        return _table({"dimension": getattr(model, "dim", None) or model.samples.shape[-1]})
    return _table({name: repr(value) for name, value in model.get_params(deep=False).items()})


def _data(model: Any) -> str:
    found: dict[str, Any] = {}
    if hasattr(model, "n_features_in_"):
        found["columns"] = model.n_features_in_
    if hasattr(model, "feature_names_in_"):
        found["names"] = _listed(model.feature_names_in_)
    if hasattr(model, "fitted_"):
        found["samples"] = model.fitted_.samples.shape[-2]
    if hasattr(model, "table_"):
        table = model.table_
        found["modelled columns"] = len(table.kept)
        found["constant columns"] = _listed(table.names[c] for c in table.constant)
        found["dependent columns"] = _listed(table.names[c] for c in table.dependent)
        found["discrete columns"] = _listed(table.names[c] for c in table.discrete)
        found["repeated rows"] = table.repeated
    return _table(found)


def _held_out(model: Any) -> str:
    found: dict[str, Any] = {}
    if hasattr(model, "density_"):
        found["log-likelihood per row of the base"] = model.held_out_log_likelihood_
        found["loss of the tilt over that of the base, or of NICE"] = model.validation_loss_
        found["size of the tilt"] = model.tilt_size_
        found["log Z"] = model.log_z_
        found["standard error of log Z"] = model.log_z_standard_error_
    if hasattr(model, "result_"):
        found["least validation loss"] = model.result_.best_loss
        found["training steps"] = model.result_.steps
    return _table({name: value for name, value in found.items() if value is not None})


def _table(rows: Mapping[str, Any]) -> str:
    """A table of two columns; empty for no rows."""
    if not rows:
        return ""
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _listed(names: Any) -> str:
    words = [str(name) for name in names]
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return (", ".join(words[:_SHOWN]) + more) or "none"
