"""Identifies the functions that a function driven from Python passes to `Strategy.run`, by what they do."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

# Every call of a driven function executes the ``def`` or ``lambda`` of its replica function anew, so the function
# objects differ. Two functions have one program if they have the same code, globals and values: those that they close
# over, have as defaults or attributes, or are bound to. Functions among the values, also in lists, tuples and dicts,
# are compared like the function itself, and all other objects by their content (`static_keys`): the loop of the driven
# function may refill an array or change a dict.

KeyOf = Callable[[Any], Hashable]

_ENTERED = (types.FunctionType, list, tuple, dict)


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


def closure_key(function: Callable[..., Any], key_of: KeyOf) -> Hashable:
    """Returns a key that is equal for functions with the same code and the same values.

    Args:
        function: A function.
        key_of: Returns the key of an object that is no function. If it compares the object by identity, it must keep it
            alive, or another object could take over the identity.
    """
    return _Keys(key_of).key(function)


class _Keys:
    """The keys of the objects that can be reached from one function."""

    def __init__(self, key_of: KeyOf) -> None:
        self._key_of = key_of
        # A function that calls itself closes over itself, and a list may contain itself.
        self._seen: dict[int, int] = {}

    def key(self, value: Any) -> Hashable:
        """Returns the key of a function or of one of its values."""
        kind = type(value)
        if kind is types.MethodType:
            return kind, self.key(value.__func__), self._key_of(value.__self__)
        if kind is functools.partial:
            return kind, self.key(value.func), self._keys(value.args), self._named(value.keywords)
        if kind not in _ENTERED:
            return self._key_of(value)
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        if kind is types.FunctionType:
            return self._key_of_function(value)
        return kind, self._named(value) if kind is dict else self._keys(value)

    def _key_of_function(self, function: types.FunctionType) -> Hashable:
        contents: list[Hashable] = []
        for cell in function.__closure__ or ():
            try:
                contents.append(self.key(cell.cell_contents))
            except ValueError:  # not assigned yet
                contents.append(None)
        # Code objects are compared by value, without the file: functions of two modules may have equal ones.
        return (
            function.__code__,
            _Globals(function.__globals__),
            tuple(contents),
            self._keys(function.__defaults__ or ()),
            self._named(function.__kwdefaults__ or {}),
            self._named(function.__dict__),
        )

    def _keys(self, values: Iterable[Any]) -> tuple[Hashable, ...]:
        return tuple([self.key(value) for value in values])

    def _named(self, values: dict[Any, Any]) -> tuple[Hashable, ...]:
        return tuple([(self._key_of(name), self.key(one)) for name, one in values.items()])


class _Globals:
    """A cache key that compares the globals of a function by identity and keeps them alive."""

    __slots__ = ("_names",)

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Globals) and self._names is other._names

    def __hash__(self) -> int:
        return id(self._names)
