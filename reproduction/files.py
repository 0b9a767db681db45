"""Files of results that a run reads again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: names the file, if it holds something else.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} must hold results in JSON, got something that cannot be read ({error}); "
            "remove it, and what it held is done again"
        ) from error
