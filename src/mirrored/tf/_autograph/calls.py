"""Executes the calls in code that AutoGraph has converted; first converts the called function if it is user code.

Library functions are not converted.
"""

from __future__ import annotations

import functools
import inspect
import sysconfig
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from malt.operators import py_builtins

from mirrored._jax.traces import Tracer
from mirrored._typing import DTypeLike, HostArray
from mirrored.tf._autograph import effects
from mirrored.tf._autograph.ranges import TracedRange
from mirrored.tf._autograph.state import is_number
from mirrored.tf._autograph.truth import is_abstract, is_traced, known_truth, truth
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._table import OPS
from mirrored.tf._tensors import as_tensor

if TYPE_CHECKING:
    from mirrored.tf._autograph.scope import FunctionScope

_HERE: Final = str(Path(__file__).parents[2])
_LIBRARIES: Final = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        _HERE,
        "<frozen",
        "<string",
    }
)
_NOT_CONVERTED: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_converted_inside: Final[weakref.WeakSet[types.CodeType]] = weakref.WeakSet()
_converted: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()


class _Transpiling:
    """Holds AutoGraph's conversion function, which the transpiler sets, because an import would be cyclic."""

    transpile: Callable[[Any], Any]


def transpile_with(transpile: Callable[[Any], Any]) -> None:
    """Registers the function with which AutoGraph converts Python functions."""
    _Transpiling.transpile = staticmethod(transpile)


def do_not_convert(function: Callable[..., Any] | None = None) -> Any:
    """Marks a function so that AutoGraph does not convert it (`tf.autograph.experimental.do_not_convert`)."""
    if function is None:
        return do_not_convert
    _NOT_CONVERTED.add(getattr(function, "__func__", function))
    return function


def mark_converted(function: types.FunctionType, extras: object = None) -> types.FunctionType:
    """Records that a function is defined in converted code, and hence is converted itself; returns the function.

    AutoGraph's passes insert the calls. The mark is that of the code: `functools.wraps` copies attributes of a function
    to a wrapper that may not be converted.
    """
    del extras
    _converted_inside.add(function.__code__)
    return function


def is_convertible(function: object) -> bool:
    """Returns whether AutoGraph can convert a function: it must be user code in Python, and not a generator."""
    code = getattr(function, "__code__", None)
    if not isinstance(function, types.FunctionType) or code is None:
        return False
    if function in _NOT_CONVERTED or code in _converted_inside:
        return False
    if code.co_filename.startswith(_LIBRARIES) or "site-packages" in code.co_filename:
        return False
    coroutine = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
    return not coroutine and not inspect.isasyncgenfunction(function)


def converted(function: object) -> Any:
    """Converts a user function or bound method with AutoGraph; returns anything else unchanged."""
    if isinstance(function, types.MethodType):
        inner = converted(function.__func__)
        return function if inner is function.__func__ else types.MethodType(inner, function.__self__)
    if type(function) is functools.partial:
        inner = converted(function.func)
        return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
    if not is_convertible(function):
        return function
    found = _converted.get(function)
    if found is None:
        found = _converted[function] = _Transpiling.transpile(function)
        if found is not function:
            _NOT_CONVERTED.add(found)
    return found


def converted_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    caller_fn_scope: FunctionScope | None = None,
    options: object = None,
) -> Any:
    """Executes a call in code that AutoGraph has converted; first converts the called function if it is user code.

    Args:
        function: The callee.
        args: Its arguments.
        kwargs: Its keyword arguments, or None.
        caller_fn_scope: The function scope of the caller.
        options: Ignored: conversion has no options here.
    """
    del options
    kwargs = kwargs or {}
    if isinstance(function, functools.partial):
        merged = {**function.keywords, **kwargs}
        return converted_call(function.func, (*function.args, *args), merged, caller_fn_scope)
    if isinstance(function, _BUILTIN):
        effects.reading(args, function.__name__)
    special = _SPECIAL.get(function) if isinstance(function, _BUILTIN) else None
    if special is not None:
        return special(function, args, kwargs, caller_fn_scope)
    if isinstance(function, (types.FunctionType, types.MethodType)):
        if function is OPS["range"].function:
            return _range(function, args, kwargs)
        changed = converted(function)
        if changed is not function:
            return changed(*args, **kwargs)
    elif isinstance(function, types.BuiltinMethodType):
        effects.calling(function, args)
    elif not isinstance(function, type):
        call = type(function).__call__ if callable(function) else None
        if is_convertible(call):
            return converted(call)(function, *args, **kwargs)
    return _library_call(function, args, kwargs)


