"""Every operation of torch: ``python -m tests.opinfo [--only PATTERN] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch.testing._internal.opinfo.core import OpInfo

from tests.opinfo.forms import operations
from tests.opinfo.judge import BAD, Found, examine


def run(ops: Sequence[OpInfo]) -> list[Found]:
    """Examine operations, printing every bad outcome as it comes."""
    found: list[Found] = []
    for op in ops:
        new = examine(op)
        for f in new:
            if f.outcome in BAD:
                print(f"{f.outcome:16} {f.name:36} {f.form:9} {f.note}", flush=True)
        found += new
    return found


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
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--all", action="store_true", help="print every outcome")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = run([op for op in operations() if re.search(chosen.only, op.name)])
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
