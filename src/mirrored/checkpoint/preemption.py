"""Ending on SIGTERM without losing a step: all workers agree on one, save it, and end.

The signal may reach one worker only, and workers are some steps apart. Whoever gets it tells all others by the job's
key-value store. On every worker a thread then holds the step back, says how many steps it has made, and hears the
others; the first step that none has made yet is the one after which all save. The threads wait for each other, never
for a device, so that no worker is held back by a collective of another.

Source of the agreement: the preemption sync protocol of TensorFlow's and XLA's coordination service.
"""

from __future__ import annotations

import atexit
import signal
import threading
from types import FrameType
from typing import Any, Final

from mirrored._jax import coordination
from mirrored.errors import ContextError
from mirrored.watchdog.forked_children import in_forked_children

_ROOT: Final = "mirrored/preemption"
_LOOK_SECONDS: Final = 0.25
_WAIT_SECONDS: Final = 60.0


class Preemption:
    """Listens for SIGTERM on all workers. Made once per process, by `preemption`."""

    def __init__(self) -> None:
        self._noticed, self._stopped = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._polls = 0
        self._due: int | None = None
        self._previous = _install(self._on_signal)
        in_forked_children(self._reset)
        self._thread: threading.Thread | None = None
        if coordination.is_connected():
            self._thread = threading.Thread(target=self._watch, name="mirrored-preemption", daemon=True)
            self._thread.start()
            # Before JAX takes its client away.
            atexit.register(self._stop)

    def poll(self) -> bool:
        """Counts a step; whether this is the one after which all workers save and end.

        Context: once per step, on every worker.
        """
        with self._lock:
            self._polls += 1
            if self._thread is None:
                return self._noticed.is_set()
            return self._due is not None and self._polls >= self._due

    def _reset(self) -> None:
        """In a forked child, which has no such thread and saves nothing: SIGTERM does what it did before."""
        self._thread, self._due = None, None
        self._noticed, self._lock = threading.Event(), threading.Lock()
        _made.clear()
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            # None stands for a handler that was not installed from Python.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._noticed.set()

    def _watch(self) -> None:
        try:
            while not self._stopped.is_set():
                if self._noticed.wait(_LOOK_SECONDS):
                    _tell(f"{_ROOT}/notice", "SIGTERM")
                if coordination.look(f"{_ROOT}/notice") is not None:
                    self._agree()
                    return
        except (RuntimeError, coordination.NoAnswer):
            return  # another worker is gone, and with it the job

    def _agree(self) -> None:
        with self._lock:
            _tell(f"{_ROOT}/steps/{coordination.this_process()}", str(self._polls))
            count = coordination.num_processes()
            polls = [int(coordination.get(f"{_ROOT}/steps/{worker}", _WAIT_SECONDS)) for worker in range(count)]
            self._due = max(polls) + 1

    def _stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(2 * _LOOK_SECONDS)


def _install(handler: Any) -> Any:
    if threading.current_thread() is not threading.main_thread():
        raise ContextError(
            "CheckpointManager",
            found=f"save_on_preemption=True in thread {threading.current_thread().name!r}",
            rule="signals are handled by the main thread",
            remedy="make the manager there",
        )
    return signal.signal(signal.SIGTERM, handler)


def _tell(key: str, value: str) -> None:
    try:
        coordination.put(key, value)
    except RuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise


_made: list[Preemption] = []


def preemption() -> Preemption:
    """This process's."""
    if not _made:
        _made.append(Preemption())
    return _made[0]
