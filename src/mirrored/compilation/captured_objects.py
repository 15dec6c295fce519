"""Finds the Python objects that a traced function reads, modifies or creates."""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import gc
import io
import itertools
import operator
import queue
import sys
import types
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from mirrored._jax.traces import CaptureTracer
from mirrored.errors import VariableError
from mirrored.runtime.staged_values import Bookkeeping, Held

# Snapshots of plain Python containers, which detect whether elements were removed and can restore them.

_ORDERED: Final = (list, collections.deque)
_KEYED: Final = (dict, collections.OrderedDict, collections.defaultdict, set)
_QUEUES: Final = (queue.Queue, queue.LifoQueue, queue.PriorityQueue)
_NUMBERS: Final = (bool, int, float, complex, str, bytes, type(None))
_LONGEST_SHIFT: Final = 4


class ContainerSnapshot:
    """A snapshot of a list, dict, set, deque or queue, to detect and undo later removals of elements.

    Args:
        container: A container that `is_container` accepts.

    Example:
        >>> rows = collections.deque([1, 2, 3])
        >>> before = ContainerSnapshot(rows)
        >>> rows.append(4)
        >>> before.has_lost_elements()
        False
        >>> rows.popleft()
        1
        >>> before.has_lost_elements()
        True
    """

    def __init__(self, container: Any) -> None:
        self._container = container.queue if is_queue(container) else container
        self._before = self._content()

    def _content(self) -> list[Any]:
        return list(self._container.items() if isinstance(self._container, dict) else self._container)

    def has_lost_elements(self) -> bool:
        """Returns whether elements of the container have been removed or moved since the snapshot.

        Appending, inserting and replacing items do not count: traced functions legitimately record traces and results
        that way.
        """
        if type(self._container) in _KEYED:
            names = [one[0] for one in self._before] if isinstance(self._container, dict) else self._before
            return any(name not in self._container for name in names)
        after = list(self._container)
        if _is_subsequence(self._before, after):
            return False
        if len(after) != len(self._before):
            return len(after) < len(self._before)
        is_permuted = Counter(map(id, after)) == Counter(map(id, self._before))
        return is_permuted or self._are_shifted(after)

    def _are_shifted(self, after: Sequence[Any]) -> bool:
        """Returns whether elements were removed at the front of the container, and equally many appended at its end.

        Two cases are excluded: a full bounded deque drops elements by itself, and a list of numbers may only look
        shifted, because equal numbers can be the same object.
        """
        if isinstance(self._container, collections.deque):
            return self._container.maxlen is None and _is_shifted(self._before, after)
        return any(type(one) not in _NUMBERS for one in after) and _is_shifted(self._before, after)

    def put_back(self) -> None:
        """Restores the elements that were removed from the container since the snapshot."""
        if not self.has_lost_elements():
            return
        if isinstance(self._container, dict):
            after = dict(self._container)
            self._container.clear()
            self._container.update(self._before)
            self._container.update(after)
        elif isinstance(self._container, set):
            self._container.update(self._before)
        else:
            self._container.clear()
            self._container.extend(self._before)

    def rewind(self) -> None:
        """Restores exactly the elements that the container had at the snapshot; leaves an unchanged container alone."""
        if _is_identical(self._before, self._content()):
            return  # another thread may be using it
        self._container.clear()
        if isinstance(self._container, (dict, set)):
            self._container.update(self._before)
        else:
            self._container.extend(self._before)


def is_container(value: object) -> bool:
    """Returns whether `value` is a plain list, dict, set, deque or queue."""
    return type(value) in (*_ORDERED, *_KEYED, *_QUEUES)


def _is_identical(before: Sequence[object], after: Sequence[object]) -> bool:
    """Returns whether two lists hold the same objects; tuples (items of dicts) are compared element by element."""
    return len(before) == len(after) and all(map(_is_same_element, before, after))


def _is_same_element(one: object, other: object) -> bool:
    if type(one) is tuple and type(other) is tuple:
        return len(one) == len(other) and all(map(operator.is_, one, other))
    return one is other


def is_queue(value: object) -> bool:
    """Returns whether `value` is a queue of the standard library, which threads share."""
    return type(value) in _QUEUES


