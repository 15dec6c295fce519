"""Applies the JAX settings of the thread that iterates over a dataset to the dataset's prefetch threads."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

from mirrored._jax.interrupts import adopt_thread_settings, capture_thread_settings
from mirrored._jax.traces import eager


class Settings:
    """A snapshot of one thread's JAX settings and context variables, which can be applied to other threads.

    JAX's settings (``with jax.enable_x64(True):``, matmul precision, dtype promotion) belong to a thread. Without them
    a function of the dataset would compute elements of another dtype or precision in another thread. A trace or tape
    that is in progress is left out: it ends before the threads do. A context variable that refers to the iterator of
    these threads keeps it alive, and so the threads.

    Attributes:
        reader: The thread that reads the elements, which keeps its own settings.
    """

    def __init__(self) -> None:
        with eager():
            self._state = capture_thread_settings()
        self._context = contextvars.copy_context()
        self._adopted = threading.local()
        self.reader = threading.get_ident()

    def adopt(self) -> None:
        """Applies the snapshot's settings and context variables to the current thread.

        Later calls in the same thread have no effect, nor have calls in the thread that created the snapshot.
        """
        if threading.get_ident() == self.reader or hasattr(self._adopted, "is_done"):
            return
        self._adopted.is_done = True
        adopt_thread_settings(self._state)
        for variable, value in self._context.items():
            variable.set(value)

    def run(self, function: Callable[[], None]) -> None:
        """Calls `function` with the snapshot's settings and context variables; meant for the start of a new thread."""
        adopt_thread_settings(self._state)
        self._context.run(function)
