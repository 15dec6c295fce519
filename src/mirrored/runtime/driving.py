"""Functions that are driven from Python: those that take elements from a dataset inside a compiled function.

A dataset has no place in a compiled program: an element that is taken while tracing would be a constant of it. A
function that takes elements runs as Python at every call, and each `run` in it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from mirrored.runtime.ambient import ambient

_MOST_VARIANTS: Final = 8


class IteratedWhileTracing(BaseException):
    """A dataset was iterated while a function was traced: the function is to be driven from Python.

    It passes user code that catches `Exception`, which would compile what it does instead.
    """


class EndOfElements(StopIteration):
    """The end of a dataset inside a driven function: ends a `for` there, and is `error` for the function's caller."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def stop_iteration(error: Callable[[], Exception]) -> StopIteration:
    """What `__next__` of a dataset's iterator raises at the end.

    Args:
        error: Makes the error for the caller of a driven function, out of which a StopIteration must not pass: it
            would quietly end a loop of the caller's.
    """
    return StopIteration() if ambient().driver is None else EndOfElements(error())


def note_iteration() -> None:
    """Called by a dataset when it is iterated, and by its iterator for every element.

    Raises:
        IteratedWhileTracing: A function is being traced here.
    """
    store = ambient().store
    if store is not None and store.captures:
        raise IteratedWhileTracing


class Driver:
    """Gives the compiled form of each function that a driven function runs on replicas.

    A replica function defined inside the driven one is another object at each call: it is recognised by its code and
    by the objects that it closes over.

    Args:
        compile_function: Makes the compiled form.
    """

    def __init__(self, compile_function: Callable[[Callable[..., Any]], Any]) -> None:
        self._compile = compile_function
        self._compiled: dict[Hashable, tuple[Any, Any]] = {}
        self._variants: dict[Any, int] = {}

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled form of `function`, or itself if it closes over something else at every call."""
        code = getattr(function, "__code__", function)
        key = (code, _closed_over(function), id(getattr(function, "__self__", None)))
        if key not in self._compiled:
            self._variants[code] = self._variants.get(code, 0) + 1
            if self._variants[code] > _MOST_VARIANTS:
                return function
            # The function is kept, so that the identities in its key stay what they are.
            self._compiled[key] = (self._compile(function), function)
        return self._compiled[key][0]  # type: ignore[no-any-return]

    @property
    def trace_count(self) -> int:
        """How often the functions that it compiled have been traced."""
        return sum(compiled.trace_count for compiled, _ in self._compiled.values())


def _closed_over(function: Callable[..., Any]) -> tuple[Hashable, ...]:
    cells = getattr(function, "__closure__", None) or ()
    contents = []
    for cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        # An inner function made anew is the same if its code and what it closes over are.
        inner = (value.__code__, _closed_over(value)) if hasattr(value, "__code__") else id(value)
        contents.append(inner)
    return tuple(contents)
