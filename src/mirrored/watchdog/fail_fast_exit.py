"""How a worker ends: its word to the launcher, its error on the screen, and no waiting for the others.

A process of a JAX cluster that ends by an exception waits in JAX's shutdown barrier for all others, which wait for it
in a collective: the whole job hangs (measured: for as long as one cares to look). So a failing worker prints its error
and leaves at once, without Python's farewell.
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
# What JAX says when another process of the job is gone.
_LOST_PEER_WORDS: Final = (
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
    """The worker's end of the channel to its launcher.

    Args:
        descriptor: Of the socket.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._may_go = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="mirrored-launcher", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        heard = b""
        with contextlib.suppress(OSError):
            while piece := self._socket.recv(4096):
                heard += piece
                if b"go\n" in heard:
                    self._may_go.set()
        # The launcher is gone: nobody would end this worker and what it has started.
        os.killpg(0, signal.SIGKILL)

    def close(self) -> None:
        """Closes the descriptor of this process."""
        self._socket.close()

    def announce(self, kind: str, code: int, text: str) -> None:
        """Says that this worker fails, and waits until it may say why on the screen."""
        line = " ".join(text.split())
        with contextlib.suppress(OSError):
            self._socket.sendall(f"failing {kind} {code} {line}\n".encode(errors="replace"))
            self._may_go.wait(_GO_SECONDS)

    def note(self, text: str) -> None:
        """Says what may explain what becomes of this worker."""
        line = " ".join(text.split())
        with contextlib.suppress(OSError):
            self._socket.sendall(f"note {line}\n".encode(errors="replace"))

    def has_shown(self) -> None:
        """Says that the error is on the screen, and waits to be ended."""
        with contextlib.suppress(OSError):
            self._socket.sendall(b"shown\n")
            self._thread.join(_END_SECONDS)


class _Process:
    """What this process knows of its launcher."""

    launcher: LauncherChannel | None = None
    leaving = threading.Lock()
    farewell: Callable[[str, str], object] | None = None
    suspect: Callable[[], str | None] | None = None


def connect(descriptor: int) -> None:
    """Opens the channel to the launcher; once per process."""
    _Process.launcher = LauncherChannel(descriptor)
    in_forked_children(_reset)


def _reset() -> None:
    """In a forked child, whose end is not that of the worker: its errors are its own."""
    launcher, _Process.launcher = _Process.launcher, None
    _Process.farewell = _Process.suspect = None
    _Process.leaving = threading.Lock()
    if sys.excepthook is _leave_at_once:
        sys.excepthook = _original_hook[0]
    if launcher is not None:
        launcher.close()


def has_launcher() -> bool:
    """Whether `mirrored run` has started this process."""
    return _Process.launcher is not None


def report_exit_by(farewell: Callable[[str, str], object], suspect: Callable[[], str | None]) -> None:
    """Says how the other workers are to hear of this one's end, and who knows which of them is lost.

    Args:
        farewell: Called with the kind of the end and what has happened.
        suspect: Gives the error's text for a worker that seems lost, if there is one.
    """
    _Process.farewell, _Process.suspect = farewell, suspect


def tell_launcher(text: str) -> None:
    """Says to the launcher, if there is one, what may explain what becomes of this worker."""
    if _Process.launcher is not None:
        _Process.launcher.note(text)


def fail_fast(kind: str, code: int, text: str, show: Callable[[], object]) -> NoReturn:
    """Ends this process now.

    Args:
        kind: ``error``, ``exit``, ``hang``, or ``lost-peer`` if another worker's end is the cause.
        code: The exit status.
        text: What happened, as the end of a sentence that begins with this worker's name.
        show: Prints the whole story.
    """
    _Process.leaving.acquire()  # never given back: the first one tells the story
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
    elif _Process.farewell is not None:
        _Process.farewell(kind, text)
    os._exit(code)


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error is JAX's word for another worker's end."""
    if type(error).__name__ not in ("JaxRuntimeError", "XlaRuntimeError"):
        return False
    message = str(error).lower()
    return any(word in message for word in _LOST_PEER_WORDS)


def fail_fast_on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """Ends this process for an exception that nobody has caught: its traceback, and no waiting for the others."""
    if isinstance(error, KeyboardInterrupt):
        fail_fast("exit", 130, "was interrupted", lambda: None)
    notes = sum(note.count("\n") + 1 for note in getattr(error, "__notes__", ()))
    lines = traceback.format_exception_only(kind, error)
    last = lines[max(0, len(lines) - 1 - notes)].strip()[:300]
    if not is_lost_peer(error):
        fail_fast("error", 1, f"ended by {last}", lambda: _show(kind, error, trace, None))
    if _Process.suspect is None:
        fail_fast("lost-peer", 1, f"has lost another worker: {last}", lambda: _show(kind, error, trace, None))
    # The watch may know more: who was lost, or that the workers were not at the same operation. Then it leaves.
    time.sleep(_PATIENCE_SECONDS)
    lost = _Process.suspect()
    fail_fast("lost-peer", 1, f"has lost another worker: {lost or last}", lambda: _show(kind, error, trace, lost))


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None, lost: str | None) -> None:
    hook = _original_hook[0] if sys.excepthook is _leave_at_once else sys.excepthook
    hook(kind, error, trace)
    if lost is not None:
        print(lost, file=sys.stderr)


def _leave_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    fail_fast_on_exception(kind, error, trace)


_original_hook = [sys.__excepthook__]


def install_fail_fast() -> None:
    """Has every uncaught exception of the main thread end this process at once (not in an interactive session)."""
    if hasattr(sys, "ps1") or sys.flags.interactive or sys.excepthook is _leave_at_once:
        return
    _original_hook[0] = sys.excepthook
    sys.excepthook = _leave_at_once
    in_forked_children(_reset)
