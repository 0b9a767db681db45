"""``python -m tests.reliability`` tries to break everything, and writes what became of it.

Example:
    python -m tests.reliability --json tests/reliability/counts.json --page docs/reliability.md
    python -m tests.reliability --quick
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.outputs import check_writable
from benchmarks.harness.provenance import stamp
from scorematching._files import write_atomically
from tests.reliability.counts import as_rows
from tests.reliability.page import render
from tests.reliability.suite import PARTS, Amount, run_suite

QUICK = Amount(kills=(2, 2, 1, 1), generated=400, damaged=4, others=2)


def merged(old: dict[str, Any], new: dict[str, Any], parts: list[str]) -> dict[str, Any]:
    """The counts of some parts from a new run, the others from an old one."""
    kept = [row for row in old["counts"] if row["part"] not in parts]
    rows = sorted(kept + new["counts"], key=lambda row: list(PARTS).index(row["part"]))
    return {**new, "seconds": old["seconds"] + new["seconds"], "counts": rows}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the counts")
    parser.add_argument("--page", type=Path, help="file for the page")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="others stay as in --json"
    )
    parser.add_argument("--quick", action="store_true", help="a few of each")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    options = parser.parse_args()
    for path in (options.json, options.page):
        if path is not None:
            check_writable(path, "the output")
    torch.set_num_threads(1)
    began, base = time.perf_counter(), QUICK if options.quick else Amount()
    amount = Amount(base.kills, base.generated, base.damaged, base.others, options.seed)
    found = list(run_suite(amount, lambda line: print(line, flush=True), options.parts))
    counts = [count for _, count in found]
    command = f"python -m tests.reliability{' --quick' if options.quick else ''}"
    packages = ("torch", "hypothesis", "pyarrow", "scorematching")
    document = {
        **stamp(command, packages=packages),
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began),
        "counts": as_rows(found),
    }
    if options.json is not None and options.json.exists() and set(options.parts) != set(PARTS):
        document = merged(json.loads(options.json.read_text()), document, options.parts)
    if options.json is not None:
        write_atomically(options.json, (json.dumps(document, indent=1) + "\n").encode())
    if options.page is not None:
        write_atomically(options.page, render(document).encode())
    bad = [count for count in counts if count.good < count.tried]
    for count in bad:
        print(f"failed: {count.what}", *count.failures, sep="\n    ")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
