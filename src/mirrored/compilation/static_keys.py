"""Cache keys of static arguments, which are constants of a program."""

from __future__ import annotations

import argparse
import array
import collections
import copy
import dataclasses
import datetime
import decimal
import functools
import pathlib
import types
from collections.abc import Hashable
from typing import Any, Final, TypeVar

import jax
import numpy as np

from mirrored.values.distributed_values import PerReplica
from mirrored.values.operators import ArrayOperators

T = TypeVar("T")

_EXACT: Final = frozenset({bool, int, str, bytes, types.NoneType})
_CONTAINERS: Final = frozenset(
    {list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict, np.ndarray}
)
# The `==` of these classes compares the attributes.
_BY_STATE: Final[tuple[object, ...]] = (types.SimpleNamespace.__eq__, argparse.Namespace.__eq__)
# The `==` of these classes finds equal what a program can tell apart: 0.0 and -0.0, integers and floats, one instant in
# two time zones. What `pickle` would store of them, the arguments of their constructors, differs.
_BY_REDUCTION: Final = (array.array, datetime.datetime, datetime.time, datetime.timezone, decimal.Decimal)
# What `pickle` would store of these identifies them. Their `==` is not asked: a NaN differs from itself, ranges with
# other ends can be equal, and slices with integers equal those with floats.
_REDUCED_WHOLE: Final = (array.array, decimal.Decimal, range, slice)


