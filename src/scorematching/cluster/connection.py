"""A connection to a Ray cluster."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def import_ray(name: str = "ray") -> Any:
    """A module of Ray.

    Raises:
        ImportError: says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name} is needed to run on Ray and cannot be imported ({error}); "
            'run pip install "scorematching[ray]"'
        ) from error


@contextmanager
def connect() -> Iterator[Any]:
    """Ray, connected inside the block.

    A connection that exists is used and left open. Otherwise connects to the cluster whose address
    is in the environment variable ``RAY_ADDRESS``; without it, starts one on this machine, with a
    worker for every CPU and without its dashboard, and stops it at the end.

    Yields:
        The module ``ray``.

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if there is no cluster at the address.

    Example:
        >>> with connect() as ray:  # doctest: +SKIP
        ...     print(ray.cluster_resources())
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        ray.init(address, **quiet)
    else:
        ray.init(include_dashboard=False, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()
