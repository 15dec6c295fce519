"""Writes checkpoints to a temporary folder that is renamed when complete, in the background if requested.

Every write uses its own temporary folder, so that two writes never write to the same files.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mirrored._jax import distributed
from mirrored._threads import Claim, start
from mirrored.checkpoint.extra import engine
from mirrored.checkpoint.manifest import ARRAYS, FILE, MANIFEST_BEGIN, Manifest, is_checkpoint
from mirrored.checkpoint.preemption import at_end
from mirrored.errors import CheckpointError
from mirrored.watchdog.fail_fast_exit import in_forked_children

UNFINISHED: Final = ".unfinished"
REPLACED: Final = ".replaced"
_LAST_WRITE_SECONDS: Final = 10.0
KEPT: Final = "kept"  # marks a checkpoint that no manager removes
_THREAD: Final = "mirrored-checkpoint"
_log = logging.getLogger("mirrored.checkpoint")


_LEFT: Final = re.compile(r"(.+?)(\.[0-9a-f]{8})?" + re.escape(UNFINISHED))
# A folder with one of these files is `arrays/` of a checkpoint, even if the manifest is lost.
_IN_ARRAYS: Final = frozenset({"_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "arrays.npz"})
_ARRAYS_UNFINISHED: Final = ARRAYS + ".orbax-checkpoint-tmp"
# Files that operating systems and NFS leave in folders.
_LITTER: Final = re.compile(r"\.DS_Store|Thumbs\.db|desktop\.ini|\.nfs.*")
# Temporary folders of this process, and the lock under which it renames.
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


class FencedError(Exception):
    """Raised to discard an unfinished checkpoint after this process has left the job."""


class _Fence:
    """Counts how often this process has left a job, so that writes that began in an earlier job are discarded."""

    number = 0


_fence = threading.local()


@distributed.on_leave
def _raise_fence() -> None:
    """Waits up to a time limit for this job's checkpoint writes, and discards the writes that have not ended.

    The other workers wait meanwhile. Training goes on after the newest step in the workers' memory, and does not save
    that step again.
    """
    deadline = time.monotonic() + _LAST_WRITE_SECONDS
    for writer in list(_writers):
        writer.join(max(deadline - time.monotonic(), 0.0))
    with _renaming:
        _Fence.number += 1


def write(directory: Path, manifest: Manifest) -> None:
    """Writes a checkpoint to a path; an existing checkpoint there is replaced after the new one is complete.

    Removes temporary folders of this checkpoint that killed processes left behind.

    Context: while this process holds the lock of the series (`series_lock`).

    Raises:
        CheckpointError: The checkpoint cannot be written, or something else is at its path. The path is unchanged.
    """
    unfinished = unfinished_beside(directory)
    _in_use.add(unfinished)
    try:
        remove_leftovers(directory.parent, lambda name: name == directory.name)
        unfinished.mkdir(parents=True)
        engine().write_arrays(unfinished / ARRAYS, manifest.arrays())
        manifest.write(unfinished)
        _flush(unfinished / FILE)
        with _renaming:
            if getattr(_fence, "number", _Fence.number) != _Fence.number:
                raise FencedError
            _put_in_place(unfinished, directory)
    except (CheckpointError, FencedError):
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    except Exception as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            "saving a checkpoint",
            found=f"{directory} could not be written: {_first_line(error)}{_space_left(directory, error)}",
            rule="a checkpoint must be written completely or not at all; earlier checkpoints are unchanged",
            remedy=f"{_remedy(error)}, or choose another folder, and save again",
        ) from error
    finally:
        _in_use.discard(unfinished)


def unfinished_beside(directory: Path) -> Path:
    """Returns a new path beside `directory` for a temporary folder, in which a checkpoint is written or deleted."""
    return directory.with_name(f"{directory.name}.{secrets.token_hex(4)}{UNFINISHED}")


def remove_leftovers(folder: Path, wanted: Callable[[str], bool]) -> None:
    """Removes the temporary folders of checkpoints that killed processes did not finish writing.

    Args:
        folder: The folder of the checkpoints.
        wanted: From the name of a checkpoint to whether this process may write its series.
    """
    if not folder.is_dir():
        return
    for one in folder.iterdir():
        found = _LEFT.fullmatch(one.name)
        if found is None or not wanted(found[1]) or one in _in_use:
            continue
        # A name with a token is ours alone. One without a token may be a folder of the user.
        if found[2] is not None or _content(one) is None:
            shutil.rmtree(one, ignore_errors=True)


def check_replaceable(directory: Path, called: str) -> None:
    """Raises CheckpointError if writing a checkpoint to a path would remove files that do not belong to a checkpoint.

    Args:
        directory: The path of the checkpoint.
        called: What the user called, for messages.

    Raises:
        CheckpointError: Something else is at the path, or at the one beside it to which a checkpoint is renamed while
            it is replaced.

    Example:
        >>> check_replaceable(Path("/nowhere/ckpt-1"), "Checkpoint.write")
    """
    _refuse_content(directory, directory, called)
    _refuse_content(replaced_beside(directory), directory, called)


def _refuse_content(place: Path, directory: Path, called: str) -> None:
    content = _content(place)
    if content is not None:
        raise CheckpointError(
            called,
            found=f"{place} is {content}",
            rule="a checkpoint can replace only a checkpoint or an empty folder; nothing was written",
            remedy=f"save to another path, {directory / 'ckpt'} for instance, or move away what is there"
            if place == directory and place.is_dir()
            else "save to another path, or move away what is there",
        )


def _content(path: Path) -> str | None:
    """Describes the content of a path that is not a checkpoint; None for checkpoints, empty folders, missing paths."""
    if not os.path.lexists(path):
        return None
    if not path.is_dir():
        return "a file"
    if path == Path(os.path.abspath(os.curdir)):
        return "the working directory"
    try:
        others, own = others_in(path), [name for name in os.listdir(path) if _is_own(name)]
        if not (others or own) or _has_manifest(path) or (not others and _has_arrays(path)):
            return None
    except OSError as error:
        return f"a folder that cannot be read: {error}"
    shown = others or sorted(own)
    return f"a folder with {', '.join(shown[:3])}{', ...' if len(shown) > 3 else ''}, and not a checkpoint"


def others_in(folder: Path) -> list[str]:
    """Returns the names of files in a checkpoint's folder that do not belong to the checkpoint."""
    return sorted(name for name in os.listdir(folder) if not _is_own(name) and not _LITTER.fullmatch(name))


