"""Helpers for all dataset iterators: closing at interpreter exit, and a warning about exhausted iterators."""

from __future__ import annotations

import atexit
import warnings
import weakref
from typing import Protocol

from mirrored.watchdog.fail_fast_exit import in_forked_children


class Closeable(Protocol):
    """Protocol of objects with a method `close` that releases their threads or files."""

    def close(self) -> None: ...


_open: weakref.WeakSet[Closeable] = weakref.WeakSet()


def close_at_exit(resource: Closeable) -> None:
    """Registers `resource.close()` to run at interpreter exit, unless the resource is garbage-collected before.

    A Grain thread that still reads at exit can abort the process.
    """
    _open.add(resource)


@atexit.register
def _close_all() -> None:
    for resource in list(_open):
        resource.close()


# In a forked child the threads of these resources do not exist, so `close` would wait for them indefinitely.
in_forked_children(_open.clear)


def warn_exhausted(kind: str) -> None:
    """Warns that a `for` loop over an iterator has no iterations, because the iterator is already exhausted."""
    warnings.warn(
        f"{kind}: a loop over an exhausted iterator runs no steps. Loop over the dataset instead, which starts "
        "a new epoch: `for batch in dataset`",
        stacklevel=3,
    )
