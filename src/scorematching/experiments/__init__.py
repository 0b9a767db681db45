"""The paper's tables and figures, each reproduced by one command."""

from scorematching.experiments import (
    autoencoders_celeba,
    autoencoders_mnist,
    dkef_scaling,
    dkef_uci,
    nice_mnist,
)
from scorematching.experiments.base import Experiment, Job, Run
from scorematching.experiments.run import Request, reproduce

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (dkef_uci, dkef_scaling, nice_mnist, autoencoders_mnist, autoencoders_celeba)
}
"""All experiments by the word of their command."""

__all__ = ["EXPERIMENTS", "Experiment", "Job", "Request", "Run", "reproduce"]
