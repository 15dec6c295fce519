"""Makes `BackupAndRestore(save_freq=int)` resume an interrupted epoch at the first batch after the backup.

Keras records the batch but restarts the epoch, so it trains on the first batches twice. For a model of a strategy, the
batches before the backup are skipped. The weights then equal those of an uninterrupted run, provided that the data
arrive in the same order (``shuffle=False``, or a dataset that shuffles with a seed).
"""

from __future__ import annotations

import contextvars
import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mirrored.errors import InputError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.belonging import strategy_of
from mirrored.patches import replace

keras = load()
_EpochIterator: Any = keras.src.trainers.epoch_iterator.EpochIterator
_skipped_batches: contextvars.ContextVar[int] = contextvars.ContextVar("_skipped_batches", default=0)


def connect_resuming() -> None:
    """Wraps the callback, `fit`, and the iterator over the batches of an epoch."""
    callback: Any = keras.callbacks.BackupAndRestore
    replace("keras", callback, "on_epoch_begin", _noting_number(callback.on_epoch_begin))
    replace("keras", callback, "on_train_batch_end", _noting_batch(callback.on_train_batch_end))
    replace("keras", callback, "on_epoch_end", _noting_epoch(callback.on_epoch_end))
    replace("keras", callback, "_save_model", _saving_steps(callback._save_model))
    replace("keras", callback, "_load_model", _loading_steps(callback._load_model))
    replace("keras", _EpochIterator, "_enumerate_iterator", _skipping(_EpochIterator._enumerate_iterator))
    replace("keras", keras.Model, "fit", _forgetting(keras.Model.fit))


def _noting_batch(end: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(end)
    def noting_batch(self: Any, batch: int, logs: Any = None) -> None:
        self._steps_done = batch + 1
        end(self, batch, logs)

    return noting_batch


def _noting_number(begin: Callable[..., None]) -> Callable[..., None]:
    """Wraps `on_epoch_begin` to record the number of the epoch.

    Keras sets it only at the end of the previous epoch, so it is 0 in the first epoch of every `fit`.
    """

    @functools.wraps(begin)
    def noting_number(self: Any, epoch: int, logs: Any = None) -> None:
        begin(self, epoch, logs)
        if strategy_of(self.model) is not None:
            self._current_epoch = epoch

    return noting_number


def _noting_epoch(end: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(end)
    def noting_epoch(self: Any, epoch: int, logs: Any = None) -> None:
        self._steps_done = 0
        end(self, epoch, logs)

    return noting_epoch


def _saving_steps(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def saving_steps(self: Any) -> None:
        save(self)
        path = Path(self._training_metadata_path)
        about = json.loads(path.read_text(encoding="utf-8"))
        _replace(path, json.dumps({**about, "steps": self._steps_done}))

    return saving_steps


def _replace(path: Path, text: str) -> None:
    """Writes a file atomically: a process that is killed leaves either the old or the new content."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _loading_steps(restore: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(restore)
    def loading_steps(self: Any) -> None:
        restore(self)
        path = Path(self._training_metadata_path)
        if strategy_of(self.model) is None or not path.is_file():
            return
        about = json.loads(path.read_text(encoding="utf-8"))
        steps, all_steps = about.get("steps", 0), self.params.get("steps")
        # Otherwise the next backup would record the epoch in which the callback was created.
        self._current_epoch = about["epoch"]
        if all_steps is not None and steps >= all_steps:
            self.model._initial_epoch = self._current_epoch = about["epoch"] + 1
            steps = 0
        self._last_batch_seen = max(0, steps - 1)
        _skipped_batches.set(steps)

    return loading_steps


def _skipping(enumerate_steps: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(enumerate_steps)
    def skipping(self: Any) -> Iterator[Any]:
        first = _skipped_batches.get()
        _skipped_batches.set(0)
        last = 0
        for begin, end, iterator in enumerate_steps(self):
            last = end + 1
            if begin >= first:
                yield begin, end, iterator
                continue
            for _ in range(begin, end + 1):
                next(iterator, None)
        if first and last <= first:
            raise InputError(
                "BackupAndRestore",
                found=f"the epoch was interrupted after {first} batches, and the data have {last}",
                rule="a resumed run uses the same data as the interrupted run",
                remedy="pass the same data, or another backup_dir to start a new run",
            )

    return skipping


def _forgetting(fit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fit)
    def forgetting(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return fit(self, *args, **kwargs)
        finally:
            _skipped_batches.set(0)

    return forgetting
