"""Where data files that are not part of the package may be: the tests that need them skip."""

from __future__ import annotations

import os
from pathlib import Path

from scorematching.datasets.files import ENVIRONMENT_VARIABLE

# Read at import: fixtures remove the variable while a test runs.
STORED = Path(os.environ.get(ENVIRONMENT_VARIABLE, Path(__file__).parents[2] / "shared" / "data"))
