"""Compares the functions that replicas pass to `merge_call`, which calls only the first replica's function."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import Tracer
from mirrored.values.distributed_values import DistributedValues

# Every replica executes the ``def``, ``lambda`` or ``class`` inside its function anew, so the function objects differ.
# Two functions are interchangeable if they have the same code, and if the numbers, strings and arrays are equal that
# they close over, have as defaults, or are bound to by `functools.partial`. Other objects, such as variables, models
# and lists that results are appended to, are not compared.

_SCALARS = (int, float, complex, str, bytes, NoneType)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_SHOWN_ELEMENTS = 4


class FunctionKey(NamedTuple):
    """A comparison key of a function that is passed to `merge_call`; the key must be equal on all replicas.

    Attributes:
        code: The code, or the class and the attributes of a callable object.
        bound: The numbers and strings that the function closes over, has as defaults, or is bound to, by name.
        arrays: The arrays among them, by name.
    """

    code: object
    bound: tuple[tuple[str, str], ...]
    arrays: tuple[tuple[str, ArrayKey], ...]


class ArrayKey:
    """A comparison key of an array: its dtype, shape and bits; a traced array's key is equal to every other key.

    The values of traced arrays are unknown: the replication check of a compiled `run` compares them.
    """

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: object) -> None:
        self.array: Any = array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayKey):
            return NotImplemented
        one, two = payload_of(self.array), payload_of(other.array)
        if one is two or isinstance(one, Tracer) or isinstance(two, Tracer):
            return True
        return bool(one.dtype == two.dtype and one.shape == two.shape and _bits(one) == _bits(two))

    def __repr__(self) -> str:
        array = payload_of(self.array)
        of = f"{array.dtype}[{','.join(map(str, array.shape))}]"
        return of if isinstance(array, Tracer) or array.size > _SHOWN_ELEMENTS else f"{of} {array!s}"


def key_of(function: object) -> FunctionKey:
    """Returns a key that is equal for functions with the same code and equal bound values."""
    values = list(_bound(function, "", set()))
    return FunctionKey(
        _code_of(function),
        # By `repr`, NaN equals NaN and 1 differs from 1.0.
        tuple((name, repr(value)) for name, value in values if isinstance(value, _SCALARS)),
        tuple((name, ArrayKey(value)) for name, value in values if not isinstance(value, _SCALARS)),
    )


class ShownFunction(NamedTuple):
    """A function as error messages show it: with the numbers, strings and arrays that it has bound."""

    function: object

    def __str__(self) -> str:
        key = key_of(self.function)
        values = ", ".join(f"{name}={value}" for name, value in (*key.bound, *key.arrays))
        return f"{self.function}{f' with {values}' if values else ''}"


def _code_of(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(_plain(function), "__code__", None)
    if isinstance(code, types.CodeType):
        return code
    kind = type(function)
    attributes = {
        name: _code_of(value) if isinstance(value, _FUNCTIONS) else value
        for name, value in getattr(function, "__dict__", {}).items()
        if not _is_array(value)
    }
    return kind.__module__, kind.__qualname__, getattr(function, "__name__", None), attributes


def _plain(function: object) -> Any:
    function = inspect.unwrap(function) if callable(function) else function
    return getattr(function, "__func__", function)


def _bound(function: object, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields the scalars and arrays to which a function is bound, also those of functions that it closes over."""
    if id(function) in seen:
        return
    seen.add(id(function))
    named: list[tuple[object, object]] = []
    while isinstance(function, functools.partial):
        named += [*enumerate(function.args), *function.keywords.items()]
        function = function.func
    plain = _plain(function)
    code = getattr(plain, "__code__", None)
    if isinstance(code, types.CodeType):
        cells = zip(code.co_freevars, plain.__closure__ or (), strict=False)
        named += [(name, cell.cell_contents) for name, cell in cells if cell != types.CellType()]  # not the empty ones
        named += enumerate(plain.__defaults__ or ())
        named += (plain.__kwdefaults__ or {}).items()
    else:
        named += [(name, value) for name, value in getattr(function, "__dict__", {}).items() if _is_array(value)]
    yield from _leaves(named, prefix, seen)


def _leaves(named: Iterable[tuple[object, object]], prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for name, value in named:
        if isinstance(value, _SCALARS) or _is_array(value):
            yield f"{prefix}{name}", value
        elif isinstance(value, _FUNCTIONS):
            yield from _bound(value, f"{prefix}{name}.", seen)
        elif type(value) in (list, tuple, dict) and id(value) not in seen:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type, var-annotated]
            arrays = [(key, item) for key, item in items if not isinstance(item, _SCALARS)]
            yield from _leaves(arrays, f"{prefix}{name}.", seen)


def _is_array(value: object) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic)) and not isinstance(value, DistributedValues)


def _bits(array: Any) -> bytes:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array).tobytes()
