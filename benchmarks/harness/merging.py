"""One document of results from those of several processes that ran side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SAME = ("commit", "device", "threads", "versions", "seed")


def merged(files: list[Path]) -> dict[str, Any]:
    """The first document, with the commands and the rows of all.

    Args:
        files: documents that agree in commit, device, threads, versions and seed.
    """
    documents = [json.loads(path.read_text()) for path in files]
    for path, document in zip(files, documents):
        if any(document[key] != documents[0][key] for key in SAME):
            raise ValueError(f"files must agree in {', '.join(SAME)}, got another in {path}")
    commands = "\n".join(document["command"] for document in documents)
    rows = [row for document in documents for row in document["rows"]]
    return {**documents[0], "command": commands, "rows": rows}
