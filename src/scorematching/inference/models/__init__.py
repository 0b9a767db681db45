"""Models that people fit, with named parameters and the domain that each belongs to."""

from scorematching.inference.models.bingham import Bingham
from scorematching.inference.models.gaussian import Gaussian
from scorematching.inference.models.ica import ICA
from scorematching.inference.models.pairwise import PairwiseInteraction
from scorematching.inference.models.ppi import PPI
from scorematching.inference.models.student_t import StudentTExperts
from scorematching.inference.models.truncated import TruncatedGaussian
from scorematching.inference.models.von_mises_fisher import VonMisesFisher

__all__ = [
    "ICA",
    "PPI",
    "Bingham",
    "Gaussian",
    "PairwiseInteraction",
    "StudentTExperts",
    "TruncatedGaussian",
    "VonMisesFisher",
]
