"""Which process was lost, when those that train together can no longer reach each other.

A process that loses its connections says so in the store through which the processes once found
each other (that of ``MASTER_ADDR``), ends its own connections, so that all others notice at once,
and waits some seconds. Who has said nothing by then is the one that is lost.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from scorematching.errors import LostRankError
from scorematching.training.ranks import Ranks

PATIENCE = 5.0
"""Seconds in which the other processes report."""

_KEY = "scorematching"


@contextlib.contextmanager
def naming_lost_ranks(ranks: Ranks) -> Iterator[None]:
    """Name the processes that are lost, if communication fails inside the block.

    Raises:
        LostRankError: names them.
    """
    if ranks.count == 1:
        yield
        return
    store = _store()
    _tell(store, f"name/{ranks.rank}", f"process {os.getpid()} on {socket.gethostname()}")
    try:
        yield
    except RuntimeError as error:
        words = str(error).lower()
        if not (isinstance(error, dist.DistError) or "gloo" in words or "nccl" in words):
            raise
        lost = _lost(store, ranks)
        raise LostRankError(
            f"{lost} no longer answers; rank {ranks.rank} stops, too. Look at the output of that "
            "process, and start all of them again with resume=True"
        ) from error


def _lost(store: Any, ranks: Ranks) -> str:
    """The processes that have not reported, as text."""
    told = _tell(store, f"failed/{ranks.rank}", "failed")
    with contextlib.suppress(Exception):  # some connections are broken already
        dist.destroy_process_group()
    if not told:
        return "rank 0, through which the processes found each other,"
    time.sleep(PATIENCE)
    others = [rank for rank in range(ranks.count) if rank != ranks.rank]
    silent = [rank for rank in others if _read(store, f"failed/{rank}") is None]
    names = [f"rank {rank} ({_read(store, f'name/{rank}') or 'unknown'})" for rank in silent]
    return ", ".join(names) or "another process"


def _store() -> Any:
    """The store of the process group; None if its address is not known."""
    address, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if address is None or port is None:
        return None
    timeout = datetime.timedelta(seconds=PATIENCE)
    try:
        return dist.TCPStore(address, int(port), is_master=False, timeout=timeout)
    except (RuntimeError, ValueError):
        return None


def _tell(store: Any, key: str, value: str) -> bool:
    try:
        store.set(f"{_KEY}/{key}", value)
    except (RuntimeError, AttributeError):  # it is gone with its process, or there is none
        return False
    return True


def _read(store: Any, key: str) -> str | None:
    """What a process has told; None if it has not, or the store is gone."""
    key = f"{_KEY}/{key}"
    try:
        return str(store.get(key).decode()) if store.check([key]) else None
    except RuntimeError:
        return None