def _is_own(name: str) -> bool:
    return name in (FILE, ARRAYS, KEPT) or name.startswith(_ARRAYS_UNFINISHED)


def _has_manifest(folder: Path) -> bool:
    """Returns whether this package wrote the folder's ``mirrored.json``, even if the file is damaged now."""
    try:
        with (folder / FILE).open("rb") as file:
            begin = file.read(len(MANIFEST_BEGIN))
    except OSError:
        return False
    return begin == MANIFEST_BEGIN or _has_arrays(folder)


def _has_arrays(folder: Path) -> bool:
    arrays = folder / ARRAYS
    found = set(os.listdir(arrays)) if arrays.is_dir() else None
    written = found is not None and (not found or bool(found & _IN_ARRAYS))
    return written or any(name.startswith(_ARRAYS_UNFINISHED) for name in os.listdir(folder))


def remove_own(folder: Path) -> None:
    """Deletes the checkpoint's files in a folder, manifest first, and then the folder if it is empty.

    Without the manifest, an incomplete checkpoint is not taken for a complete one.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    names = [name for name in os.listdir(folder) if _is_own(name) or _LITTER.fullmatch(name)]
    for name in sorted(names, key=lambda name: name != FILE):
        one = folder / name
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it
        folder.rmdir()


def remove(path: Path) -> None:
    """Removes the checkpoint at a path, and a backup copy beside it, but keeps the user's own files.

    The folder is renamed, or loses its manifest, before any array is removed. So an interrupted removal does not leave
    a checkpoint with missing arrays.
    """
    for one in (path, replaced_beside(path)):
        if not is_checkpoint(one):
            continue
        if others_in(one):
            remove_own(one)
        else:
            doomed = unfinished_beside(one)
            one.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def _remedy(error: BaseException) -> str:
    return _REMEDIES.get(_errno_of(error) or 0, "check the folder and its file system")


def _errno_of(error: BaseException) -> int | None:
    """Returns the `errno` of an error, derived from the message for TensorStore's errors; None for an unknown error."""
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return error.errno
    text = str(error)
    found = (number for number in _REMEDIES if os.strerror(number) in text)
    return next(found, None)


