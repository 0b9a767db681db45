"""Saved models: folders that another process loads to the same digits, without pickle.

A folder holds ``model.safetensors`` (all tensors), ``config.json`` (everything else, and a checksum
of every file) and ``README.md`` (a model card). Only classes of the package and layers of torch.nn
are saved, so that loading runs no code from the folder.
"""

from scorematching.saving.public import load, save

__all__ = ["load", "save"]
