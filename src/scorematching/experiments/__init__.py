"""The paper's tables and figures, each reproduced by one command."""

from scorematching.experiments import nice_mnist
from scorematching.experiments.base import Experiment, Job, Run
from scorematching.experiments.run import Request, reproduce

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (nice_mnist.EXPERIMENT,)
}
"""All experiments by the word of their command."""

__all__ = ["EXPERIMENTS", "Experiment", "Job", "Request", "Run", "reproduce"]
