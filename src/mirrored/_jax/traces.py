"""The current JAX trace, and making another one current.

Serves JAX 0.10 to 0.12: `jax.extend.core.take_current_trace`/`set_current_trace`, and `jax._src.core.trace_ctx` for a
cheap look that takes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import core as _core
from jax.extend.core import set_current_trace as set_current_trace

ShapedArray = jax.core.ShapedArray
Trace = jax.core.Trace
Tracer = jax.core.Tracer


def current_trace() -> Any:
    """The trace to which primitives go now in this thread."""
    return _core.trace_ctx.trace


def is_eager() -> bool:
    """Whether primitives run at once in this thread (no jit, grad, vmap or tape around)."""
    return _core.trace_ctx.is_top_level()


@contextmanager
def eager() -> Iterator[None]:
    """Runs the block at once, whatever is being traced or taped around it."""
    with _core.eval_context():
        yield


def belongs_to(value: Any, trace: Any) -> bool:
    """Whether `value` is a tracer of `trace`."""
    return isinstance(value, Tracer) and value._trace is trace


def is_tracer(value: Any) -> bool:
    """Whether `value` stands for something that is not known yet (or is boxed by a tape)."""
    return isinstance(value, Tracer)
