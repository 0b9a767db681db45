"""What the engine makes of a model, and whether its derivatives are right."""

from scorematching.diagnostics.check_model import ModelCheck, check_model
from scorematching.diagnostics.explain import explain
from scorematching.diagnostics.table import Table

__all__ = ["ModelCheck", "Table", "check_model", "explain"]
