"""`tf.summary.trace_on`, `trace_export` and `trace_off`, with the arguments that Keras' TensorBoard callback passes."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Final, SupportsIndex

from mirrored.errors import ContextError
from mirrored.tf._io import profiler as profiling


@dataclasses.dataclass
class _Trace:
    active: bool = False
    profiles: bool = False


_trace: Final = _Trace()


def trace_on(graph: bool = True, profiler: bool = False, profiler_outdir: str | os.PathLike[str] | None = None) -> None:
    """Starts a summary trace, and a profiler trace if `profiler` is True; does nothing if a summary trace is active.

    Context: any, outside compiled functions.

    Args:
        graph: Accepted for compatibility: there are no graphs, so none is recorded.
        profiler: Whether to record a profiler trace, as `tf.profiler.experimental.start` does.
        profiler_outdir: The folder of the profiler trace.

    Raises:
        ContextError: A profiler trace is requested without a folder, or one is active.

    TensorFlow: `tf.summary.trace_on`, which also records the graphs of functions.
    """
    del graph
    if _trace.active:
        return
    if profiler:
        if profiler_outdir is None:
            raise ContextError(
                "tf.summary.trace_on",
                found="profiler=True without profiler_outdir",
                rule="a profiler trace is written to a folder",
                remedy="pass profiler_outdir='logs'",
            )
        profiling.start(profiler_outdir)
    _trace.active, _trace.profiles = True, profiler


def trace_off() -> None:
    """Ends the active summary trace, if any, and writes its profiler trace to the folder passed to `trace_on`.

    TensorFlow: `tf.summary.trace_off`, which discards the trace.
    """
    if not _trace.active:
        return
    profiles, _trace.active, _trace.profiles = _trace.profiles, False, False
    if profiles:
        profiling.stop()


def trace_export(
    name: str, step: SupportsIndex | None = None, profiler_outdir: str | os.PathLike[str] | None = None
) -> None:
    """Ends the active summary trace, and writes its profiler trace, if any, to the folder passed to `trace_on`.

    Args:
        name: Accepted for compatibility.
        step: Accepted for compatibility.
        profiler_outdir: Accepted for compatibility.

    Raises:
        ContextError: No trace is active.

    TensorFlow: `tf.summary.trace_export`, which also writes graphs.
    """
    del name, step, profiler_outdir
    if not _trace.active:
        raise ContextError(
            "tf.summary.trace_export",
            found="no trace is active",
            rule="Must enable trace before export through tf.summary.trace_on",
            remedy="call tf.summary.trace_on() first",
        )
    trace_off()


NAMES: Final[dict[str, Any]] = {
    "summary.trace_export": trace_export,
    "summary.trace_off": trace_off,
    "summary.trace_on": trace_on,
}
