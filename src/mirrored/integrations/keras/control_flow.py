"""Lets functions that eager code passes to `keras.ops.map`, `scan`, `cond` and similar operations read weights.

JAX traces such a function, and Keras reads its variables in the trace: their values become constants of the trace. That
is right if the trace serves one call. JAX caches traces by the function object, so a function that reads a weight is
passed as a new object in each call. In the trace of another function, such as one of `jax.jit`, reads stay errors.

In stateless calls, as in `fit`, a function of `keras.remat` can also assign variables, as that of `tf.recompute_grad`.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any, Final

from mirrored._blocks import setting
from mirrored._jax.traces import current_trace, is_eval
from mirrored.errors import TransformError
from mirrored.integrations.keras.private import in_stateless_scope, jax_operations
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient
from mirrored.runtime.recomputing import recomputed

_NAMES: Final = ("cond", "fori_loop", "map", "scan", "switch", "vectorized_map", "while_loop")
# The trace of the function that an operation of eager code runs, or None.
_operation_trace: contextvars.ContextVar[Any] = contextvars.ContextVar("_operation_trace", default=None)


def connect_control_flow() -> None:
    """Patches Keras' loops, conditionals and `keras.remat`, so that their functions can read weights in eager code."""
    for name in _NAMES:
        replace("keras", jax_operations, name, _reading(getattr(jax_operations, name)))
    replace("keras", jax_operations, "remat", _reading_later(jax_operations.remat))


def in_eager_operation() -> bool:
    """Returns whether a function of a loop, conditional or `keras.remat` of eager code runs, which reads weights."""
    trace = _operation_trace.get()
    return trace is not None and trace is current_trace()


def _is_eager() -> bool:
    """Returns whether operations execute at once, and no tape or function has to note the variables that they read."""
    here = ambient()
    return is_eval(current_trace()) and not here.listeners and (here.store is None or not here.store.captures)


def _reading(operation: Callable[..., Any]) -> Callable[..., Any]:
    def with_new_functions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return operation(*map(_renewed, args), **{name: _renewed(value) for name, value in kwargs.items()})

    @functools.wraps(operation)
    def reading(*args: Any, **kwargs: Any) -> Any:
        if in_eager_operation():
            return with_new_functions(args, kwargs)
        if not _is_eager():
            return operation(*args, **kwargs)
        try:
            return operation(*args, **kwargs)
        except TransformError:  # a function reads a weight; others keep their traces in JAX's caches
            pass
        return with_new_functions(args, kwargs)

    return reading


def _reading_later(transform: Callable[..., Any]) -> Callable[..., Any]:
    def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return transform(function)(*args, **kwargs)

    @functools.wraps(transform)
    def transforming(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def transformed(*args: Any, **kwargs: Any) -> Any:
            if in_stateless_scope():
                # JAX would keep the trace of the first call, and with it the state of a dropout.
                return recomputed(function, "keras.remat")(*args, **kwargs)
            return _reading(call)(function, args, kwargs)

        return transformed

    return transforming


def _renewed(argument: Any) -> Any:
    """Returns a new function for a function, also in a list of branches; returns other arguments unchanged."""
    if isinstance(argument, (list, tuple)) and argument and all(map(callable, argument)):
        return [_renewed(one) for one in argument]
    if not callable(argument):
        return argument

    def renewed(*args: Any, **kwargs: Any) -> Any:
        with setting(_operation_trace, current_trace()):
            return argument(*args, **kwargs)

    return renewed
