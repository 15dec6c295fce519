"""`tf.summary`: writes scalars, images, histograms and texts for TensorBoard, with tensorboardX."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Self, SupportsIndex

import numpy as np

from mirrored._blocks import contextmanager
from mirrored._jax.traces import Tracer
from mirrored._typing import Operand
from mirrored.errors import ArgumentError, ContextError, MirroredError
from mirrored.extras import load
from mirrored.runtime.ambient import ambient
from mirrored.runtime.lockstep import carry
from mirrored.tf._data.host_arrays import as_bytes_array, is_text

_PROTO_TYPES: Final = {
    "bool": "DT_BOOL", "bfloat16": "DT_BFLOAT16", "complex64": "DT_COMPLEX64", "complex128": "DT_COMPLEX128",
    "float16": "DT_HALF", "float32": "DT_FLOAT", "float64": "DT_DOUBLE", "int8": "DT_INT8", "int16": "DT_INT16",
    "int32": "DT_INT32", "int64": "DT_INT64", "object": "DT_STRING", "uint8": "DT_UINT8", "uint16": "DT_UINT16",
}  # fmt: skip


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
        """Writes all pending values to disk.

        Raises:
            WriteTimeoutError: They are not written within a minute.
        """
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
        """Writes all pending values to disk and closes the event file."""
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


def scalar(name: str, data: Operand, step: SupportsIndex | None = None, description: str | None = None) -> bool:
    """Writes a number for TensorBoard with the default writer; does nothing if there is no default writer.

    Context: eager; in replica context only replica 0 writes.

    Args:
        name: The name in TensorBoard.
        data: A number or ``f32[]``.
        step: The step. Default: that of the writer, or of `set_step`.
        description: Accepted for compatibility and ignored.

    Returns:
        Whether the value was written.

    Raises:
        ContextError: `data` is traced, and has no value yet.
        ArgumentError: No step is set.
    """
    del description
    events, at = _target("scalar", data, step)
    if events is not None:
        events.add_scalar(name, float(np.asarray(data)), at)
    return events is not None


def image(
    name: str, data: Operand, step: SupportsIndex | None = None, max_outputs: int = 3, description: str | None = None
) -> bool:
    """Writes images for TensorBoard with the default writer; does nothing if there is no default writer.

    The shape is ``[images, height, width, channels]``, the values floats from 0 to 1 or ``uint8``.
    """
    del description
    events, at = _target("image", data, step)
    if events is not None:
        for number, picture in enumerate(np.asarray(data)[:max_outputs]):
            tag = name if number == 0 and max_outputs == 1 else f"{name}/{number}"
            shown = picture if picture.dtype == np.uint8 else np.clip(picture.astype(np.float32), 0, 1)
            events.add_image(tag, shown, at, dataformats="HWC")
    return events is not None


def histogram(
    name: str, data: Operand, step: SupportsIndex | None = None, buckets: int = 30, description: str | None = None
) -> bool:
    """Writes a histogram of an array's elements for TensorBoard with the default writer.

    Context, step and errors are those of `scalar`.
    """
    del description
    events, at = _target("histogram", data, step)
    if events is not None and np.size(data):
        events.add_histogram(name, np.asarray(data, np.float32).ravel(), at, bins=buckets)
    return events is not None


def text(name: str, data: object, step: SupportsIndex | None = None, description: str | None = None) -> bool:
    """Writes a string, or several strings as paragraphs, for TensorBoard with the default writer.

    Context, step and errors are those of `scalar`.
    """
    del description
    events, at = _target("text", 0, step)
    if events is not None:
        given: Any = data
        lines = [one.decode() for one in as_bytes_array(given).flat] if is_text(given) else [str(given)]
        events.add_text(name, "\n\n".join(lines), at)
    return events is not None


def write(
    tag: str, tensor: Operand, step: SupportsIndex | None = None, metadata: object = None, name: str | None = None
) -> bool:
    """Writes a tensor, encoded as one `TensorProto`, for TensorBoard with the default writer.

    Context, step and errors are those of `scalar`. `metadata` (a `SummaryMetadata`) says which plugin shows the tensor.
    """
    del name
    events, at = _target("write", tensor, step)
    if events is not None:
        module = load("tensorboardX.summary", called="tf.summary.write", extra="summary")
        array = as_bytes_array(tensor) if is_text(tensor) else np.asarray(tensor)  # type: ignore[arg-type]
        if array.dtype.name not in _PROTO_TYPES:
            raise _unwritable_dtype_error(array.dtype)
        kind = module.TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_name
        shape = module.TensorShapeProto(dim=[module.TensorShapeProto.Dim(size=size) for size in array.shape])
        proto = module.TensorProto(dtype=kind[_PROTO_TYPES[array.dtype.name]].number, tensor_shape=shape)
        if array.dtype.hasobject:
            proto.string_val.extend(array.ravel().tolist())
        else:
            proto.tensor_content = array.astype(array.dtype.newbyteorder("="), copy=False).tobytes()
        value = module.Summary.Value(tag=tag, tensor=proto, metadata=metadata)
        events.file_writer.add_summary(module.Summary(value=[value]), at)
    return events is not None


def _unwritable_dtype_error(dtype: np.dtype[Any]) -> ArgumentError:
    return ArgumentError(
        "tf.summary.write",
        found=f"a tensor of dtype {dtype}",
        rule=f"the format of event files has the dtypes {', '.join(sorted(_PROTO_TYPES))} (strings)",
        remedy="cast the tensor to one of them: tf.cast(tensor, tf.int64)",
    )


def _target(kind: str, data: object, step: SupportsIndex | None) -> tuple[Any, int]:
    """Returns the tensorboardX writer and the step for a summary value; the writer is None if the value is skipped."""
    writer = _defaults.writers[-1] if _defaults.writers else None
    replica = ambient().replica
    if writer is None or not should_record_summaries():
        return None, 0
    if isinstance(data, Tracer) and not hasattr(data, "__array__"):
        raise _traced_error(kind)
    store = ambient().store
    if store is not None and store.captures:
        raise _traced_error(kind)
    if replica is not None and replica.local_index != 0:
        return None, 0
    at = _defaults.step if step is None else step
    if at is None:
        raise ArgumentError(
            f"tf.summary.{kind}",
            found="no step was passed, and there is no default step",
            rule="every value must belong to a step",
            remedy="pass step=..., or call tf.summary.experimental.set_step(step) first",
        )
    return writer.events, int(np.asarray(at))


def _traced_error(kind: str) -> ContextError:
    return ContextError(
        f"tf.summary.{kind}",
        found="it was called inside a compiled function",
        rule="only eager code can write summaries: a traced value is known only after the program has run",
        remedy="return the value from the function, and write the summary outside",
    )


def should_record_summaries() -> bool:
    """Returns whether a default summary writer is set and `record_if` permits writing."""
    record = _defaults.record
    return bool(_defaults.writers) and bool(record() if callable(record) else record)


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
    target = writer if writer is not None else (_defaults.writers[-1] if _defaults.writers else None)
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
