"""Refuses exceptions that leave a branch or a loop body which a tensor controls, and that converted code catches.

Such a branch is traced whether the program takes it or not. An exception in it says nothing about the tensor, so that
the code after an `except` clause, or after a context manager that suppresses exceptions, would have wrong values.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from mirrored._blocks import contextmanager
from mirrored.tf._errors import UnimplementedError
from mirrored.tf._ops.loops import LoopMismatch
from mirrored.tf._ops.tensor_array import GrowingArrayError

_MARK: Final = "__mirrored_controlled__"  # in the `__dict__` of an exception
_HERE: Final = str(Path(__file__).parents[2])
_Kind = type[BaseException] | None


class CaughtExceptionError(UnimplementedError):
    """Error for an exception from a branch that a tensor controls, which converted code has caught."""


# They pass through the user's `except` clauses: the last one asks for another trace, and so do the others.
_PASSING: Final = (CaughtExceptionError, GrowingArrayError, LoopMismatch)


@contextmanager
def controlled() -> Iterator[None]:
    """A context manager in which code is traced that runs only if a tensor has a certain value; marks exceptions."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):
            _mark(error)
        raise


def _mark(error: BaseException) -> None:
    error.__dict__[_MARK] = True


def _is_marked(error: BaseException | None) -> bool:
    return error is not None and _MARK in error.__dict__


class Handling:
    """The context manager around the block of each `except` clause in converted code.

    A clause that raises an exception again, or another one in its place, catches nothing.
    """

    def __enter__(self) -> None:
        self._caught = sys.exception()
        if isinstance(self._caught, _PASSING):
            raise self._caught

    def __exit__(self, kind: _Kind, error: BaseException | None, where: TracebackType | None) -> None:
        if not _is_marked(self._caught):
            return
        assert self._caught is not None
        if error is not None:
            _mark(error)
            return
        raise _caught_error("an `except` clause", self._caught) from self._caught


class _Managed:
    """A context manager of the user that may not suppress exceptions of a branch that a tensor controls."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __enter__(self) -> Any:
        return type(self._manager).__enter__(self._manager)

    def __exit__(self, kind: _Kind, error: BaseException | None, where: TracebackType | None) -> Any:
        try:
            suppresses = type(self._manager).__exit__(self._manager, kind, error, where)
        except BaseException as another:
            if _is_marked(error):
                _mark(another)
            raise
        if error is None or not suppresses:
            return suppresses
        if isinstance(error, _PASSING):
            return False
        if _is_marked(error):
            raise _caught_error("a `with` statement", error) from error
        return suppresses


def managed(manager: Any) -> Any:
    """Returns a context manager for the `with` statement of converted code.

    Other objects, and context managers of the library, which suppress no exceptions, are returned unchanged.
    """
    kind = type(manager)
    is_manager = hasattr(kind, "__enter__") and hasattr(kind, "__exit__")
    return _Managed(manager) if is_manager and kind.__module__.partition(".")[0] != "mirrored" else manager


def _caught_error(catching: str, error: BaseException) -> CaughtExceptionError:
    every = traceback.extract_tb(error.__traceback__)
    frames = [one for one in every if not one.filename.startswith(_HERE) and "site-packages" not in one.filename]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return CaughtExceptionError.of(
        "tf.function",
        found=f"{catching} catches {type(error).__name__}, raised{where} in a branch or a loop body that a tensor "
        "controls",
        rule="such a branch or body is traced whether the program runs it or not, so its exception cannot select what "
        "the program does; the statements after a `return`, `break` or `continue` that a tensor decides are such a "
        "branch, too",
        remedy="put the `try` into the branch, let no tensor decide whether the exception is raised, or compute both "
        "values and select by tf.where",
    )
