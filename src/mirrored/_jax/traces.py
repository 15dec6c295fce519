"""Reads, classifies and replaces the current JAX trace, turns captured values into arguments, evaluates tracers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import set_current_trace as set_current_trace

from mirrored._jax import caches
from mirrored._jax.boxes import contents_of_stand_in
from mirrored._jax.empty_slices import connected, connected_at
from mirrored._jax.private import config as _config
from mirrored._jax.private import core as _core
from mirrored._jax.private import partial_eval as _partial_eval
from mirrored._typing import DTypeLike

# Reads, classifies and replaces the current JAX trace.
#
# Supports JAX 0.10 to 0.12: `jax.extend.core.take_current_trace`/`set_current_trace`, and `jax._src.core.trace_ctx` to
# read the current trace without taking it; tracers of `jax.grad` have a `primal`; a trace's `_weakref` is its identity
# in the keys of the C++ fast path.

ShapedArray = jax.core.ShapedArray
Trace = jax.core.Trace
Tracer = jax.core.Tracer


def current_trace() -> Any:
    """Returns the JAX trace that currently processes the primitives of this thread."""
    return _core.trace_ctx.trace


def is_eager() -> bool:
    """Returns whether primitives execute immediately in this thread, without an enclosing jit, grad, vmap or tape."""
    return _core.trace_ctx.is_top_level()


eval_trace: Trace = _core.eval_trace
"""The JAX trace that executes primitives immediately."""


def eager() -> AbstractContextManager[None]:
    """Executes primitives immediately during a ``with`` block, even inside a JAX trace or a tape."""
    return WithinTrace(eval_trace)


def belongs_to(value: object, trace: object) -> bool:
    """Returns whether `value` is a tracer that the JAX trace `trace` has created."""
    return isinstance(value, Tracer) and value._trace is trace


def is_differentiated(value: object) -> bool:
    """Returns whether `value` is a tracer of `jax.grad`, `jax.vjp` or `jax.jvp` over a concrete array."""
    if not isinstance(value, Tracer) or not hasattr(value, "primal"):
        return False
    while isinstance(value, Tracer) and hasattr(value, "primal"):
        value = value.primal
    return not isinstance(value, Tracer)


def is_eval(trace: object) -> bool:
    """Returns whether a JAX trace executes primitives immediately instead of tracing them."""
    return trace is None or isinstance(trace, _core.EvalTrace)


def trace_below_tapes(trace: Any) -> Any:
    """Returns the nearest JAX trace, from `trace` outwards, that does not belong to a gradient tape."""
    while hasattr(trace, "process_merge"):
        trace = trace.parent
    return trace


def suspends_tapes(trace: Any, of: Any) -> bool:
    """Returns whether tapes that record in the trace `of` do not record under `trace`.

    It is then the trace in which one of these tapes was opened, as in a block of `mirrored.tape.unrecorded`.
    """
    while hasattr(of, "process_merge"):
        of = of.parent
        if of is trace:
            return True
    return False


def trace_settings() -> Any:
    """Returns all JAX settings on which a trace depends (x64, matmul precision, mesh, ...), as one hashable value."""
    return _config.config_ext.trace_context()


def program_settings() -> Any:
    """Returns all JAX settings on which a compiled function's program depends, as one hashable value.

    Unlike `trace_settings()`, the value omits the cache tokens that separate tapes and replicas (`_jax.caches`). A
    program of `mirrored.function` does not depend on the tokens around the call: it is traced under its own.
    """
    if caches.holder.value is None and caches.replica_holder.value is None:
        return trace_settings()
    with caches.using(None, without_replica=True):
        return trace_settings()


def canonical_dtype(dtype: DTypeLike) -> Any:
    """Returns the dtype that arrays made from NumPy data of `dtype` have on devices, such as float32 for float64.

    It has the native byte order, which JAX's own function does not ensure.
    """
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    return jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)  # those of PRNG keys


def keeps_dtype(dtype: DTypeLike) -> bool:
    """Returns whether JAX keeps arrays of `dtype` as they are, instead of narrowing them from 64 to 32 bits.

    Supports JAX 0.10 to 0.12: the mode ``allow`` of `jax_explicit_x64_dtypes` has 64 bits where they are requested.
    """
    is_allowed: bool = _config.explicit_x64_dtypes.value is _config.ExplicitX64Mode.ALLOW
    return is_allowed or bool(canonical_dtype(dtype) == dtype)


put_trace: Callable[[Any], None] = _core.trace_ctx.set_trace


class WithinTrace:
    """Context manager that makes a given JAX trace the current trace.

    With `removes_token`, this thread's token of `_jax.caches` is None during the block. An exception between any two
    instructions of it, such as Ctrl-C, leaves neither replaced. A generator would not do: what interrupts the entry
    after its ``yield`` does not end it.
    """

    __slots__ = ("_previous", "_removes_token", "_token", "_trace")

    def __init__(self, trace: Trace | None, *, removes_token: bool = False) -> None:
        self._trace = trace
        self._removes_token = removes_token

    def __enter__(self) -> None:
        self._previous, self._token = _core.trace_ctx.trace, caches.holder.value
        try:
            put_trace(self._trace)
            if self._removes_token:
                caches.put(None)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            put_trace(self._previous)
        finally:
            if self._removes_token:
                caches.put(self._token)


class TraceState(NamedTuple):
    """JAX's state of a thread: the current trace, the axis environment, and the tokens in tracing-cache keys."""

    trace: Any  # JAX exports neither type
    axis_env: Any
    token: Hashable
    replica_token: Hashable