def _library_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function unconverted; if the function is part of `mirrored`, converts functions in its arguments."""
    module = getattr(function, "__module__", None) or type(function).__module__
    if module.partition(".")[0] == "mirrored":
        args = tuple(map(converted, args))
        kwargs = {name: converted(value) for name, value in kwargs.items()}
    return function(*args, **kwargs)


def _range(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except InvalidArgumentError as error:
        given = {**kwargs, **dict(zip(("start", "limit", "delta", "dtype"), args, strict=False))}
        if given.get("limit") is None:
            given["start"], given["limit"] = 0, given["start"]
        bounds = (given.get("start", 0), given["limit"], given.get("delta", 1))
        if _is_zero(bounds[2]) or all(map(is_number, bounds)):
            raise
        # Bounds that are known here may not be known on TensorFlow (sizes), where a loop over them has no iteration.
        tensors = [as_tensor(one) for one in bounds]
        is_known = not any(isinstance(one, Tracer) for one in tensors)
        if is_known and not _is_empty(*map(np.asarray, tensors)):
            raise
        return TracedRange(*bounds, dtype=given.get("dtype"), error=error, is_empty=is_known)


def _is_zero(delta: object) -> bool:
    """Returns whether the step of a range is known to be 0."""
    return truth(delta) is False if np.ndim(delta) == 0 else not (is_traced(delta) or np.all(delta))


def _is_empty(start: HostArray, limit: HostArray, delta: HostArray) -> bool:
    return bool(start > limit if delta > 0 else start < limit)


def _python_range(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: FunctionScope | None
) -> Any:
    """Evaluates `range`; with a traced bound, returns a `TracedRange`."""
    del function, kwargs, scope
    if not any(isinstance(one, jax.Array) for one in args):
        return range(*args)
    values = _range(OPS["range"].function, args, {})
    return values.empty() if isinstance(values, TracedRange) and values.is_empty else values


def _number(dtype: DTypeLike) -> Callable[..., Any]:
    def make(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: FunctionScope | None
    ) -> Any:
        if len(args) == 1 and not kwargs and is_abstract(args[0]):
            return jnp.asarray(args[0]).astype(dtype)
        return function(*args, **kwargs)

    return make


def _extreme(reduce: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Returns a version of `max` or `min` that also accepts traced tensors."""

    def call(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: FunctionScope | None
    ) -> Any:
        del scope
        if kwargs or not any(map(is_abstract, args)):
            return function(*args, **kwargs)
        values = args[0] if len(args) == 1 else jnp.stack([jnp.asarray(one) for one in args])
        if values.ndim == 1:
            return reduce(values)
        raise InvalidArgumentError.of(
            function.__name__,
            found=f"tensors of shape {', '.join(str(jnp.shape(one)) for one in args)}",
            rule="in tf.function it takes scalars, or one tensor with one dimension",
            remedy=f"tf.reduce_{function.__name__}(x), or tf.{function.__name__}imum(x, y) for each element",
        )

    return call


def _sorted(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: FunctionScope | None
) -> Any:
    """Evaluates `sorted`; returns a tensor for a traced 1-D tensor."""
    del scope
    if "key" in kwargs or len(args) != 1 or not is_abstract(args[0]) or args[0].ndim != 1:
        return function(*args, **kwargs)
    return jnp.sort(args[0], descending=bool(kwargs.get("reverse", False)))


def _each(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: FunctionScope | None
) -> Any:
    """Evaluates `all` or `any`; the items may be traced tensors whose values are known."""
    del scope
    return function(map(known_truth, args[0])) if len(args) == 1 and not kwargs else function(*args, **kwargs)


def _super(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: FunctionScope | None
) -> Any:
    return py_builtins.super_in_original_context(function, args, scope)


def _in_context(make: Callable[..., Any], *, with_function: bool = False) -> Callable[..., Any]:
    def call(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: FunctionScope | None
    ) -> Any:
        return make(function, args, scope) if with_function else make(scope)

    return call


_BUILTIN: Final = (types.BuiltinFunctionType, type)
_SPECIAL: Final[dict[Any, Callable[..., Any]]] = {
    range: _python_range,
    int: _number(jnp.int32),
    float: _number(jnp.float32),
    bool: _number(jnp.bool_),
    all: _each,
    any: _each,
    max: _extreme(jnp.max),
    min: _extreme(jnp.min),
    sorted: _sorted,
    super: _super,
    eval: _in_context(py_builtins.eval_in_original_context, with_function=True),
    locals: _in_context(py_builtins.locals_in_original_context),
    globals: _in_context(py_builtins.globals_in_original_context),
}
