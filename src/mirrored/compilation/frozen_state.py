"""Refuses Python state that tracing would freeze.

What an iterator, a random generator or `deque.popleft()` gives while a function is traced is a constant of its program:
every call would get the same value.
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

from mirrored.compilation.captured_objects import Progress, attributes_of, is_users, names_in, nested, of_user
from mirrored.compilation.container_snapshot import ContainerSnapshot, is_container
from mirrored.errors import ArgumentError

_MOST_ITEMS: Final = 16
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState)


class PythonState:
    """The iterators, random generators and containers within reach of a function. Context: made before it is traced.

    Directly within reach are its arguments, what it and the functions of its module that it calls close over or find
    among the globals, items of containers and attributes of objects found there that the code names. What lies deeper
    (`mirrored.compilation.captured_objects`) counts if tracing has changed it.

    Args:
        function: The Python function.
        leaves: The leaves of its arguments.
        name: The function's name, for messages.
    """

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any], name: str) -> None:
        self._name = name
        found = [(f"the argument {_described(leaf)}", leaf) for leaf in leaves]
        found += _within_reach(function)
        self._iterators = [(where, value) for where, value in found if _is_iterator(value)]
        deep = list(nested(found))
        near = {id(value) for _, value in self._iterators}
        moving = [(where, value) for where, value in deep if id(value) not in near and _may_move(value)]
        self._nested = [(where, Progress(value)) for where, value in moving]
        self._generators = [
            (where, value)
            for where, value in (*self._iterators, *moving)
            if isinstance(value, types.GeneratorType) and value.gi_frame is not None
        ]
        self._random = [(where, value, _state_of(value)) for where, value in deep if isinstance(value, _RANDOM)]
        self._containers = [(where, ContainerSnapshot(value)) for where, value in _containers_of(found, deep).values()]
        # Another thread may move the generators of the modules at any time.
        self._shared = _shared_states() if threading.active_count() == 1 else None

    def frozen(self) -> ArgumentError | None:
        """Returns the error for the first container or random generator that tracing has changed, or None.

        Containers get back the elements that were taken from them. The initial values of variables are drawn while
        tracing anyway: the caller decides.

        Raises:
            ArgumentError: The function can reach a Python iterator directly, or has moved a nested one.
        """
        for where in (*(one[0] for one in self._iterators), *(one[0] for one in self._nested if one[1].has_moved())):
            raise ArgumentError(
                self._name,
                found=f"{where}: a Python iterator inside a compiled function",
                rule="a function is traced once: what next() gives is then a constant, the same at every call",
                remedy="call next() outside and pass the element, or iterate over a Dataset "
                "(Dataset.from_generator), from whose iterators every call takes new elements",
            )
        taken = [where for where, contents in self._containers if contents.are_taken()]
        self.put_back()
        if taken:
            return ArgumentError(
                self._name,
                found=f"elements taken from {taken[0]} (pop, popleft, del, ...) inside a compiled function",
                rule="a function is traced once: an element is then a constant, the same at every call, and no later "
                "call takes another one",
                remedy="take the element outside and pass it as an argument, or iterate over a Dataset "
                "(Dataset.from_generator), from whose iterators every call takes new elements",
            )
        for where, value, before in self._random:
            if _state_of(value) != before:
                return self._drawn(f"random numbers drawn from {where} ({type(value).__name__})")
        if self._shared is not None and threading.active_count() == 1:
            for module, before, after in zip(("random", "numpy.random"), self._shared, _shared_states(), strict=True):
                if before != after:
                    return self._drawn(f"random numbers drawn from the module {module}")
        return None

    def put_back(self) -> None:
        """Gives containers back what was taken from them while tracing."""
        for _, contents in self._containers:
            contents.put_back()

    def check_generators(self) -> None:
        """Refuses generators that the end of the trace has ended: they iterate over a dataset.

        Raises:
            ArgumentError: There is one. Run as Python, the function would find it exhausted.
        """
        for where, value in self._generators:
            if value.gi_frame is None:
                raise ArgumentError(
                    self._name,
                    found=f"{where}: a Python generator ({value.__qualname__}) that iterates over a dataset",
                    rule="what takes elements from a dataset ends with the trace of the function, and a generator that "
                    "has ended gives nothing more",
                    remedy="call next() outside and pass the element, or use iter(dataset) in place of the generator",
                )

    def _drawn(self, found: str) -> ArgumentError:
        return ArgumentError(
            self._name,
            found=f"{found} inside a compiled function",
            rule="a function is traced once: the numbers are then constants, the same at every call",
            remedy="draw them outside and pass them as arguments, or use jax.random with a key that is an argument "
            "(in mirrored.tf: tf.random)",
        )


def exhausted(name: str) -> ArgumentError:
    """The error for a StopIteration of Python's that would pass out of a compiled function."""
    return ArgumentError(
        name,
        found="StopIteration from a Python iterator or generator inside a compiled function",
        rule="StopIteration does not leave a compiled function, where it would quietly end a loop of the caller's; a "
        "generator over a dataset ends when the function is traced",
        remedy="call next() outside and pass the element, or use iter(dataset) in place of the generator",
    )