def thread_state() -> TraceState:
    """Returns JAX's state of this thread, for `restore_thread_state`.

    JAX has no current trace while it applies a primitive. An exception that interrupts it there, such as Ctrl-C, can
    leave it so: then nothing can be computed in this thread any more. No caller of mirrored is in that place, so that
    this function ends such a state.
    """
    context = _core.trace_ctx
    if context.trace is None:
        context.reset()
    return TraceState(context.trace, context.axis_env, caches.holder.value, caches.replica_holder.value)


def restore_thread_state(saved: TraceState) -> None:
    """Restores this thread's JAX state from a `TraceState`.

    A cache token of a compiled function's trace is not restored (`caches.restore_tokens`).
    """
    _core.trace_ctx.set_trace(saved.trace)
    _core.trace_ctx.set_axis_env(saved.axis_env)
    caches.restore_tokens(saved.token, saved.replica_token)


class _SharedIdentity(Trace):  # type: ignore[misc]
    """Dummy trace that replaces other traces in the cache keys of `jax.jit`'s C++ fast path."""


_shared_identity = _SharedIdentity()  # type: ignore[no-untyped-call]


def share_identity(trace: Trace) -> None:
    """Makes all traces passed to this function share the entries of `jax.jit`'s C++ cache.

    The keys of that cache contain a weak reference to the current trace (`Trace._weakref`), so each trace would leave
    an entry for every function called under it, up to 8,192 of them. Sharing is safe: under a trace that is not eager,
    JAX puts no executable into the entry, which says only that the call goes on in Python. The keys of the tracing
    caches contain no trace; there, tokens separate the tapes (`_jax.caches`).
    """
    trace._weakref = _shared_identity._weakref


def parent_of(trace: Any) -> Any:
    """Returns the parent of a JAX trace, to which the trace forwards primitives; None if the parent is unknown."""
    return trace.parent if hasattr(trace, "process_merge") else getattr(trace, "parent_trace", None)


def is_staging(trace: object) -> bool:
    """Returns whether a JAX trace builds a jaxpr instead of computing values."""
    return isinstance(trace, _partial_eval.DynamicJaxprTrace)


def is_eval_below(trace: Trace | None) -> bool:
    """Returns whether primitives bound under `trace` execute immediately instead of being staged into a jaxpr.

    They do unless a trace from `trace` outwards builds a jaxpr or has an unknown parent.
    """
    while not is_eval(trace):
        if is_staging(trace):
            return False
        trace = parent_of(trace)
    return trace is not None


def is_outermost_staging(trace: Trace | None) -> bool:
    """Returns whether the outermost transform around `trace` builds a jaxpr, as `jit` does.

    `trace` itself may be the outermost one, and tapes count as transforms.

    If an eager tape is nevertheless open, JAX has set the current trace aside while it created `trace`, as it does for
    the bodies of `shard_map` and `custom_vjp`. The result is also True for a plain `jit` without any tape around it.
    """
    staging = False
    while not is_eval(trace):
        staging = is_staging(trace)
        trace = parent_of(trace)
    return staging


def is_staging_above(trace: Trace | None, base: Trace | None) -> bool | None:
    """Returns whether any trace from `trace` up to `base`, exclusive, builds a jaxpr; None if `base` is not found."""
    staging = False
    while trace is not base:
        if trace is None:
            return None
        staging = staging or is_staging(trace)
        trace = parent_of(trace)
    return staging


# Capture tracers: stand for values that a traced function closes over, and later become its arguments.
#
# Supports JAX 0.10 to 0.12. A trace that builds a jaxpr turns every tracer that it does not own into a constant.
# JAX hoists it through nested `jit`, `scan`, `cond` and `checkpoint`, and returns it among the constants of the
# outermost jaxpr. There it is found by its type, and replaced by the argument that its `source` determines. JAX reports
# a leaked tracer only if such a constant reaches execution; here it is replaced before.


class _CaptureTrace(jax.core.Trace):  # type: ignore[misc,unused-ignore]
    """Trace to which all `CaptureTracer` objects belong; it is never current and runs no primitive."""

    def process_primitive(self, primitive: object, tracers: object, params: object, /) -> Any:
        raise AssertionError("the capture trace is never current")


_capture_trace = _CaptureTrace()  # type: ignore[no-untyped-call,unused-ignore]


