"""Closes iterators of user code: `close` can raise an exception, or be called while another thread reads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from mirrored.errors import InputError

_EXECUTING: Final = "generator already executing"  # what `close` raises while another thread executes the generator
_log: Final = logging.getLogger("mirrored.data")


class Closeable(Protocol):
    """Protocol of objects with a method `close` that releases their threads or files."""

    def close(self) -> None: ...


def close_each(resources: Iterable[Closeable]) -> None:
    """Closes all resources in order; if closing one raises an exception, raises it after closing the others."""
    with contextlib.ExitStack() as stack:
        for resource in reversed(list(resources)):
            stack.callback(resource.close)


def close_iterator(iterator: Iterator[Any] | None) -> None:
    """Calls the method `close` of an iterator, if it has one."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def close_or_leave(iterator: Iterator[Any] | None) -> None:
    """Closes an iterator; if another thread executes it (a generator), logs a warning, and that thread closes it."""
    try:
        close_iterator(iterator)
    except ValueError as error:
        if str(error) != _EXECUTING:
            raise
        _log.warning(
            "%r cannot be closed, because another thread executes it: this thread closes it at its next element",
            iterator,
        )


def closed_meanwhile() -> InputError:
    """Creates the error for a thread whose iterator was closed by another thread while it waited for an element."""
    return InputError(
        "DatasetIterator",
        found="another thread closed it while this thread waited for its next element",
        rule="a closed iterator cannot return elements",
        remedy="create a new one with iter(dataset)",
    )
