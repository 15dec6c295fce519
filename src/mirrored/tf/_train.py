"""`tf.train`: checkpoints with TensorFlow's names and arguments, implemented by `mirrored.checkpoint`."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from mirrored import checkpoint as checkpoints
from mirrored._typing import Operand
from mirrored.errors import ArgumentError, MissingCheckpointError
from mirrored.runtime.hooks import note_iteration
from mirrored.tf import _dtypes
from mirrored.tf._asking import inside_function
from mirrored.tf._errors import NotFoundError, UnimplementedError
from mirrored.variables import Variable

_SUFFIX: Final = "/.ATTRIBUTES/VARIABLE_VALUE"
PathLike = str | os.PathLike[str]
_T = TypeVar("_T")

latest_checkpoint = checkpoints.latest_checkpoint


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Options for saving a checkpoint: whether to wait for the disk, and functions to call afterwards.

    Attributes:
        experimental_io_device: Accepted and ignored.
        experimental_enable_async_checkpoint: Whether `save` and `write` return before the checkpoint is on disk.
        experimental_write_callbacks: Functions without arguments, or with the checkpoint's path as their argument,
            which `write` and `save` call in order, after the checkpoint is on disk.
        enable_async: As `experimental_enable_async_checkpoint`.
        experimental_skip_slot_variables: Accepted and ignored; slots are saved.
        experimental_sharding_callback: Accepted and ignored: Orbax chooses the files.

    TensorFlow: `tf.train.CheckpointOptions`. With callbacks, saving waits for the disk.
    """

    experimental_io_device: Any = None
    experimental_enable_async_checkpoint: bool = False
    experimental_write_callbacks: Sequence[Callable[..., Any]] | None = None
    enable_async: bool = False
    experimental_skip_slot_variables: bool = False
    experimental_sharding_callback: Any = None

    def __post_init__(self) -> None:
        for callback in self.experimental_write_callbacks or ():
            if len(inspect.signature(callback).parameters) > 1:
                raise ArgumentError(
                    "tf.train.CheckpointOptions",
                    found=f"the callback {callback!r} has several parameters",
                    rule="a callback must have no parameter, or one, which is the path of the checkpoint",
                    remedy="bind the other parameters with functools.partial or a lambda",
                )

    @property
    def is_asynchronous(self) -> bool:
        """Whether `Checkpoint.save` returns before the checkpoint is on disk."""
        return self.enable_async or self.experimental_enable_async_checkpoint


class Checkpoint(checkpoints.Checkpoint):
    """An object that saves and restores variables and other state (`tf.train.Checkpoint`).

    It is `mirrored.checkpoint.Checkpoint` with TensorFlow's arguments and errors.

    Example:
        >>> import mirrored.tf as tf, tempfile
        >>> v = tf.Variable(1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = tf.train.Checkpoint(v=v).save(folder + "/c")
        ...     _ = v.assign(2.0)
        ...     _ = tf.train.Checkpoint(v=v).restore(path).assert_consumed()
        >>> print(v.numpy())
        1.0

    TensorFlow: `tf.train.Checkpoint`. A checkpoint is a folder. A value of another shape raises an error before
    anything changes.
    """

    def __init__(self, root: object = None, **kwargs: object) -> None:
        super().__init__(root, **kwargs)

    @property
    def root(self) -> Any:
        """The root object passed to the constructor, or None."""
        return self._root.get("root")

    def save(self, file_prefix: PathLike, options: CheckpointOptions | None = None, *, wait: bool | None = None) -> str:
        """Saves the state as a checkpoint with the path ``<file_prefix>-<save_counter>``.

        Raises:
            UnimplementedError: A compiled function calls it: its number would be that of tracing.
        """
        if inside_function():
            raise UnimplementedError.of(
                "tf.train.Checkpoint.save",
                found="Calling tf.train.Checkpoint.save() from a function is not supported",
                rule="save numbers the checkpoints, which compiled code cannot do",
                remedy="call tf.train.Checkpoint.write(), or call save outside of tf.function",
            )
        path = super().save(file_prefix, wait=_waits(options, wait))
        _call_back(options, path)
        return path

    def write(
        self, file_prefix: PathLike, options: CheckpointOptions | None = None, *, wait: bool | None = None
    ) -> str:
        """Saves the state as a checkpoint with the path `file_prefix`.

        A `tf.function` that calls it runs as Python, with every `Strategy.run` in it compiled.
        """
        note_iteration()
        path = super().write(file_prefix, wait=_waits(options, wait))
        _call_back(options, path)
        return path

    def restore(
        self, save_path: PathLike | None, options: CheckpointOptions | None = None
    ) -> checkpoints.RestoreStatus:
        """Restores variables and other state from a checkpoint; matches saved and current objects by name.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        del options
        note_iteration()
        return _found(lambda: super(Checkpoint, self).restore(save_path))

    def read(self, save_path: PathLike, options: CheckpointOptions | None = None) -> checkpoints.RestoreStatus:
        """Restores variables and other state like `restore`, but from a checkpoint that `write` created.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        del options
        note_iteration()
        return _found(lambda: super(Checkpoint, self).read(save_path))


