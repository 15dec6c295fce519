"""Calls user functions, such as those passed to `Dataset.map`; creates and closes iterators over user iterables.

Threads that share an iterator of a dataset read from it by turns (`taking_turn`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Final, Protocol

import jax

from mirrored._blocks import acquiring
from mirrored.data.elements import Element, handed_out, own_element
from mirrored.errors import ContextError, InputError, StructureError
from mirrored.runtime.ambient import thread
from mirrored.runtime.element_draws import FunctionStreamId, drawing_for


def call(
    function: Callable[..., Any], element: Element, called: str, index: int, draws: FunctionStreamId | None = None
) -> Any:
    """Calls `function(element)` (`function(*element)` for a tuple), and runs the function's JAX operations on the CPU.

    An exception keeps its type and traceback. A note adds the index of the element.

    Args:
        function: The user's function.
        element: Its argument.
        called: The method that the user called, for messages.
        index: The index of the element.
        draws: The random numbers of the function; None: those of the caller.
    """
    start, context = time.perf_counter(), thread.current
    _clock.functions += 1
    try:
        with naming_element(called, index), drawing_for(draws, index), _on_host():
            given = handed_out(element)
            if type(given) is tuple:
                return function(*given)
            return function(given)
    except BaseException:  # an interrupt where the exit of the block begins would leave its context in place
        thread.current = context
        raise
    finally:
        _clock.functions -= 1
        _clock.seconds += time.perf_counter() - start


class _Clock(threading.local):
    """Per-thread counters: the seconds spent in user functions, and the number of user functions now running."""

    seconds = 0.0
    functions = 0


_clock = _Clock()


def function_seconds() -> float:
    """Returns how many seconds the current thread has spent in user functions, such as those passed to `map`."""
    return _clock.seconds


def is_in_function() -> bool:
    """Returns whether the current thread is executing a user function, such as one passed to `map`."""
    return _clock.functions > 0


def transformed(
    function: Callable[..., Any], element: Element, called: str, index: int, draws: FunctionStreamId | None = None
) -> Element:
    """Calls a user function on a dataset element with `call`, and converts the result to a pytree of NumPy arrays.

    A list becomes a tuple, as in TensorFlow: it is more often the several results of an operation, such as
    `tf.numpy_function`, than one array. Lists inside of the result become arrays.
    """
    result = call(function, element, called, index, draws)
    with naming_element(called, index):
        if isinstance(result, list):
            result = tuple(result)
        return own_element(result, called)


def is_true(
    predicate: Callable[..., Any], element: Element, called: str, index: int, draws: FunctionStreamId | None = None
) -> bool:
    """Returns whether a user's predicate is true for a dataset element; calls the predicate with `call`.

    Raises:
        StructureError: The predicate returned a list or tuple, which would be true for every element.
    """
    result = call(predicate, element, called, index, draws)
    if isinstance(result, list | tuple):
        raise StructureError(
            called,
            found=f"the predicate returned a {type(result).__name__} of {len(result)} for element {index}",
            rule="the predicate must return one boolean",
            remedy="return an item of it, or len(...) > 0; pass one dtype, not a list, as Tout of tf.py_function",
        )
    return bool(result)


class naming_element:
    """A context manager that adds "at element i" to exceptions that a user function raises for a dataset element."""

    __slots__ = ("_called", "_index")

    def __init__(self, called: str, index: int) -> None:
        self._called, self._index = called, index

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StopIteration):
            # A StopIteration from user code would silently end the iteration.
            raise RuntimeError(f"{self._called}: StopIteration at element {self._index}") from error
        if isinstance(error, Exception):
            error.add_note(f"{self._called}: at element {self._index}")
            if isinstance(error, ValueError) and "read-only" in str(error):
                error.add_note("epochs share the arrays of a dataset: modify a copy instead (x = x.copy())")


class no_end:
    """A context manager that turns a StopIteration from user code, which would end the dataset, into RuntimeError."""

    __slots__ = ("_called",)

    def __init__(self, called: str) -> None:
        self._called = called

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, StopIteration):
            raise RuntimeError(f"{self._called}: StopIteration") from error


def _on_host() -> Any:
    """Returns a context in which JAX operations of user functions run on the CPU, not on the training accelerator."""
    return nullcontext() if jax.default_backend() == "cpu" else jax.default_device(jax.local_devices(backend="cpu")[0])


# Creates iterators of users, and closes them: `close` can raise an exception, or be called while another thread reads.

_EXECUTING: Final = "generator already executing"  # what `close` raises while another thread executes the generator
_log: Final = logging.getLogger("mirrored.data")


class Closeable(Protocol):
    """Protocol of objects with a method `close` that releases their threads or files."""

    def close(self) -> None: ...


def close_each(resources: Iterable[Closeable]) -> None:
    """Closes all resources in order, even if some raise exceptions; raises the last exception at the end."""
    with contextlib.ExitStack() as stack:
        for resource in reversed(list(resources)):
            stack.callback(resource.close)


def close_iterator(iterator: Iterator[Any] | None) -> None:
    """Calls the method `close` of an iterator, if it has one."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def close_or_leave(iterator: Iterator[Any] | None) -> None:
    """Closes an iterator, or logs a warning if the iterator is a generator that another thread is executing."""
    try:
        close_iterator(iterator)
    except ValueError as error:
        if str(error) != _EXECUTING:
            raise
        _log.warning(
            "%r cannot be closed, because another thread executes it: this thread closes it at its next element",
            iterator,
        )


class Iterators:
    """A factory of iterators over a Python iterable: each pass over the dataset gets a new iterator.

    Args:
        make: Creates the iterable.
        called: The function that the user called, for messages.
    """

    def __init__(self, make: Callable[[], Any], called: str) -> None:
        self._make, self._called = make, called
        self._last: Iterator[Any] | None = None

    def __call__(self) -> Iterator[Any]:
        """Returns a new iterator over the iterable.

        Raises:
            InputError: `make` returned the iterator of an earlier iteration, which is exhausted or in use.
        """
        made: Iterator[Any] = iter(self._make())
        if made is self._last:
            raise InputError(
                self._called,
                found=f"a second iteration got the same iterator ({type(made).__name__}) as the first one",
                rule="a dataset must return a new iterator in every epoch: an iterator returns its elements only once, "
                "so the next epoch would have no steps",
                remedy="create a new iterator for each iteration: a generator function, or an __iter__ that yields",
            )
        self._last = made
        return made


LONGEST_WAIT = 30.0
"""How many seconds `taking_turn` waits for an element that another thread reads."""


class taking_turn:
    """A context manager that holds an iterator's lock, so that one thread at a time reads from the iterator.

    Args:
        lock: The lock.
        called: The method that the user called, for messages.

    Raises:
        ContextError: Another thread still holds the lock after `LONGEST_WAIT` seconds.
    """

    __slots__ = ("_called", "_lock", "_turn")

    def __init__(self, lock: threading.RLock, called: str) -> None:
        self._lock, self._called, self._turn = lock, called, acquiring(lock, LONGEST_WAIT)

    def __enter__(self) -> None:
        if not self._turn.__enter__():
            raise ContextError(
                self._called,
                found=f"another thread has been reading an element for {LONGEST_WAIT:g} s",
                rule="a position can only be saved or restored between two elements; a dataset's function that assigns "
                "a variable waits for a checkpoint that is being saved, and that checkpoint waits for the element",
                remedy="save or restore the position in the thread that reads, or assign variables in the step instead "
                "of the dataset's functions",
            )

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
