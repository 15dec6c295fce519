"""A buffered output stream that neither blocks nor ends the launcher."""

from __future__ import annotations

import collections
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import BinaryIO, Final

_ROOM_BYTES: Final = 1 << 20


class Sink:
    """Writes to a stream in a thread of its own: a reader that does not read blocks the sink, not the launcher.

    Data that cannot be written, for example because the disk is full, is dropped; later data is tried again.

    Args:
        stream: The stream to write to; None to drop everything.
        report: Called once, with the reason, when data cannot be written. Not called if the reader has closed.
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
            self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether more data may be put; otherwise the reader does not keep up."""
        return self._bytes < _ROOM_BYTES

    def put(self, data: bytes) -> None:
        """Queues data to be written, even if there is no room left."""
        if self._stream is None or not data:
            return
        with self._changed:
            self._queue.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def close(self, patience_seconds: float | None) -> None:
        """Waits until everything is written.

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
    """Writes data to a stream, by its descriptor if it has one.

    This bypasses the stream's buffer: data left there after a failure would fail again at exit.

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