class Identity:
    """A cache key that compares an object by identity and keeps it alive."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


class _Content:
    """A cache key for an unhashable object: a deep copy of its current state, compared by ``==``."""

    __slots__ = ("_copy",)

    def __init__(self, value: object) -> None:
        self._copy = copy.deepcopy(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content):
            return False
        try:
            return bool(self._copy == other._copy)
        except Exception:  # `==` fails: treat as unequal, so that the function is traced again, which is always correct
            return False

    def __hash__(self) -> int:
        return hash(type(self._copy))

    def __repr__(self) -> str:
        return repr(self._copy)


def static_key(value: Any, around: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Returns the cache key of a non-array argument, computed from the argument's content even if it is mutable.

    Numbers are compared by their bits, so 0.0 and -0.0 differ, and all NaNs are equal. Python's arrays and memory views
    are compared by their bits, too, and times together with their time zones. The content of an object with its own
    ``==`` is its attributes and elements: ``==`` alone finds 2 equal to 2.0, also inside the object. An object that
    hashes by identity is assumed not to change.

    Args:
        value: The argument.
        around: The ids of the objects that contain it.
    """
    kind = type(value)
    if kind in _EXACT:
        return (kind, value)
    if isinstance(value, (float, complex)):
        return (kind, Number(value))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        return (kind, (str(value.dtype), value.shape, value.tobytes()))
    if id(value) in around:
        return (kind, around.index(id(value)))  # an object that contains itself
    around = (*around, id(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and kind.__eq__ is not object.__eq__:  # type: ignore[comparison-overlap]
        return (kind, _of_dataclass(value, around))
    elements = _elements(value, around)
    if elements is None:
        return (kind, _opaque(value, around))
    if isinstance(value, (collections.deque, collections.defaultdict)):
        elements = (_setting(value, around), elements)
    state = None if kind in _CONTAINERS else _state(value, around)
    return (kind, elements if state is None else (elements, state))


def unchanging(value: T) -> T:
    """Returns a static argument with its containers, dataclasses, namespaces and NumPy arrays replaced by copies.

    They keep the content that they have now. All other objects are shared, because a copy of a method, a model or a
    variable would have state of its own; so are the fields of dataclasses that are not compared.
    """
    copied: T = _unchanging(value, {})
    return copied


def _unchanging(value: Any, copies: dict[int, Any]) -> Any:
    kind = type(value)
    if id(value) in copies:
        return copies[id(value)]
    if kind is np.ndarray:
        return value.copy()
    if kind in (tuple, frozenset):
        return kind(_unchanging(one, copies) for one in value)
    if kind is set:
        return set(value)
    if kind in (list, collections.deque, dict, collections.OrderedDict, collections.defaultdict):
        return _unchanging_container(value, copies)
    if kind.__eq__ in _BY_STATE:
        names = list(vars(value))
    elif dataclasses.is_dataclass(kind) and kind.__eq__ is not object.__eq__:
        names = [one.name for one in dataclasses.fields(kind) if one.compare]
    else:
        return value
    made = copies[id(value)] = copy.copy(value)
    for name in names:
        object.__setattr__(made, name, _unchanging(getattr(value, name), copies))
    return made


def _unchanging_container(value: Any, copies: dict[int, Any]) -> Any:
    made = copies[id(value)] = copy.copy(value)  # of the same class, maximum length and default factory
    made.clear()
    if isinstance(value, dict):
        made.update((name, _unchanging(one, copies)) for name, one in value.items())
    else:
        made.extend(_unchanging(one, copies) for one in value)
    return made


def _of_dataclass(value: Any, around: tuple[int, ...]) -> Hashable:
    """Returns the cache key of a dataclass instance, computed from its fields and other attributes.

    Fields with ``compare=False`` are not part of the key. The items of a dataclass that is also a container, such as a
    subclass of `list`, are.
    """
    fields = dataclasses.fields(value)
    compared = tuple((one.name, static_key(getattr(value, one.name), around)) for one in fields if one.compare)
    names = {one.name for one in fields}
    state = object.__getstate__(value)  # type: ignore[attr-defined]
    parts = state if isinstance(state, tuple) else (state,)  # a tuple: the attributes, and those in slots
    others = tuple(
        (name, static_key(one, around))
        for part in parts
        if part
        for name, one in part.items()
        # The trace may have filled a cached property, which follows from the rest.
        if name not in names and not isinstance(getattr(type(value), name, None), functools.cached_property)
    )
    return compared, others, _elements(value, around)


def _setting(value: collections.deque[Any] | collections.defaultdict[Any, Any], around: tuple[int, ...]) -> Hashable:
    """Returns the cache key of a deque's maximum length or of a defaultdict's default factory.

    A lambda that is made anew with each container has the same code.
    """
    if isinstance(value, collections.deque):
        return value.maxlen
    factory: Any = value.default_factory
    if type(factory) is types.FunctionType and not (factory.__closure__ or factory.__defaults__ or vars(factory)):
        return (factory.__code__, factory.__kwdefaults__ and Identity(factory), Identity(factory.__globals__))
    return static_key(factory, around)


def _elements(value: object, around: tuple[int, ...]) -> Hashable | None:
    """Returns the cache key of the elements of a container or NumPy array; None for other objects."""
    if isinstance(value, (list, tuple, collections.deque)):
        return tuple(static_key(one, around) for one in value)
    if isinstance(value, (dict, types.MappingProxyType)):
        return tuple((static_key(name, around), static_key(one, around)) for name, one in value.items())
    if isinstance(value, (set, frozenset)):
        return frozenset(static_key(one, around) for one in value)
    if isinstance(value, np.ndarray):
        return (value.shape, *(static_key(one, around) for one in value.flat))
    return None


def _opaque(value: object, around: tuple[int, ...]) -> Hashable:
    # Variables and arrays are keyed by identity, because their `==` compares values elementwise; values per replica,
    # because what they keep of their components changes.
    equals: object = type(value).__eq__
    if isinstance(value, (ArrayOperators, PerReplica, jax.Array, type)) or equals is object.__eq__:
        return Identity(value)
    if equals in _BY_STATE:
        return _state(value, around)
    if isinstance(value, memoryview):
        return (value.format, value.shape, value.tobytes())
    if type(value) in _REDUCED_WHOLE:
        return static_key(value.__reduce_ex__(4)[1], around)
    try:
        hash(value)
        own: Hashable = value
    except TypeError:
        own = _copied(value)
    if isinstance(value, _BY_REDUCTION):
        own = (own, static_key(value.__reduce_ex__(4)[1], around))
    state = None if isinstance(value, pathlib.PurePath) else _state(value, around)  # the slots of a path are caches
    return own if state is None else (own, state)


def _state(value: object, around: tuple[int, ...]) -> Hashable | None:
    """Returns the cache key of an object's attributes, including those in `__slots__`; None without attributes."""
    state = object.__getstate__(value)  # type: ignore[attr-defined]
    return None if state is None else static_key(state, around)


def _copied(value: object) -> Hashable:
    try:
        return _Content(value)
    except Exception:  # an object that cannot be copied is assumed not to change
        return Identity(value)


class Number:
    """A cache key for a float or complex number, compared by bits, with all NaNs equal."""

    __slots__ = ("_bits", "_value")

    def __init__(self, value: complex) -> None:
        self._value = value
        parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
        self._bits = tuple(part.hex() for part in parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __repr__(self) -> str:
        return repr(self._value)
