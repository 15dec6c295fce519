"""Detects Python state, such as iterators and random generators, that tracing would turn into constants.

The value that an iterator, a random generator or `deque.popleft()` returns during tracing becomes a constant of the
program, so every call would use the same value.
"""

from __future__ import annotations

import functools
import io
import pickle
import random
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from mirrored.compilation.captured_objects import (
    ContainerSnapshot,
    Progress,
    attributes_of,
    has_base_of_library,
    is_container,
    is_like_queue,
    is_queue,
    is_users,
    may_read,
    names_in,
    nested,
    of_user,
    reads_in,
    with_wrapped,
)
from mirrored.compilation.signature import is_ragged
from mirrored.errors import ArgumentError
from mirrored.runtime.hooks import IteratedAsPython
from mirrored.values.attributes import attribute

_MOST_ITEMS: Final = 16
_TAKING: Final = frozenset(("get", "get_nowait"))
_Containers = dict[int, tuple[str, Any]]
_OF_LIFETIMES: Final = frozenset("__new__ __init__ __post_init__ __enter__ __exit__ __del__".split())
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState)


class PythonState:
    """A snapshot, taken before a trace, of the iterators, random generators and containers that a function can reach.

    Directly reachable are the arguments, the closures and globals of the function and of functions that it calls in its
    module, and the container items and attributes in them that the code names. Objects nested more deeply
    (`mirrored.compilation.captured_objects`) are reported only if tracing has changed them.

    Args:
        function: The Python function.
        leaves: The leaves of its arguments.
        name: The function's name, for messages.

    Attributes:
        may_give_up: Whether the function can reach what its trace may end at: a dataset, an iterator of one, or uneven
            per-replica values.
    """

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any], name: str) -> None:
        self._name = name
        found = [(f"the argument {_described(leaf)}", leaf) for leaf in leaves]
        functions: list[Any] = []
        found += within_reach(function, functions)
        self._iterators = [(where, value) for where, value in found if is_iterator(value)]
        deep = list(nested(found))
        self.may_give_up = any(isinstance(value, IteratedAsPython) or is_ragged(value) for _, value in deep)
        self._reaches_queue = any(is_like_queue(value) for _, value in deep)
        near = {id(value) for _, value in self._iterators}
        moving = [(where, value) for where, value in deep if id(value) not in near and _may_move(value)]
        self._nested = [(where, Progress(value)) for where, value in moving]
        self._generators = [
            (where, value)
            for where, value in (*self._iterators, *moving)
            if isinstance(value, types.GeneratorType) and value.gi_frame is not None
        ]
        self._random = [(where, value, _state_of(value)) for where, value in deep if isinstance(value, _RANDOM)]
        containers = _containers_of(found, deep)
        self._containers = [(where, ContainerSnapshot(value)) for where, value in containers.values()]
        self._checked = self._containers
        # With several threads, another one may use the module-level generators, and containers that the function does
        # not use, at any time.
        alone = threading.active_count() == 1
        if not alone:
            used = _used_by_code(containers, found, _names_of_code(functions, deep))
            self._checked = [one for key, one in zip(containers, self._containers, strict=True) if key in used]
        self._shared = _shared_states() if alone else None

    def frozen_state_error(self) -> ArgumentError | None:
        """Returns an error if a trace has changed a container or random generator since the snapshot; None otherwise.

        Restores the elements that were removed from containers. The error is returned, not raised, because a trace that
        creates variables legitimately draws their initial values.

        Raises:
            ArgumentError: The function can reach a Python iterator directly, or has advanced a nested one.
        """
        self.refuse_iterators()
        taken = [where for where, contents in self._checked if contents.has_lost_elements()]
        self.put_back()
        if taken:
            return ArgumentError(
                self._name,
                found=f"the function removed elements from {taken[0]} (pop, popleft, del, ...)",
                rule="a function is traced once, so an element would be a constant, the same at every call, and later "
                "calls would remove none",
                remedy="remove the element outside and pass it as an argument, or iterate over a Dataset "
                "(Dataset.from_generator), whose iterators return new elements at every call",
            )
        for where, value, before in self._random:
            if _state_of(value) != before:
                return self._drawn_error(f"drew random numbers from {where} ({type(value).__name__})")
        if self._shared is not None and threading.active_count() == 1:
            for module, before, after in zip(("random", "numpy.random"), self._shared, _shared_states(), strict=True):
                if before != after:
                    return self._drawn_error(f"drew random numbers from the module {module}")
        return None

    def refuse_iterators(self) -> None:
        """Raises an error if the function can reach a Python iterator directly, or has advanced a nested one.

        Raises:
            ArgumentError: It can, or it has.
        """
        for where in (*(one[0] for one in self._iterators), *(one[0] for one in self._nested if one[1].has_moved())):
            raise ArgumentError(
                self._name,
                found=f"the function uses {where}, a Python iterator",
                rule="a function is traced once, so the result of next() would be a constant, the same at every call",
                remedy="call next() outside and pass the element, or iterate over a Dataset "
                "(Dataset.from_generator), whose iterators return new elements at every call",
            )

    def put_back(self) -> None:
        """Restores the elements that a trace has removed from containers since the snapshot."""
        for _, contents in self._checked:
            contents.put_back()

    @property
    def can_rewind(self) -> bool:
        """Whether `rewind` can undo all effects of a trace: False if the function can reach an iterator or a queue.

        An element that a trace has taken from an iterator cannot be put back. Other threads may use a queue meanwhile:
        a rewound queue would lose what they have put there, and return again what they have taken. And a trace would
        wait for an element of an empty queue.
        """
        return not (self._iterators or self._nested or self._reaches_queue)

    def rewind(self) -> None:
        """Restores the containers and random generators to their state at the snapshot.

        These include the global generators of `random` and `numpy.random` if the process had one thread; otherwise they
        are only the containers that the function uses.
        """
        for _, contents in self._checked:
            contents.rewind()
        for _, generator, before in self._random:
            _restore(generator, before)
        if self._shared is not None:
            random.setstate(self._shared[0])
            np.random.set_state(pickle.loads(self._shared[1]))

    def check_generators(self) -> None:
        """Raises an error if a trace has closed a Python generator that iterates over a dataset.

        Raises:
            ArgumentError: A generator is closed. If the function ran as Python, it would find it exhausted.
        """
        for where, value in self._generators:
            if value.gi_frame is None:
                raise ArgumentError(
                    self._name,
                    found=f"the generator {where} ({value.__qualname__}) was closed when tracing the function ended: "
                    "it yields nothing more",
                    rule="a generator that iterates over a dataset cannot be used in a compiled function: iteration "
                    "over a dataset ends the trace, which closes the generator",
                    remedy="call next() outside and pass the element, or use iter(dataset) instead of the generator",
                )

    def _drawn_error(self, found: str) -> ArgumentError:
        return ArgumentError(
            self._name,
            found=f"the function {found}",
            rule="a function is traced once, so the numbers would be constants, the same at every call",
            remedy="draw them outside and pass them as arguments, or use jax.random with a key that is an argument "
            "(in mirrored.tf: tf.random)",
        )


