"""How a model is differentiated, whether that is right, and how noisy its gradients are."""

from scorematching._tables import Table
from scorematching.diagnostics.check_model import ModelCheck, check_model
from scorematching.diagnostics.explain import explain
from scorematching.diagnostics.variance import (
    PROJECTIONS,
    VarianceReport,
    VarianceRow,
    variance_report,
)

__all__ = [
    "PROJECTIONS",
    "ModelCheck",
    "Table",
    "VarianceReport",
    "VarianceRow",
    "check_model",
    "explain",
    "variance_report",
]
