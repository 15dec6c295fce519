"""Lets functions that eager code passes to `keras.ops.map`, `scan`, `cond` and similar operations read weights.

JAX traces such a function, and Keras reads its variables in the trace: their values become constants of the trace. That
is right if the trace serves one call. JAX caches traces by the function object, so a function that reads a weight is
passed as a new object in each call.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

from mirrored._jax.traces import current_trace, is_eval
from mirrored.errors import TransformError
from mirrored.integrations.keras.private import jax_operations
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient

_NAMES: Final = ("cond", "fori_loop", "map", "scan", "switch", "vectorized_map", "while_loop")
_in_operation: contextvars.ContextVar[bool] = contextvars.ContextVar("_in_operation", default=False)


def connect_control_flow() -> None:
    """Patches Keras' loops, conditionals and `keras.remat`, so that their functions can read weights in eager code."""
    for name in _NAMES:
        replace("keras", jax_operations, name, _reading(getattr(jax_operations, name)))
    replace("keras", jax_operations, "remat", _reading_later(jax_operations.remat))


def in_eager_operation() -> bool:
    """Returns whether a loop, conditional or `keras.remat` of eager code runs, whose functions read weights eagerly."""
    return _in_operation.get()


@contextlib.contextmanager
def _reading_eagerly() -> Iterator[None]:
    token = _in_operation.set(True)
    try:
        yield
    finally:
        _in_operation.reset(token)


def _is_eager() -> bool:
    """Returns whether operations execute at once, and no tape or function has to note the variables that they read."""
    here = ambient()
    return is_eval(current_trace()) and not here.listeners and (here.store is None or not here.store.captures)


def _reading(operation: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(operation)
    def reading(*args: Any, **kwargs: Any) -> Any:
        if not _is_eager():
            return operation(*args, **kwargs)
        try:
            return operation(*args, **kwargs)
        except TransformError:  # a function reads a weight; others keep their traces in JAX's caches
            pass
        with _reading_eagerly():
            return operation(*map(_renewed, args), **{name: _renewed(value) for name, value in kwargs.items()})

    return reading


def _reading_later(transform: Callable[..., Any]) -> Callable[..., Any]:
    def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return transform(function)(*args, **kwargs)

    @functools.wraps(transform)
    def transforming(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: _reading(call)(function, args, kwargs)

    return transforming


def _renewed(argument: Any) -> Any:
    """Returns a new function for a function, also in a list of branches; returns other arguments unchanged."""
    if isinstance(argument, (list, tuple)) and argument and all(map(callable, argument)):
        return [_renewed(one) for one in argument]
    return (lambda *args, **kwargs: argument(*args, **kwargs)) if callable(argument) else argument
