"""Writing a checkpoint: in a thread of its own, beside its final place, then renamed: whole or not at all."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from mirrored.checkpoint._extra import engine
from mirrored.checkpoint.ending import at_end
from mirrored.checkpoint.manifest import ARRAYS, FILE, Manifest
from mirrored.errors import CheckpointError

UNFINISHED: Final = ".unfinished"
REPLACED: Final = ".replaced"
_THREAD: Final = "mirrored-checkpoint"
_log = logging.getLogger("mirrored.checkpoint")


def write(directory: Path, manifest: Manifest) -> None:
    """Writes a checkpoint, whose leaves have their values. One that is there already is replaced at the end.

    Raises:
        CheckpointError: It cannot be written. What was there before is as it was.
    """
    unfinished = directory.with_name(directory.name + UNFINISHED)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        arrays: dict[str, np.ndarray[Any, Any]] = {n: s.value for n, s in manifest.leaves.items() if s.is_array}
        engine().write_arrays(unfinished / ARRAYS, arrays)
        manifest.write(unfinished)
        _flush(unfinished / FILE)
        _put_in_place(unfinished, directory)
    except Exception as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            "saving a checkpoint",
            found=f"{directory} could not be written: {_first_line(error)}",
            rule="a checkpoint is written whole or not at all; earlier ones are as they were",
            remedy="free space or mend the folder's permissions, and save again",
        ) from error


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
        self._thread = threading.Thread(target=self._run, args=(work,), name=_THREAD)
        self._thread.start()

    def wait(self) -> None:
        """Waits for what is under way.

        Raises:
            CheckpointError: It has failed, or what was before it and nobody has asked.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
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
