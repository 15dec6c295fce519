"""Cache keys of static arguments, which are constants of a program."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np

from mirrored.values.operators import ArrayOperators


class Identity:
    """A key by identity, equal only for the same object. It keeps the object alive, so that its id is not reused."""

    __slots__ = ("_object",)

    def __init__(self, value: Any) -> None:
        self._object = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._object is other._object

    def __hash__(self) -> int:
        return id(self._object)

    def __repr__(self) -> str:
        return repr(self._object)


class _Content:
    """A key for an unhashable object: a deep copy of its current state, compared by ``==``."""

    __slots__ = ("_copy",)

    def __init__(self, value: Any) -> None:
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


def static_key(value: Any) -> tuple[Any, ...]:
    """Returns the key of a static argument. Keys of equal content are equal, also for mutable objects.

    Numbers are compared by their bits, so 0.0 and -0.0 differ, and all NaNs are equal. A hashable object is compared by
    its own ``==``. An object that hashes by identity is assumed not to change.
    """
    kind = type(value)
    if isinstance(value, (float, complex)):
        return (kind, Number(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and kind.__eq__ is not object.__eq__:  # type: ignore[comparison-overlap]
        fields = (one.name for one in dataclasses.fields(value) if one.compare)
        return (kind, tuple((name, static_key(getattr(value, name))) for name in fields))
    if kind in (list, tuple):
        return (kind, tuple(static_key(one) for one in value))
    if isinstance(value, Mapping) and kind is dict:
        return (kind, tuple((static_key(name), static_key(one)) for name, one in value.items()))
    if kind in (set, frozenset):
        return (kind, frozenset(static_key(one) for one in value))
    if isinstance(value, np.ndarray) and value.dtype != object:
        return (kind, (str(value.dtype), value.shape, value.tobytes()))
    return (kind, _opaque(value))


def _opaque(value: Any) -> Hashable:
    # Variables and arrays are keyed by identity, because their `==` compares values elementwise.
    if isinstance(value, (ArrayOperators, jax.Array)) or type(value).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        return Identity(value)
    try:
        hash(value)
    except TypeError:
        return _copied(value)
    return value  # type: ignore[no-any-return]


def _copied(value: Any) -> Hashable:
    try:
        return _Content(value)
    except Exception:  # an object that cannot be copied is assumed not to change
        return Identity(value)


class Number:
    """A float or complex number as a key, compared by its bits; all NaNs are equal."""

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
