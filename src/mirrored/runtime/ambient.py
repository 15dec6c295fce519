"""The ambient context: everything that "where am I?" depends on, in one object per thread.

A replica thread starts with a copy of it (`Ambient.fork`), so nothing ambient is carried in any other way;
JAX's own thread-local state goes along by `mirrored._jax.thread_state`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrored.runtime.driving import Driver
    from mirrored.runtime.listeners import ReadListener
    from mirrored.runtime.merging import ReplicaRunner
    from mirrored.runtime.variable_store import VariableStore


@dataclasses.dataclass
class Ambient:
    """What surrounds the code that runs in this thread.

    Attributes:
        strategies: The strategies whose scope (or `run`) is open, innermost last.
        replica: The replica context, None in cross-replica context and outside any strategy.
        frame: Where variables are read from and written to; None is the root frame: their storage.
        listeners: Who is told of reads and writes, innermost last.
        runner: The session of the `run` that surrounds this code, if any.
        driver: What compiles the runs of a function that is driven from Python, if one surrounds this code.
        creators: Who is asked when a variable is created, innermost last.
    """

    strategies: tuple[Any, ...] = ()
    replica: Any = None
    store: VariableStore | None = None
    listeners: tuple[ReadListener, ...] = ()
    runner: ReplicaRunner | None = None
    driver: Driver | None = None
    creators: tuple[Callable[..., Any], ...] = ()

    def fork(self, **changes: Any) -> Ambient:
        """A copy for another thread or a nested context, with some fields changed."""
        return dataclasses.replace(self, **changes)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.current = Ambient()


_thread = thread = _Thread()
"""Of each thread; `thread.current` is assigned where an exception must not come between, as between two calls."""


def ambient() -> Ambient:
    """The ambient context of this thread. Read it, never mutate it."""
    return _thread.current


@contextmanager
def entered(context: Ambient) -> Iterator[Ambient]:
    """Makes `context` the ambient one of this thread for the block."""
    previous = _thread.current
    _thread.current = context
    try:
        yield context
    finally:
        _thread.current = previous


@contextmanager
def within(**changes: Any) -> Iterator[Ambient]:
    """Changes fields of the ambient context for the block."""
    with entered(_thread.current.fork(**changes)) as context:
        yield context


def replace_current(context: Ambient) -> None:
    """Makes `context` the ambient one until further notice (for listeners that open and close by call)."""
    _thread.current = context