def _space_left(directory: Path, error: BaseException) -> str:
    if _errno_of(error) != errno.ENOSPC:
        return ""
    there = next(one for one in directory.parents if one.exists())
    return f" ({shutil.disk_usage(there).free / 1e6:.1f} MB are free on its file system)"


def _put_in_place(unfinished: Path, directory: Path) -> None:
    """Renames a new checkpoint's folder to its final path; after a crash, `actual` finds the old or the new checkpoint.

    Files that the user has put into the folder of the replaced checkpoint are moved to the new folder.
    """
    check_replaceable(directory, "saving a checkpoint")
    replaced = replaced_beside(directory)
    if directory.exists():
        if os.path.lexists(replaced):
            _discard(replaced, directory)
        directory.rename(replaced)
    unfinished.rename(directory)
    _flush(directory.parent)
    if os.path.lexists(replaced):
        _discard(replaced, directory)


def _discard(old: Path, new: Path) -> None:
    """Removes an old checkpoint that a new one has replaced."""
    if not old.is_symlink():
        for name in others_in(old):
            if not os.path.lexists(new / name):
                (old / name).rename(new / name)
    remove_own(old)


def replaced_beside(directory: Path) -> Path:
    """Returns the path to which an old checkpoint is moved while a new one replaces it."""
    return directory.with_name(directory.name + REPLACED)


def actual(directory: Path) -> Path:
    """Returns where a checkpoint is: at its path, or at the backup path if a crash interrupted its replacement."""
    replaced = replaced_beside(directory)
    return replaced if not directory.exists() and replaced.exists() else directory


def _flush(path: Path) -> None:
    """Makes the operating system write a file or folder to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


class Writer:
    """A background thread that writes one checkpoint at a time; `wait` raises the error of a failed write."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        _writers.add(self)

    def start(self, work: Callable[[], None]) -> None:
        """Waits for the previous checkpoint to be written, and then runs `work` in a background thread.

        Raises:
            CheckpointError: A previous write failed, and its error has not been raised yet.
        """
        self.wait()
        # Not a daemon thread, so that a program that ends normally finishes its last checkpoint.
        claim = Claim()  # taken by the thread when it begins, or here to prevent that
        thread = threading.Thread(target=self._run, args=(work, claim, _Fence.number), name=_THREAD)
        try:
            start(thread)
            self._thread = thread  # after `start`: another thread can call `join`, which fails before `start`
        except BaseException:
            if not claim.take("starter"):
                self._thread = thread
            raise

    def wait(self) -> None:
        """Waits until the checkpoint being written is on disk; raises the error if writing has failed.

        Raises:
            CheckpointError: The current write failed, or an earlier one whose error has not been raised yet.
        """
        thread = self._thread
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self, timeout: float | None = None) -> None:
        """Waits until no checkpoint is being written; an error is raised later, by `wait`.

        Args:
            timeout: The longest wait, in seconds.
        """
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self, work: Callable[[], None], claim: Claim, fence: int) -> None:
        if not claim.take("writer"):
            return
        _fence.number = fence
        try:
            work()
        except FencedError:
            pass
        except BaseException as error:
            self._error = error


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def wait_for_writers() -> None:
    """Waits until all checkpoints that this process is writing are on disk, so that folder listings are complete."""
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
