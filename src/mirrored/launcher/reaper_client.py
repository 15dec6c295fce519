"""Starts the reaper and tells it which process groups there are."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_REAPER: Final = Path(__file__).with_name("reaper.py")


class ReaperClient:
    """While it is open, the process groups that it was told of do not outlive this process."""

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
        """Has a group kept."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """The group has ended."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._reaper.stdin is not None
        with contextlib.suppress(OSError):  # somebody has killed the reaper
            self._reaper.stdin.write(line.encode())
            self._reaper.stdin.flush()
