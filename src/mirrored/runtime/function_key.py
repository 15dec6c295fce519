"""Compares the functions that replicas pass to `merge_call`, which calls only the first replica's function."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import Tracer
from mirrored.values.attributes import attribute
from mirrored.values.distributed_values import DistributedValues

# Every replica executes the ``def``, ``lambda`` or ``class`` inside its function anew, so the function objects differ.
# Two functions are interchangeable if they have the same code, and if the numbers, strings, arrays and functions are
# equal that they close over, have as defaults, or are bound to by `functools.partial`. A decorator's function and the
# function that it wraps (`__wrapped__`) are both compared. Of the object of a bound method, and of frozen dataclasses,
# the numbers and strings are compared. Other objects, such as variables and models, are not compared. Of lists and
# dicts, into which the function may put its results, the elements are compared that both have.

_SCALARS = (int, float, complex, str, bytes, NoneType)
_FIXED = (tuple, set, frozenset, slice, range)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_SHOWN_ELEMENTS = 4


class FunctionKey(NamedTuple):
    """A comparison key of a function that is passed to `merge_call`; the key must be equal on all replicas.

    Attributes:
        code: The code, or the class and the attributes of a callable object; after it those of what it wraps.
        bound: The numbers, strings and functions that the function closes over, has as defaults, or is bound to, by
            name.
        arrays: The arrays among them, by name.
    """

    code: object
    bound: tuple[tuple[str, str | CodeKey | Numbers], ...]
    arrays: tuple[tuple[str, ArrayKey], ...]


class CodeKey:
    """A comparison key of the code of a function that another function calls."""

    __slots__ = ("code", "shown")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, function: object) -> None:
        self.code = _code_of(function)
        self.shown = getattr(_unbound(function), "__qualname__", None) or type(function).__qualname__

    def __eq__(self, other: object) -> bool:
        return self.code == other.code if isinstance(other, CodeKey) else NotImplemented

    def __repr__(self) -> str:
        return str(self.shown)


class Numbers:
    """A comparison key of the numbers and strings in a container or object, compared by value.

    Elements are compared only if the containers are different objects: all replicas share what `run` closes over.
    """

    __slots__ = ("container", "items")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, container: object, items: dict[str, Any]) -> None:
        self.container = container
        self.items = items

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Numbers):
            return NotImplemented
        if self.container is other.container:
            return True
        if isinstance(self.container, _FIXED) and self.items.keys() != other.items.keys():
            return False
        common = self.items.keys() & other.items.keys()
        return all(_by_repr(self.items[key]) == _by_repr(other.items[key]) for key in common)

    def __repr__(self) -> str:
        return repr(list(self.items.values()) if isinstance(self.container, (list, *_FIXED)) else self.items)


class ArrayKey:
    """Wraps an array so that ``==`` compares dtype, shape and bits.

    A traced array equals every other array: its bits are unknown, and the replication check of a compiled `run`
    compares them.
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
    """Returns a key that is equal for functions with the same code and equal captured or bound values."""
    values = list(_bound(function, "", set()))
    return FunctionKey(
        _code_of(function),
        tuple((name, _by_repr(value)) for name, value in values if isinstance(value, _COMPARED)),
        tuple((name, ArrayKey(value)) for name, value in values if not isinstance(value, _COMPARED)),
    )


class ShownFunction(NamedTuple):
    """The form of a function in error messages: its `repr`, with the numbers, strings and arrays that it captures."""

    function: object

    def __str__(self) -> str:
        key = key_of(self.function)
        shown = [(name, value) for name, value in key.bound if not isinstance(value, Numbers) or value.items]
        values = ", ".join(f"{name}={value}" for name, value in (*shown, *key.arrays))
        return f"{self.function}{f' with {values}' if values else ''}"


def _by_repr(value: Any) -> Any:
    # By `repr`, NaN equals NaN and 1 differs from 1.0.
    return repr(value) if isinstance(value, _SCALARS) else value


_NUMBERS = (*_SCALARS, Numbers)
_COMPARED = (*_NUMBERS, CodeKey)


def _code_of(function: object) -> object:
    return tuple(_own_code(one) for one in _chain(function))


