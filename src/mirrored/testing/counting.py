"""Counts traces, compilations and new arrays, which a training loop must not cause after its first steps."""

from __future__ import annotations

import dataclasses
import gc
import threading
from collections.abc import Iterator

import jax

from mirrored._blocks import contextmanager


@dataclasses.dataclass
class Counted:
    """The numbers of traces, compilations and new live arrays that a `count_work` block has caused.

    Attributes:
        traces: The number of functions that JAX traced.
        compilations: The number of programs that XLA compiled.
        new_arrays: The increase in live arrays from the start to the end of the block; 0 until the block ends.

    Example:
        >>> import mirrored as mr
        >>> with count_work() as counted:
        ...     _ = mr.function(lambda x: x + 1)(1.0)
        >>> counted.traces > 0
        True
    """

    traces: int = 0
    compilations: int = 0
    new_arrays: int = 0


class _Counters:
    """The open `count_work` blocks, which share one `jax.monitoring` listener, because a listener cannot be removed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Counted] = []
        self._listens = False

    def add(self, counted: Counted) -> None:
        with self._lock:
            if not self._listens:
                jax.monitoring.register_event_duration_secs_listener(self._on_event)
                self._listens = True
            self._open.append(counted)

    def remove(self, counted: Counted) -> None:
        with self._lock:
            self._open = [one for one in self._open if one is not counted]

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        for counted in self._open:
            counted.traces += event.endswith("/jaxpr_trace_duration")
            counted.compilations += event.endswith("/backend_compile_duration")


_counters = _Counters()


@contextmanager
def count_work() -> Iterator[Counted]:
    """Counts the traces, compilations and new live arrays that a block of code causes, in all threads.

    Context: any. After its first steps, a loop must trace and compile nothing, and must keep no additional arrays.

    Yields:
        A `Counted`. Its `new_arrays` is set at the end of the block.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable(1.0)
        >>> double = mr.function(lambda: v.assign(2 * v))
        >>> _ = double()
        >>> with count_work() as counted:
        ...     for _ in range(10):
        ...         _ = double()
        >>> counted.traces, counted.compilations
        (0, 0)
    """
    counted = Counted()
    gc.collect()
    before = len(jax.live_arrays())
    try:
        _counters.add(counted)
        yield counted
    finally:
        try:
            _counters.remove(counted)
        except BaseException:  # an interrupt where the function begins
            _counters.remove(counted)
            raise
        gc.collect()
        counted.new_arrays = len(jax.live_arrays()) - before