class CheckpointManager:
    """Manages the checkpoints in a folder: saves them, restores the newest one, and deletes old ones.

    Args:
        checkpoint: The checkpoint to save.
        directory: The folder.
        max_to_keep: Number of checkpoints to keep; None keeps all.
        keep_checkpoint_every_n_hours: Keeps one checkpoint permanently per this many hours.
        checkpoint_name: Prefix of the checkpoint names.
        step_counter: A variable with the current step, for `checkpoint_interval`.
        checkpoint_interval: Minimum number of steps between two saves; `save` skips calls in between.
        init_fn: Called by `restore_or_initialize` if there is nothing to restore.

    Raises:
        ValueError: A number is below one, or an interval has no step counter.

    TensorFlow: `tf.train.CheckpointManager`.
    """

    def __init__(
        self,
        checkpoint: checkpoints.Checkpoint,
        directory: PathLike,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Variable | None = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
    ) -> None:
        if checkpoint_interval is not None and step_counter is None:
            raise ValueError("`step_counter` should be passed if `checkpoint_interval` is not None.")
        self._manager = checkpoints.CheckpointManager(
            checkpoint,
            directory,
            max_to_keep,
            # The inner manager saves when `save` forces it to, and after SIGTERM.
            sys.maxsize,
            checkpoint_name=checkpoint_name,
            keep_every_n_hours=keep_checkpoint_every_n_hours,
        )
        self._step_counter, self._interval, self._init_fn = step_counter, checkpoint_interval, init_fn
        self._last_step: int | None = None
        self._may_be_partial = False  # whether `restored` still has to report what was not restored

    @property
    def checkpoint(self) -> checkpoints.Checkpoint:
        """The `Checkpoint` object that the manager saves and restores."""
        return self._manager.checkpoint

    @property
    def directory(self) -> str:
        """The path of the folder that holds the checkpoints."""
        return self._manager.directory

    @property
    def checkpoint_interval(self) -> int | None:
        """The minimum number of training steps between two checkpoints; None for no minimum."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints in the folder, oldest first."""
        return self._manager.checkpoints

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint in the folder, or None."""
        return self._manager.latest_checkpoint

    def save(
        self,
        checkpoint_number: Operand | None = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Saves a checkpoint in the folder; deletes the oldest checkpoints if there are more than `max_to_keep`.

        Args:
            checkpoint_number: The number in the name; by default one more than the checkpoint's `save_counter`.
            check_interval: Whether to respect `checkpoint_interval`.
            options: Whether to wait until the checkpoint is on disk, and what to call then.

        Returns:
            The path; None if `checkpoint_interval` steps have not passed yet.
        """
        step = None if self._step_counter is None else int(np.asarray(self._step_counter))
        is_due = True
        if self._interval is not None and check_interval and step is not None and self._last_step is not None:
            is_due = step - self._last_step >= self._interval
        number = None if checkpoint_number is None else int(np.asarray(checkpoint_number))
        path = self._manager.save(number, force=is_due)
        if path is None:
            return None
        self._last_step = step
        self._silence_if_restored()
        if _waits(options, None):
            self._manager.wait()
        _call_back(options, path)
        return path

    def _silence_if_restored(self) -> None:
        """Withdraws the warning about a partial restore if what it lacked has been created and restored meanwhile."""
        status = self._manager.restored
        if self._may_be_partial and status is not None and not (status.missing or status.unexpected):
            status.expect_partial()
        self._may_be_partial = False

    def restore_or_initialize(self) -> str | None:
        """Restores the newest complete checkpoint in the folder; calls `init_fn` if the folder has none.

        Logs a warning, at the end of the program at the latest, about names that are only in the program or only in the
        checkpoint, unless all of them are restored until the next `save`.

        Returns:
            The path; None if no checkpoint exists.
        """
        path = self._manager.restore_newest(partial=True, is_intended=False)
        self._may_be_partial = path is not None
        if path is None:
            if self._init_fn is not None:
                self._init_fn()
            return None
        if self._step_counter is not None:
            self._last_step = int(np.asarray(self._step_counter))
        return path

    def sync(self) -> None:
        """Waits until all checkpoints that are being saved are on disk."""
        self._manager.wait()


