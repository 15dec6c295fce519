"""Identifies the functions that a function driven from Python passes to `Strategy.run`, by what they do."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable
from types import NoneType
from typing import Any

# Every call of a driven function executes the ``def`` or ``lambda`` of its replica function anew, so the function
# objects differ. Two functions have one program if they have the same code and the same values: those that they close
# over, have as defaults, or are bound to. Numbers and strings are compared by value, functions among the values like
# the function itself, and all other objects by identity.

_BY_VALUE = (int, bool, str, bytes, NoneType)


def code_of(function: Callable[..., Any]) -> Hashable:
    """Returns a function's code, or another callable object itself, or its class if the object has no hash."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType):
        return code
    try:
        hash(function)
    except TypeError:
        return type(function)  # type: ignore[return-value]
    return function


def closure_key(function: Callable[..., Any], kept: list[object]) -> Hashable:
    """Returns a key that is equal for functions with the same code and the same values.

    Args:
        function: A function.
        kept: Receives the objects whose identities are in the key. As long as the key is in use, they must be kept
            alive, or another object could take over an identity.
    """
    return _key(function, {}, kept)


def _key(value: Any, seen: dict[int, int], kept: list[object]) -> Hashable:
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)  # by `repr`, NaN equals NaN and 0.0 differs from -0.0
    if kind is types.FunctionType:
        return _key_of_function(value, seen, kept)
    if kind is types.MethodType:
        kept.append(value.__self__)
        return _key(value.__func__, seen, kept), id(value.__self__)
    if kind is functools.partial:
        keywords = tuple([(name, _key(one, seen, kept)) for name, one in value.keywords.items()])
        return _key(value.func, seen, kept), _keys(value.args, seen, kept), keywords
    kept.append(value)
    return id(value)


def _key_of_function(function: types.FunctionType, seen: dict[int, int], kept: list[object]) -> Hashable:
    if id(function) in seen:  # a function that calls itself closes over itself
        return "seen", seen[id(function)]
    seen[id(function)] = len(seen)
    contents: list[Hashable] = []
    for cell in function.__closure__ or ():
        try:
            contents.append(_key(cell.cell_contents, seen, kept))
        except ValueError:  # not assigned yet
            contents.append(None)
    keywords = function.__kwdefaults__
    by_name = tuple([(name, _key(one, seen, kept)) for name, one in keywords.items()]) if keywords else ()
    return function.__code__, tuple(contents), _keys(function.__defaults__ or (), seen, kept), by_name


def _keys(values: tuple[Any, ...], seen: dict[int, int], kept: list[object]) -> tuple[Hashable, ...]:
    return tuple([_key(value, seen, kept) for value in values])
