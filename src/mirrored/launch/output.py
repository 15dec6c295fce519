"""The output of all workers on one screen: whole lines, each with the name of its worker."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, Final

_COLORS: Final = (36, 33, 32, 35, 34, 31)


class Output:
    """Where the lines of the workers go.

    Args:
        screen: The launcher's own standard output.
        errors: Its standard error, where messages of its own go as well.
        color: Whether names are coloured.
        directory: Where each worker's output goes as well, as ``worker-<rank>.log``.
    """

    def __init__(
        self, screen: BinaryIO, errors: BinaryIO, *, color: bool = False, directory: Path | None = None
    ) -> None:
        self._screen = screen
        self._errors = errors
        self._color = color
        self._directory = directory
        self._files: dict[int, BinaryIO] = {}
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def write(self, rank: int, lines: bytes, *, is_error: bool = False) -> None:
        """Shows some whole lines of one worker."""
        name = self._name(f"[worker {rank}] ", _COLORS[rank % len(_COLORS)])
        _put(self._errors if is_error else self._screen, [name + line for line in lines.splitlines(keepends=True)])
        if self._directory is not None:
            file = self._files.get(rank)
            if file is None:
                file = self._files[rank] = open(self._directory / f"worker-{rank}.log", "ab", buffering=0)
            file.write(lines)

    def say(self, message: str) -> None:
        """Shows a message of the launcher, and writes it into every log."""
        lines = [line.encode() + b"\n" for line in message.splitlines()]
        _put(self._errors, [self._name("[mirrored] ", 1) + line for line in lines])
        for file in self._files.values():
            file.write(b"".join(b"[mirrored] " + line for line in lines))

    def close(self) -> None:
        """Closes the logs."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _name(self, name: str, color: int) -> bytes:
        return (f"\x1b[{color}m{name}\x1b[0m" if self._color else name).encode()


def _put(stream: BinaryIO, lines: list[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody reads any more: training goes on
        stream.write(b"".join(lines))
        stream.flush()


class Lines:
    """Cuts what comes out of a pipe into whole lines.

    Args:
        descriptor: Read without blocking.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.open = True
        self._rest = b""

    def read(self) -> bytes:
        """All whole lines that there are; at the end of the pipe also a last one without an end."""
        data = self._rest
        with contextlib.suppress(BlockingIOError):
            while True:
                piece = os.read(self.descriptor, 1 << 16)
                if not piece:
                    self.open = False
                    break
                data += piece
                if len(data) > 1 << 20:
                    break
        # A progress bar returns to the start of its line: each of its states is a line here.
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        whole, self._rest = data[:cut], data[cut:]
        return whole if self.open else whole + self._last()

    def _last(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""
