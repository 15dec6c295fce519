"""Merges the output of all workers into one stream of whole lines, each prefixed with the worker's name."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from mirrored._threads import start
from mirrored.errors import ArgumentError

# A buffered output stream that neither blocks nor ends the launcher.

_ROOM_BYTES: Final = 1 << 20


class Sink:
    """A queue and thread that write data to a stream, so that a slow reader does not block the launcher.

    Data that cannot be written, for example because the disk is full, is dropped; later data is tried again.

    Args:
        stream: The stream to write to; None to drop everything.
        report: Called once, with the reason, when data cannot be written. Not called if the reader has closed the pipe.
    """

    def __init__(self, stream: BinaryIO | None, report: Callable[[str], object]) -> None:
        self._stream, self._report = stream, report
        self._queue: collections.deque[bytes] = collections.deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._moved_at = time.monotonic()
        self._has_failed = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="mirrored-output", daemon=True)
        if stream is not None:
            start(self._thread)

    @property
    def has_room(self) -> bool:
        """Whether the queue can take more data, i.e. the reader of the stream is fast enough."""
        return self._bytes < _ROOM_BYTES

    def put(self, data: bytes) -> None:
        """Appends data to the write queue, even if the queue is full."""
        if self._stream is None or not data:
            return
        with self._changed:
            self._queue.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def close(self, patience_seconds: float | None) -> None:
        """Waits until all queued data is written to the stream.

        Args:
            patience_seconds: How long to wait without progress; None for no limit.
        """
        with self._changed:
            self._is_closed = True
            self._moved_at = time.monotonic()
            self._changed.notify_all()
            while self._bytes and self._stream is not None:
                if patience_seconds is not None and time.monotonic() - self._moved_at > patience_seconds:
                    return
                self._changed.wait(0.1)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if not self._queue:
                    return
                data = self._queue[0]
            self._write(data)
            with self._changed:
                self._queue.popleft()
                self._bytes -= len(data)
                self._moved_at = time.monotonic()
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        assert self._stream is not None
        try:
            write_all(self._stream, data)
        except (OSError, ValueError) as error:
            if not self._has_failed and getattr(error, "errno", None) != errno.EPIPE:
                self._report(getattr(error, "strerror", None) or str(error))
            self._has_failed = True


def write_all(stream: BinaryIO, data: bytes) -> None:
    """Writes all bytes to a stream, bypassing the stream's buffer if it has a file descriptor.

    Data that a failure left in the buffer would fail again at exit.

    Raises:
        OSError: The data cannot be written.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, AttributeError):  # a stream in memory
        stream.write(data)
        stream.flush()
        return
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another program has made the terminal or pipe non-blocking
            time.sleep(0.01)


_COLORS: Final = (36, 33, 32, 35, 34, 31)
_CHUNK_BYTES: Final = 1 << 16
_READ_BYTES: Final = 1 << 20
# An upper bound on the length of a line, so that it cannot fill the launcher's memory.
_LINE_BYTES: Final = 1 << 26
# What Gloo, which runs JAX's collectives on CPUs, prints when it connects: a line for each device, interleaved by
# threads. The screen omits it; the logs keep it.
_GLOO: Final = re.compile(
    rb"\[Gloo\] Rank "
    rb"(?:\[Gloo\] Rank |\d+| is connected to | peer ranks\. |Expected number of connected peer ranks is : )*"
    rb"(?:\r?\n)+"
)


