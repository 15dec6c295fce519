"""Verifies and reads the array files of a checkpoint, which another process may remove meanwhile."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mirrored.checkpoint.extra import engine
from mirrored.checkpoint.manifest import (
    ARRAYS,
    Manifest,
    checksum,
    components_key,
    damaged_error,
    is_checkpoint,
    nearby,
)
from mirrored.checkpoint.saved import Saved
from mirrored.errors import DamagedCheckpointError, MissingCheckpointError


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Verifies the checksums of a checkpoint's array files; raises an error if a file is missing or damaged.

    Raises:
        MissingCheckpointError: The checkpoint was removed after its manifest was read, for example by another process.
        DamagedCheckpointError: A file is missing, or was changed or damaged after it was written.
    """
    for name, stated in manifest.files.items():
        try:
            found = checksum(directory / ARRAYS / name)
        except FileNotFoundError:
            raise _unreadable_error(directory, f"the file {ARRAYS}/{name} is missing") from None
        except OSError as error:
            raise _unreadable_error(directory, f"the file {ARRAYS}/{name} cannot be read: {error}") from error
        if found != stated:
            raise damaged_error(directory, f"the checksum of {ARRAYS}/{name} does not match")


def marks_of_files(directory: Path, manifest: Manifest) -> tuple[tuple[int, int, int] | None, ...]:
    """Returns the inode, size and modification time of each array file of a checkpoint, to detect later changes.

    A write changes at least one of them. A missing file has None.
    """
    return tuple(_mark(directory / ARRAYS / name) for name in manifest.files)


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_leaves(directory: Path, manifest: Manifest, names: list[str]) -> dict[str, Saved]:
    """Reads the values with the given names from a checkpoint.

    Raises:
        MissingCheckpointError: The checkpoint was removed after its manifest was read, for example by another process.
        DamagedCheckpointError: The arrays cannot be read.
    """
    of_components = {name: components_key(name) for name in names if manifest.leaves[name].components}
    stored = manifest.stored_arrays
    wanted = {name: stored[name] for name in (*names, *of_components.values()) if name in stored}
    try:
        arrays: dict[str, Any] = engine().read_arrays(directory / ARRAYS, wanted)
    except Exception as error:
        text = str(error).strip()
        raise _unreadable_error(
            directory, f"{type(error).__name__}: {text.splitlines()[0][:300] if text else ''}"
        ) from error
    saved = {name: manifest.leaves[name] for name in names}
    for name in saved.keys() & arrays.keys():
        components = arrays[of_components[name]] if name in of_components else None
        saved[name] = dataclasses.replace(saved[name], value=arrays[name], components=components)
    return saved


def _unreadable_error(directory: Path, found: str) -> DamagedCheckpointError | MissingCheckpointError:
    """Returns the error for array files that cannot be read; another one if the whole checkpoint was removed."""
    if is_checkpoint(directory):
        return damaged_error(directory, found)
    return MissingCheckpointError(
        f"reading the checkpoint {directory}",
        found=f"it was removed after its manifest was read ({found})",
        rule="a checkpoint must exist until it has been read; nothing was restored",
        remedy=f"{nearby(directory)}; keep more checkpoints (max_to_keep) if another process reads them",
    )
