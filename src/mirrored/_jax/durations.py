"""The time that this process has spent on tracing, lowering, compiling and loading programs.

Supports JAX 0.10 to 0.12, whose monitoring reports the durations of lowering, of compilation (with the lookup in the
persistent cache), and of loading from that cache. It has one listener per process, which cannot be removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

import jax

from mirrored._blocks import contextmanager

KINDS: Final = ("tracing", "lowering", "compiling", "loading")
"""What is measured. Compiling includes loading; tracing is that of compiled functions, without JAX's own helpers."""

_EVENTS: Final = {
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
    "/jax/compilation_cache/cache_retrieval_time_sec": "loading",
}


class _Measured:
    """The seconds spent on each activity, and the traces that are open; only the outermost trace is measured."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.open_traces: set[object] = set()
        self.listens = False

    def add(self, kind: str, seconds: float) -> None:
        with self.lock:
            self.seconds[kind] += seconds

    def on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        kind = _EVENTS.get(event)
        if kind is not None:
            self.add(kind, duration_secs)


_measured = _Measured()


def durations() -> dict[str, float]:
    """Returns the seconds spent on each activity in `KINDS`; the first call starts all measurements except tracing."""
    with _measured.lock:
        begins, _measured.listens = not _measured.listens, True
        found = dict(_measured.seconds)
    if begins:
        jax.monitoring.register_event_duration_secs_listener(_measured.on_event)
    return found


@contextmanager
def tracing_measured() -> Iterator[None]:
    """Adds the duration of a ``with`` block to the time of tracing, unless another such block is open in any thread."""
    began, this, is_outermost = time.perf_counter(), object(), False
    try:
        with _measured.lock:
            is_outermost = not _measured.open_traces
            _measured.open_traces.add(this)
        yield
    finally:
        with _measured.lock:
            _measured.open_traces.discard(this)
            if is_outermost:
                _measured.seconds["tracing"] += time.perf_counter() - began
