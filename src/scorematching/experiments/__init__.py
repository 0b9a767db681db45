"""The paper's tables and figures, each reproduced by one command."""

from scorematching.experiments import dkef_scaling, dkef_uci, nice_mnist
from scorematching.experiments.base import Experiment, Job, Run
from scorematching.experiments.run import Request, reproduce

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in (dkef_uci, dkef_scaling, nice_mnist)
}
"""All experiments by the word of their command."""

__all__ = ["EXPERIMENTS", "Experiment", "Job", "Request", "Run", "reproduce"]
