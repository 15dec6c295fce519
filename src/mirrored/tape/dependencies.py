"""Notes that a tape runs a function only to find out what depends on what, and discards the results."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from typing import Final

from mirrored._blocks import contextmanager

_is_finding: Final = contextvars.ContextVar("is_finding", default=False)


@contextmanager
def finding_dependencies() -> Iterator[None]:
    """Context manager in which collectives of several processes do not communicate (`finds_dependencies`)."""
    token = _is_finding.set(True)
    try:
        yield
    finally:
        _is_finding.reset(token)


def finds_dependencies() -> bool:
    """Returns whether the current function runs only so that a tape finds out what depends on what.

    A collective of several processes does not communicate then; each result depends on all operands of this process.
    """
    return _is_finding.get()