def stop_iteration_error(name: str) -> ArgumentError:
    """Returns the error for a Python iterator that ends (StopIteration) while a compiled function is traced."""
    return ArgumentError(
        name,
        found="a Python iterator or generator in the function raised StopIteration",
        rule="StopIteration must not propagate out of a compiled function: it would silently end a loop of the caller. "
        "A generator over a dataset ends when the function is traced",
        remedy="call next() outside and pass the element, or use iter(dataset) instead of the generator",
    )


def iterating_error(name: str) -> ArgumentError:
    """Returns the error for lowering, saving or scanning a function that iterates over a dataset."""
    return ArgumentError(
        name,
        found="the function takes elements from a dataset or its iterator",
        rule="a function that iterates over a dataset runs as Python, so it has no program to lower, save or run for "
        "several steps",
        remedy="take the elements outside the function and pass them as arguments",
    )


def drawing_error(name: str) -> ArgumentError:
    """Returns the error that a dataset transformation cannot lower a function with random draws.

    The error also covers calls of such a function with `steps_per_call`.
    """
    return ArgumentError(
        name,
        found="the function draws random numbers, and a function of a dataset lowers it or runs several steps of it",
        rule="a program that draws for the elements of a dataset would have the numbers of one element",
        remedy="call the function without steps_per_call, or draw the numbers outside and pass them as arguments",
    )


