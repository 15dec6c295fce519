"""The class `CheckpointReader`, which reads a checkpoint without the program that saved it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mirrored.checkpoint.array_files import read_leaves, verify_files
from mirrored.checkpoint.directory import as_path, latest_checkpoint
from mirrored.checkpoint.json_state import decode
from mirrored.checkpoint.manifest import read_manifest
from mirrored.checkpoint.saved_numbers import number_of
from mirrored.checkpoint.writing import actual
from mirrored.errors import ArgumentError


class CheckpointReader:
    """Reads the values in a checkpoint by name, without the program that saved the checkpoint.

    Args:
        path: A checkpoint, or a folder whose newest checkpoint is read.

    Raises:
        MissingCheckpointError: There is no checkpoint.
        DamagedCheckpointError: The checkpoint was changed or damaged after it was written.

    Example:
        >>> import mirrored as mr, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = mr.checkpoint.Checkpoint(v=mr.Variable([1.0, 2.0])).write(folder + "/c")
        ...     reader = CheckpointReader(path)
        ...     print(reader.shapes, reader.read("v"))
        {'v': (2,)} [1. 2.]

    TensorFlow: `tf.train.load_checkpoint`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = as_path(path, "CheckpointReader", "path")
        newest = latest_checkpoint(path)
        self._directory = actual(Path(newest or path).absolute())
        self._manifest = read_manifest(self._directory)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all values in the checkpoint, sorted."""
        return tuple(sorted(self._manifest.leaves))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all arrays in the checkpoint, as a dict keyed by name."""
        return {name: saved.shape for name, saved in self._arrays()}

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtypes of all arrays in the checkpoint, as a dict keyed by name."""
        return {name: saved.dtype for name, saved in self._arrays()}

    def read(self, name: str) -> Any:
        """Returns the value with the given name: a NumPy array, a PRNG key array, a number, or an iterator's state.

        The array of a variable with one component per replica has the shape ``[replicas, ...]``.

        Raises:
            ArgumentError: The checkpoint has no such name.
            MissingCheckpointError: The checkpoint has been removed meanwhile.
            DamagedCheckpointError: The files were changed or damaged after they were written.
        """
        if name not in self._manifest.leaves:
            more = ", ..." if len(self.names) > 20 else ""
            raise ArgumentError(
                "CheckpointReader.read",
                found=f"{self._directory} has no name {name!r}; it has {', '.join(self.names[:20])}{more}",
                rule="the name must be one of `reader.names`",
                remedy="pass one of these names",
            )
        verify_files(self._directory, self._manifest)
        saved = read_leaves(self._directory, self._manifest, [name])[name]
        if saved.is_key:
            return jax.random.wrap_key_data(saved.value, impl=saved.dtype)
        if saved.kind == "number":
            return number_of(saved)
        return np.asarray(saved.value) if saved.is_array else decode(saved.value)

    def _arrays(self) -> list[tuple[str, Any]]:
        return [(name, self._manifest.leaves[name]) for name in self.names if self._manifest.leaves[name].is_array]
