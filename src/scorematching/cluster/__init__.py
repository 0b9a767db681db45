"""Many runs at once, and runs on many machines, by Ray.

``sweep``           calls a function with many settings, in this process or by Ray Tune, and keeps
                    every result in a ``run.json``
``grid``            all combinations of some settings
``train_on_ray``    one run in several workers of Ray Train, around a function that calls
                    `training.train`
``connect``         a connection to the cluster at ``RAY_ADDRESS``, or to a new one on this machine

Ray is imported where it is used; ``pip install "scorematching[ray]"``.
"""

from scorematching.cluster.connection import connect
from scorematching.cluster.sweeps import SweepRun, grid, sweep
from scorematching.cluster.tasks import Resources, run_tasks
from scorematching.cluster.workers import train_on_ray

__all__ = ["Resources", "SweepRun", "connect", "grid", "run_tasks", "sweep", "train_on_ray"]