def within_reach(function: Callable[..., Any], visited: list[Any] | None = None) -> list[tuple[str, Any]]:
    """Returns a function's closure variables, globals, default values and bound arguments, with their names.

    Args:
        function: The function.
        visited: The list to which it and the functions of its module that it calls are appended.
    """
    found: list[tuple[str, Any]] = []
    reads: set[tuple[str | None, str]] = set()
    seen: set[int] = set()
    waiting: list[Any] = [function]
    home: Any = None
    while waiting:
        plain, bound = _plain(waiting.pop())
        found += bound
        code = attribute(plain, "__code__")
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        if visited is not None:
            visited.append(plain)
        home = home or plain.__module__
        reads |= reads_in(code)
        for name, value in _captured(plain, names_in(code)[0]):
            # A compiled method holds a weak reference to its instance.
            if isinstance(value, weakref.ref):
                name, value = "self", value()
            found.append((name, value))
            if attribute(_plain(value)[0], "__module__") == home:
                waiting.append(value)
    return [part for name, value in found for part in _with_parts(name, value, reads, found)]


def _plain(function: Callable[..., Any]) -> tuple[Any, list[tuple[str, Any]]]:
    """Unwraps a method, `functools.partial` or compiled function; returns the Python function and all bound values."""
    bound: list[tuple[str, Any]] = []
    for _ in range(8):
        if isinstance(function, functools.partial):
            bound += [(f"the bound argument {_described(value)}", value) for value in function.args]
            bound += [(f"the bound argument {name!r}", value) for name, value in function.keywords.items()]
            function = function.func
        elif isinstance(function, types.MethodType):
            bound.append(("self", function.__self__))
            function = function.__func__
        elif (wrapped := attribute(function, "python_function")) is not None:
            function = wrapped
        else:
            break
    return function, bound


def _captured(function: Callable[..., Any], names: set[str]) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the captured {name!r}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in sorted(names):
        if name in function.__globals__:
            yield f"the global {name!r}", function.__globals__[name]
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"the default {_described(value)}", value


def _with_parts(
    name: str, value: object, reads: set[tuple[str | None, str]], found: Sequence[tuple[str, Any]]
) -> Iterator[tuple[str, Any]]:
    yield name, value
    if isinstance(value, dict) and len(value) <= _MOST_ITEMS:
        yield from ((f"an item of {name}", item) for item in value.values())
    elif isinstance(value, list | tuple) and len(value) <= _MOST_ITEMS:
        yield from ((f"an item of {name}", item) for item in value)
    elif isinstance(value, types.ModuleType | type) and not is_users(value):
        return
    elif hasattr(getattr(value, "__dict__", None), "keys"):
        for attribute in sorted({one for _, one in reads} & vars(value).keys()):
            part = vars(value)[attribute]
            if not isinstance(part, Iterator) or may_read(value, attribute, reads, found):
                yield f"{name}.{attribute}", part


def is_iterator(value: object) -> bool:
    """Returns whether `value` is an iterator of Python or a library.

    Iterators of our datasets are excluded: a function that iterates over a dataset runs as Python with compiled steps.
    """
    if isinstance(value, io.IOBase) or not isinstance(value, Iterator):
        return False
    return not type(value).__module__.startswith("mirrored.") and iter(value) is value


