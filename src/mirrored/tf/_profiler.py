"""`tf.profiler`: traces by `jax.profiler`, for TensorBoard's profile page and Perfetto."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from mirrored.errors import ContextError


@dataclasses.dataclass(frozen=True)
class ProfilerOptions:
    """Accepted for TensorFlow's sake: JAX has its own defaults."""

    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
    delay_ms: int | None = None


def start(logdir: Any, options: ProfilerOptions | None = None) -> None:
    """Starts a trace.

    Raises:
        ContextError: One is being made already.
    """
    del options
    with _explained("start"):
        jax.profiler.start_trace(str(logdir))


def stop(save: bool = True) -> None:
    """Ends the trace and writes it.

    Raises:
        ContextError: None is being made.
    """
    del save
    with _explained("stop"):
        jax.profiler.stop_trace()


class Profile:
    """A trace of a block: ``with Profile(directory): ...``.

    Args:
        logdir: The folder.
        options: Accepted for TensorFlow's sake.
    """

    def __init__(self, logdir: Any, options: ProfilerOptions | None = None) -> None:
        self._logdir, self._options = logdir, options

    def __enter__(self) -> None:
        start(self._logdir, self._options)

    def __exit__(self, *error: object) -> None:
        stop()


def trace(name: str, step_num: Any = None, **metadata: Any) -> Any:
    """Names a block in the trace; with `step_num` as one step of training."""
    metadata.pop("_r", None)  # TensorFlow's mark of a root event, which JAX sets itself
    if step_num is not None:
        return jax.profiler.StepTraceAnnotation(name, step_num=int(step_num), **metadata)
    return jax.profiler.TraceAnnotation(name, **metadata)


def server_start(port: int) -> None:
    """Starts a server that TensorBoard can ask for traces."""
    jax.profiler.start_server(port)


@contextlib.contextmanager
def _explained(method: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ContextError(
            f"tf.profiler.experimental.{method}",
            found=str(error),
            rule="one trace is made at a time",
            remedy="call start and stop in turns, or use `with tf.profiler.experimental.Profile(directory):`",
        ) from error


NAMES: dict[str, Any] = {
    "profiler.experimental.Profile": Profile,
    "profiler.experimental.ProfilerOptions": ProfilerOptions,
    "profiler.experimental.Trace": trace,
    "profiler.experimental.server.start": server_start,
    "profiler.experimental.start": start,
    "profiler.experimental.stop": stop,
}
