"""A lock file that prevents two jobs from writing checkpoints of the same name to one folder.

Two jobs would replace, remove and restore each other's checkpoints. The lock is an operating system lock: `flock` on a
hidden file beside the checkpoints. The kernel releases it when the process ends for any reason, so a killed job never
blocks its restart. The content of the file identifies the holder, for the error message of the other job.

On a file system without locks, the content decides. The most recent job gets the folder, because it may be the restart
of a dead one. The earlier job raises an error at its next save. Neither waits for a process that may no longer exist.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import secrets
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mirrored._blocks import contextmanager
from mirrored.errors import CheckpointError
from mirrored.watchdog.fail_fast_exit import in_forked_children

try:
    import fcntl as _fcntl
except ImportError:  # Windows
    fcntl: Any = None
else:
    fcntl = _fcntl

# A killed process takes a moment to end.
_PATIENCE_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.05
_UNSUPPORTED: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)


class SeriesLock:
    """A file lock that lets only this process write the checkpoints of one name to a folder.

    Args:
        path: The lock file.
        called: The function that the user called, for messages.

    Raises:
        CheckpointError: Another process holds the lock.
        OSError: The folder cannot be written to.
    """

    def __init__(self, path: Path, called: str) -> None:
        self._path = path
        self._token = secrets.token_hex(8)
        self._open = _Open(path)
        self._writer: weakref.ref[object] | None = None
        self._before: weakref.ref[object] | None = None
        self._former: weakref.WeakSet[object] = weakref.WeakSet()
        weakref.finalize(self, self._open.release)
        self._take(called)

    def check(self, called: str) -> None:
        """Raises an error if another process has taken the lock; locks again if the lock file was removed.

        Raises:
            CheckpointError: Another process holds the lock.
            OSError: The folder cannot be written to.
        """
        if self._open.is_locked and self._open.is_at_path():
            return
        found = _read(self._path)
        if not self._open.is_locked and found is not None:
            if found.get("token") != self._token:
                raise _taken_error(self._path, found, called)
            return
        self._open.close()
        self._take(called)

    def write_by(self, writer: object, called: str) -> None:
        """Records a write by `writer`; raises an error if another `Checkpoint` has written since `writer` last wrote.

        Raises:
            CheckpointError: Two checkpoints take turns under one name.
        """
        if writer in self._former:
            raise _replaced_error(self._path, called)
        self._before = self._writer
        last = None if self._before is None else self._before()
        if last is not None and last is not writer:
            self._former.add(last)
        self._writer = weakref.ref(writer)

    def withdraw(self, writer: object) -> None:
        """Removes the record of a failed write by `writer`.

        Undoes the call `write_by(writer)`. Does nothing if another writer has called `write_by` since.
        """
        if self._writer is not None and self._writer() is writer:
            self._writer = self._before
            last = None if self._before is None else self._before()
            if last is not None:
                self._former.discard(last)

    def forget(self) -> None:
        """Closes the lock file in a forked child process, so that the child does not keep the parent's lock."""
        self._open.close()

    def _take(self, called: str) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not self._open.try_lock():
            if time.monotonic() > end:
                raise _taken_error(self._path, _read(self._path), called)
            time.sleep(_PAUSE_SECONDS)
        _write(self._path, {"token": self._token, **_this_job()})


class _Open:
    """An open lock file, separate from `SeriesLock` so that the finalizer does not keep the `SeriesLock` alive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.is_locked = False

    def try_lock(self) -> bool:
        """Tries to lock the file; returns False if another process holds the lock.

        Returns True without setting `is_locked` if the file system does not support locks.
        """
        while fcntl is not None:
            self._descriptor = _opened(self._path)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.close()
                if error.errno in _UNSUPPORTED:
                    return True
                if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                    return False
                raise
            self.is_locked = True
            if self.is_at_path():
                return True
            self.close()  # the previous holder has just removed the file: lock the new one
        return True

    def is_at_path(self) -> bool:
        """Returns whether the path still refers to the open file."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Closes the file."""
        descriptor, self._descriptor, self.is_locked = self._descriptor, None, False
        if descriptor is not None:
            os.close(descriptor)

    def release(self) -> None:
        """Deletes the lock file while still holding the lock, and then closes the file, which releases the lock."""
        with contextlib.suppress(OSError):
            if self.is_locked and self.is_at_path():
                os.unlink(self._path)
        self.close()


