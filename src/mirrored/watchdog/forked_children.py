"""Resets the state of a job that forked children inherit and must not use."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_forked_children(reset: Callable[[], None]) -> None:
    """Registers a function to be called first in every child that this process forks from now on.

    A child has copies of this process's signal handlers, descriptors and objects, but none of its threads. A handler
    that only sets an event for a thread to act on would make the child ignore the signal.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
        os.register_at_fork(after_in_child=reset)
