"""One run in several workers of Ray Train."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scorematching._checks import check_count
from scorematching._files import write_atomically
from scorematching.cluster.connection import connect, import_ray
from scorematching.cluster.sweeps import RUN

METRICS = "metrics.json"
"""File by which the first worker passes its metrics on."""


def train_on_ray(
    function: Callable[[dict[str, Any]], Mapping[str, Any]],
    settings: Mapping[str, Any],
    folder: str | Path,
    workers: int = 2,
    gpus_per_worker: float = 0.0,
    retries: int = 0,
) -> dict[str, Any]:
    """Call a function that trains in several workers of a Ray cluster at once.

    The function is the one that `torchrun` would run: it calls `training.train`, which joins the
    workers. Where it is given a folder for checkpoints and ``resume=True``, a run whose worker died
    continues from its last checkpoint.

    Args:
        function: from settings to metrics, numbers and strings that JSON can hold; those of the
            first worker are kept.
        settings: what it is called with.
        folder: for ``run.json`` with settings, metrics and seconds, and for Ray's own files; on a
            cluster of several machines, one that all of them see.
        workers: number of processes.
        gpus_per_worker: GPUs of each; zero trains on CPUs.
        retries: how often the run is started again after a worker died.

    Returns:
        The metrics.

    Raises:
        ImportError: if Ray is not installed.
        RuntimeError: if the run failed, with the error of a worker.

    Example:
        >>> metrics = train_on_ray(fit, {"lr": 1e-3}, "runs/first", workers=8)  # doctest: +SKIP
    """
    check_count(workers, "workers", "one process for each GPU is usual")
    place, began = Path(folder).resolve(), time.perf_counter()
    place.mkdir(parents=True, exist_ok=True)
    with connect():
        trainer = _make_trainer(function, settings, place, workers, gpus_per_worker, retries)
        try:
            trainer.fit()
        except Exception as error:
            raise RuntimeError(
                f"the run on {workers} workers of Ray failed: {error}; see {place / 'ray'}"
            ) from error
    metrics: dict[str, Any] = json.loads((place / METRICS).read_text(encoding="utf-8"))
    (place / METRICS).unlink()
    seconds = round(time.perf_counter() - began, 3)
    run = {"settings": dict(settings), "metrics": metrics, "seconds": seconds, "workers": workers}
    write_atomically(place / RUN, json.dumps(run, indent=1).encode())
    return metrics


def _make_trainer(
    function: Callable[[dict[str, Any]], Mapping[str, Any]],
    settings: Mapping[str, Any],
    place: Path,
    workers: int,
    gpus: float,
    retries: int,
) -> Any:
    """Ray Train's trainer, whose first worker writes its metrics to a file."""
    train, torch_train = import_ray("ray.train"), import_ray("ray.train.torch")

    def loop(given: dict[str, Any]) -> None:
        metrics = dict(function(given))
        if train.get_context().get_world_rank() == 0:
            write_atomically(place / METRICS, json.dumps(metrics).encode())

    resources = {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}
    return torch_train.TorchTrainer(
        loop,
        train_loop_config=dict(settings),
        scaling_config=train.ScalingConfig(
            num_workers=workers, use_gpu=gpus > 0, resources_per_worker=resources
        ),
        run_config=train.RunConfig(
            name="ray",
            storage_path=str(place),
            failure_config=train.FailureConfig(max_failures=retries),
        ),
    )
