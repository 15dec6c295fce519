"""Iterators over some of the elements of another iterator: the sequential forms of take, skip and shard."""

from __future__ import annotations

from typing import Any

from mirrored.data.cursors import Cursor, can_continue
from mirrored.data.elements import Element
from mirrored.data.pipeline.ignoring_errors import FAULTS, CountingCursor
from mirrored.data.pipeline.left_out import LeftOut


class LimitCursor(CountingCursor):
    """An iterator over the first `limit` elements of another iterator, including elements that raise an exception.

    Saved positions have the format of Grain's LimitIterDataset, which does not count such an element.
    """

    count_key = "count_elements_read"

    def __init__(self, parent: Cursor, limit: int) -> None:
        super().__init__(parent)
        self._limit = limit

    def __next__(self) -> Element:
        if self._count >= self._limit:
            raise StopIteration
        return self._read()


class StrideCursor:
    """An iterator over every `step`-th element of another iterator, from index `start`; implements skip and shard.

    Args:
        parent: The other iterator.
        start: The number of elements to skip first.
        step: The distance between two elements.
        left_out: The exceptions that a later `ignore_errors` has left out, so that the iteration goes on after an
            element that raises one. Such an element keeps its place, and a skipped one raises nothing, as in an indexed
            pipeline. None if no `ignore_errors` follows.
    """

    def __init__(self, parent: Cursor, start: int, step: int, left_out: LeftOut | None) -> None:
        self._parent, self._step, self._left_out = parent, step, left_out
        self._to_skip = start

    def __next__(self) -> Element:
        while self._to_skip:
            self._skip()
            self._to_skip -= 1
        before = self._position()
        try:
            element = next(self._parent)
        except StopIteration:
            raise
        except Exception as error:
            if self._passed(before, error):
                self._to_skip = self._step - 1
            raise
        self._to_skip = self._step - 1
        return element

    def _skip(self) -> None:
        """Reads and discards the next element of the parent iterator.

        Before `ignore_errors`, an exception of this element is discarded, too: a later `batch` would count it.
        """
        before = self._position()
        try:
            next(self._parent)
        except (StopIteration, *FAULTS):
            raise
        except Exception as error:
            if self._left_out is None or not self._passed(before, error):
                raise
            self._left_out.note(error)

    def _position(self) -> Any:
        return self._parent.get_state() if self._left_out is not None else None

    def _passed(self, before: object, error: Exception) -> bool:
        return self._left_out is not None and can_continue(self._parent, before, error)

    def get_state(self) -> Any:
        """Returns the parent iterator's position, and the number of its elements to skip before the next result."""
        # The key "leave_out" is part of the format of saved positions.
        return {"leave_out": self._to_skip, "parent": self._parent.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves the iterator to a position that `get_state` returned."""
        self._to_skip = state["leave_out"]
        self._parent.set_state(state["parent"])

    def close(self) -> None:
        """Closes the parent iterator."""
        self._parent.close()
