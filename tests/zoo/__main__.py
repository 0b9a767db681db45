"""Run the zoo: ``python -m tests.zoo [--only PATTERN] [--json FILE] [--page FILE]``."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.zoo import report
from tests.zoo.catalogue import load
from tests.zoo.entry import Entry, settings
from tests.zoo.lines import roughness
from tests.zoo.outcome import GOOD, Result, examine, short

PACKAGES = (
    "torch zuko nflows normflows FrEIA pyro-ppl transformers timm torchvision diffusers monai "
    "gpytorch torch-geometric torchdiffeq einops x-transformers e3nn kornia"
).split()


def run(entries: Sequence[Entry]) -> list[Result]:
    """Examine entries one after the other, printing a line for each."""
    results = []
    for entry in entries:
        results.append(examine(entry))
        print(report.line(results[-1]), flush=True)
    return results


def check_statements(entries: Sequence[Entry]) -> list[str]:
    """Labels of entries whose stated smoothness is not what lines through their points show."""
    wrong = []
    for entry in entries:
        with settings(), warnings.catch_warnings(action="ignore"):
            try:
                found = roughness(entry.fresh(), one_by_one=entry.random)
            except ValueError as error:  # the line leaves the support of a distribution
                print(f"{entry.label:50.50}  not checked: {short(error)}")
                continue
        agrees = found.kinked == (entry.verdict == "kinked") or entry.verdict == "borderline"
        wrong += [] if agrees else [entry.label]
        text = f"size {found.size:.0e}, rate {found.rate:.2f}"
        mark = "" if agrees else "  DISAGREES"
        print(f"{entry.label:50.50}  {entry.verdict:8}{text}{mark}", flush=True)
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where every outcome is a good one."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--only", default="", help="regular expression for 'library: model'")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--page", type=Path, help="where to write the page")
    parser.add_argument("--lines", action="store_true", help="check the entries' own statements")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    entries, missing = load()
    entries = tuple(e for e in entries if re.search(chosen.only, e.label, re.IGNORECASE))
    for name, why in missing.items():
        print(f"not installed: {name} ({why})")
    if chosen.lines:
        return int(bool(check_statements([e for e in entries if e.verdict != "coupled"])))
    results = run(entries)
    print(report.counts(results))
    if chosen.json:
        report.save(results, chosen.json)
    if chosen.page:
        chosen.page.write_text(report.page(results, chosen.page, PACKAGES), encoding="utf-8")
    return int(any(r.outcome not in GOOD for r in results))


if __name__ == "__main__":
    sys.exit(main())
