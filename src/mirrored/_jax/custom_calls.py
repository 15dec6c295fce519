"""Handles functions with custom derivatives (`jax.custom_jvp`, `jax.custom_vjp`) in the form that a trace receives.

Supports JAX 0.10 to 0.12: `linear_util.WrappedFun` with its debug info and stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import custom_derivatives as _custom_derivatives
from jax._src import linear_util as _linear_util
from jax.extend.core import primitives

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


def is_from_jax(function: Any) -> bool:
    """Returns whether the wrapped function is part of JAX, and therefore depends only on its arguments."""
    return str(function.debug_info.func_filename or "").startswith(_JAX)


def with_stores_filled(function: Any, by: Any) -> None:
    """Fills the stores of `function`, as running it would, from those of the equal function `by` that has run."""
    for store, earlier in zip(function.stores, by.stores, strict=True):
        if store is not None and not store:
            store.store(earlier.val)


def reset_stores(function: Any) -> None:
    """Empties the stores that the wrapped function filled when it ran."""
    for store in getattr(function, "stores", ()):
        if store:
            store.reset()


@contextmanager
def stores_kept(function: Any) -> Iterator[None]:
    """Runs the block with empty stores of the wrapped function, and restores their contents afterwards."""
    stores = [store for store in getattr(function, "stores", ()) if store is not None]
    held = [(store, store.val) for store in stores if store]
    reset_stores(function)
    try:
        yield
    finally:
        reset_stores(function)
        for store, value in held:
            store.store(value)


def binder(primitive: Any, functions: Sequence[Any], params: dict[str, Any]) -> Callable[..., list[Any]]:
    """Returns the call as a function of its arrays, which can be called repeatedly."""

    def bind(*args: Any) -> list[Any]:
        for function in functions:
            reset_stores(function)
        return list(primitive.bind(*args, subfuns=tuple(functions), **params))

    return bind


def bind_again(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> list[Any]:
    """Applies an equation's primitive under the current trace.

    Values over which a `custom_jvp` function closes stay closed over. If they became ordinary arguments, JAX would drop
    their tangents silently.
    """
    if primitive is primitives.custom_jvp_call_p and params["num_consts"]:
        return _with_closed_over(params, args)
    results = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(results) if primitive.multiple_results else [results]


def _with_closed_over(params: dict[str, Any], args: Sequence[Any]) -> list[Any]:
    count, jaxpr = params["num_consts"], params["call_jaxpr"]
    opened, constants = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())

    def call(*own: Any) -> list[Any]:
        return list(jax.core.eval_jaxpr(opened, constants, *args[:count], *own))

    function = _linear_util.wrap_init(call, debug_info=opened.debug_info.with_unknown_names())
    rule = _custom_derivatives.lift_jvp(0, params["jvp_jaxpr_fun"])
    bound = primitives.custom_jvp_call_p.bind(
        *args[count:], subfuns=(function, rule), symbolic_zeros=params["symbolic_zeros"]
    )
    return list(bound)
