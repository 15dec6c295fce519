"""Writes checkpoints in a background thread. A checkpoint is written to a temporary folder and renamed when complete.

Every write uses its own temporary folder, so that two writes never write to the same files.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from mirrored.checkpoint.ending import at_end
from mirrored.checkpoint.extra import engine
from mirrored.checkpoint.manifest import ARRAYS, FILE, Manifest
from mirrored.errors import CheckpointError
from mirrored.watchdog.forked_children import in_forked_children

UNFINISHED: Final = ".unfinished"
REPLACED: Final = ".replaced"
_THREAD: Final = "mirrored-checkpoint"
_log = logging.getLogger("mirrored.checkpoint")


_LEFT: Final = re.compile(r"(.+?)(\.[0-9a-f]{8})?" + re.escape(UNFINISHED))
# The temporary folders that this process is writing, and the lock that it holds while renaming.
_in_use: set[Path] = set()
_renaming = threading.Lock()

_REMEDIES: Final = {
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "free space, or raise the disk quota of this user",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EROFS: "mount its file system as writable",
    errno.EACCES: "grant this user write permission on the folder",
    errno.EPERM: "grant this user write permission on the folder",
    errno.ENOTDIR: "remove the file that has the path of a folder",
    errno.EEXIST: "remove the file that has the path of a folder",
}


def write(directory: Path, manifest: Manifest) -> None:
    """Writes a checkpoint, whose leaves have their values. An existing checkpoint is replaced at the end.

    Removes temporary folders of this checkpoint that killed processes left behind.

    Context: while this process holds the lock of the series (`series_lock`).

    Raises:
        CheckpointError: The checkpoint cannot be written. An existing checkpoint is unchanged.
    """
    unfinished = unfinished_beside(directory)
    _in_use.add(unfinished)
    try:
        remove_leftovers(directory.parent, lambda name: name == directory.name)
        unfinished.mkdir(parents=True)
        arrays: dict[str, np.ndarray[Any, Any]] = {n: s.value for n, s in manifest.leaves.items() if s.is_array}
        engine().write_arrays(unfinished / ARRAYS, arrays)
        manifest.write(unfinished)
        _flush(unfinished / FILE)
        with _renaming:
            _put_in_place(unfinished, directory)
    except Exception as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            "saving a checkpoint",
            found=f"{directory} could not be written: {_first_line(error)}{_space_left(directory, error)}",
            rule="a checkpoint is written completely or not at all; earlier checkpoints are unchanged",
            remedy=f"{_remedy(error)}, or choose another folder, and save again",
        ) from error
    finally:
        _in_use.discard(unfinished)


def unfinished_beside(directory: Path) -> Path:
    """Returns a new temporary path for a checkpoint that is being written or removed."""
    return directory.with_name(f"{directory.name}.{secrets.token_hex(4)}{UNFINISHED}")


def remove_leftovers(folder: Path, wanted: Callable[[str], bool]) -> None:
    """Removes the temporary folders that dead processes left behind.

    Args:
        folder: The folder of the checkpoints.
        wanted: From the name of a checkpoint to whether this process may write its series.
    """
    if not folder.is_dir():
        return
    for one in folder.iterdir():
        found = _LEFT.fullmatch(one.name)
        if found is not None and wanted(found[1]) and one not in _in_use:
            shutil.rmtree(one, ignore_errors=True)


def _remedy(error: BaseException) -> str:
    return _REMEDIES.get(_number_of(error) or 0, "check the folder and its file system")


def _number_of(error: BaseException) -> int | None:
    """Returns the system's error number. TensorStore's errors contain only its text, so the text is searched too."""
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return error.errno
    text = str(error)
    found = (number for number in _REMEDIES if os.strerror(number) in text)
    return next(found, None)


def _space_left(directory: Path, error: BaseException) -> str:
    if _number_of(error) != errno.ENOSPC:
        return ""
    there = next(one for one in directory.parents if one.exists())
    return f" ({shutil.disk_usage(there).free / 1e6:.1f} MB are free on its file system)"


def _put_in_place(unfinished: Path, directory: Path) -> None:
    """Renames a finished checkpoint to its path. During a replacement, `actual` always finds one of the two."""
    replaced = directory.with_name(directory.name + REPLACED)
    if directory.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        directory.rename(replaced)
    unfinished.rename(directory)
    _flush(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def actual(directory: Path) -> Path:
    """Returns the folder of a checkpoint: its path, or the folder beside it if a replacement was interrupted."""
    replaced = directory.with_name(directory.name + REPLACED)
    return replaced if not directory.exists() and replaced.exists() else directory


def _flush(path: Path) -> None:
    """Flushes a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


class Writer:
    """Writes one checkpoint at a time in the background. The next `wait` raises the error of a failed write."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        _writers.add(self)

    def start(self, work: Callable[[], None]) -> None:
        """Waits for the current write, and runs `work` in the background.

        Raises:
            CheckpointError: The current write failed.
        """
        self.wait()
        # Not a daemon thread, so that a program that ends normally finishes its last checkpoint.
        thread = threading.Thread(target=self._run, args=(work,), name=_THREAD)
        thread.start()
        self._thread = thread  # after `start`: another thread can call `join`, which fails before `start`

    def wait(self) -> None:
        """Waits for the current write.

        Raises:
            CheckpointError: The current write failed, or an earlier one whose error has not been raised yet.
        """
        thread = self._thread
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def is_busy(self) -> bool:
        """Whether a write is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def join(self) -> None:
        """Waits for the current write without raising its error, which `wait` raises later."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def settle() -> None:
    """Waits for all writes of this process, so that a folder listing includes them. Has no effect in writer threads."""
    if threading.current_thread().name != _THREAD:
        for writer in list(_writers):
            writer.join()


def _finish_all() -> None:
    for writer in list(_writers):
        try:
            writer.wait()
        except CheckpointError as error:
            _log.error("%s", error)


at_end(_finish_all)
in_forked_children(_writers.clear)  # the parent process finishes its own writes
