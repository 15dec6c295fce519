"""The adapter for the library Orbax, which writes and reads the arrays of checkpoints.

Of Orbax's v0 interface we use only the plain `Checkpointer`, with arrays that are already on this host. We tried its
asynchronous checkpointer and its `CheckpointManager`. The first loses a save in progress when the program ends ("cannot
schedule new futures after shutdown"); the one of version 1 keeps the program from ending. The second silently rejects
steps below the newest one. Neither can replace a checkpoint without removing the old one first, or notices a flipped
bit (0.12.8). The modules `writing`, `manager` and `manifest` implement these parts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp

from mirrored._typing import Array, HostArray
from mirrored.checkpoint.preemption import is_ending

_PLAIN: Final = "arrays.npz"
# The dtypes that TensorStore supports. Arrays of other dtypes are written as bytes.
_KNOWN: Final = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 bfloat16 complex64 complex128".split()
)


def write_arrays(directory: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes arrays to a checkpoint's folder with Orbax; omits arrays of size 0, which Orbax cannot write.

    The manifest has the shapes of these arrays.
    """
    tree = {name: _as_stored(array) for name, array in arrays.items() if array.size}
    if not tree:
        return
    if set(str(directory.absolute())) & set("[]*?\\"):
        # Orbax takes these characters of a path as a pattern, and finds none of the files that it has to merge.
        _write_plainly(directory, tree)
        return
    if jax.process_index():
        # Orbax merges the files of all processes and requires the file of process 0. This is another process, which
        # writes the checkpoint alone.
        _write_plainly(directory, tree)
        return
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(directory.absolute(), args=ocp.args.PyTreeSave(tree))
    except RuntimeError:
        if not is_ending():
            raise
        # The program is ending. Orbax needs threads, but from 3.12 on Python starts no more of them at this point, and
        # no hook runs early enough to prevent it. The last checkpoint is therefore written as an npz file.
        _write_plainly(directory, tree)


def _checkpointer() -> Any:
    """Returns an Orbax checkpointer that acts for this process alone, whatever the number of workers."""
    if jax.process_count() == 1:
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"worker{here}"
    )
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone)


def _write_plainly(directory: Path, tree: Mapping[str, np.ndarray[Any, Any]]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    # Typed as Any because of NumPy's annotations of savez.
    numbered: dict[str, Any] = {str(at): np.frombuffer(one.tobytes(), np.uint8) for at, one in enumerate(tree.values())}
    np.savez(directory / _PLAIN, names=np.array(list(tree)), **numbered)


def _read_plainly(path: Path, names: Iterable[str], dtypes: Mapping[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(path) as file:
        numbers = {str(name): str(number) for number, name in enumerate(file["names"])}
        bytes_of = {name: file[numbers[name]].tobytes() for name in names}
    kinds = {name: np.dtype(dtypes[name] if dtypes[name] in _KNOWN else np.uint8) for name in bytes_of}
    return {name: np.frombuffer(data, kinds[name]).copy() for name, data in bytes_of.items()}


def read_arrays(directory: Path, wanted: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, np.ndarray[Any, Any]]:
    """Reads arrays of the given names, shapes and dtypes from a checkpoint's folder with Orbax."""
    empty = {name: np.empty(shape, np.dtype(dtype)) for name, (shape, dtype) in wanted.items() if 0 in shape}
    names = [name for name in wanted if name not in empty]
    plain = directory / _PLAIN
    dtypes = {name: dtype for name, (_, dtype) in wanted.items()}
    stored = _read_plainly(plain, names, dtypes) if plain.exists() else _read(directory, names)
    arrays = {name: _as_read(array, *wanted[name]) for name, array in stored.items()}
    return {name: empty[name] if name in empty else arrays[name] for name in wanted}


def _read(directory: Path, names: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
    item = dict.fromkeys(names, 0)
    if not item:
        return {}
    how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in item}
    with _checkpointer() as checkpointer:
        args = ocp.args.PyTreeRestore(item=item, restore_args=how, partial_restore=True)
        found: dict[str, np.ndarray[Any, Any]] = checkpointer.restore(directory.absolute(), args=args)
        return found


def _as_stored(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if str(array.dtype) in _KNOWN:
        return array
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _as_read(array: Array | HostArray, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    stored: np.ndarray[Any, Any] = np.asarray(array)
    if dtype in _KNOWN:
        return stored.reshape(shape)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return np.frombuffer(stored.tobytes(), kind).reshape(shape)
