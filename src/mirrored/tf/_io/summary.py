"""`tf.summary`: writes scalars, images, histograms and texts for TensorBoard, with tensorboardX."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self, SupportsIndex, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._blocks import contextmanager
from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import Tracer
from mirrored._typing import Operand
from mirrored.errors import ArgumentError, ContextError, MirroredError
from mirrored.extras import load
from mirrored.runtime.ambient import ambient
from mirrored.runtime.lockstep import carry
from mirrored.tf._data.host_arrays import as_bytes_array, is_text
from mirrored.tf._io.summary_calls import call_host, is_compiled, is_tensor_of_program, wait_for_calls
from mirrored.tf._io.tensor_protos import check_writable, tensor_proto
from mirrored.tf._tensors import as_tensor

Written: TypeAlias = bool | jax.Array
_Events: TypeAlias = Any  # a writer of tensorboardX, which ships no types
_MOST_SECONDS: Final = 60.0  # for the thread that writes events
_numbers: Final = itertools.count()  # of the writers of this process


class WriteTimeoutError(MirroredError, TimeoutError):
    """Error raised when pending summary values are not written in time."""


class _Defaults(threading.local):
    def __init__(self) -> None:
        self.writers: tuple[SummaryWriter | None, ...] = ()
        self.step: Any = None
        self.record: Any = True


_defaults = _Defaults()


def _carried() -> Callable[[], None]:
    """Captures summary writers, step and `record_if` condition; returns a function that sets them in another thread."""
    here = dict(vars(_defaults))
    return lambda: vars(_defaults).update(here)


carry(_carried)


class SummaryWriter:
    """A writer of event files for TensorBoard, created by `create_file_writer` for one folder.

    TensorFlow: `tf.summary.SummaryWriter`.
    """

    def __init__(self, logdir: str | os.PathLike[str], flush_millis: int, filename_suffix: str) -> None:
        module = load("tensorboardX", called="tf.summary.create_file_writer", extra="summary")
        # tensorboardX names a file by the second and the host, and truncates one of the same name.
        suffix = f".{os.getpid()}.{next(_numbers)}{filename_suffix or ''}"
        self._events: Any = module.SummaryWriter(str(logdir), flush_secs=flush_millis / 1000, filename_suffix=suffix)
        self._flushing = threading.Lock()
        self._is_pending, self._is_closed = True, False

    @property
    def events(self) -> Any:
        """The underlying tensorboardX writer, which receives the values to write.

        Raises:
            ContextError: The writer is closed.
        """
        if self._is_closed:
            raise ContextError(
                "tf.summary",
                found="a value was written with a writer that is closed",
                rule="a writer takes values until its close()",
                remedy="close it after the last value, or make another writer with tf.summary.create_file_writer",
            )
        self._is_pending = True
        return self._events

    @contextmanager
    def as_default(self, step: SupportsIndex | None = None) -> Iterator[Self]:
        """A context manager in which `tf.summary.scalar` and similar functions use this writer and `step` by default.

        The end of the block writes pending values to disk, as in TensorFlow.
        """
        before, before_step = _defaults.writers, _defaults.step
        _defaults.writers = (*before, self)
        if step is not None:
            _defaults.step = step
        try:
            yield self
        finally:
            _defaults.writers = before
            if step is not None:  # without a step of its own, the block leaves `set_step` as it is
                _defaults.step = before_step
            self.flush()

    def set_as_default(self, step: SupportsIndex | None = None) -> None:
        """Makes `tf.summary.scalar` and similar functions use this writer and `step` by default.

        This holds for the current thread.
        """
        _defaults.writers = (self,)
        if step is not None:
            _defaults.step = step

    def init(self) -> None:
        """Does nothing: a summary writer needs no initialization."""

    def flush(self) -> None:
        """Writes all pending values to disk, also those of compiled functions that have been called in this thread.

        In compiled code this is done in each execution.

        Raises:
            WriteTimeoutError: They are not written within a minute.
        """
        if is_compiled():
            if (is_first := _is_first()) is not False:
                call_host("tf.summary.flush", lambda _: self._flush(), {"is_first": is_first})
            return
        wait_for_calls()
        self._flush()

    def _flush(self) -> None:
        with self._flushing:
            if self._is_pending:
                self._is_pending = False
                try:
                    for writer in (self._events.all_writers or {}).values():
                        _flush_events(writer.event_writer)
                except BaseException:
                    self._is_pending = True
                    raise

    def close(self) -> None:
        """Writes all pending values to disk and closes the event file.

        Raises:
            ContextError: It is called while a function is traced.
        """
        if is_compiled():
            raise ContextError(
                "tf.summary.SummaryWriter.close",
                found="it was called inside a compiled function",
                rule="a writer is closed once, after all executions of the functions that write with it",
                remedy="close it outside; inside, call flush()",
            )
        wait_for_calls()
        self._is_closed = True
        self._events.close()


def _flush_events(writer: Any) -> None:
    """Waits until the thread of a tensorboardX writer has written all events in its queue, and flushes the file.

    `EventFileWriter.flush` flushes only what the thread has already taken from the queue.
    """
    thread = writer._worker
    if thread is None:  # closed
        return
    if thread.is_alive():
        thread._queue.put(thread._shutdown_signal)  # the thread writes the events before it, and ends
    thread.join(_MOST_SECONDS)
    if thread.is_alive():
        raise WriteTimeoutError(
            "tf.summary.flush",
            found=f"the thread that writes events has not written them within {_MOST_SECONDS:.0f} s",
            rule="pending values are written before flush returns",
            remedy="check that the folder of the event file accepts writes",
        )
    writer._worker = type(thread)(thread._queue, thread._record_writer, thread._flush_secs)
    writer._worker.start()
    writer.flush()


def create_file_writer(
    logdir: str | os.PathLike[str], max_queue: int | None = None, flush_millis: int | None = None,
    filename_suffix: str | None = None, name: str | None = None, experimental_trackable: bool = False,
    experimental_mesh: object = None,
) -> SummaryWriter:  # fmt: skip
    """Creates a `SummaryWriter`, which writes TensorBoard's event files to a folder.

    Args:
        logdir: The folder.
        max_queue: Accepted for compatibility and ignored.
        flush_millis: Maximum time before pending values are written. Default: two minutes.
        filename_suffix: Suffix of the file name.
        name: Accepted for compatibility and ignored.
        experimental_trackable: Accepted for compatibility and ignored.
        experimental_mesh: Accepted for compatibility and ignored.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """
    del max_queue, name, experimental_trackable, experimental_mesh
    return SummaryWriter(logdir, 120_000 if flush_millis is None else flush_millis, filename_suffix or "")


@contextmanager
def _no_writer() -> Iterator[None]:
    before = _defaults.writers
    _defaults.writers = (*before, None)
    try:
        yield
    finally:
        _defaults.writers = before


def create_noop_writer() -> Any:
    """Returns a context manager in which `tf.summary.scalar` and similar functions write nothing."""
    return _no_writer()


def scalar(name: str, data: Operand, step: SupportsIndex | None = None, description: str | None = None) -> Written:
    """Writes a number for TensorBoard with the default writer; does nothing if there is no default writer.

    Context: any; of the replicas of a run, only replica 0 writes, which is on the first worker. Compiled code writes in
    each execution. Its writer, the function in `record_if`, and a step that is a Python number are those at the time of
    tracing, as in TensorFlow; a step or condition that is a tensor or variable has its value at the time of execution.
    Values that are written under one name in a loop or branch and outside of it have no fixed order. Programs of
    `tf.saved_model` write no summaries: they cannot contain calls of the host.

    Args:
        name: The name in TensorBoard.
        data: A number or ``f32[]``.
        step: The step. Default: that of the writer, or of `set_step`.
        description: Accepted for compatibility and ignored.

    Returns:
        Whether the value is written; in compiled code a ``bool[]`` tensor.

    Raises:
        ArgumentError: No step is set, or `data` is not one number.
    """
    del description
    _check_shape("scalar", data, lambda shape: all(size == 1 for size in shape), "one number", "tf.reduce_mean(data)")
    return _write("scalar", data, step, lambda events, value, at: events.add_scalar(name, _number(value), at))


def _number(value: object) -> float:
    return float(np.asarray(value).reshape(()))


def image(
    name: str, data: Operand, step: SupportsIndex | None = None, max_outputs: int = 3, description: str | None = None
) -> Written:
    """Writes images for TensorBoard with the default writer; does nothing if there is no default writer.

    The shape is ``[images, height, width, channels]``, the values floats from 0 to 1 or ``uint8``. Context, step and
    errors are those of `scalar`.
    """
    del description
    what = "of shape [images, height, width, channels]"
    _check_shape("image", data, lambda shape: len(shape) == 4, what, "data[tf.newaxis, ..., tf.newaxis]")

    def add(events: _Events, value: Any, at: int) -> None:
        for number, picture in enumerate(np.asarray(value)[:max_outputs]):
            tag = name if number == 0 and max_outputs == 1 else f"{name}/{number}"
            shown = picture if picture.dtype == np.uint8 else np.clip(picture.astype(np.float32), 0, 1)
            events.add_image(tag, shown, at, dataformats="HWC")

    return _write("image", data[:max_outputs] if isinstance(data, jax.Array) else data, step, add)


def histogram(
    name: str, data: Operand, step: SupportsIndex | None = None, buckets: int = 30, description: str | None = None
) -> Written:
    """Writes a histogram of an array's elements for TensorBoard with the default writer.

    Context, step and errors are those of `scalar`.
    """
    del description

    def add(events: _Events, value: Any, at: int) -> None:
        if np.size(value):
            events.add_histogram(name, np.asarray(value, np.float32).ravel(), at, bins=buckets)

    return _write("histogram", data, step, add)


def text(name: str, data: object, step: SupportsIndex | None = None, description: str | None = None) -> Written:
    """Writes a string, or several strings as paragraphs, for TensorBoard with the default writer.

    Context, step and errors are those of `scalar`.
    """
    del description

    def add(events: _Events, value: Any, at: int) -> None:
        lines = [one.decode() for one in as_bytes_array(value).flat] if is_text(value) else [str(value)]
        events.add_text(name, "\n\n".join(lines), at)

    return _write("text", data, step, add)


def write(
    tag: str, tensor: Operand, step: SupportsIndex | None = None, metadata: object = None, name: str | None = None
) -> Written:
    """Writes a tensor, encoded as one `TensorProto`, for TensorBoard with the default writer.

    Context, step and errors are those of `scalar`. `metadata` (a `SummaryMetadata`) says which plugin shows the tensor.
    """
    del name

    def add(events: _Events, value: Any, at: int) -> None:
        module = load("tensorboardX.summary", called="tf.summary.write", extra="summary")
        one = module.Summary.Value(tag=tag, tensor=tensor_proto(module, value), metadata=metadata)
        events.file_writer.add_summary(module.Summary(value=[one]), at)

    if _writer() is not None and isinstance(tensor, (jax.Array, np.ndarray)) and not is_text(tensor):
        check_writable(tensor.dtype)
    return _write("write", tensor, step, add)


def _check_shape(kind: str, data: object, fits: Callable[[tuple[int, ...]], bool], what: str, remedy: str) -> None:
    if _writer() is not None and not fits(shape := tuple(np.shape(data))):  # type: ignore[arg-type]
        raise ArgumentError(
            f"tf.summary.{kind}",
            found=f"data of shape {shape}",
            rule=f"the data must be {what}",
            remedy=f"pass such data, for example {remedy}",
        )


def _write(kind: str, data: Any, step: SupportsIndex | None, add: Callable[[_Events, Any, int], None]) -> Written:
    """Writes a value by `add(events, data, step)`: now, or at each execution of the program that is being traced."""
    writer, record = _writer(), should_record_summaries()
    if writer is None or record is False:
        return False
    is_first = _is_first()
    at: Any = _defaults.step if step is None else step
    compiled = is_compiled(data, at, record)
    if at is None and (compiled or is_first):
        raise _no_step_error(kind)
    if not compiled:
        if is_first:
            add(writer.events, data, int(np.asarray(at)))
        return bool(is_first)
    if is_first is not False:

        def write_value(given: Mapping[str, Any]) -> None:
            if given["record"]:
                add(writer.events, given["data"], int(np.asarray(given["step"])))

        values = {"data": data, "step": at, "record": record, "is_first": is_first}
        call_host(f"tf.summary.{kind}", write_value, values)
    return jnp.logical_and(record, is_first)


def _writer() -> SummaryWriter | None:
    return _defaults.writers[-1] if _defaults.writers else None


def _is_first() -> Written:
    """Returns whether the current replica is replica 0, or the code runs in no replica; a tensor in compiled code."""
    replica = ambient().replica
    if replica is None:
        return True
    is_first: Written = replica.replica_id_in_sync_group == 0
    return is_first if replica.local_index == 0 else False  # a device's first slot has its lowest id


def _no_step_error(kind: str) -> ArgumentError:
    return ArgumentError(
        f"tf.summary.{kind}",
        found="no step was passed, and there is no default step",
        rule="every value must belong to a step",
        remedy="pass step=..., or call tf.summary.experimental.set_step(step) first",
    )


def should_record_summaries() -> Written:
    """Returns whether a default summary writer is set and `record_if` permits writing.

    In compiled code this is a ``bool[]`` tensor if the condition of `record_if` is known at execution only.
    """
    if not _defaults.writers:
        return False
    record = _defaults.record
    condition = record() if callable(record) else record
    if is_tensor_of_program(condition):
        condition = as_tensor(condition)
        if isinstance(payload_of(condition), Tracer):
            return jnp.asarray(condition, bool)
    return bool(condition)


@contextmanager
def record_if(condition: Operand | Callable[[], Operand]) -> Iterator[None]:
    """A context manager in which `tf.summary.scalar` and similar functions write only if a condition is true.

    The condition may be a function, which is called for each value.
    """
    before, _defaults.record = _defaults.record, condition
    try:
        yield
    finally:
        _defaults.record = before


def get_step() -> Any:
    """Returns the step with which summary values are written by default; None if no step is set."""
    return _defaults.step


def set_step(step: SupportsIndex | None) -> None:
    """Sets the step with which summary values are written by default."""
    _defaults.step = step


def flush(writer: SummaryWriter | None = None) -> None:
    """Writes the pending values of `writer`, or of the default writer if `writer` is None, to disk."""
    target = writer if writer is not None else _writer()
    if target is not None:
        target.flush()


NAMES: dict[str, Any] = {
    "summary.SummaryWriter": SummaryWriter,
    "summary.create_file_writer": create_file_writer,
    "summary.create_noop_writer": create_noop_writer,
    "summary.experimental.get_step": get_step,
    "summary.experimental.set_step": set_step,
    "summary.flush": flush,
    "summary.histogram": histogram,
    "summary.image": image,
    "summary.record_if": record_if,
    "summary.write": write,
    "summary.scalar": scalar,
    "summary.should_record_summaries": should_record_summaries,
    "summary.text": text,
}
