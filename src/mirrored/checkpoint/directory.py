"""Functions that list the checkpoints in a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from pathlib import Path

from mirrored.checkpoint.manifest import ARRAYS, FILE, Manifest, is_checkpoint, read_manifest
from mirrored.checkpoint.writing import REPLACED, UNFINISHED, actual, wait_for_writers
from mirrored.errors import ArgumentTypeError, DamagedCheckpointError, MissingCheckpointError


def as_path(path: object, called: str, argument: str) -> str:
    """Converts a path argument to a string; raises an error if the argument is not a path.

    Raises:
        ArgumentTypeError: It is something else.
    """
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if isinstance(text, str):
        return text
    raise ArgumentTypeError(
        called,
        found=f"{argument}={path!r}"[:200],
        rule=f"{argument} must be a path: a string or an os.PathLike",
        remedy="pass the path of a folder: pathlib.Path('runs') / 'a'; for bytes, os.fsdecode(path)",
    )


def checkpoints_in(directory: str | os.PathLike[str], name: str | None = None) -> list[str]:
    """Returns the paths of the completely written checkpoints in a folder, oldest first.

    Waits for checkpoints that this process is writing.

    Args:
        directory: The folder; it need not exist.
        name: Selects the checkpoints called ``name-<number>``; None: all.

    Example:
        >>> import tempfile
        >>> import mirrored as mr
        >>> folder = tempfile.TemporaryDirectory()
        >>> checkpoint = mr.checkpoint.Checkpoint(w=mr.Variable([1.0, 2.0]))
        >>> written = [checkpoint.save(f"{folder.name}/model") for _ in range(2)]
        >>> mr.checkpoint.checkpoints_in(folder.name) == written
        True
        >>> folder.cleanup()

    TensorFlow: `tf.train.get_checkpoint_state(directory).all_model_checkpoint_paths`.
    """
    return _checkpoints_in(directory, name, "checkpoints_in")


def _checkpoints_in(directory: str | os.PathLike[str], name: str | None, called: str) -> list[str]:
    folder = Path(as_path(directory, called, "directory"))
    wait_for_writers()
    return [path for _, path in _with_sort_keys(folder, name)]


def following(path: Path, manifest: Manifest) -> Manifest:
    """Returns a copy of `manifest` whose save time is later than that of every checkpoint in the folder.

    The clock can be behind that of an earlier save, for example after a restart on another machine.

    Args:
        path: The path of the new checkpoint.
        manifest: Its manifest.

    Context: while this process holds the lock of the series (`series_lock`).
    """
    newest = -1
    with contextlib.suppress(OSError):  # writing to the folder raises it, too, with the remedy
        newest = max((nanoseconds for (nanoseconds, _), _ in _with_sort_keys(path.parent, None)), default=newest)
    return dataclasses.replace(manifest, order=max(manifest.order, newest + 1))


def _with_sort_keys(folder: Path, name: str | None) -> list[tuple[tuple[int, str], str]]:
    """Returns a folder's checkpoints with their sort keys, oldest first; `name` selects ``name-<number>``."""
    if not folder.is_dir():
        return []
    paths = {one.with_name(one.name.removesuffix(REPLACED)) for one in folder.iterdir() if _is_one(one)}
    wanted = [path for path in paths if name is None or number_of(path.name, name) is not None]
    found = [(key, str(path)) for path in wanted if (key := _sort_key(path)) is not None]
    return sorted(found)


def without_manifest(directory: str | os.PathLike[str], name: str) -> list[str]:
    """Returns the folders of checkpoints that lack the manifest file and so are damaged, sorted by number.

    Such a checkpoint was damaged later: an interrupted write does not leave one behind.
    """
    folder = Path(directory)
    if not folder.is_dir():
        return []
    numbered = [(number, one) for one in folder.iterdir() if (number := number_of(one.name, name)) is not None]
    return [str(one) for _, one in sorted(numbered) if (one / ARRAYS).is_dir() and not is_checkpoint(actual(one))]


def latest_checkpoint(directory: str | os.PathLike[str], latest_filename: str | None = None) -> str | None:
    """Returns the path of the newest complete checkpoint in a folder, or None.

    Args:
        directory: The folder; it need not exist.
        latest_filename: Accepted for compatibility with TensorFlow and ignored.

    Example:
        >>> latest_checkpoint("/nowhere") is None
        True

    TensorFlow: `tf.train.latest_checkpoint`, which reads a file named ``checkpoint`` in the folder. Here the manifest
    of each checkpoint contains the time of the save.
    """
    del latest_filename
    found = _checkpoints_in(directory, None, "latest_checkpoint")
    return found[-1] if found else None


def number_of(file: str, name: str) -> int | None:
    """Returns the number in a checkpoint's file name ``name-<number>``; None for file names of another form."""
    prefix, _, number = file.rpartition("-")
    return int(number) if prefix == name and number.isdecimal() else None


def _is_one(path: Path) -> bool:
    return not path.name.endswith(UNFINISHED) and is_checkpoint(path)


def _sort_key(path: Path) -> tuple[int, str] | None:
    """Returns the sort key of a checkpoint (time of saving, file name); None if the checkpoint no longer exists."""
    try:
        file = actual(path) / FILE
        found = file.stat()
        return _read_save_time(file, found.st_ino, found.st_size, found.st_mtime_ns), path.name
    except (FileNotFoundError, DamagedCheckpointError, MissingCheckpointError):
        # A damaged checkpoint is still listed; restoring it raises an error that describes the damage.
        with contextlib.suppress(FileNotFoundError):
            return actual(path).stat().st_mtime_ns, path.name
    return None


@functools.lru_cache(maxsize=4096)
def _read_save_time(file: Path, *mark: int) -> int:
    """Returns a checkpoint's save time, read from the checkpoint's manifest.

    The inode, size and mtime of the manifest (`mark`) are only part of the cache key.
    """
    del mark
    return read_manifest(file.parent).order