def _may_move(value: object) -> bool:
    """Returns whether `value` may be an iterator, without calling `__iter__`, which might restart it."""
    if isinstance(value, io.IOBase) or not isinstance(value, Iterator):
        return False
    return not type(value).__module__.startswith("mirrored.")


def _containers_of(found: Sequence[tuple[str, Any]], deep: Sequence[tuple[str, Any]]) -> _Containers:
    """Returns the containers that a function refers to directly or as attributes of user objects, keyed by id."""
    containers = {id(value): (where, value) for where, value in found if is_container(value)}
    for where, owner in deep:
        if of_user(owner) and not is_container(owner):
            parts = attributes_of(owner).items()
            containers |= {id(value): (f"{where}.{name}", value) for name, value in parts if is_container(value)}
    return containers


def _used_by_code(containers: _Containers, found: Sequence[tuple[str, Any]], names: set[str]) -> set[int]:
    """Returns the ids of the containers from which a function's code may remove elements.

    Args:
        containers: The containers, by id.
        found: The objects that the function names.
        names: The attributes that the code names.
    """
    near = {id(value) for _, value in found}
    takes = not _TAKING.isdisjoint(names)
    return {
        key
        for key, (where, value) in containers.items()
        if (key in near or where.rpartition(".")[2] in names) and (takes or not is_queue(value))
    }


def _names_of_code(functions: Sequence[Any], deep: Sequence[tuple[str, Any]]) -> set[str]:
    """Returns all attribute names in the code that the given functions may run (see `codes_of`)."""
    return set().union(*(names_in(code)[1] for code in codes_of(functions, deep)))


def codes_of(functions: Sequence[Any], deep: Sequence[tuple[str, Any]]) -> list[types.CodeType]:
    """Returns the code objects that a function may run, including those of reachable functions and methods.

    This is its own code, that of functions that it can reach, and, of the user's objects that it can reach, that of
    their operators, of the methods that any of this code names, and of all methods where a library may call them, as
    Keras calls `call`.

    Args:
        functions: The function, and the functions of its module that it calls.
        deep: The objects that it can reach.
    """
    waiting = [*functions, *(value for _, value in deep if isinstance(value, types.FunctionType) and is_users(value))]
    methods: dict[str, list[Any]] = {}
    called: set[str] = set()
    for kind in {type(value) for _, value in deep}:
        own = [item for base in kind.__mro__ if is_users(base) for item in vars(base).items()]
        for name, part in own:
            function = _function_of(part)
            methods.setdefault(name, []).extend([*with_wrapped(function)] or [function])
        called |= {name for name, _ in own if has_base_of_library(kind) or name.startswith("__")} - _OF_LIFETIMES
    found: list[types.CodeType] = []
    while waiting or called:
        waiting += (one for name in called for one in methods.pop(name))
        codes = [code for one in waiting if (code := attribute(_plain(one)[0], "__code__")) is not None]
        found += codes
        names = set().union(*(names_in(code)[1] for code in codes))
        waiting, called = [], names & methods.keys()
    return found


def _function_of(member: object) -> object:
    """Returns the function of a method, property, class method or static method."""
    for name in ("fget", "func", "__func__"):
        member = attribute(member, name) or member
    return member


def _described(value: object) -> str:
    return f"of type {type(value).__name__}"


def _state_of(value: Any) -> Any:
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if isinstance(value, np.random.Generator):
        return pickle.dumps(value.bit_generator.state)
    return pickle.dumps(value.get_state(legacy=False))


def _restore(generator: Any, before: Any) -> None:
    """Sets the state of a random generator to `before`, an earlier result of `_state_of`."""
    if isinstance(generator, random.Random):
        if before is not None:
            generator.setstate(before)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = pickle.loads(before)
    else:
        generator.set_state(pickle.loads(before))


def _shared_states() -> tuple[Any, Any]:
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))
