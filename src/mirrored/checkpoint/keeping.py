"""Records in a file when the newest permanently kept checkpoint was saved, for `keep_every_n_hours`."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from mirrored.checkpoint.directory import checkpoints_in
from mirrored.checkpoint.manifest import read_manifest
from mirrored.checkpoint.writing import KEPT, actual
from mirrored.errors import DamagedCheckpointError, MissingCheckpointError


class KeepingClock:
    """Persistent record of the save time of the newest permanently kept checkpoint, in nanoseconds since 1970.

    Before the first such checkpoint, it is the time at which the series began. A file in the folder has the time.
    Without the file, which earlier versions do not write, the checkpoints in the folder show it.

    Args:
        directory: The folder of the checkpoints.
        name: The prefix of their names.
    """

    def __init__(self, directory: str, name: str) -> None:
        self._directory, self._name = directory, name
        self._file = Path(directory) / f".{name}-last-kept"
        self._created = time.time_ns()
        self._latest: int | None = None

    def read(self) -> int:
        """Returns when the newest permanently kept checkpoint was saved, in nanoseconds since 1970.

        The first call reads the time from the file. If there is no file, it takes the time from the checkpoints in the
        folder, and writes the file.
        """
        if self._latest is None:
            with contextlib.suppress(OSError, ValueError):
                self._latest = min(int(self._file.read_text(encoding="ascii")), time.time_ns())
        if self._latest is None:
            self.set(self._of_checkpoints())
        assert self._latest is not None
        return self._latest

    def set(self, nanoseconds: int) -> None:
        """Sets the save time of the newest permanently kept checkpoint, in memory and in a file."""
        self._latest = nanoseconds
        new = self._file.with_name(f"{self._file.name}.new")
        with contextlib.suppress(OSError):  # the next start takes the time from the checkpoints
            new.write_text(str(nanoseconds), encoding="ascii")
            os.replace(new, self._file)

    def _of_checkpoints(self) -> int:
        kept: list[int] = []
        others = [self._created]
        for path in map(Path, checkpoints_in(self._directory, self._name)):
            with contextlib.suppress(DamagedCheckpointError, MissingCheckpointError, OSError):
                (kept if (path / KEPT).exists() else others).append(read_manifest(actual(path)).order)
        return max(kept, default=min(others))
