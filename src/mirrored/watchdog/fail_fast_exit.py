"""Fail-fast exit: a worker that fails reports to the launcher, prints its error, and ends immediately.

A process of a JAX cluster that ends by an exception waits in JAX's shutdown barrier for all others, which wait for it
in a collective: the job deadlocks (measured: it never ends by itself). A failing worker therefore prints its error and
ends by `os._exit`, which skips Python's shutdown and with it the barrier.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn

from mirrored._threads import start
from mirrored.errors import AbsentWorkerError
from mirrored.watchdog.worker_progress import WorkerProgress

# Resets the state of a job that forked children inherit and must not use.


def in_forked_children(reset: Callable[[], None]) -> None:
    """Registers a function that runs at the start of every child process that this process forks.

    A child has copies of this process's signal handlers, descriptors and objects, but none of its threads. A handler
    that only sets an event for a thread to act on would make the child ignore the signal.

    A method does not keep its object alive: a registration lasts as long as the process, and an elastic job makes
    another watchdog in each epoch.
    """
    if not hasattr(os, "register_at_fork"):  # on Windows, where there is no fork
        return
    if not isinstance(reset, types.MethodType):
        os.register_at_fork(after_in_child=reset)
        return
    method = weakref.WeakMethod(reset)

    def reset_if_alive() -> None:
        found = method()
        if found is not None:
            found()

    os.register_at_fork(after_in_child=reset_if_alive)


# The stacks of all threads of this process.


def all_stacks() -> str:
    """Formats the stack traces of all threads of this process, except for the threads of `mirrored` itself."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    parts = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if not str(names.get(ident, "")).startswith("mirrored-")
    ]
    return "\n".join(parts)


# The error that reports a lost peer.

FOLLOWS: Final = "(follows)"
"""Prefix of the exit report of a worker that ends for a cause that the other workers detect themselves."""


def lost_worker_error(
    worker: int, standing: WorkerProgress | None, words: str, silent_seconds: float
) -> AbsentWorkerError:
    """Creates the error for a lost worker: names the worker, and says why it ended or when it was last seen.

    Args:
        worker: The index of the lost worker.
        standing: Its last known progress; None if it has posted none.
        words: Its exit report; empty if it sent none.
        silent_seconds: How long ago its last heartbeat was.
    """
    name = "" if standing is None else f" ({standing.name})"
    where = "" if standing is None else f", at operation {standing.count}: {standing.newest}"
    how = words or (
        "was lost without an exit report (killed, out of memory, stopped, crashed, or its machine or network is down); "
        f"it was last seen {silent_seconds:.1f} s ago{where}"
    )
    return AbsentWorkerError(
        "training on several workers",
        found=f"worker {worker}{name} {how}",
        rule="the workers of a job must execute every step together; none can continue without the others",
        remedy=f"check the output of worker {worker} and its machine's log, then restart all workers: they resume "
        "from the newest checkpoint (mirrored run --max-restarts 3 does so automatically)",
    )


# Delays the abort by JAX's runtime until the watchdog has named the lost worker.
#
# When worker 0 is lost, JAX's runtime ends the other processes by C's `abort` within milliseconds, with a message that
# names no worker. A handler of SIGABRT cannot safely run Python. It can be C's `sleep`, which blocks the aborting
# thread while another thread reports the lost worker and ends the process.


def delay_aborts() -> bool:
    """Installs a SIGABRT handler that waits some seconds, so that a report can be printed before an abort.

    C calls a handler with the signal's number, so that `sleep` waits SIGABRT (6 on Linux) seconds.

    Returns:
        Whether the delay is installed. It is not on Windows, nor where SIGABRT already has a handler.
    """
    if sys.platform == "win32" or faulthandler.is_enabled() or signal.getsignal(signal.SIGABRT) != signal.SIG_DFL:
        return False
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
    in_forked_children(lambda: library.signal(signal.SIGABRT, None))  # SIG_DFL: no thread reports in a child
    return True


def is_aborting() -> bool:
    """Returns whether a thread of this process is handling SIGABRT; always False except on Linux.

    While a handler runs, the kernel blocks its signal in that thread. Hardly any thread blocks SIGABRT alone otherwise.
    """
    mask = 1 << (signal.SIGABRT - 1)
    for thread in Path("/proc/self/task").glob("*/status"):
        try:
            lines = thread.read_text().splitlines()
        except OSError:  # the thread has ended
            continue
        if any(line.startswith("SigBlk:") and int(line.split()[1], 16) == mask for line in lines):
            return True
    return False


_GO_SECONDS: Final = 3.0
_END_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 4.0
_INTERRUPTED: Final = 130  # the exit status after Ctrl-C
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

_GLOO_STATUS: Final = re.compile(r"[A-Z_]+: Gloo ")


