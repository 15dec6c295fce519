"""Bounding the steps in flight.

JAX dispatches asynchronously. Several simulated devices share one pool of threads, and with dozens of steps in flight
their collectives can wait for each other for ever (64 in flight: 0 of 5 runs finished; 1 to 16: 29 of 29). So a step
waits for the one `LIMIT` steps before it.
"""

from __future__ import annotations

import collections
from typing import Any, Final

import jax

LIMIT: Final = 8
"""How many steps may be in flight."""

_pending: collections.deque[Any] = collections.deque()


def launched(token: jax.Array) -> None:
    """Notes a step that was just dispatched by one of its outputs; waits for the oldest if there are too many.

    Context: any thread; the steps of all threads are counted together.
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
    except IndexError:  # another thread has taken it meanwhile
        return
    try:
        oldest.block_until_ready()
    except RuntimeError:
        # Its owner may have donated it, even after a look at it here.
        if not oldest.is_deleted():
            raise
