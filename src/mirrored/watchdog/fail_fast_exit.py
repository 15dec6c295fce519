"""Fail-fast exit of a worker: it reports to the launcher, prints its error, and ends without waiting for the others.

A process of a JAX cluster that ends by an exception waits in JAX's shutdown barrier for all others, which wait for it
in a collective: the job deadlocks (measured: it never ends by itself). A failing worker therefore prints its error and
ends by `os._exit`, which skips Python's shutdown and with it the barrier.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Final, NoReturn

from mirrored.watchdog.forked_children import in_forked_children

_GO_SECONDS: Final = 3.0
_END_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 4.0
# Fragments of JAX's error messages for the loss of another process of the job.
_LOST_PEER_MESSAGES: Final = (
    "gloo",
    "connection closed by peer",
    "connection reset by peer",
    "socket closed",
    "connection refused",
    "coordination service",
    "the following tasks",
    "nccl",
    "remote process",
)


class LauncherChannel:
    """The worker's end of the socket between a worker and its launcher.

    Args:
        descriptor: The file descriptor of the socket.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._may_go = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="mirrored-launcher", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        received = b""
        with contextlib.suppress(OSError):
            while piece := self._socket.recv(4096):
                received += piece
                if b"go\n" in received:
                    self._may_go.set()
        # The launcher has ended: nothing else would end this worker and its child processes.
        os.killpg(0, signal.SIGKILL)

    def close(self) -> None:
        """Closes this process's descriptor of the socket."""
        self._socket.close()

    def announce(self, kind: str, code: int, text: str) -> None:
        """Announces the failure of this worker, and waits until the launcher lets it print its error."""
        line = " ".join(text.split())
        with contextlib.suppress(OSError):
            self._socket.sendall(f"failing {kind} {code} {line}\n".encode(errors="replace"))
            self._may_go.wait(_GO_SECONDS)

    def note(self, text: str) -> None:
        """Sends the launcher a text that may explain a later failure of this worker."""
        line = " ".join(text.split())
        with contextlib.suppress(OSError):
            self._socket.sendall(f"note {line}\n".encode(errors="replace"))

    def has_shown(self) -> None:
        """Reports that the error is printed, and waits for the launcher to end this process."""
        with contextlib.suppress(OSError):
            self._socket.sendall(b"shown\n")
            self._thread.join(_END_SECONDS)


class _Process:
    """Process-wide state: the channel to the launcher, and the callbacks of the watchdog."""

    launcher: LauncherChannel | None = None
    exiting = threading.Lock()
    report: Callable[[str, str], object] | None = None
    suspect: Callable[[], str | None] | None = None


def connect(descriptor: int) -> None:
    """Opens the channel to the launcher. Called once per process."""
    _Process.launcher = LauncherChannel(descriptor)
    in_forked_children(_reset)


def _reset() -> None:
    """Detaches a forked child from the job: its end is not the worker's, and its errors are its own."""
    launcher, _Process.launcher = _Process.launcher, None
    _Process.report = _Process.suspect = None
    _Process.exiting = threading.Lock()
    if sys.excepthook is _fail_fast_hook:
        sys.excepthook = _original_hook[0]
    if launcher is not None:
        launcher.close()


def has_launcher() -> bool:
    """Returns whether `mirrored run` has started this process."""
    return _Process.launcher is not None


def report_exit_by(report: Callable[[str, str], object], suspect: Callable[[], str | None]) -> None:
    """Registers the watchdog's callbacks for the exit of this worker.

    Args:
        report: Sends the exit report to the other workers; called with the kind of the exit and its cause.
        suspect: Returns the text of the error for a worker that seems lost; None if none does.
    """
    _Process.report, _Process.suspect = report, suspect


def tell_launcher(text: str) -> None:
    """Sends the launcher, if there is one, a text that may explain a later failure of this worker."""
    if _Process.launcher is not None:
        _Process.launcher.note(text)


def fail_fast(kind: str, code: int, text: str, show: Callable[[], object]) -> NoReturn:
    """Ends this process now, after an exit report to the launcher or to the other workers.

    Args:
        kind: ``error``, ``exit``, ``hang``, or ``lost-peer`` if another worker's end is the cause.
        code: The exit status.
        text: The cause, as the end of a sentence that begins with this worker's name.
        show: Prints the full error.
    """
    _Process.exiting.acquire()  # never released: only the first thread that fails reports
    launcher = _Process.launcher
    if launcher is not None:
        launcher.announce(kind, code, text)
    with contextlib.suppress(Exception):
        show()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if launcher is not None:
        launcher.has_shown()
    elif _Process.report is not None:
        _Process.report(kind, text)
    os._exit(code)


def is_lost_peer(error: BaseException) -> bool:
    """Returns whether an error is JAX's report that another worker has ended."""
    if type(error).__name__ not in ("JaxRuntimeError", "XlaRuntimeError"):
        return False
    message = str(error).lower()
    return any(fragment in message for fragment in _LOST_PEER_MESSAGES)


def fail_fast_on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """Ends this process for an uncaught exception: prints its traceback, and does not wait for the other workers."""
    if isinstance(error, KeyboardInterrupt):
        fail_fast("exit", 130, "was interrupted", lambda: None)
    notes = sum(note.count("\n") + 1 for note in getattr(error, "__notes__", ()))
    lines = traceback.format_exception_only(kind, error)
    last = lines[max(0, len(lines) - 1 - notes)].strip()[:300]
    if not is_lost_peer(error):
        fail_fast("error", 1, f"ended by {last}", lambda: _show(kind, error, trace, None))
    if _Process.suspect is None:
        fail_fast("lost-peer", 1, f"has lost another worker: {last}", lambda: _show(kind, error, trace, None))
    # The watchdog may know more: which worker was lost, or that the workers were at different operations. It then ends
    # this process first.
    time.sleep(_PATIENCE_SECONDS)
    lost = _Process.suspect()
    fail_fast("lost-peer", 1, f"has lost another worker: {lost or last}", lambda: _show(kind, error, trace, lost))


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None, lost: str | None) -> None:
    hook = _original_hook[0] if sys.excepthook is _fail_fast_hook else sys.excepthook
    hook(kind, error, trace)
    if lost is not None:
        print(lost, file=sys.stderr)


def _fail_fast_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    fail_fast_on_exception(kind, error, trace)


_original_hook = [sys.__excepthook__]


def install_fail_fast() -> None:
    """Makes every uncaught exception of the main thread end this process at once, except in an interactive session."""
    if hasattr(sys, "ps1") or sys.flags.interactive or sys.excepthook is _fail_fast_hook:
        return
    _original_hook[0] = sys.excepthook
    sys.excepthook = _fail_fast_hook
    in_forked_children(_reset)
