"""What the library makes of one operation."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.opinfo.forms import STEPS, Bind, Site, forms, samples
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
    raised_by_library,
    route_taken,
    short,
    signs,
    time_limit,
)
from tests.zoo.truth import Truth, measure

ONCE = "torch differentiates it once only"
NO_SAMPLE = "no smooth sample"
SECONDS = 60
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
            sites = (Site(op, sample, i == 1, step) for step in STEPS)
            tried = (_examine(op, name, site, others=not found) for site in sites)
            found += next(filter(None, tried), [])
    return found or [Found(name, "function", NO_SAMPLE)]


def _samples(op: OpInfo) -> list[SampleInput]:
    try:
        with time_limit(SECONDS):
            return samples(op)
    except (Exception, TimedOut):
        return []


def _examine(op: OpInfo, name: str, site: Site, others: bool) -> list[Found]:
    """One sample, if the operation is smooth there: as a function, and in its other forms."""
    truth = _truth(site)
    if truth is None:
        return []
    chosen = forms(op) if others else [next(forms(op))]
    found = [_try(name, form, bind, site, truth) for form, bind in chosen]
    return [f for f in found if f is not None]


def _truth(site: Site) -> Truth | None:
    """The truth at a sample; None where it is not certain, as near a kink or a pole."""
    try:
        with time_limit(SECONDS):
            model = site.model(site.op.op)
            truth = measure(model, signs(model.x), max_trace=0)
    except (Exception, TimedOut):
        return None
    certain = truth.doubt < MAX_DOUBT and bool(truth.loss.value.isfinite().all())
    return truth if certain else None


def _try(name: str, form: str, bind: Bind, site: Site, truth: Truth) -> Found | None:
    """What came of a form; None where there is no such form for this sample."""
    try:
        model, function = site.model(bind(site.sample)), site.model(site.op.op)
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
    if is_refusal(error) and (roughness(model).kinked or _is_rough_further_out(model)):
        return REFUSED, short(error)
    own = is_refusal(error) or not raised_by_library(error)
    if own and not double_backward_is_right(model, v, truth):
        return ONCE, short(error)
    return (REFUSED_WRONGLY if is_refusal(error) else CRASHED), short(error)


def _is_rough_further_out(model: Model) -> bool:
    """Whether a kink or pole lies on longer lines in several directions.

    The library looks as far where there are only a few points.
    """
    return roughness(model, length=6.0, directions=8).kinked


def double_backward_is_right(model: Model, v: Tensor, truth: Truth) -> bool:
    """Whether torch by itself gets the losses and their gradient right."""
    x = model.x.detach().requires_grad_()
    try:
        (score,) = torch.autograd.grad(model.call(x).sum(), x, create_graph=True)
        (product,) = torch.autograd.grad((score * v).sum(), x, create_graph=True)
        loss = 0.5 * score.square().sum(-1) + (product * v).sum(-1)
        gradient = torch.autograd.grad(loss.mean(), model.parameters)
    except TimedOut:
        raise
    except Exception:
        return False
    flat = torch.cat([g.flatten() for g in gradient])
    errors = {"loss": truth.loss.distance(loss), "gradient": truth.gradient.distance(flat)}
    return is_right(truth, errors)
