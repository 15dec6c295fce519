"""Lets functions that eager code passes to `keras.ops.map`, `scan`, `cond` and similar operations read weights.

JAX traces such a function, and Keras reads its variables in the trace: their values become constants of the trace. That
is right if the trace serves one call. JAX caches traces by the function object, so a function that reads a weight is
passed as a new object in each call. In the trace of another function, such as one of `jax.jit`, reads stay errors.

A function with a Python condition on a tensor (``if tensor:``) cannot be traced. AutoGraph converts it if the program
uses `mirrored.tf`: TensorFlow runs the loops of eager code as Python loops.

In stateless calls, as in `fit`, a function of `keras.remat` can also assign variables, as that of `tf.recompute_grad`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax

from mirrored._jax.traces import current_trace, is_eval
from mirrored.errors import TransformError
from mirrored.integrations.keras.conversion import Convert, conversion_of_calls
from mirrored.integrations.keras.private import in_stateless_scope, jax_operations
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient
from mirrored.runtime.eager_operation import in_eager_operation, within_eager_operation
from mirrored.runtime.recomputing import recomputed

_NAMES: Final = ("cond", "fori_loop", "map", "scan", "switch", "vectorized_map", "while_loop")


def connect_control_flow() -> None:
    """Patches Keras' loops, conditionals and `keras.remat`, so that their functions can read weights in eager code."""
    for name in _NAMES:
        replace("keras", jax_operations, name, _reading(getattr(jax_operations, name)))
    replace("keras", jax_operations, "remat", _reading_later(jax_operations.remat))


def _is_eager() -> bool:
    """Returns whether operations execute at once, and no tape or function has to note the variables that they read."""
    here = ambient()
    return is_eval(current_trace()) and not here.listeners and (here.store is None or not here.store.captures)


def _reading(operation: Callable[..., Any]) -> Callable[..., Any]:
    def with_new_functions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _with_functions(_renewed, operation, args, kwargs)

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

    return _converting(reading)


def _converting(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an operation to convert its functions with AutoGraph if they cannot be traced otherwise.

    Not in compiled functions: there, a failed trace may have assigned variables, and AutoGraph has converted the
    functions that the compiled function defines. TensorFlow does not convert others there, either.
    """

    @functools.wraps(operation)
    def converting(*args: Any, **kwargs: Any) -> Any:
        convert, store = conversion_of_calls(), ambient().store
        if convert is None or (store is not None and store.captures):
            return operation(*args, **kwargs)
        try:
            return operation(*args, **kwargs)
        except jax.errors.ConcretizationTypeError:  # a function has a condition on a tensor
            pass
        return _with_functions(_converted_by(convert), operation, args, kwargs)

    return converting


def _converted_by(convert: Convert) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def converted(function: Callable[..., Any]) -> Callable[..., Any]:
        made = convert(function)
        return lambda *args, **kwargs: made(*args, **kwargs)  # JAX checks the signatures of some functions

    return converted


def _with_functions(
    change: Callable[[Callable[..., Any]], Callable[..., Any]],
    operation: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls an operation with changed functions, also in a list of branches, and with its other arguments unchanged."""

    def changed(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)) and argument and all(map(callable, argument)):
            return [change(one) for one in argument]
        return change(argument) if callable(argument) else argument

    return operation(*map(changed, args), **{name: changed(value) for name, value in kwargs.items()})


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


def _renewed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a new function that JAX has no trace of, and that may read weights."""

    def renewed(*args: Any, **kwargs: Any) -> Any:
        with within_eager_operation():
            return function(*args, **kwargs)

    return renewed
