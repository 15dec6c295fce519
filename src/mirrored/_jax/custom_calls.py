"""Functions with derivatives of their own (`jax.custom_jvp`, `jax.custom_vjp`), as JAX hands them to a trace.

Serves JAX 0.10 to 0.12: `linear_util.WrappedFun` with its debug info and stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


def is_from_jax(function: Any) -> bool:
    """Whether the wrapped function is JAX's own, and so depends on nothing but its arguments."""
    return str(function.debug_info.func_filename or "").startswith(_JAX)


def with_stores_filled(function: Any, by: Any) -> None:
    """Tells the caller of `function` what running it would have told, as an earlier run of its equal `by` did."""
    for store, earlier in zip(function.stores, by.stores, strict=True):
        if store is not None and not store:
            store.store(earlier.val)


def reset_stores(function: Any) -> None:
    """Makes the wrapped function forget what it learned from running."""
    for store in getattr(function, "stores", ()):
        if store:
            store.reset()


def binder(primitive: Any, functions: Sequence[Any], params: dict[str, Any]) -> Callable[..., list[Any]]:
    """The call as a function of its arrays, which may be called again."""

    def bind(*args: Any) -> list[Any]:
        for function in functions:
            reset_stores(function)
        return list(primitive.bind(*args, subfuns=tuple(functions), **params))

    return bind
