"""Ways to write a model: one function for each operation and habit that tracing must follow."""

from tests.derivatives.ways.arithmetic import ARITHMETIC
from tests.derivatives.ways.aten import ATEN
from tests.derivatives.ways.base import Bank, Way
from tests.derivatives.ways.complex import COMPLEX
from tests.derivatives.ways.habits import HABITS
from tests.derivatives.ways.images import IMAGES
from tests.derivatives.ways.indexing import INDEXING
from tests.derivatives.ways.layers import LAYERS
from tests.derivatives.ways.linalg import LINALG
from tests.derivatives.ways.matrices import MATRICES
from tests.derivatives.ways.models import MODELS
from tests.derivatives.ways.moved import MOVED
from tests.derivatives.ways.reductions import REDUCTIONS
from tests.derivatives.ways.shapes import SHAPES
from tests.derivatives.ways.writes import WRITES

__all__ = ["WAYS", "Bank", "Way"]

WAYS = [
    *ARITHMETIC,
    *MATRICES,
    *IMAGES,
    *SHAPES,
    *MOVED,
    *INDEXING,
    *REDUCTIONS,
    *LAYERS,
    *HABITS,
    *LINALG,
    *COMPLEX,
    *WRITES,
    *ATEN,
    *MODELS,
]
