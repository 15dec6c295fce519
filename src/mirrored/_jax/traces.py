"""The current JAX trace, and making another one current.

Serves JAX 0.10 to 0.12: `jax.extend.core.take_current_trace`/`set_current_trace`, and `jax._src.core.trace_ctx` for a
cheap look that takes nothing; tracers of `jax.grad` have a `primal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax._src.interpreters import partial_eval as _partial_eval
from jax.extend.core import set_current_trace as set_current_trace

from mirrored._jax.boxes import payload_of

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


def is_differentiated(value: Any) -> bool:
    """Whether `value` is a tracer of `jax.grad` and the like over a concrete array."""
    if not isinstance(value, Tracer) or not hasattr(value, "primal"):
        return False
    while isinstance(value, Tracer) and hasattr(value, "primal"):
        value = value.primal
    return not isinstance(value, Tracer)


def is_eval(trace: Any) -> bool:
    """Whether primitives run at once under `trace`."""
    return trace is None or isinstance(trace, _core.EvalTrace)


def recording_parent(trace: Any) -> Any:
    """`trace`, or what lies under it if it is a tape's (or several)."""
    while hasattr(trace, "process_merge"):
        trace = trace.parent
    return trace


def unboxed(value: Any) -> Any:
    """`value` without the box that an eager tape put around it."""
    return payload_of(value)


def trace_settings() -> Any:
    """All of JAX's settings that a trace depends on (x64, matmul precision, mesh, ...), as one hashable value."""
    return _config.config_ext.trace_context()


def canonical_dtype(dtype: Any) -> Any:
    """The dtype that JAX gives an array made from NumPy data of `dtype`."""
    return jax.dtypes.canonicalize_dtype(dtype)


def swap_trace(trace: Any) -> Any:
    """Makes `trace` current in this thread; returns what was."""
    previous = _core.trace_ctx.trace
    _core.trace_ctx.set_trace(trace)
    return previous


put_trace: Callable[[Any], None] = _core.trace_ctx.set_trace


class _Nobody(Trace):  # type: ignore[misc]
    """Whom the traces that share an identity are to JAX."""


_nobody = _Nobody()  # type: ignore[no-untyped-call]


def share_identity(trace: Any) -> None:
    """Makes `trace` the same as others of its kind to the caches of compiled functions, which key by the current trace.

    Otherwise each trace of a kind would leave an entry for every function called under it, 8,192 of them. Nothing is
    ever kept under such a key but that the function has to be traced.
    """
    trace._weakref = _nobody._weakref


def parent_of(trace: Any) -> Any:
    """The trace under `trace`, None if there is none or it is not known."""
    return trace.parent if hasattr(trace, "process_merge") else getattr(trace, "parent_trace", None)


def is_staging(trace: Any) -> bool:
    """Whether `trace` writes down a program instead of computing values."""
    return isinstance(trace, _partial_eval.DynamicJaxprTrace)


def is_eval_below(trace: Any) -> bool:
    """Whether `trace` rests on evaluation: no trace from here down writes down a program."""
    while not is_eval(trace):
        if is_staging(trace):
            return False
        trace = parent_of(trace)
    return trace is not None


def is_cut_off(trace: Any) -> bool:
    """Whether `trace` writes down a program and rests, as far as can be seen, on nothing but evaluation.

    So it is where JAX had put the current trace aside while it made `trace`.
    """
    staging = False
    while not is_eval(trace):
        staging = is_staging(trace)
        trace = parent_of(trace)
    return staging


def is_staging_above(trace: Any, base: Any) -> bool | None:
    """Whether a program is being written down on top of `base`; None if `trace` does not rest on `base`."""
    staging = False
    while trace is not base:
        if trace is None:
            return None
        staging = staging or is_staging(trace)
        trace = parent_of(trace)
    return staging