_held: weakref.WeakValueDictionary[tuple[int, int, str], SeriesLock] = weakref.WeakValueDictionary()
_claiming = [threading.Lock()]


@contextmanager
def withdrawn_on_failure(lock: SeriesLock | None, writer: object) -> Iterator[None]:
    """Context manager that calls `lock.withdraw(writer)` if its block raises an exception; `lock` may be None."""
    try:
        yield
    except BaseException:
        if lock is not None:
            lock.withdraw(writer)
        raise


def claim(folder: Path, series: str, called: str, writer: object = None) -> SeriesLock | None:
    """Returns this process's lock on a folder's checkpoints of one name; raises an error if another process locks them.

    Args:
        folder: The folder of the checkpoints.
        series: The prefix of their names (``c`` for ``c-1`` and ``c-2``), or the name of one checkpoint.
        called: The function that the user called, for messages.
        writer: The `Checkpoint` that numbers the series; None for a single checkpoint, which others may replace.

    Returns:
        The lock; None if the folder cannot be written to. The write itself then fails with the reason.

    Raises:
        CheckpointError: Another process writes this series, or another `Checkpoint` of this process has written it
            since `writer` did.
    """
    try:
        with _claiming[0]:
            folder.mkdir(parents=True, exist_ok=True)
            there = folder.stat()
            # The key is not the path, because two paths can lead to the same folder.
            key = (there.st_dev, there.st_ino, series)
            lock = _held.get(key)
            if lock is not None:
                lock.check(called)
            else:
                _held[key] = lock = SeriesLock(folder / f".{series}.lock", called)
            if writer is not None:
                lock.write_by(writer, called)
            return lock
    except OSError:
        return None


def _this_job() -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return {"host": socket.gethostname(), "pid": os.getpid(), "program": sys.argv[0] or "python", "since": now}


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY)  # the file belongs to another user


def _write(path: Path, content: dict[str, Any]) -> None:
    """Overwrites the lock file in place: the lock belongs to the inode, which a new file would not share."""
    with contextlib.suppress(OSError), path.open("r+" if path.exists() else "w", encoding="utf-8") as file:
        file.write(json.dumps(content))
        file.truncate()


def _read(path: Path) -> dict[str, Any] | None:
    """Returns the content of the lock file; None if there is no file, an empty dict if its content is not valid."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _replaced_error(path: Path, called: str) -> CheckpointError:
    series = path.name[1 : -len(".lock")]
    return CheckpointError(
        called,
        found=f"another Checkpoint of this program has written the checkpoints {series} of {path.parent} meanwhile",
        rule="only one Checkpoint can write the checkpoints of one name to a folder: two would overwrite and delete "
        "each other's checkpoints",
        remedy="make one Checkpoint of all objects: Checkpoint(generator=..., discriminator=...); or use another "
        "folder or name for this one",
    )


def _taken_error(path: Path, owner: dict[str, Any] | None, called: str) -> CheckpointError:
    owner = owner or {}
    who = (
        f"process {owner.get('pid')} on {owner.get('host')} ({owner.get('program')}, since {owner.get('since')})"
        if "pid" in owner
        else "another process"
    )
    series = path.name[1 : -len(".lock")]
    return CheckpointError(
        called,
        found=f"{who} writes the checkpoints {series} of {path.parent}",
        rule="only one job at a time can write the checkpoints of one name to a folder: two jobs would overwrite, "
        "delete or restore each other's checkpoints",
        remedy="end the other job, or use another folder or name for the checkpoints of this one; if that process no "
        f"longer exists and a network file system has kept its lock, remove {path}",
    )


def _forget_all() -> None:
    _claiming[0] = threading.Lock()
    for lock in list(_held.values()):
        lock.forget()
    _held.clear()


in_forked_children(_forget_all)