def _own_code(function: object) -> object:
    code = attribute(function, "__code__")
    if isinstance(code, types.CodeType):
        return code
    kind, own = type(function), attribute(function, "__dict__", {})
    # What `jax.jit` and `mirrored.function` return is made anew, too, and holds objects that differ.
    compared = (*_SCALARS, *_FUNCTIONS) if "__wrapped__" in own else object
    attributes = {
        name: _code_of(value) if isinstance(value, _FUNCTIONS) else value
        for name, value in own.items()
        if name != "__wrapped__" and isinstance(value, compared) and not _is_array(value)
    }
    return kind.__module__, kind.__qualname__, attribute(function, "__name__"), attributes


def _chain(function: object) -> list[Any]:
    """Returns a function without its bound arguments, followed by the functions that it wraps (`functools.wraps`)."""
    found: list[Any] = []
    while function is not None and not any(function is one for one in found):
        function = _unbound(function)
        found.append(function)
        function = _wrapped(function)
    return found


def _unbound(function: object) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return attribute(function, "__func__", function)


def _wrapped(function: object) -> object:
    # The class of a callable may answer each name that it is asked for.
    own = getattr(function, "__dict__", None)
    return own.get("__wrapped__") if isinstance(own, dict) and callable(function) else None


def _is_function(value: object) -> bool:
    return isinstance(value, _FUNCTIONS) or _wrapped(value) is not None


def _bound(function: object, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) for closure variables, defaults and bound arguments, also of wrapped and captured functions.

    The values are scalars, arrays, and the keys of containers and functions.
    """
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        named: list[tuple[object, object]] = []
        while isinstance(function, functools.partial):
            named += [*enumerate(function.args), *function.keywords.items()]
            function = function.func
        owner = getattr(function, "__self__", None) if isinstance(function, types.MethodType) else None
        if owner is not None and not isinstance(owner, (type, types.ModuleType)):
            yield f"{prefix}self", _attributes(owner, getattr(owner, "__dict__", {}))
        plain = _unbound(function)
        code = getattr(plain, "__code__", None)
        if isinstance(code, types.CodeType):
            cells = zip(code.co_freevars, plain.__closure__ or (), strict=False)
            named += [(name, cell.cell_contents) for name, cell in cells if cell != types.CellType()]  # not empty ones
            named += enumerate(plain.__defaults__ or ())
            named += (plain.__kwdefaults__ or {}).items()
        else:
            own = getattr(plain, "__dict__", {}).items()
            named += [(name, value) for name, value in own if _is_array(value) or _is_function(value)]
        function = _wrapped(plain)
        yield from _leaves([(name, value) for name, value in named if value is not function], prefix, seen)


def _leaves(named: Iterable[tuple[object, object]], prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for name, value in named:
        if isinstance(value, _SCALARS) or _is_array(value):
            yield f"{prefix}{name}", value
        elif _is_function(value):
            yield f"{prefix}{name}", CodeKey(value)
            yield from _bound(value, f"{prefix}{name}.", seen)
        elif _is_frozen_dataclass(value):
            yield f"{prefix}{name}", _attributes(value, _fields_of(value))
        elif isinstance(value, (list, dict, *_FIXED)) and id(value) not in seen:
            if isinstance(value, (list, dict)):  # only these can contain themselves
                seen.add(id(value))
            inside = f"{prefix}{name}."
            leaves = list(_leaves(_items(value), inside, seen))
            numbers = {key.removeprefix(inside): leaf for key, leaf in leaves if isinstance(leaf, _NUMBERS)}
            yield f"{prefix}{name}", Numbers(value, numbers)
            yield from (leaf for leaf in leaves if not isinstance(leaf[1], _NUMBERS))


def _attributes(owner: object, named: Mapping[str, object]) -> Numbers:
    return Numbers(owner, {name: value for name, value in named.items() if isinstance(value, _SCALARS)})


def _is_frozen_dataclass(value: object) -> bool:
    is_frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    return is_frozen is True and dataclasses.is_dataclass(value)


def _fields_of(value: Any) -> dict[str, object]:
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def _items(container: Any) -> list[tuple[object, object]]:
    if isinstance(container, (slice, range)):
        return [("start", container.start), ("stop", container.stop), ("step", container.step)]
    if isinstance(container, dict):
        return list(container.items())
    return list(enumerate(sorted(container, key=repr) if isinstance(container, (set, frozenset)) else container))


def _is_array(value: object) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic)) and not isinstance(value, DistributedValues)


def _bits(array: Any) -> bytes:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array).tobytes()
