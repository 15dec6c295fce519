"""Patches Keras callbacks and saving, to resume training within an epoch and to replace files atomically.

`TensorBoard` also works without TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import h5py  # a requirement of Keras

from mirrored.checkpoint.sharing import on_all_workers, writes_here
from mirrored.errors import CheckpointError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.belonging import strategy_of
from mirrored.integrations.keras.fit_position import connect_position, position
from mirrored.integrations.keras.private import (
    backup_paths,
    previous_backup_paths,
    set_backup_paths,
    set_current_epoch,
    set_initial_epoch,
    set_last_batch,
)
from mirrored.patches import replace
from mirrored.runtime.hooks import summary

if TYPE_CHECKING:
    from keras import Model
    from keras.callbacks import BackupAndRestore, TensorBoard

# Makes `BackupAndRestore(save_freq=int)` resume an interrupted epoch at the first batch after the backup.
#
# Keras records the batch but restarts the epoch, so it trains on the first batches twice, in another order. For a model
# of a strategy, the backup also holds the position in the training data (`fit_position`), and training continues there.
# The weights then equal those of an uninterrupted run.
#
# A backup is one file that is renamed once it is complete. The file of the weights also records the epoch and the
# batch, so that a kill cannot leave one without the other. Of several workers that name one folder, the first one
# writes, the others wait for it, and all read.

keras = load()
_CALLED: Final = "BackupAndRestore"
_NOTE: Final = "mirrored_training_metadata"
_LONGEST_ATTRIBUTE_BYTES: Final = 32_000  # HDF5 allows 64 KiB for all attributes of a group


def connect_resuming() -> None:
    """Patches `BackupAndRestore` and `fit`, so that interrupted training resumes in the middle of an epoch."""
    callback: Any = keras.callbacks.BackupAndRestore
    replace("keras", callback, "on_epoch_begin", _noting_number(callback.on_epoch_begin))
    replace("keras", callback, "on_train_batch_end", _noting_batch(callback.on_train_batch_end))
    replace("keras", callback, "on_epoch_end", _noting_epoch(callback.on_epoch_end))
    replace("keras", callback, "on_train_end", _ending(callback.on_train_end))
    replace("keras", callback, "_save_model", _saving_steps(callback._save_model))
    replace("keras", callback, "_load_model", _loading_steps(callback._load_model))
    connect_position()


def _noting_batch(end: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(end)
    def noting_batch(self: BackupAndRestore, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._mirrored_steps_done = batch + 1
        end(self, batch, logs)

    return noting_batch


def _noting_number(begin: Callable[..., None]) -> Callable[..., None]:
    """Wraps `on_epoch_begin` to record the number of the epoch that begins.

    Keras sets it only at the end of the previous epoch, so it is 0 in the first epoch of every `fit`.
    """

    @functools.wraps(begin)
    def noting_number(self: BackupAndRestore, epoch: int, logs: dict[str, Any] | None = None) -> None:
        begin(self, epoch, logs)
        if strategy_of(self.model) is not None:
            set_current_epoch(self, epoch)

    return noting_number


def _noting_epoch(end: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(end)
    def noting_epoch(self: BackupAndRestore, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._mirrored_steps_done = 0
        end(self, epoch, logs)

    return noting_epoch


def _saving_steps(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def saving_steps(self: BackupAndRestore) -> None:
        if strategy_of(self.model) is None:
            save(self)
            return
        here = position()
        self._mirrored_data = (
            None if here is None else here.get_state(self._mirrored_steps_done, _is_shared(self.model))
        )
        if not _is_shared(self.model):
            _write(self, save)
            return
        writes = writes_here(_CALLED, Path(self.backup_dir).absolute())
        write = lambda: _write(self, save) if writes else _save_and_discard(self)  # noqa: E731
        on_all_workers(_CALLED, "wait until the backup is written", write)

    return saving_steps


def _is_shared(model: Model) -> bool:
    """Returns whether several workers train the model together."""
    strategy = strategy_of(model)
    return strategy is not None and bool(strategy.device_assignment.spans_processes)


def _write(callback: BackupAndRestore, save: Callable[..., None]) -> None:
    """Writes a backup to temporary files, adds the batch and data position, and renames the files at the end.

    Raises:
        CheckpointError: The backup cannot be written. The previous backup is unchanged.
    """
    weights, metadata = backup_paths(callback)
    beside = [one.with_name(f"new.{one.name}") for one in (weights, metadata)]
    kept = previous_backup_paths(callback)
    try:
        weights.parent.mkdir(parents=True, exist_ok=True)
        for one, copy in zip((weights, metadata), kept, strict=False):
            if one.exists():
                shutil.copy(one, copy)
        for one in beside:
            one.unlink(missing_ok=True)
        set_backup_paths(callback, *beside)
        save(callback)
        about = {**json.loads(beside[1].read_text(encoding="utf-8")), "steps": callback._mirrored_steps_done}
        about["data"] = callback._mirrored_data
        beside[1].write_text(json.dumps(about), encoding="utf-8")
        with h5py.File(beside[0], "a") as file:
            _put_note(file, json.dumps(about))
        os.replace(beside[0], weights)
        os.replace(beside[1], metadata)
    except OSError as error:
        raise CheckpointError(
            _CALLED,
            found=f"the backup {weights} could not be written: {error}",
            rule="a backup must be written completely or not at all; the previous one is unchanged",
            remedy="check the folder and its file system, and restart",
        ) from error
    finally:
        set_backup_paths(callback, weights, metadata)
        for one in beside:
            with contextlib.suppress(OSError):
                one.unlink(missing_ok=True)


def _put_note(file: h5py.File, note: str) -> None:
    if len(note) <= _LONGEST_ATTRIBUTE_BYTES:
        file.attrs[_NOTE] = note
    else:
        file[_NOTE] = note


def _get_note(file: h5py.File) -> str | None:
    if _NOTE in file:
        return str(file[_NOTE][()].decode())
    note = file.attrs.get(_NOTE)
    return None if note is None else str(note)


def _save_and_discard(callback: BackupAndRestore) -> None:
    """Saves the weights to a temporary folder while another worker writes the backup.

    Saving runs collectives, in which all workers must take part.
    """
    with tempfile.TemporaryDirectory() as folder:
        callback.model.save_weights(os.path.join(folder, "unused.weights.h5"))


def _ending(end: Callable[..., None]) -> Callable[..., None]:
    """Wraps `BackupAndRestore.on_train_end`: one worker removes the backup, and the others wait for the removal."""

    @functools.wraps(end)
    def ending(self: BackupAndRestore, logs: dict[str, Any] | None = None) -> None:
        if not _is_shared(self.model):
            end(self, logs)
            return
        writes = writes_here(_CALLED, Path(self.backup_dir).absolute())
        on_all_workers(_CALLED, "wait until the backup is removed", lambda: end(self, logs) if writes else None)

    return ending


def _noted(callback: BackupAndRestore) -> dict[str, Any] | None:
    """Returns the epoch, batch and data position that a backup records; None if there is no backup."""
    weights, metadata = backup_paths(callback)
    if weights.is_file():
        with h5py.File(weights) as file:
            note = _get_note(file)
        if note is not None:
            return dict(json.loads(note))
    return dict(json.loads(metadata.read_text(encoding="utf-8"))) if metadata.is_file() else None


def _loading_steps(restore: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(restore)
    def loading_steps(self: BackupAndRestore) -> None:
        restore(self)
        about = None if strategy_of(self.model) is None else _noted(self)
        if about is None:
            return
        epoch = about["epoch"]
        steps, all_steps = about.get("steps", 0), self.params.get("steps")
        if all_steps is not None and steps >= all_steps:
            epoch, steps = epoch + 1, 0
        set_initial_epoch(self.model, epoch)
        # Otherwise the next backup would record the epoch in which the callback was created.
        set_current_epoch(self, epoch)
        set_last_batch(self, max(0, steps - 1))
        here = position()
        if here is not None:
            here.set_state(about.get("data"), steps)

    return loading_steps


# `Model.save` and `save_weights` of models of a strategy write atomically.
#
# Keras writes to the path itself. If the program is killed meanwhile, an incomplete file replaces the previous one. If
# several workers save to one path, as callbacks of `fit` do, one of them fails on the lock that HDF5 takes. The
# wrappers therefore write to a temporary name in the same folder and rename it. All workers write the same content, so
# their order does not matter. The wrappers do not communicate, because a program may save on one worker only.

_ONE_FILE: Final = (".weights.h5", ".h5", ".keras")


def connect_saving() -> None:
    """Patches `Model.save` and `Model.save_weights` to replace an existing file only when the new one is complete."""
    replace("keras", keras.Model, "save", _whole(keras.Model.save))
    replace("keras", keras.Model, "save_weights", _whole(keras.Model.save_weights))


def _whole(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def whole(self: Model, filepath: object, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
        path = _replaceable(filepath, overwrite)
        # Options may make folders or several files of it (zipped=False, max_shard_size).
        if path is None or args or kwargs or strategy_of(self) is None:
            return save(self, filepath, overwrite, *args, **kwargs)
        beside = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
        try:
            result = save(self, str(beside), True)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        return result

    return whole


def _replaceable(filepath: object, overwrite: bool) -> Path | None:
    """Returns the path of a local model file that a rename can replace; None for folders, URLs and open files."""
    if not isinstance(filepath, (str, os.PathLike)) or "://" in os.fspath(filepath):
        return None
    path = Path(filepath)
    is_free = not path.exists() or (overwrite and path.is_file())
    return path if path.name.endswith(_ONE_FILE) and path.parent.is_dir() and is_free else None


# Makes Keras' TensorBoard callback work without TensorFlow: it writes summaries through a hook.


def connect_tensorboard() -> None:
    """Patches `keras.callbacks.TensorBoard` to work if TensorFlow is not installed."""
    if importlib.util.find_spec("tensorflow") is not None:
        return
    callback: Any = keras.callbacks.TensorBoard
    replace("keras", callback, "summary", property(_summary, doc="The summary writer."))
    replace("keras", callback, "_write_keras_model_summary", _without_graph(callback._write_keras_model_summary))


def _summary(callback: TensorBoard) -> Any:
    # Loaded at first use. If an extra is missing, the error names it.
    return summary()


def _without_graph(write: Callable[..., None]) -> Callable[..., None]:
    """Replaces the method that writes the model's graph by a no-op, because the file format requires TensorFlow."""

    @functools.wraps(write)
    def without_graph(self: TensorBoard) -> None:
        return None

    return without_graph
