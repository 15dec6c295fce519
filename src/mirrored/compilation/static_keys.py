"""Cache keys of static arguments: what a program depends on when an argument is not an array."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np

from mirrored.values.operators import ArrayOperators


class Identity:
    """An object as a key: equal to itself only. Holds on to the object, so that no later one takes its identity."""

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
    """An object that cannot be hashed as a key: a copy of it as it is now, compared by ``==``."""

    __slots__ = ("_copy",)

    def __init__(self, value: Any) -> None:
        self._copy = copy.deepcopy(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content):
            return False
        try:
            return bool(self._copy == other._copy)
        except Exception:  # an `==` that gives no answer: the function is traced again, which is always right
            return False

    def __hash__(self) -> int:
        return hash(type(self._copy))

    def __repr__(self) -> str:
        return repr(self._copy)


def static_key(value: Any) -> tuple[Any, ...]:
    """The key of a static argument: equal for equal content, also of what can be mutated.

    Numbers are compared by their bits, so that 0.0 and -0.0 differ and a NaN equals another one. An object with a hash
    is compared by its own ``==``: one that hashes by identity is taken to stay as it is.
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
    # A variable or an array is what it is, whatever `==` makes of its value.
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
    except Exception:  # whatever a copy may raise: such an object is taken to stay as it is
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
