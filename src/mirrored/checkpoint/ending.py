"""The end of the program: noticing it in time to finish what is being written."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import threading
from collections.abc import Callable


class _End:
    has_come = False


def is_ending() -> bool:
    """Whether the main thread is done, and Python starts no more threads (from 3.12 on)."""
    return _End.has_come


def at_end(finish: Callable[[], None]) -> None:
    """Has `finish` called when the main thread is done, before Python refuses work to executors.

    That is before `atexit` and before threads are joined. `concurrent.futures` is told by this hook of CPython (3.9 to
    3.14), too; the last registered comes first, so it has to be imported by now.
    """

    def end() -> None:
        _End.has_come = True
        finish()

    threading._register_atexit(end)  # type: ignore[attr-defined]
