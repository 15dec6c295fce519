"""Functions driven from Python: compiled functions that iterate a dataset in their body.

A compiled program cannot iterate a dataset: an element taken during tracing would become a constant of the program. So
a function that takes elements runs as Python at every call, and each `run` in it is compiled separately.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from mirrored.runtime.ambient import ambient

_MAX_VARIANTS: Final = 8


class IteratedWhileTracing(BaseException):
    """Signals that a dataset is iterated while a function is traced. The function is then driven from Python.

    It is not an `Exception`: user code that catches `Exception` must not handle it, or its handler would be traced.
    """


class EndOfElements(StopIteration):
    """The end of a dataset inside a driven function. It ends a `for` loop there.

    Args:
        error: The error that the caller of the driven function receives if no loop handles the end.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def stop_iteration(error: Callable[[], Exception]) -> StopIteration:
    """Returns the exception that `__next__` of a dataset's iterator raises at the end.

    Args:
        error: Creates the error for the caller of a driven function. A StopIteration must not leave the function, where
            it would silently end a loop of the caller.
    """
    return StopIteration() if ambient().driver is None else EndOfElements(error())


def note_iteration() -> None:
    """Reports an iteration: a dataset calls it in `__iter__`, and its iterator for every element.

    Raises:
        IteratedWhileTracing: A function is being traced.
    """
    store = ambient().store
    if store is not None and store.captures:
        raise IteratedWhileTracing


class Driver:
    """Cache of the compiled replica functions of one driven function.

    A replica function that is defined inside the driven function is a new object at each call. So the cache key is its
    code and the identities of the objects that it closes over.

    Args:
        compile_function: Compiles a replica function.
    """

    def __init__(self, compile_function: Callable[[Callable[..., Any]], Any]) -> None:
        self._compile = compile_function
        self._compiled: dict[Hashable, tuple[Any, Any]] = {}
        self._variants: dict[Any, int] = {}

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the compiled form of `function`, or `function` itself after too many different closures."""
        code = getattr(function, "__code__", function)
        key = (code, _closed_over(function), id(getattr(function, "__self__", None)))
        if key not in self._compiled:
            self._variants[code] = self._variants.get(code, 0) + 1
            if self._variants[code] > _MAX_VARIANTS:
                return function
            # The entry keeps the function alive, so that no other object can take over an identity in the key.
            self._compiled[key] = (self._compile(function), function)
        return self._compiled[key][0]  # type: ignore[no-any-return]

    @property
    def trace_count(self) -> int:
        """The number of traces of all functions in the cache."""
        return sum(compiled.trace_count for compiled, _ in self._compiled.values())


def _closed_over(function: Callable[..., Any]) -> tuple[Hashable, ...]:
    cells = getattr(function, "__closure__", None) or ()
    contents = []
    for cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        # A nested function is a new object at each call, too: it is identified by its code and closure.
        inner = (value.__code__, _closed_over(value)) if hasattr(value, "__code__") else id(value)
        contents.append(inner)
    return tuple(contents)
