"""`tf.summary`: event files for TensorBoard, written by tensorboardX."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from mirrored._jax.traces import is_tracer
from mirrored.errors import ArgumentError, ContextError
from mirrored.extras import load
from mirrored.runtime.ambient import ambient
from mirrored.runtime.lockstep import carry


class _Defaults(threading.local):
    def __init__(self) -> None:
        self.writers: tuple[SummaryWriter | None, ...] = ()
        self.step: Any = None
        self.record: Any = True


_defaults = _Defaults()


def _carried() -> Callable[[], None]:
    """Replica threads write where the thread that runs them does."""
    here = dict(vars(_defaults))
    return lambda: vars(_defaults).update(here)


carry(_carried)


class SummaryWriter:
    """Writes event files into a folder. Made by `create_file_writer`.

    TensorFlow: `tf.summary.SummaryWriter`.
    """

    def __init__(self, logdir: Any, flush_millis: int, filename_suffix: str) -> None:
        module = load("tensorboardX", called="tf.summary.create_file_writer", extra="summary")
        suffix = filename_suffix or ""
        self.events: Any = module.SummaryWriter(str(logdir), flush_secs=flush_millis / 1000, filename_suffix=suffix)

    @contextlib.contextmanager
    def as_default(self, step: Any = None) -> Iterator[Self]:
        """Makes it the writer of the block, and `step` its step."""
        before, before_step = _defaults.writers, _defaults.step
        _defaults.writers = (*before, self)
        if step is not None:
            _defaults.step = step
        try:
            yield self
        finally:
            _defaults.writers, _defaults.step = before, before_step

    def set_as_default(self, step: Any = None) -> None:
        """Makes it the writer from here on."""
        _defaults.writers = (self,)
        if step is not None:
            _defaults.step = step

    def init(self) -> None:
        """Nothing to do."""

    def flush(self) -> None:
        """Writes what is waiting to the disk."""
        self.events.flush()

    def close(self) -> None:
        """Writes what is waiting to the disk, and closes the file."""
        self.events.close()


def create_file_writer(
    logdir: Any, max_queue: int | None = None, flush_millis: int | None = None, filename_suffix: str | None = None,
    name: str | None = None, experimental_trackable: bool = False, experimental_mesh: Any = None,
) -> SummaryWriter:  # fmt: skip
    """A writer of event files.

    Args:
        logdir: The folder.
        max_queue: Accepted for TensorFlow's sake.
        flush_millis: How long values may wait to be written. Default: two minutes.
        filename_suffix: End of the file's name.
        name: Accepted for TensorFlow's sake.
        experimental_trackable: Accepted for TensorFlow's sake.
        experimental_mesh: Accepted for TensorFlow's sake.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """
    del max_queue, name, experimental_trackable, experimental_mesh
    return SummaryWriter(logdir, 120_000 if flush_millis is None else flush_millis, filename_suffix or "")


@contextlib.contextmanager
def _no_writer() -> Iterator[None]:
    before = _defaults.writers
    _defaults.writers = (*before, None)
    try:
        yield
    finally:
        _defaults.writers = before


def create_noop_writer() -> Any:
    """A writer that writes nothing. Use it in a `with`."""
    return _no_writer()


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Writes a number.

    Context: eager; in replica context only replica 0 writes.

    Args:
        name: Its name in TensorBoard.
        data: A number or ``f32[]``.
        step: The step. Default: that of the writer, or of `set_step`.
        description: Accepted for TensorFlow's sake.

    Returns:
        Whether it was written.

    Raises:
        ContextError: `data` is being traced, and has no value yet.
        ArgumentError: There is no step.
    """
    del description
    events, at = _target("scalar", data, step)
    if events is not None:
        events.add_scalar(name, float(np.asarray(data)), at)
    return events is not None


def image(name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None) -> bool:
    """Writes pictures ``[pictures, height, width, channels]``: floats from 0 to 1, or ``u8``. See `scalar`."""
    del description
    events, at = _target("image", data, step)
    if events is not None:
        for number, picture in enumerate(np.asarray(data)[:max_outputs]):
            tag = name if number == 0 and max_outputs == 1 else f"{name}/{number}"
            shown = picture if picture.dtype == np.uint8 else np.clip(picture.astype(np.float32), 0, 1)
            events.add_image(tag, shown, at, dataformats="HWC")
    return events is not None


def histogram(name: str, data: Any, step: Any = None, buckets: int = 30, description: str | None = None) -> bool:
    """Writes how the elements of an array are distributed. See `scalar`."""
    del description
    events, at = _target("histogram", data, step)
    if events is not None and np.size(data):
        events.add_histogram(name, np.asarray(data, np.float32).ravel(), at, bins=buckets)
    return events is not None


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Writes a text. See `scalar`."""
    del description
    events, at = _target("text", 0, step)
    if events is not None:
        events.add_text(name, str(data), at)
    return events is not None


def _target(kind: str, data: Any, step: Any) -> tuple[Any, int]:
    """Where to write and at which step; None where nothing is to be written."""
    writer = _defaults.writers[-1] if _defaults.writers else None
    replica = ambient().replica
    if writer is None or not should_record_summaries():
        return None, 0
    if is_tracer(data) and not hasattr(data, "__array__"):
        raise _traced(kind)
    store = ambient().store
    if store is not None and store.captures:
        raise _traced(kind)
    if replica is not None and replica.local_index != 0:
        return None, 0
    at = _defaults.step if step is None else step
    if at is None:
        raise ArgumentError(
            f"tf.summary.{kind}",
            found="no step",
            rule="a value is written for a step",
            remedy="give step=..., or call tf.summary.experimental.set_step(step) before",
        )
    return writer.events, int(np.asarray(at))


def _traced(kind: str) -> ContextError:
    return ContextError(
        f"tf.summary.{kind}",
        found="it was called inside a compiled function",
        rule="a compiled program has no Python in it: a value is known when it has run",
        remedy="return the value from the function and write it outside",
    )


def should_record_summaries() -> bool:
    """Whether values are written: there is a writer, and `record_if` does not say otherwise."""
    record = _defaults.record
    return bool(_defaults.writers) and bool(record() if callable(record) else record)


@contextlib.contextmanager
def record_if(condition: Any) -> Iterator[None]:
    """Writes in the block only if `condition` (or what it returns) is true."""
    before, _defaults.record = _defaults.record, condition
    try:
        yield
    finally:
        _defaults.record = before


def get_step() -> Any:
    """The step for values that are written without one."""
    return _defaults.step


def set_step(step: Any) -> None:
    """Sets the step for values that are written without one."""
    _defaults.step = step


def flush(writer: SummaryWriter | None = None) -> None:
    """Writes what is waiting to the disk."""
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
    "summary.scalar": scalar,
    "summary.should_record_summaries": should_record_summaries,
    "summary.text": text,
}
