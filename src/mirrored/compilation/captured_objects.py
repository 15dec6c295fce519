"""Finds objects nested in a function's captured values: iterators, random generators and containers.

The search follows items, attributes, closures, and the objects that iterators iterate over. It does not enter objects
of libraries. For a user's subclass of a library class (a Keras model, an NNX module), it follows only the attributes
that the user's methods name.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import gc
import io
import itertools
import operator
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_DEEPEST: Final = 5
_MOST_OBJECTS: Final = 2000
_MOST_ITEMS: Final = 64
_LIBRARIES: Final = frozenset(
    "mirrored jax jaxlib numpy optax chex keras flax equinox orbax grain torch datasets tensorflow threading "
    "logging concurrent multiprocessing asyncio weakref _thread pathlib ml_dtypes".split()
)
_FUNCTION: Final = "mirrored.compilation.function"
_ITEMS: Final = (list, tuple, set, frozenset, collections.deque)
_LEAVES: Final = (bool, int, float, complex, str, bytes, bytearray, type(None), type, types.ModuleType, io.IOBase)

Named = tuple[str, Any]


def nested(roots: Iterable[Named]) -> Iterator[Named]:
    """Yields every object reachable from `roots`, breadth first, once each, with its access path as the name.

    Args:
        roots: Objects with their names.
    """
    seen: set[int] = set()
    waiting = collections.deque((name, value, 0) for name, value in roots)
    while waiting and len(seen) < _MOST_OBJECTS:
        name, value, depth = waiting.popleft()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        yield name, value
        if depth < _DEEPEST:
            waiting.extend((inner, part, depth + 1) for inner, part in _parts(name, value))


def of_user(value: Any) -> bool:
    """Returns whether the class of `value` is defined outside the known libraries."""
    kind: Any = type(value)
    return _is_class_of_user(kind)


def _is_class_of_user(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _LIBRARIES


# Keyed weakly by class, so that a class created in a function can be garbage-collected.
_named: weakref.WeakKeyDictionary[type, frozenset[str] | None] = weakref.WeakKeyDictionary()


def _named_by_methods(kind: type) -> frozenset[str] | None:
    """Returns the attributes that the methods of a user's subclass of a library class name; None without such a base.

    The other attributes belong to the library, which may change them during tracing (Keras clears its losses).
    """
    if kind not in _named:
        _named[kind] = _found_in_methods(kind)
    return _named[kind]


def _found_in_methods(kind: type) -> frozenset[str] | None:
    if all(map(_is_class_of_user, kind.__mro__)):
        return None
    methods = [part for base in kind.__mro__ if is_users(base) for part in vars(base).values()]
    return frozenset().union(*(names_in(part.__code__)[1] for part in methods if isinstance(part, types.FunctionType)))


def is_users(owner: types.ModuleType | type) -> bool:
    """Returns whether a module or class belongs neither to Python nor to the known libraries."""
    name = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__
    package = str(name).partition(".")[0]
    return package not in _LIBRARIES and package not in sys.stdlib_module_names


def names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Returns the names of globals and of attributes in the code, including those in nested functions."""
    names, attributes = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_in(constant)
            names, attributes = names | inner[0], attributes | inner[1]
    return names, attributes


def attributes_of(owner: Any) -> dict[str, Any]:
    """Returns the data attributes of a user's object: instance dictionary, slots and class attributes.

    Properties are not evaluated.
    """
    found: dict[str, Any] = {}
    for base in () if type(owner).__module__ == "builtins" else reversed(type(owner).__mro__):
        for name, part in list(vars(base).items()) if is_users(base) else ():
            if isinstance(part, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # a slot that is not assigned yet
                    found[name] = part.__get__(owner)
            elif not name.startswith("__") and not hasattr(type(part), "__get__"):
                found[name] = part
    own = getattr(owner, "__dict__", None)
    if isinstance(own, dict):
        found.update(own)
    kind: Any = type(owner)
    named = _named_by_methods(kind)
    return found if named is None else {name: part for name, part in found.items() if name in named}


class Progress:
    """A snapshot of an iterator's position. `nested` finds the objects that it iterates over.

    Args:
        iterator: An iterator.

    Example:
        >>> letters = iter("ab")
        >>> before = Progress(letters)
        >>> next(letters), before.has_moved()
        ('a', True)
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._before = _marks(iterator)

    def has_moved(self) -> bool:
        """Returns whether elements have been taken since the snapshot, as far as this is observable."""
        after = _marks(self._iterator)
        return len(after) != len(self._before) or not all(map(_is_same, self._before, after))


def _marks(iterator: Any) -> list[Any]:
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        return [] if frame is None else [frame.f_lasti, *_items(frame.f_locals)]
    if isinstance(iterator, itertools.count):
        return [repr(iterator)]
    attributes = getattr(iterator, "__dict__", None)
    return _items(attributes) if isinstance(attributes, dict) else [operator.length_hint(iterator, -1)]


def _items(names: Mapping[str, Any]) -> list[Any]:
    return [part for item in list(names.items()) for part in item]


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, (int, str)) and type(one) is type(other) and one == other)


def _parts(name: str, value: Any) -> Iterator[Named]:
    if isinstance(value, dict):
        return ((f"{name}[{key!r:.40}]", item) for key, item in itertools.islice(value.items(), _MOST_ITEMS))
    if isinstance(value, _ITEMS):
        return ((f"an item of {name}", item) for item in itertools.islice(value, _MOST_ITEMS))
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return ((name, one) for one in ([] if frame is None else list(frame.f_locals.values())))
    if isinstance(value, types.FunctionType):
        return _parts_of_function(name, value)
    if isinstance(value, types.MethodType):
        return iter([(f"self of {name}", value.__self__), (name, value.__func__)])
    if isinstance(value, functools.partial):
        return ((name, one) for one in (value.func, *value.args, *value.keywords.values()))
    if type(value).__module__ == _FUNCTION:
        return iter([(name, value.python_function)])
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        # `zip` and `map` hold a tuple of iterators.
        held = (part for one in gc.get_referents(value) for part in (one if isinstance(one, tuple) else (one,)))
        return ((name, part) for part in held if isinstance(part, Iterator))
    if of_user(value):
        return ((f"{name}.{attribute}", part) for attribute, part in attributes_of(value).items())
    return iter(())


def _parts_of_function(name: str, function: types.FunctionType) -> Iterator[Named]:
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{variable!r} in {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from ((f"a default of {name}", one) for one in function.__defaults__ or ())
