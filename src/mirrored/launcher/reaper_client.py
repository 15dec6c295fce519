"""Starts the helper process that kills the workers' process groups if the launcher is killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_REAPER: Final = Path(__file__).with_name("reaper.py")


class ReaperClient:
    """A context manager that kills the registered process groups when this process ends for any reason."""

    def __enter__(self) -> Self:
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_REAPER)], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reaper.stdin is not None
        with contextlib.suppress(OSError):
            self._reaper.stdin.close()
        self._reaper.wait()

    def add(self, group: int) -> None:
        """Registers a process group to be killed when this process ends."""
        self._send(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Unregisters a process group that has ended by itself."""
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        assert self._reaper.stdin is not None
        with contextlib.suppress(OSError):  # the reaper was killed
            self._reaper.stdin.write(line.encode())
            self._reaper.stdin.flush()
