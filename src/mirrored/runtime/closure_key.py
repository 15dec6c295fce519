"""Cache keys of functions passed to `Strategy.run` in untraced code: their bytecode and captured values."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from mirrored.values.attributes import attribute

# Every call of a driven function executes the ``def`` or ``lambda`` of its replica function anew, so the function
# objects differ. Two functions have one program if they have the same code, globals and values: those that they close
# over, have as defaults or attributes, or are bound to. Functions among the values are compared like the function
# itself; numbers, strings, NumPy arrays and the elements of containers by their content (`static_keys`), because the
# loop of the driven function may refill an array or change a dict. So is a hashable object that is called itself. All
# other objects are compared by identity: a loop may change the counter of a trainer, whose program stays the same.

KeyOf = Callable[[Any], Hashable]

_ENTERED = (types.FunctionType, list, tuple, dict)
_BY_CONTENT = (bool, int, float, complex, str, bytes, type(None), type, set, frozenset)
# The classes of arrays and their scalars: the command line imports this module, and must not wait for NumPy.
_OF_NUMPY = ("numpy", "ml_dtypes")
_PLAIN = frozenset({bool, int, str, bytes, type(None)})
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)


def code_of(function: Callable[..., Any]) -> Hashable:
    """Returns the code object of a function; for another callable, the callable itself, or its class if unhashable."""
    while isinstance(function, functools.partial):
        function = function.func
    code = attribute(function, "__code__")
    if isinstance(code, types.CodeType):
        return code
    try:
        hash(function)
    except TypeError:
        return type(function)  # type: ignore[return-value]
    return function


def closure_key(function: Callable[..., Any], key_of: KeyOf) -> Hashable:
    """Returns a key that is equal for functions with the same code, globals, and captured or bound values.

    Args:
        function: A function, or another object that can be called.
        key_of: Returns the key of an object that is compared by its content.
    """
    if isinstance(function, _FUNCTIONS):
        return _Keys(key_of).key(function)
    return key_of(function) if type(function).__hash__ is not None else _Same(function)


class _Keys:
    """Computes the cache key of one function from its code and the keys of its captured and bound values."""

    def __init__(self, key_of: KeyOf) -> None:
        self._key_of = key_of
        # A function that calls itself closes over itself, and a list may contain itself.
        self._seen: dict[int, int] = {}

    def key(self, value: Any) -> Hashable:
        """Returns the key of a function, or of a value that a function captures."""
        kind = type(value)
        if kind is types.MethodType:
            return kind, self.key(value.__func__), _Same(value.__self__)
        if kind is functools.partial:
            return kind, self.key(value.func), self._keys(value.args), self._named(value.keywords)
        if kind not in _ENTERED:
            by_content = isinstance(value, _BY_CONTENT) or kind.__module__ in _OF_NUMPY
            return self._key_of(value) if by_content else _Same(value)
        plain = _plain_key(value)
        if plain is not None:
            return plain
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
            _Same(function.__globals__),
            tuple(contents),
            self._keys(function.__defaults__ or ()),
            self._named(function.__kwdefaults__ or {}),
            self._named(function.__dict__),
        )

    def _keys(self, values: Iterable[Any]) -> tuple[Hashable, ...]:
        return tuple([self.key(value) for value in values])

    def _named(self, values: dict[Any, Any]) -> tuple[Hashable, ...]:
        return tuple([(self._key_of(name), self.key(one)) for name, one in values.items()])


def _plain_key(container: Any) -> Hashable | None:
    """Returns the key of a list, tuple or dict of strings and integers, without a Python loop; None for other values.

    A replica function may close over a vocabulary, whose key every run computes. Floats need the loop: 0.0 == -0.0.
    """
    if type(container) is types.FunctionType:
        return None
    named = type(container) is dict
    elements = (*container, *container.values()) if named else tuple(container)
    kinds = tuple(map(type, elements))
    return (type(container), kinds, elements) if _PLAIN.issuperset(kinds) else None


class _Same:
    """A cache key that compares an object by identity, and keeps the object alive so that its `id` stays unique."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
