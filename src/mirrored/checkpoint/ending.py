"""Program exit: runs callbacks early enough to finish the checkpoint that is being written."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import threading
from collections.abc import Callable


class _End:
    has_come = False


def is_ending() -> bool:
    """Returns whether the main thread has finished, after which Python starts no more threads (from 3.12 on)."""
    return _End.has_come


def at_end(finish: Callable[[], None]) -> None:
    """Registers `finish` to run when the main thread has finished, before executors reject new work.

    This is before `atexit` callbacks and before threads are joined. `concurrent.futures` uses the same hook of CPython
    (3.9 to 3.14). Hooks run in reverse order of registration, so this module imports `concurrent.futures.thread` first.
    """

    def end() -> None:
        _End.has_come = True
        finish()

    threading._register_atexit(end)  # type: ignore[attr-defined]