class CheckpointReader:
    """Reads variables of a checkpoint by name, without the objects that were saved; see `load_checkpoint`.

    Accepts TensorFlow's names (``v/.ATTRIBUTES/VARIABLE_VALUE``) and the short ones.

    TensorFlow: `tf.train.CheckpointReader`.
    """

    def __init__(self, filename: PathLike) -> None:
        self._reader: checkpoints.CheckpointReader = _found(lambda: checkpoints.CheckpointReader(filename))

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Returns a dict from the names of variables in the checkpoint to their shapes."""
        return {name + _SUFFIX: list(shape) for name, shape in self._reader.shapes.items()}

    def get_variable_to_dtype_map(self) -> dict[str, Any]:
        """Returns a dict from the names of variables in the checkpoint to their dtypes; that of PRNG keys is uint32."""
        return {name + _SUFFIX: _dtype_of(dtype) for name, dtype in self._reader.dtypes.items()}

    def has_tensor(self, tensor_str: str) -> bool:
        """Returns whether the checkpoint contains a variable of the given name."""
        return tensor_str.removesuffix(_SUFFIX) in self._reader.names

    def get_tensor(self, tensor_str: str) -> Any:
        """Returns the value of the variable of the given name in the checkpoint."""
        return self._reader.read(tensor_str.removesuffix(_SUFFIX))


def _dtype_of(name: str) -> _dtypes.DType:
    try:
        np.dtype(name)
    except TypeError:  # the name of the algorithm of PRNG keys, which are stored as uint32
        return _dtypes.uint32
    return _dtypes.as_dtype(name)


def load_checkpoint(ckpt_dir_or_file: PathLike) -> CheckpointReader:
    """Returns a `CheckpointReader` for a checkpoint, or for the newest checkpoint in a folder.

    Raises:
        NotFoundError: There is no such checkpoint.
    """
    return CheckpointReader(ckpt_dir_or_file)


def load_variable(ckpt_dir_or_file: PathLike, name: str) -> Any:
    """Returns the value of the variable of the given name in a checkpoint.

    Raises:
        NotFoundError: There is no such checkpoint.
    """
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name)


def list_variables(ckpt_dir_or_file: PathLike) -> list[tuple[str, list[int]]]:
    """Returns the names and shapes of the variables in a checkpoint.

    Raises:
        NotFoundError: There is no such checkpoint.
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


@dataclasses.dataclass(frozen=True)
class CheckpointState:
    """The paths of the newest checkpoint and of all checkpoints in a folder.

    Attributes:
        model_checkpoint_path: Path of the newest checkpoint.
        all_model_checkpoint_paths: Paths of all checkpoints, oldest first.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str]


def get_checkpoint_state(checkpoint_dir: PathLike, latest_filename: str | None = None) -> CheckpointState | None:
    """Returns the paths of the checkpoints in a folder, or None if there are none."""
    del latest_filename
    found = checkpoints.checkpoints_in(checkpoint_dir)
    return CheckpointState(found[-1], found) if found else None


def checkpoints_iterator(
    checkpoint_dir: PathLike,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Waits for new checkpoints in a folder, and yields the path of the newest one each time.

    Args:
        checkpoint_dir: The folder.
        min_interval_secs: Minimum number of seconds between two yields.
        timeout: Seconds to wait for a new checkpoint before ending or calling `timeout_fn`; None waits
            indefinitely.
        timeout_fn: Returns whether to stop.
    """
    last: str | None = None
    while True:
        newest = _wait_for_another(checkpoint_dir, last, timeout)
        if newest is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        start, last = time.monotonic(), newest
        yield newest
        time.sleep(max(0.0, min_interval_secs - (time.monotonic() - start)))


def _wait_for_another(directory: PathLike, last: str | None, timeout: float | None) -> str | None:
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        newest = latest_checkpoint(directory)
        if newest is not None and newest != last:
            return newest
        if end is not None and time.monotonic() >= end:
            return None
        time.sleep(0.1 if end is None else min(0.1, max(0.0, end - time.monotonic())))


def _waits(options: CheckpointOptions | None, wait: bool | None) -> bool:
    if options is not None and options.experimental_write_callbacks:
        return True
    return not (options is not None and options.is_asynchronous) if wait is None else wait


def _call_back(options: CheckpointOptions | None, path: str) -> None:
    for callback in (options and options.experimental_write_callbacks) or ():
        callback(*[path][: len(inspect.signature(callback).parameters)])


def _found(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except MissingCheckpointError as error:
        raise NotFoundError.of(error.called, found=error.found, rule=error.rule, remedy=error.remedy) from error
