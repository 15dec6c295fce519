"""Inspects and applies functions with custom derivatives (`jax.custom_jvp`, `jax.custom_vjp`) inside a trace.

Supports JAX 0.10 to 0.12: `linear_util.WrappedFun` with its debug info and stores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.extend.core as _extend
from jax.extend.core import primitives

from mirrored._blocks import contextmanager
from mirrored._jax.private import custom_derivatives as _custom_derivatives
from mirrored._jax.private import linear_util as _linear_util

WrappedFun = _linear_util.WrappedFun
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


def is_from_jax(function: WrappedFun) -> bool:
    """Returns whether the function inside a JAX `WrappedFun` is defined in JAX and closes over no values.

    A function of JAX that holds values (`functools.partial`, a bound method) is not: it is like a user's closure.
    """
    return _is_of_jax(function.f)


def has_rule_of_jax(rule: WrappedFun) -> bool:
    """Returns whether the derivative rule inside a JAX `WrappedFun` is defined in JAX and closes over no values.

    `defjvps` makes the rule itself, which closes over the functions that it was given, one per argument.
    """
    return _is_of_jax(rule.f)


def is_lifted(rule: WrappedFun) -> bool:
    """Returns whether a forward or JVP rule is that of an equation of a jaxpr, which JAX applies again."""
    return getattr(rule.f, "__qualname__", "").startswith(("lift_fwd.", "lift_jvp."))


_of_jax: WeakKeyDictionary[FunctionType, bool] = WeakKeyDictionary()


def _is_of_jax(function: Any) -> bool:
    if not isinstance(function, FunctionType):  # other objects may have an `__eq__` of their own, or no hash
        return _is_defined_in_jax(function)
    found = _of_jax.get(function)
    if found is None:
        found = _of_jax[function] = _is_defined_in_jax(function)
    return found


def _is_defined_in_jax(function: Any) -> bool:
    """Returns whether a function consists only of code from the JAX library.

    This includes everything that the function wraps, binds or closes over.
    """
    if function is None:
        return True  # `defjvps` got no rule for one of the arguments
    if isinstance(function, tuple):
        return all(map(_is_defined_in_jax, function))
    if isinstance(function, partial):
        return _is_defined_in_jax((function.func, *function.args, *function.keywords.values()))
    wrapped = getattr(function, "__wrapped__", None)
    if not isinstance(function, FunctionType):  # the result of `jax.jit`, for example; no object of another library
        is_wrapper = wrapped is not None and type(function).__module__.startswith(("jax.", "jaxlib."))
        return is_wrapper and _is_defined_in_jax(wrapped)
    file = function.__code__.co_filename
    if wrapped is not None:
        return file.startswith((_JAX, contextlib.__file__)) and _is_defined_in_jax(wrapped)
    if not file.startswith(_JAX):
        return False
    try:
        return all(_is_defined_in_jax(cell.cell_contents) for cell in function.__closure__ or ())
    except ValueError:  # an empty cell: the function holds what is defined later
        return False


def fill_stores(function: Any, by: Any) -> None:
    """Copies the side results (stores) of an executed JAX `WrappedFun` into an equal `WrappedFun`.

    Only empty stores are filled.
    """
    for store, earlier in zip(function.stores, by.stores, strict=True):
        if store is not None and not store:
            store.store(earlier.val)


def held_by_stores(function: WrappedFun) -> list[Any]:
    """Returns the side results (stores) of an executed JAX `WrappedFun`, for `fill_stores_with`."""
    return [store.val if store else None for store in function.stores]


def fill_stores_with(function: WrappedFun, held: Sequence[Any]) -> None:
    """Fills the empty stores of a JAX `WrappedFun` with the values that `held_by_stores` has returned."""
    for store, value in zip(function.stores, held, strict=True):
        if store is not None and value is not None:
            store.store(value)  # type: ignore[no-untyped-call]


def reset_stores(function: WrappedFun) -> None:
    """Clears the side results (stores) of a JAX `WrappedFun`, so that the `WrappedFun` can be called again."""
    for store in getattr(function, "stores", ()):
        if store:
            store.reset()


@contextmanager
def stores_kept(function: WrappedFun) -> Iterator[None]:
    """Saves and restores the side results (stores) of a JAX `WrappedFun` around a ``with`` block."""
    stores = [store for store in getattr(function, "stores", ()) if store is not None]
    held = [(store, store.val) for store in stores if store]
    try:
        reset_stores(function)
        yield
    finally:
        reset_stores(function)
        for store, value in held:
            store.store(value)  # type: ignore[no-untyped-call]


def binder(primitive: _extend.Primitive, functions: Sequence[Any], params: dict[str, Any]) -> Callable[..., list[Any]]:
    """Returns a reusable function that applies a `custom_jvp` or `custom_vjp` primitive to arrays."""

    def bind(*args: Any) -> list[Any]:
        for function in functions:
            reset_stores(function)
        return list(primitive.bind(*args, subfuns=tuple(functions), **params))

    return bind


def bind_primitive(primitive: _extend.Primitive, params: dict[str, Any], args: Sequence[Any]) -> list[Any]:
    """Applies a JAX primitive to arguments under the current trace.

    A `custom_jvp` function still closes over the values that it captures: if they became ordinary arguments, JAX would
    drop their tangents.
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
