"""Writing a checkpoint: in a thread of its own, beside its final place, then renamed: whole or not at all.

Every write has a temporary folder of its own, so that no two of them ever write to the same files.
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
# Temporary folders of this process, and the lock under which it renames.
_in_use: set[Path] = set()
_renaming = threading.Lock()

_REMEDIES: Final = {
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "free space, or have the quota of this user raised",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "mount its file system writable",
    errno.EACCES: "give this user the right to write to the folder",
    errno.EPERM: "give this user the right to write to the folder",
    errno.ENOTDIR: "remove the file that is in the place of a folder",
    errno.EEXIST: "remove the file that is in the place of a folder",
}


def write(directory: Path, manifest: Manifest) -> None:
    """Writes a checkpoint, whose leaves have their values. One that is there already is replaced at the end.

    Context: while this process holds the lock of the series (`series_lock`). What killed processes have left of this
    checkpoint is removed.

    Raises:
        CheckpointError: It cannot be written. What was there before is as it was.
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
            rule="a checkpoint is written whole or not at all; earlier ones are as they were",
            remedy=f"{_remedy(error)}, or choose another folder, and save again",
        ) from error
    finally:
        _in_use.discard(unfinished)


def unfinished_beside(directory: Path) -> Path:
    """A new name for what is not, or no longer, the checkpoint at a path."""
    return directory.with_name(f"{directory.name}.{secrets.token_hex(4)}{UNFINISHED}")


def remove_leftovers(folder: Path, wanted: Callable[[str], bool]) -> None:
    """Removes what processes that are gone have left unfinished.

    Args:
        folder: Where.
        wanted: Says of a checkpoint's name whether its series is this process's to write.
    """
    if not folder.is_dir():
        return
    for one in folder.iterdir():
        found = _LEFT.fullmatch(one.name)
        if found is not None and wanted(found[1]) and one not in _in_use:
            shutil.rmtree(one, ignore_errors=True)


def _remedy(error: BaseException) -> str:
    return _REMEDIES.get(_number_of(error) or 0, "look at the folder and its file system")


def _number_of(error: BaseException) -> int | None:
    """The system's error number; TensorStore has only its words."""
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return error.errno
    text = str(error)
    found = (number for number in _REMEDIES if os.strerror(number) in text)
    return next(found, None)


def _space_left(directory: Path, error: BaseException) -> str:
    if _number_of(error) != errno.ENOSPC:
        return ""
    there = next(one for one in directory.parents if one.exists())
    return f" ({shutil.disk_usage(there).free / 1e6:.1f} MB are free there)"


def _put_in_place(unfinished: Path, directory: Path) -> None:
    """Renames; where a checkpoint is replaced there is always one to be found (see `actual`)."""
    replaced = directory.with_name(directory.name + REPLACED)
    if directory.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        directory.rename(replaced)
    unfinished.rename(directory)
    _flush(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def actual(directory: Path) -> Path:
    """Where a checkpoint is: at its path, or beside it if the program was killed while it was being replaced."""
    replaced = directory.with_name(directory.name + REPLACED)
    return replaced if not directory.exists() and replaced.exists() else directory


def _flush(path: Path) -> None:
    """Has the system write a file or folder to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


class Writer:
    """Writes in the background, one checkpoint at a time, and keeps an error for whoever waits next."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        _writers.add(self)

    def start(self, work: Callable[[], None]) -> None:
        """Does `work` in the background, after what is under way.

        Raises:
            CheckpointError: What was under way has failed.
        """
        self.wait()
        # Not a daemon: a program that ends normally ends after its last checkpoint.
        thread = threading.Thread(target=self._run, args=(work,), name=_THREAD)
        thread.start()
        self._thread = thread  # only now: another thread may be about to join it

    def wait(self) -> None:
        """Waits for what is under way.

        Raises:
            CheckpointError: It has failed, or what was before it and nobody has asked.
        """
        thread = self._thread
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def is_busy(self) -> bool:
        """Whether something is being written now."""
        return self._thread is not None and self._thread.is_alive()

    def join(self) -> None:
        """Waits for what is under way; an error is kept for `wait`."""
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
    """Waits for everything that this process is writing, so that a look at a folder sees it. Not for writers."""
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
in_forked_children(_writers.clear)  # what the parent writes is the parent's to finish
