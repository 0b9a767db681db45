"""Every operation of torch: ``python -m tests.opinfo [--only PATTERN] [--jobs N]``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.opinfo.forms import operations
from tests.opinfo.judge import BAD, Found
from tests.opinfo.run import run


def counts(found: Sequence[Found]) -> str:
    """How many operations in how many forms had each outcome."""
    pairs = {(f.name, f.form) for f in found}
    lines = [f"{len({f.name for f in found})} operations, {len(pairs)} forms, {len(found)} samples"]
    for outcome, number in Counter(f.outcome for f in found).most_common():
        lines.append(f"{number:5d}  {outcome}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    parser.add_argument("--only", default="", help="regular expression for names of operations")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--all", action="store_true", help="print every outcome")
    chosen = parser.parse_args(arguments)
    numbers = [i for i, op in enumerate(operations()) if re.search(chosen.only, op.name)]
    found = run(numbers, chosen.jobs)
    if chosen.all:
        for f in found:
            print(f"{f.outcome:24} {f.name:36} {f.form:9} {f.error:.0e} {f.note}")
    print(counts(found))
    if chosen.json:
        text = json.dumps([asdict(f) for f in found], indent=1)
        chosen.json.write_text(text + "\n", encoding="utf-8")
    return int(any(f.outcome in BAD for f in found))


if __name__ == "__main__":
    sys.exit(main())
