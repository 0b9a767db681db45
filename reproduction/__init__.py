"""The experiments of Song, Garg, Shi and Ermon (2019): `python -m reproduction --help`."""

from reproduction import nice
from reproduction.autoencoders import celeba, mnist, speed
from reproduction.dkef import scaling, uci
from reproduction.experiment import Experiment, Job, Run
from reproduction.run import Request, reproduce
from reproduction.theory import dequantise, nce, variance

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (uci, scaling, nice, mnist, celeba, speed, variance, nce, dequantise)
}
"""All experiments by the name of their command."""

__all__ = ["EXPERIMENTS", "Experiment", "Job", "Request", "Run", "reproduce"]