def is_like_queue(value: object) -> bool:
    """Returns whether `value` is a queue of any kind, including `queue.SimpleQueue` and queues of `multiprocessing`."""
    return all(callable(getattr(type(value), name, None)) for name in ("get", "put", "empty"))


def _is_subsequence(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    remaining = iter(whole)
    return all(any(one is other for other in remaining) for one in part)


def _is_shifted(before: Sequence[Any], after: Sequence[Any]) -> bool:
    longest = min(_LONGEST_SHIFT, len(before) - 1)
    return any(all(map(operator.is_, before[shift:], after)) for shift in range(1, longest + 1))


# Finds objects nested in a function's captured values: iterators, random generators and containers.
#
# The search follows items, attributes, closures, and the objects that iterators iterate over. It does not enter objects
# of libraries. For a user's subclass of a library class (a Keras model, an NNX module), it follows only the attributes
# that the user's methods name.

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
    """Yields every Python object that is reachable from `roots`, each with its access path, breadth first.

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


def of_user(value: object) -> bool:
    """Returns whether the class of `value` is defined in user code, not in a known library."""
    kind: Any = type(value)
    return _is_class_of_user(kind)


def _is_class_of_user(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _LIBRARIES


# Keyed weakly by class, so that a class created in a function can be garbage-collected.
_named: weakref.WeakKeyDictionary[type, frozenset[str] | None] = weakref.WeakKeyDictionary()


def _attributes_of_user_methods(kind: type) -> frozenset[str] | None:
    """Returns the attributes that the user-defined methods of a class use; None if the class has no library base class.

    The other attributes belong to the library, which may change them during tracing (Keras clears its losses).
    """
    if kind not in _named:
        _named[kind] = _found_in_methods(kind)
    return _named[kind]


def _found_in_methods(kind: type) -> frozenset[str] | None:
    if all(map(_is_class_of_user, kind.__mro__)):
        return None
    members = [part for base in kind.__mro__ if is_users(base) for part in vars(base).values()]
    return frozenset().union(*(names_in(one.__code__)[1] for part in members for one in with_wrapped(part)))


def with_wrapped(function: object) -> Iterator[types.FunctionType]:
    """Yields a function and all functions that it wraps (`__wrapped__`), such as the original `call` of a layer."""
    while isinstance(function, types.FunctionType):
        yield function
        function = vars(function).get("__wrapped__")


def is_users(owner: types.ModuleType | types.FunctionType | type) -> bool:
    """Returns whether a module, function or class belongs to user code, not to Python or a known library."""
    name = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__
    package = str(name).partition(".")[0]
    return package not in _LIBRARIES and package not in sys.stdlib_module_names


def has_base_of_library(kind: type) -> bool:
    """Returns whether a class derives from a class of a known third-party library."""
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    return not (packages - sys.stdlib_module_names).isdisjoint(_LIBRARIES)


def names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Returns the global names and the attribute names that a code object and its nested functions use, as two sets."""
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


def reads_in(code: types.CodeType) -> set[tuple[str | None, str]]:
    """Returns the names of the attributes that a code object and its nested functions read.

    Each comes with the attribute from whose value the code reads it directly, as `data` from `config` in
    ``self.config.data``, else with None.
    """
    reads: set[tuple[str | None, str]] = set()
    before: str | None = None
    for instruction in dis.get_instructions(code):
        is_read = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if is_read:
            reads.add((None if instruction.is_jump_target else before, instruction.argval))
        before = instruction.argval if is_read else None
    return reads.union(*(reads_in(one) for one in code.co_consts if isinstance(one, types.CodeType)))


def may_read(owner: object, attribute: str, reads: set[tuple[str | None, str]], found: Sequence[Named]) -> bool:
    """Returns whether code with the attribute reads `reads` may read the given attribute of `owner`.

    False if the reads read that attribute only from known attributes of the objects
    in `found`, which are the objects that the code can reach, and none of those attributes is `owner`.
    """
    for holder in (holder for holder, name in reads if name == attribute):
        if holder is None:
            return True
        values = [vars(one)[holder] for _, one in found if holder in (getattr(one, "__dict__", None) or ())]
        if not values or any(value is owner for value in values):
            return True
    return False


def assigned_in(code: types.CodeType) -> set[str]:
    """Returns the attribute names to which a code object and its nested functions assign."""
    stored = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_ATTR", "DELETE_ATTR")}
    return stored.union(*(assigned_in(one) for one in code.co_consts if isinstance(one, types.CodeType)))


def attributes_of(owner: object) -> dict[str, Any]:
    """Returns the data attributes of an object of a user-defined class.

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
    named = _attributes_of_user_methods(kind)
    return found if named is None else {name: part for name, part in found.items() if name in named}


class Progress:
    """A snapshot of a Python iterator's position, to detect later whether a trace has advanced the iterator.

    Args:
        iterator: An iterator.

    Example:
        >>> letters = iter("ab")
        >>> before = Progress(letters)
        >>> next(letters), before.has_moved()
        ('a', True)
    """

    def __init__(self, iterator: object) -> None:
        self._iterator = iterator
        self._before = _marks(iterator)

    def has_moved(self) -> bool:
        """Returns whether the iterator has advanced since the snapshot; False if this cannot be observed."""
        after = _marks(self._iterator)
        return len(after) != len(self._before) or not all(map(_is_same, self._before, after))


def _marks(iterator: object) -> list[Any]:
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        return [] if frame is None else [frame.f_lasti, *_items(frame.f_locals)]
    if isinstance(iterator, itertools.count):
        return [repr(iterator)]
    attributes = getattr(iterator, "__dict__", None)
    return _items(attributes) if isinstance(attributes, dict) else [operator.length_hint(iterator, -1)]


def _items(names: Mapping[str, Any]) -> list[Any]:
    return [part for item in list(names.items()) for part in item]


def _is_same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, (int, str)) and type(one) is type(other) and one == other)


def _parts(name: str, value: Any) -> Iterator[Named]:
    if isinstance(value, (dict, types.MappingProxyType)):
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


# Checks the variables that a function creates while it is traced: user code must keep a reference to them.
#
# A function can create its variables on the first call and keep them. If it created a variable on *every* call, plain
# Python would create a new one each time, but a compiled program would reuse the same one. Such a function is an error:
# every variable that a trace creates must be kept, and a second trace must create none. Python's garbage collector
# tells whether a variable is kept: an object other than our bookkeeping must refer to it.


def refuse_forgotten(created: Sequence[Any], called: str) -> None:
    """Raises an error if a traced function has created a variable to which only the trace refers.

    Args:
        created: The variables created in the trace.
        called: The name of the function, for the message.

    Raises:
        VariableError: A variable was not kept.
    """
    if not created:
        return
    kept: set[int] = set()
    asked = tuple(created)  # itself a referrer, which Python 3.13 reports and earlier versions do not
    for referrer in gc.get_referrers(*asked):
        if referrer is not asked and not isinstance(referrer, (Bookkeeping, CaptureTracer, Held)):
            kept.update(map(id, gc.get_referents(referrer)))
    for variable in created:
        # The referrer of an inline attribute is the object itself, because such an object has no attribute dictionary.
        if id(variable) not in kept:
            raise VariableError(
                called,
                found=f"the function creates variable {variable.name!r} and does not keep it",
                rule="a compiled function must create its variables once, and reuse them in every call",
                remedy="store it where the next call finds it (if self.w is None: self.w = Variable(...)), "
                "or create it outside",
            )


def refuse_created_again(created: Sequence[Any], called: str) -> None:
    """Raises an error if a later trace of a function creates variables, which only the first trace may do.

    Without a trace, every call would create them.

    Args:
        created: The variables created in the trace.
        called: The name of the function, for the message.

    Raises:
        VariableError: The trace has created a variable.
    """
    if created and all(variable.internal for variable in created):
        raise VariableError(
            called,
            found=f"an optimizer creates its slots, such as {created[0].name!r}, again when the function is called "
            "again",
            rule="an optimizer must create the slots of its variables once, and reuse them in every call",
            remedy="create the optimizer once, outside the function, and call optimizer.build(variables) before the "
            "first call",
        )
    if created:
        raise VariableError(
            called,
            found=f"the function creates variable {created[0].name!r} again when it is called again",
            rule="a compiled function must create its variables once, and reuse them in every call",
            remedy="create it only if it does not exist yet (if self.w is None: self.w = Variable(...)), "
            "or create it outside",
        )
