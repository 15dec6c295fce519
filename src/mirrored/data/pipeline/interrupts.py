"""Lets an iterator continue after an interrupt (Ctrl-C) that stopped the computation of an element."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from mirrored.data.cursors import Cursor, read_again
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.no_position import checked
from mirrored.data.pipeline.left_out import LeftOut
from mirrored.errors import InputError

_MARKS_APART: Final = 20
"""How many times the duration of `get_state` passes between two marks, which hence take at most 5 % of the time."""


class RestartingCursor:
    """An iterator over a pipeline; computes an element again if an interrupt stops its computation.

    Every step has elements that it has read and not yet returned: the first ones of a batch, the one with which a
    function was called, those of the first datasets of `zip`. An interrupt drops them, and may come at any line. So the
    whole pipeline goes back to a recent position, the mark, and reads the elements since then again.

    The numbers of elements that are passed to its methods are those that the caller has received. An element that did
    not reach the caller is computed again, too.

    Args:
        open_cursor: Opens the pipeline at the start.
        is_prefetched: Whether its last step prefetches. An interrupt while it waits for its thread stops nothing.
        left_out: The exceptions that `ignore_errors` has left out.
    """

    def __init__(self, open_cursor: Callable[[], Cursor], is_prefetched: bool, left_out: LeftOut) -> None:
        self._open_cursor, self._is_prefetched, self._left_out = open_cursor, is_prefetched, left_out
        self._reading = open_cursor()
        self._place: int | None = 0  # the number of elements before the next one; None after an interrupt
        self._mark: tuple[int, Any] = (0, None)  # a number of elements, and the position after them, None at the start
        self._next_mark = 0.0
        self._unmarked: Exception | None = None  # what the last attempt to set a mark raised

    def read(self, count: int) -> Element:
        """Returns the element with index `count`, i.e. the one after the first `count` elements.

        Raises:
            InputError: After an interrupt, the source does not return the elements before it again, or has no position.
        """
        self._go_to(count)
        now = time.perf_counter()
        if now >= self._next_mark:
            self._set_mark(count)
            self._next_mark = now + _MARKS_APART * (time.perf_counter() - now)
        try:
            element = next(self._reading)
            self._place = count + 1
            return element
        except Exception:
            raise
        except BaseException as error:
            self._place = None
            if self._is_prefetched and engine().interrupted_while_waiting(error):
                self._place = count
            raise

    def _set_mark(self, count: int) -> None:
        try:
            self._mark, self._unmarked = (count, checked(self._reading.get_state())), None
        except Exception as error:  # such as: a pipe has no position. It matters only after an interrupt
            self._unmarked = error

    def get_state(self, count: int) -> Any:
        """Returns the position after the first `count` elements."""
        marked, position = self._mark
        if self._place != count and marked == count and position is not None:
            return position
        self._go_to(count)
        return checked(self._reading.get_state())

    def get_end(self, count: int) -> Any:
        """Returns the read position at the end of the data.

        Returns the exception if getting the position fails.
        """
        try:
            return self.get_state(count)
        except Exception as error:  # such as: a pipe has no position, and can be read nevertheless
            return error

    def set_state(self, state: Any, count: int) -> None:
        """Restores a read position, which lies after the first `count` elements."""
        with self._left_out.rereading():
            self._reading.set_state(state)
        self._mark, self._place, self._unmarked = (count, state), count, None

    def _go_to(self, count: int) -> None:
        if self._place == count:
            return
        self._place = None
        self._unmarked = self._unmarked or _no_position(self._reading)
        if self._unmarked is not None:
            # Opening a pipe again would wait for ever, or lose what the first reader has read.
            raise _no_position_error(self._unmarked) from self._unmarked
        self._reading.close()
        self._reading = self._open_cursor()
        marked, position = self._mark
        try:
            with self._left_out.rereading():
                if position is not None:
                    self._reading.set_state(position)
                for _ in range(marked, count):
                    read_again(self._reading)
        except Exception as error:
            error.add_note("an interrupt stopped the computation of an element: the ones before it were read again")
            raise
        self._place = count

    def close(self) -> None:
        """Closes the pipeline; `get_state` opens it again."""
        self._place = None
        self._reading.close()


def _no_position(reading: Cursor) -> OSError | None:
    try:
        checked(reading.get_state())
    except OSError as error:
        return error
    except Exception:  # the interrupt may have left the iterator between two elements
        return None
    return None


def _no_position_error(error: Exception) -> InputError:
    return InputError(
        "DatasetIterator",
        found=f"an interrupt stopped the computation of an element, and the dataset has no position: {error}",
        rule="after an interrupt the elements since an earlier position are read again, which a pipe cannot do",
        remedy="begin the iteration again with iter(dataset); to continue after interrupts, read regular files",
    )


def position_of(end: Any) -> Any:
    """Returns `end` if it is a read position, or raises `end` if it is an exception.

    Args:
        end: A result of `RestartingCursor.get_end`.

    Raises:
        Exception: The source has no positions.
    """
    if isinstance(end, Exception):
        raise end
    return end
