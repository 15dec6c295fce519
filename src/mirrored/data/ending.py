"""The error at the end of the data, which the facade replaces by TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirrored.errors import EndOfDataError

_makers: Final[list[Callable[..., EndOfDataError]]] = [EndOfDataError]


def set_end_error(make: Callable[..., EndOfDataError]) -> None:
    """Says what makes the error: an `EndOfDataError` from (called, found=, rule=, remedy=)."""
    _makers[:] = [make]


def end_error(called: str, *, found: str, rule: str, remedy: str) -> EndOfDataError:
    """The error to raise when there is no further element."""
    return _makers[0](called, found=found, rule=rule, remedy=remedy)
