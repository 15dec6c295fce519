"""Preemption handling: after SIGTERM, all workers save a checkpoint after the same training step, and exit."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401
import contextlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final

from mirrored._jax import distributed
from mirrored._threads import start
from mirrored.errors import ContextError
from mirrored.settings import AGREEMENT_SECONDS
from mirrored.watchdog.fail_fast_exit import in_forked_children

# Program exit: runs callbacks early enough to finish the checkpoint that is being written.


class _End:
    has_come = False


def is_ending() -> bool:
    """Returns whether the main thread has finished, after which Python 3.12 and later starts no new threads."""
    return _End.has_come


def at_end(finish: Callable[[], None]) -> None:
    """Registers a function to run when the main thread has finished, before `atexit` callbacks.

    Thread pools still accept work then, and threads are not joined yet. `concurrent.futures` uses the same hook of
    CPython (3.9 to 3.14). Hooks run in reverse order of registration, so this module imports
    `concurrent.futures.thread` first.
    """

    def end() -> None:
        _End.has_come = True
        finish()

    threading._register_atexit(end)  # type: ignore[attr-defined]


# Preemption handling: on SIGTERM all workers choose a common step, save a checkpoint after it, and exit.
#
# The signal can reach a single worker, and workers can be several steps apart. The worker that receives it publishes a
# notice in the job's key-value store. On every worker a background thread sees the notice, blocks `poll`, publishes its
# step count, and reads the counts of the others. All workers save after the first step that none of them has completed.
# The threads wait only for each other, never for a device, so a pending collective cannot cause a deadlock.
#
# Source: the preemption sync protocol of TensorFlow's and XLA's coordination service.

_ROOT: Final = "mirrored/preemption"
_LOOK_SECONDS: Final = 0.25


class Preemption:
    """The SIGTERM handler of this process; all workers' handlers agree on the training step after which to exit."""

    def __init__(self) -> None:
        # The handler writes to a `SimpleQueue`, whose `put` is reentrant. `Event.set` takes a lock, for which a second
        # SIGTERM that arrives in the handler of the first one would wait forever.
        self._has_signal = False
        self._signals: SimpleQueue[None] = SimpleQueue()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._polls = 0
        self._due: int | None = None
        self._is_forked = False
        self._resumed: list[weakref.ref[object]] = []
        self._polling: weakref.WeakSet[object] = weakref.WeakSet()
        self._passed_over: weakref.WeakSet[object] = weakref.WeakSet()
        self._previous = _install(self._on_signal)
        in_forked_children(self._reset)
        self._thread: threading.Thread | None = None
        self._begin()

    def _begin(self) -> None:
        self._polls, self._due = 0, None
        self._stopped.clear()
        if distributed.is_connected():
            self._thread = threading.Thread(target=self._watch, name="mirrored-preemption", daemon=True)
            start(self._thread)
            # `atexit` runs this before JAX shuts down the coordination client that the thread uses.
            atexit.register(self._stop)

    def note_resumed(self, manager: object) -> None:
        """Records that the program resumes from a manager's newest checkpoint.

        The first manager counts that saves, too: one of pretrained weights only restores.
        """
        self._resumed.append(weakref.ref(manager))

    def poll(self, manager: object = None) -> bool:
        """Returns whether `manager` must save and all workers must exit after this step.

        Another manager than the one from which the program resumes is passed over once, because its checkpoint would
        not be found by the next start. When it polls again, the program does not save with the other manager.

        Context: once per step and manager, on every worker.
        """
        if manager is not None:
            self._polling.add(manager)
        return self._is_due() and self._is_turn_of(manager)

    def _is_turn_of(self, manager: object) -> bool:
        saving = (one for found in self._resumed if (one := found()) is not None and one in self._polling)
        resumed = next(saving, None)
        if resumed is None or resumed is manager or manager in self._passed_over:
            return True
        self._passed_over.add(manager)
        return False

    def _is_due(self) -> bool:
        if self._thread is None and not self._is_forked and distributed.is_connected():
            self._begin()  # the strategy, with which this process joined the job, was created after the manager
        with self._lock:
            self._polls += 1
            if self._thread is None:
                return self._has_signal
            return self._due is not None and self._polls >= self._due

    def _reset(self) -> None:
        """Restores the previous SIGTERM handler in a forked child, which saves no checkpoints."""
        self._thread, self._due, self._is_forked = None, None, True
        self._has_signal, self._lock = False, threading.Lock()
        _made.clear()
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            # None means that the previous handler was not installed from Python.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._has_signal = True
        self._signals.put(None)

    def _watch(self) -> None:
        try:
            while not self._stopped.is_set():
                with contextlib.suppress(Empty):
                    self._signals.get(timeout=_LOOK_SECONDS)
                if self._has_signal:
                    _publish(f"{_ROOT}/notice", "SIGTERM")
                if distributed.get_if_set(f"{_ROOT}/notice") is not None:
                    self._choose_step()
                    return
        except RuntimeError:
            return  # a worker was lost, so the job ends anyway
        except distributed.NoAnswer as error:
            print(
                f"mirrored: a worker has received SIGTERM, and worker {str(error).rpartition('/')[2]} has not told "
                f"its step within {AGREEMENT_SECONDS.read():g} s ({AGREEMENT_SECONDS.name}): no step is saved for it. "
                "Make a CheckpointManager with save_on_preemption=True on all workers",
                file=sys.stderr,
                flush=True,
            )
        except BaseException:
            if not distributed.is_elastic():
                raise
            # The workers change: this process has left the job, and begins to watch again in the next one.

    def _choose_step(self) -> None:
        with self._lock:  # blocks `poll`, so that this worker's count cannot change
            _publish(f"{_ROOT}/steps/{distributed.this_process()}", str(self._polls))
            count = distributed.num_processes()
            # A worker that came late would choose a step that the others, had they given up, would pass.
            seconds = AGREEMENT_SECONDS.read()
            polls = [int(distributed.get(f"{_ROOT}/steps/{worker}", seconds)) for worker in range(count)]
            self._due = max(polls) + 1

    def begin_again(self) -> None:
        """Starts to watch for SIGTERM in a new job, which this process has joined after leaving its previous job.

        A signal that arrived between the jobs also makes the new job save and exit.
        """
        if self._stopped.is_set():
            self._begin()

    def leave(self) -> None:
        """Stops the thread that agrees with the other workers on the last step, because this process leaves the job."""
        atexit.unregister(self._stop)
        self._stop()
        self._thread = None

    def _stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(2 * _LOOK_SECONDS)


def _install(handler: Callable[[int, FrameType | None], Any] | int | None) -> Any:
    if threading.current_thread() is not threading.main_thread():
        raise ContextError(
            "CheckpointManager",
            found=f"save_on_preemption=True was passed in the thread {threading.current_thread().name!r}",
            rule="signal handlers can be installed only in the main thread",
            remedy="create the manager in the main thread",
        )
    return signal.signal(signal.SIGTERM, handler)


def _publish(key: str, value: str) -> None:
    try:
        distributed.put(key, value)
    except RuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise


_made: list[Preemption] = []


def preemption() -> Preemption:
    """Returns the SIGTERM handler of this process, a single instance of `Preemption`."""
    if not _made:
        _made.append(Preemption())
    _made[0].begin_again()
    return _made[0]


@distributed.on_leave
def _leave() -> None:
    for one in _made:
        one.leave()
