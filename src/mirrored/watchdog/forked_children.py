"""Forked children: what they inherit of this process's part in a job, and must not use."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_forked_children(reset: Callable[[], None]) -> None:
    """Has `reset` called in every child that this process forks from now on, before anything else runs in it.

    A child has copies of this process's signal handlers, descriptors and objects, but none of its threads. A handler
    that only sets an event which a thread waits for would so have the child ignore the signal.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
        os.register_at_fork(after_in_child=reset)
