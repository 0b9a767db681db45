"""Every operation of torch: ``python -m tests.opinfo [--only PATTERN] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.opinfo.forms import Bind, build, forms, operations, samples
from tests.zoo.entry import Model, settings
from tests.zoo.lines import roughness
from tests.zoo.outcome import (
    CRASHED,
    REFUSED,
    REFUSED_WRONGLY,
    WRONG,
    TimedOut,
    compare,
    is_refusal,
    is_right,
    route_taken,
    short,
    signs,
    time_limit,
)
from tests.zoo.truth import Truth, measure

ONCE = "torch differentiates it once only"
NO_SAMPLE = "no smooth sample"
SECONDS = 30
MAX_DOUBT = 1e-6
BAD = (WRONG, CRASHED, REFUSED_WRONGLY)


@dataclass(frozen=True)
class Found:
    """What came of one operation, called in one form at one sample."""

    name: str
    form: str
    outcome: str
    note: str = ""
    error: float = 0.0


def examine(op: OpInfo) -> list[Found]:
    """An operation called as a function at up to three samples, in its other forms at one."""
    name = f"{op.name} {op.variant_test_name}".strip()
    found: list[Found] = []
    with settings(), warnings.catch_warnings(action="ignore"):
        for i, sample in enumerate(_samples(op)):
            found += _examine(op, name, sample, everywhere=i == 1, others=not found)
    return found or [Found(name, "function", NO_SAMPLE)]


def _samples(op: OpInfo) -> list[SampleInput]:
    try:
        with time_limit(SECONDS):
            return samples(op)
    except (Exception, TimedOut):
        return []


def _examine(
    op: OpInfo, name: str, sample: SampleInput, everywhere: bool, others: bool
) -> list[Found]:
    """One sample, if the operation is smooth there: as a function, and in its other forms."""
    try:
        with time_limit(SECONDS):
            model = build(op.op, sample, everywhere)
            truth = measure(model, signs(model.x), max_trace=0)
    except (Exception, TimedOut):
        return []
    if not truth.doubt < MAX_DOUBT or not truth.loss.value.isfinite().all():
        return []
    chosen = forms(op) if others else [next(forms(op))]
    found = [_try(name, form, bind, sample, everywhere, model, truth) for form, bind in chosen]
    return [f for f in found if f is not None]


def _try(
    name: str,
    form: str,
    bind: Bind,
    sample: SampleInput,
    everywhere: bool,
    function: Model,
    truth: Truth,
) -> Found | None:
    """What came of a form; None where there is no such form for this sample."""
    try:
        model = build(bind(sample), sample, everywhere)
        with torch.no_grad():
            same = torch.allclose(model.call(model.x), function.call(model.x), atol=1e-9)
    except (TypeError, RuntimeError, ValueError):
        return None
    try:
        with time_limit(SECONDS):
            return Found(name, form, *_judge(model, signs(model.x), truth)) if same else None
    except TimedOut as error:
        return Found(name, form, CRASHED, str(error))


def _judge(model: Model, v: Tensor, truth: Truth) -> tuple[str, str, float]:
    """Outcome, note and largest error."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            errors = compare(model, v, truth, uses=2)
        except TimedOut:
            raise
        except Exception as error:
            return *_raised(model, v, truth, error), 0.0
    worst = max(errors.values())
    if not is_right(truth, errors):
        return WRONG, " ".join(f"{k} {e:.0e}" for k, e in errors.items()), worst
    return *route_taken(model, v, truth, told), worst


def _raised(model: Model, v: Tensor, truth: Truth, error: Exception) -> tuple[str, str]:
    """Whether a refusal or crash is right: by a kink nearby, or because double backward fails."""
    if is_refusal(error) and roughness(model).kinked:
        return REFUSED, short(error)
    try:
        other = compare(model, v, truth, 1, route="reverse", check_smoothness=False)
    except TimedOut:
        raise
    except Exception:
        return ONCE, short(error)
    if not is_right(truth, other):
        return ONCE, short(error)
    return (REFUSED_WRONGLY if is_refusal(error) else CRASHED), short(error)


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