class CaptureTracer(jax.core.Tracer):  # type: ignore[misc,type-arg,unused-ignore]
    """A placeholder tracer for a value captured during tracing; the value later becomes an argument of the program.

    Attributes:
        source: The origin of the captured value, such as a variable. It determines the argument that replaces the
            tracer.
    """

    __slots__ = ("source",)

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, source: object, *, weak_type: bool = False) -> None:
        super().__init__(_capture_trace, ShapedArray(shape, dtype, weak_type=weak_type))
        self.source: Any = source

    at = connected_at

    def __getitem__(self, index: object) -> Any:
        return connected(super().__getitem__(index), self)

    def _contents(self) -> Any:
        return contents_of_stand_in(self)

    def full_lower(self) -> CaptureTracer:
        return self

    def _short_repr(self) -> str:
        return f"Captured({self.aval.str_short()} of {self.source})"


def another_tracer(tracer: jax.Array) -> Any:
    """Returns a new tracer for the same value, so that a tape can tell the two tracers apart; None for unknown types.

    Supports JAX 0.10 to 0.12: a tracer of a jaxpr refers to the jaxpr's variable (`val`) and keeps its equation alive
    (`parent`).
    """
    if type(tracer) is CaptureTracer:
        return CaptureTracer(tracer.shape, tracer.dtype, tracer.source, weak_type=tracer.weak_type)
    if type(tracer) is _partial_eval.DynamicJaxprTracer:
        return _partial_eval.DynamicJaxprTracer(
            tracer._trace, tracer.aval, tracer.val, tracer._line_info, tracer.parent
        )
    return None


_core.pytype_aval_mappings[CaptureTracer] = operator.attrgetter("aval")


# Computes the concrete value of a tracer that depends only on constants.
#
# Supports JAX 0.10 to 0.12: a `DynamicJaxprTracer` knows the equation that made it (`parent`), which knows its inputs.


class NotConstant(Exception):
    """Error raised by `evaluate` when a value depends on an argument of the traced function, or on an effect."""


def evaluate(value: object, value_of_source: Callable[[Any], Any] | None = None) -> Any:
    """Computes the concrete value of a tracer during tracing, if the tracer depends only on constants.

    For a value that differs between replicas, it is that of the first replica.

    Args:
        value: Any value. A value that is not a tracer is returned unchanged.
        value_of_source: Returns the current value of the source of a capture tracer. Default: captured values are
            unknown.

    Raises:
        NotConstant: It depends on a value that is unknown during tracing, or, without `value_of_source`, on an equation
            with an effect: a host call, whose answer is known at run time, a print, or an operation on the mesh axis.
    """
    if not isinstance(value, _core.Tracer):
        return value
    with _core.eval_context():
        return _Evaluation(value_of_source).value_of(value)


class _Evaluation:
    def __init__(self, value_of_source: Callable[[Any], Any] | None) -> None:
        self._known: dict[int, Any] = {}
        self._value_of_source = value_of_source

    def value_of(self, tracer: object) -> Any:
        value, equation = self._look_up(tracer)
        if equation is None:
            return value
        # Not recursive: a chain of equations can be longer than Python's recursion limit.
        stack = [(equation, iter(equation.in_tracers))]
        while stack:
            equation, inputs = stack[-1]
            needed = next((one for _, one in map(self._look_up, inputs) if one is not None), None)
            if needed is None:
                self._apply(equation)
                stack.pop()
            else:
                stack.append((needed, iter(needed.in_tracers)))
        return self._look_up(tracer)[0]

    def _look_up(self, tracer: object) -> tuple[Any, _partial_eval.TracingEqn | None]:
        """Returns a tracer's value and None, or None and the unevaluated equation that computes the value."""
        while isinstance(tracer, _core.Tracer):
            if isinstance(tracer, CaptureTracer) and self._value_of_source is not None:
                return self._value_of_source(tracer.source), None
            if not isinstance(tracer, _partial_eval.DynamicJaxprTracer):
                raise NotConstant
            if isinstance(tracer.val, _core.Literal):
                return tracer.val.val, None
            if id(tracer.val) in self._known:
                return self._known[id(tracer.val)], None
            if tracer.parent is not None:
                return None, tracer.parent
            constant = tracer._trace.get_const(tracer)
            if constant is None:
                raise NotConstant
            tracer = constant  # of an enclosing trace, or an array
        return tracer, None

    def _apply(self, equation: _partial_eval.TracingEqn) -> None:
        if equation.effects and self._value_of_source is None:  # the effect belongs to every run, not to the trace
            raise NotConstant
        inputs = [self._look_up(tracer)[0] for tracer in equation.in_tracers]
        if equation.primitive.name == "axis_index":
            outputs: Any = np.int32(0)
        else:
            outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
        outputs = outputs if equation.primitive.multiple_results else [outputs]
        for variable, output in zip(equation.outvars, outputs, strict=True):
            self._known[id(variable)] = output
