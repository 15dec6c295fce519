"""Bounds the number of steps in flight.

JAX dispatches asynchronously. Simulated devices share one thread pool, and with dozens of steps in flight their
collectives can deadlock (64 in flight: 0 of 5 runs finished; 1 to 16: 29 of 29). Each step therefore waits for the
step `LIMIT` steps before it.
"""

from __future__ import annotations

import collections
from typing import Any, Final

import jax

LIMIT: Final = 8
"""The maximum number of steps in flight."""

_pending: collections.deque[Any] = collections.deque()


def launched(token: jax.Array) -> None:
    """Registers a dispatched step by one of its outputs, and waits for the oldest step if there are too many.

    Context: any thread. The steps of all threads are counted together.
    """
    _pending.append(token)
    while len(_pending) > LIMIT:
        _wait_for_oldest()


def drain() -> None:
    """Waits for all steps in flight."""
    while _pending:
        _wait_for_oldest()


def _wait_for_oldest() -> None:
    try:
        oldest = _pending.popleft()
    except IndexError:  # another thread has removed it meanwhile
        return
    try:
        oldest.block_until_ready()
    except RuntimeError:
        # The owner of the output may donate its buffer at any time, so it is checked after the error, not before.
        if not oldest.is_deleted():
            raise