def _within_reach(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    attributes: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [function]
    home: Any = None
    while waiting:
        plain, bound = _plain(waiting.pop())
        found += bound
        code = getattr(plain, "__code__", None)
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        home = home or plain.__module__
        names, named = names_in(code)
        attributes |= named
        for name, value in _captured(plain, names):
            # A compiled method refers to its object weakly.
            if isinstance(value, weakref.ref):
                name, value = "self", value()
            found.append((name, value))
            if getattr(_plain(value)[0], "__module__", None) == home:
                waiting.append(value)
    return [part for name, value in found for part in _with_parts(name, value, attributes)]


def _plain(function: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """The Python function behind methods, partial functions and compiled functions, and what is bound to it."""
    bound: list[tuple[str, Any]] = []
    for _ in range(8):
        if isinstance(function, functools.partial):
            bound += [(f"the bound argument {_described(value)}", value) for value in function.args]
            bound += [(f"the bound argument {name!r}", value) for name, value in function.keywords.items()]
            function = function.func
        elif isinstance(function, types.MethodType):
            bound.append(("self", function.__self__))
            function = function.__func__
        elif hasattr(function, "python_function"):
            function = function.python_function
        else:
            break
    return function, bound


def _captured(function: Any, names: set[str]) -> Iterator[tuple[str, Any]]:
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


def _with_parts(name: str, value: Any, attributes: set[str]) -> Iterator[tuple[str, Any]]:
    yield name, value
    if isinstance(value, dict) and len(value) <= _MOST_ITEMS:
        yield from ((f"an item of {name}", item) for item in value.values())
    elif isinstance(value, list | tuple) and len(value) <= _MOST_ITEMS:
        yield from ((f"an item of {name}", item) for item in value)
    elif isinstance(value, types.ModuleType | type) and not is_users(value):
        return
    elif hasattr(getattr(value, "__dict__", None), "keys"):
        for attribute in sorted(attributes & vars(value).keys()):
            yield f"{name}.{attribute}", vars(value)[attribute]


def _is_iterator(value: Any) -> bool:
    """Whether it is an iterator of Python's or another library's: those of our datasets have the function driven."""
    if isinstance(value, io.IOBase) or not isinstance(value, Iterator):
        return False
    return not type(value).__module__.startswith("mirrored.") and iter(value) is value


def _may_move(value: Any) -> bool:
    """Whether it is such an iterator. It is not asked for its iterator: `__iter__` may begin anew."""
    if isinstance(value, io.IOBase) or not isinstance(value, Iterator):
        return False
    return not type(value).__module__.startswith("mirrored.")


def _containers_of(found: Sequence[tuple[str, Any]], deep: Sequence[tuple[str, Any]]) -> dict[int, tuple[str, Any]]:
    """The containers that the function names, and the attributes of users' objects."""
    containers = {id(value): (where, value) for where, value in found if is_container(value)}
    for where, owner in deep:
        if of_user(owner) and not is_container(owner):
            parts = attributes_of(owner).items()
            containers |= {id(value): (f"{where}.{name}", value) for name, value in parts if is_container(value)}
    return containers


def _described(value: Any) -> str:
    return f"of type {type(value).__name__}"


def _state_of(value: Any) -> Any:
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if isinstance(value, np.random.Generator):
        return pickle.dumps(value.bit_generator.state)
    return pickle.dumps(value.get_state(legacy=False))


def _shared_states() -> tuple[Any, Any]:
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))
