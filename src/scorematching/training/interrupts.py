"""Ctrl-C: the step is finished and a checkpoint written before the run ends.

The first SIGINT only asks for the end; the run ends after the step, by a `KeyboardInterrupt`. The
second one raises `KeyboardInterrupt` at once, as usual. Handlers other than Python's own, and
threads other than the main one, where signals do not arrive, are left alone.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import torch

from scorematching.training.ranks import Ranks

IMPATIENT = 1.0
"""Seconds after which a further SIGINT counts; a terminal and a parent may send one each."""


class Interruption:
    """Whether the end of a run was asked for.

    Attributes:
        asked: whether it was, in this process.
    """

    def __init__(self) -> None:
        self.asked, self._when = False, 0.0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Listen to SIGINT inside the block."""
        usual = signal.default_int_handler
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not usual:
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)

    def agreed(self, ranks: Ranks, step: int, every: int) -> bool:
        """Whether all processes end their run now.

        Several processes ask each other every so many steps, so that all end after the same one.
        """
        if ranks.count == 1:
            return self.asked
        if step % every:
            return False
        return bool(ranks.gather(torch.tensor(float(self.asked))).any())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked and now - self._when > IMPATIENT:
            raise KeyboardInterrupt
        self.asked, self._when = True, self._when if self.asked else now
