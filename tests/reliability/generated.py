"""Generated files and command lines: what they may do, and what counts as a failure."""

from __future__ import annotations

import contextlib
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.reliability.counts import Count

PATIENCE = 60
"""Seconds after which a call counts as one that hangs."""


class Hangs(Exception):
    """A call that takes too long."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Interrupt a call that hangs."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"no answer within {PATIENCE} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_examples(
    count: Count,
    strategy: st.SearchStrategy[Any],
    act: Callable[[Any], None],
    number: int,
    start: int,
) -> None:
    """Call a function on generated examples, and count those after which it raised nothing."""

    @seed(start)
    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(strategy)
    def each(example: Any) -> None:
        if count.tried >= number:
            return
        try:
            with limited(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                act(example)
        except Exception as error:
            count.add(False, f"{example!r:.300}: {type(error).__name__}: {error}")
        else:
            count.add(True)

    began = time.monotonic()
    while count.tried < number and time.monotonic() - began < 3600:  # it stops at repetitions
        before = count.tried
        each()
        start += 1
        each = seed(start)(each)
        if count.tried == before:
            break


# Damage to bytes.

EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.floats(0, 1), st.integers(0, 7)),
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("insert"), st.floats(0, 1), st.binary(max_size=20)),
        st.tuples(st.just("repeat"), st.floats(0, 1), st.integers(1, 5)),
        st.tuples(st.just("replace"), st.floats(0, 1), st.binary(max_size=20)),
    ),
    max_size=4,
)
"""Changes of a file, each at a place from its beginning (0) to its end (1)."""


def edited(content: bytes, edits: list[tuple[str, float, Any]]) -> bytes:
    """The content of a file after some changes."""
    for kind, where, what in edits:
        place = int(where * len(content))
        head, tail = content[:place], content[place:]
        if kind == "flip" and tail:
            content = head + bytes([tail[0] ^ (1 << what)]) + tail[1:]
        elif kind == "cut":
            content = head
        elif kind == "insert":
            content = head + what + tail
        elif kind == "repeat":
            content = head + tail * what
        elif kind == "replace":
            content = head + what + tail[len(what) :]
    return content
