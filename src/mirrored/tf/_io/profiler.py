"""`tf.profiler`: records profiler traces with `jax.profiler`, for TensorBoard and Perfetto."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any, SupportsIndex

import jax

from mirrored.errors import ContextError


@dataclasses.dataclass(frozen=True)
class ProfilerOptions:
    """Options of a profiler trace; accepted, but ignored: JAX has its own defaults."""

    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
    delay_ms: int | None = None


def start(logdir: str | os.PathLike[str], options: ProfilerOptions | None = None) -> None:
    """Starts to record a profiler trace, which `stop` writes to the folder `logdir`.

    Raises:
        ContextError: A trace is already active.
    """
    del options
    with _explained("start"):
        jax.profiler.start_trace(str(logdir))


def stop(save: bool = True) -> None:
    """Stops recording the profiler trace, and writes it to the folder that was passed to `start`.

    Raises:
        ContextError: No trace is active.
    """
    del save
    with _explained("stop"):
        jax.profiler.stop_trace()


class Profile:
    """A context manager that records a profiler trace of its block and writes it to a folder.

    Args:
        logdir: The folder.
        options: Accepted for compatibility and ignored.
    """

    def __init__(self, logdir: str | os.PathLike[str], options: ProfilerOptions | None = None) -> None:
        self._logdir, self._options = logdir, options

    def __enter__(self) -> None:
        try:
            start(self._logdir, self._options)
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt, such as Ctrl-C: nothing else would end the trace
                with contextlib.suppress(RuntimeError):
                    jax.profiler.stop_trace()
            raise

    def __exit__(self, *error: object) -> None:
        stop()


def trace(name: str, step_num: SupportsIndex | None = None, **metadata: Any) -> Any:
    """Returns a context manager that labels the operations of its block with a name in the profiler trace.

    `step_num` marks the block as one training step.
    """
    metadata.pop("_r", None)  # TensorFlow's marker of a root event, which JAX sets itself
    if step_num is not None:
        return jax.profiler.StepTraceAnnotation(name, step_num=int(step_num), **metadata)
    return jax.profiler.TraceAnnotation(name, **metadata)


def server_start(port: int) -> None:
    """Starts a server from which TensorBoard can request profiler traces."""
    jax.profiler.start_server(port)


@contextlib.contextmanager
def _explained(method: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ContextError(
            f"tf.profiler.experimental.{method}",
            found=str(error),
            rule="only one trace can be active at a time, and only an active trace can be stopped",
            remedy="alternate start and stop, or use `with tf.profiler.experimental.Profile(directory):`",
        ) from error


NAMES: dict[str, Any] = {
    "profiler.experimental.Profile": Profile,
    "profiler.experimental.ProfilerOptions": ProfilerOptions,
    "profiler.experimental.Trace": trace,
    "profiler.experimental.server.start": server_start,
    "profiler.experimental.start": start,
    "profiler.experimental.stop": stop,
}