class LauncherChannel:
    """A worker's end of the socket through which the worker and the launcher exchange messages.

    Args:
        descriptor: The file descriptor of the socket.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._may_go = threading.Event()
        self._receive: Callable[[str], object] | None = None
        self._thread = threading.Thread(target=self._listen, name="mirrored-launcher", daemon=True)
        start(self._thread)

    def _listen(self) -> None:
        received = b""
        with contextlib.suppress(OSError):
            while piece := self._socket.recv(4096):
                *lines, received = (received + piece).split(b"\n")
                for line in lines:
                    if line == b"go":
                        self._may_go.set()
                    elif self._receive is not None:
                        self._receive(line.decode(errors="replace"))
        # The launcher has ended: nothing else would end this worker and its child processes.
        os.killpg(0, signal.SIGKILL)

    def close(self) -> None:
        """Closes this process's end of the socket to the launcher."""
        self._socket.close()

    def announce(self, kind: str, code: int, text: str) -> None:
        """Tells the launcher that this worker has failed, and waits for permission to print the error."""
        line = " ".join(text.split())
        with contextlib.suppress(OSError):
            self._socket.sendall(f"failing {kind} {code} {line}\n".encode(errors="replace"))
            self._may_go.wait(_GO_SECONDS)

    def send(self, line: str) -> None:
        """Sends the launcher one line."""
        with contextlib.suppress(OSError):
            self._socket.sendall(f"{line}\n".encode())

    def receive_by(self, receive: Callable[[str], object]) -> None:
        """Registers a function to be called, in this channel's thread, with each line that the launcher sends."""
        self._receive = receive

    def note(self, text: str) -> None:
        """Sends the launcher a text that may explain a later failure of this worker."""
        line = " ".join(text.split())
        with contextlib.suppress(OSError):
            self._socket.sendall(f"note {line}\n".encode(errors="replace"))

    def confirm_shown(self) -> None:
        """Tells the launcher that this worker has printed its error, and waits for the launcher to end this process."""
        with contextlib.suppress(OSError):
            self._socket.sendall(b"shown\n")
            self._thread.join(_END_SECONDS)


class _Process:
    """State of this process: the channel to its launcher, and the watchdog's callbacks."""

    launcher: LauncherChannel | None = None
    exiting = threading.Lock()
    report: Callable[[str, str], object] | None = None
    suspect: Callable[[], str | None] | None = None


def connect(descriptor: int) -> None:
    """Opens the connection to the launcher that has started this worker; called once per process."""
    _Process.launcher = LauncherChannel(descriptor)
    in_forked_children(_reset)


def _reset() -> None:
    """Detaches a forked child from the job, because its exit and errors do not concern the job."""
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


def launcher_channel() -> LauncherChannel | None:
    """Returns the connection to the launcher that has started this worker; None without a launcher."""
    return _Process.launcher


def report_exit_by(report: Callable[[str, str], object], suspect: Callable[[], str | None]) -> None:
    """Registers two functions of the watchdog: one reports this worker's exit, the other identifies a lost worker.

    Args:
        report: Sends the exit report to the other workers; called with the kind of the exit and its cause.
        suspect: Returns the text of the error for a worker that seems lost; None if none does.
    """
    _Process.report, _Process.suspect = report, suspect


def tell_launcher(text: str) -> None:
    """Sends the launcher, if one exists, a text that may explain a later failure of this worker."""
    if _Process.launcher is not None:
        _Process.launcher.note(text)


def fail_fast(kind: str, code: int, text: str, show: Callable[[], object]) -> NoReturn:
    """Ends this process immediately, after reporting the cause to the launcher or to the other workers.

    Args:
        kind: ``error``, ``exit``, ``hang``, or ``lost-peer`` if another worker's end is the cause.
        code: The exit status.
        text: The cause, as the end of a sentence that begins with this worker's name.
        show: Prints the full error.
    """
    try:
        _report_exit(kind, code, text, show)
    finally:
        os._exit(code)  # also at another Ctrl-C, which would otherwise lead to the shutdown barrier


def _report_exit(kind: str, code: int, text: str, show: Callable[[], object]) -> None:
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
        launcher.confirm_shown()
    elif _Process.report is not None:
        _Process.report(kind, text)


def is_lost_peer(error: BaseException) -> bool:
    """Returns whether an exception is JAX's error for the loss of another worker's process."""
    message = str(error)
    # JAX converts some of XLA's errors to ValueError, whose message begins with XLA's status.
    is_of_xla = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    if not is_of_xla and not (isinstance(error, ValueError) and _GLOO_STATUS.match(message)):
        return False
    message = message.lower()
    return any(fragment in message for fragment in _LOST_PEER_MESSAGES)


def fail_fast_on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """Prints an uncaught exception and ends this process immediately, without waiting for other workers."""
    try:
        _fail_fast_with(kind, error, trace)
    finally:
        os._exit(_INTERRUPTED)  # another Ctrl-C came before `fail_fast`


def _fail_fast_with(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        fail_fast("exit", _INTERRUPTED, "was interrupted", lambda: None)
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
    """Installs an exception hook that ends the process immediately after an uncaught exception in the main thread.

    Interactive sessions are not changed.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive or sys.excepthook is _fail_fast_hook:
        return
    _original_hook[0] = sys.excepthook
    sys.excepthook = _fail_fast_hook
    in_forked_children(_reset)