class Output:
    """The destination of all workers' output: the terminal and log files.

    A stream or log that fails or blocks neither ends nor stops the training.

    Args:
        screen: The launcher's standard output; None if it is closed.
        errors: The launcher's standard error, which also receives the launcher's own messages; None if it is closed.
        color: Whether to colour the prefixes.
        directory: A folder that receives each worker's output in addition, as ``worker-<rank>.log``.

    Raises:
        ArgumentError: The folder cannot be created.
    """

    def __init__(
        self,
        screen: BinaryIO | None,
        errors: BinaryIO | None,
        *,
        color: bool = False,
        directory: Path | None = None,
    ) -> None:
        self._errors = Sink(errors, lambda reason: None)
        self._screen = Sink(screen, lambda reason: self._report("standard output", reason))
        self._color = color
        self._directory = directory
        self._files: dict[int, BinaryIO | None] = {}
        self._has_reported_logs = False
        if directory is not None:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ArgumentError(
                    "mirrored run",
                    found=f"--log-dir {directory} cannot be created ({error.strerror})",
                    rule="--log-dir must be a folder that can be created or written to",
                    remedy="pass a writable folder",
                ) from error

    @property
    def has_room(self) -> bool:
        """Whether terminal and log files can take more output; if not, the launcher stops reading the workers' pipes.

        Then the workers' output stays in their pipes.
        """
        return self._screen.has_room and self._errors.has_room

    def write(self, rank: int, lines: bytes, *, is_error: bool = False) -> None:
        """Writes whole lines of one worker's output to the terminal and the worker's log file."""
        shown = _GLOO.sub(b"", lines)
        name = self._name(f"[worker {rank}] ", _COLORS[rank % len(_COLORS)])
        sink = self._errors if is_error else self._screen
        sink.put(b"".join([name + line for line in shown.splitlines(keepends=True)]))
        if self._directory is not None:
            self._log(rank, lines)

    def say(self, message: str) -> None:
        """Writes a message of the launcher itself to standard error and to every log file."""
        lines = [line.encode(errors="replace") + b"\n" for line in message.splitlines()]
        self._errors.put(b"".join([self._name("[mirrored] ", 1) + line for line in lines]))
        for rank in list(self._files):
            self._log(rank, b"".join(b"[mirrored] " + line for line in lines))

    def close(self, patience_seconds: float | None = None) -> None:
        """Waits until all output is written, and closes the log files.

        Args:
            patience_seconds: How long to wait for a reader that does not read. Default: until it reads or closes.
        """
        self._screen.close(patience_seconds)
        self._errors.close(patience_seconds)
        for file in self._files.values():
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._files.clear()

    def _log(self, rank: int, lines: bytes) -> None:
        assert self._directory is not None
        try:
            file = self._files.get(rank)
            if file is None:
                self._files[rank] = None  # registered for `say` before it is opened
                file = self._files[rank] = open(self._directory / f"worker-{rank}.log", "ab", buffering=0)
            write_all(file, lines)
        except OSError as error:
            if not self._has_reported_logs:
                self._has_reported_logs = True
                self._report(f"the log of worker {rank} in {self._directory}", error.strerror or str(error))

    def _report(self, what: str, reason: str) -> None:
        message = f"[mirrored] {what} cannot be written ({reason}): lines are lost, the workers continue\n"
        self._errors.put(message.encode(errors="replace"))

    def _name(self, name: str, color: int) -> bytes:
        return (f"\x1b[{color}m{name}\x1b[0m" if self._color else name).encode()


class Lines:
    """A pipe reader that splits the received output into whole lines.

    Args:
        descriptor: The file descriptor of the pipe; set to non-blocking.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.open = True
        # The pieces of an incomplete line, joined only once: appending bytes would take quadratic time.
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def read(self) -> bytes:
        """Returns all whole lines received so far; at the end of the pipe, also returns an incomplete last line."""
        whole: list[bytes] = []
        read = 0
        while read <= _READ_BYTES:
            try:
                piece = os.read(self.descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                break
            if not piece:
                self.open = False
                break
            read += len(piece)
            # A progress bar ends each of its states with a carriage return: it counts as the end of a line.
            cut = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
            if cut:
                whole += (*self._taken(), piece[:cut])
            self._rest.append(piece[cut:])
            self._rest_bytes += len(piece) - cut
            if self._rest_bytes > _LINE_BYTES:
                whole += (*self._taken(), b"\n")
        if not self.open and self._rest_bytes:
            whole += (*self._taken(), b"\n")
        return b"".join(whole)

    def rest(self) -> bytes:
        """Returns the incomplete last line, with a newline added; empty bytes if the last line is complete."""
        return b"".join((*self._taken(), b"\n")) if self._rest_bytes else b""

    def _taken(self) -> list[bytes]:
        rest, self._rest, self._rest_bytes = self._rest, [], 0
        return rest
