"""Iterators whose read position can be saved and restored, for the dataset operations that Grain does not have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from mirrored._jax.trees import tree_map
from mirrored.data.calling import close_iterator, close_or_leave, no_end
from mirrored.data.elements import Element, joined
from mirrored.data.iterator_errors import closed_meanwhile_error
from mirrored.data.no_position import checked
from mirrored.data.placement import batch_size
from mirrored.errors import InputError


class Cursor(Protocol):
    """Protocol of iterators whose read position can be saved and restored, such as Grain's dataset iterators."""

    def __next__(self) -> Element: ...

    def get_state(self) -> Any:
        """Returns how far the iterator has read, as plain data that a checkpoint can save."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves the iterator to a read position that `get_state` returned."""
        ...

    def close(self) -> None:
        """Stops the iterator's threads and closes its files."""
        ...


def beyond_end_error(position: int | None = None, count: int | None = None) -> InputError:
    """Creates the error for restoring an iterator to a saved position that lies after the end of the data.

    Args:
        position: The number of elements before the position, if known.
        count: The number of elements of the data, if known.
    """
    numbers = "" if position is None else f": the position is after {position} elements, and it has {count}"
    return InputError(
        "DatasetIterator.set_state",
        found=f"the dataset has fewer elements than when the position was saved{numbers}",
        rule="a position belongs to the same data, and continues after the elements before it",
        remedy="check that the files or the generator still have all elements, or begin a new epoch",
    )


def read_again(cursor: Any) -> Any:
    """Returns the next element of an iterator during the restoration of a read position.

    Raises:
        InputError: The data has no further element. StopIteration would end the iteration that restores the position.
    """
    try:
        return next(cursor)
    except StopIteration:
        raise beyond_end_error() from None


@dataclasses.dataclass(frozen=True)
class Failed:
    """A placeholder for an element whose computation raised an exception; holds the exception."""

    error: Exception


class PositionCursor:
    """A single-threaded iterator over a random-access sequence; its saved position has Grain's format.

    An element that raises an exception is passed, but not one that an interrupt ends.
    """

    def __init__(self, item: Callable[[int], Element], length: int) -> None:
        self._item, self._length, self._next = item, length, 0

    def __next__(self) -> Element:
        if self._next >= self._length:
            raise StopIteration
        try:
            element = self._item(self._next)
        except Exception:
            self._next += 1
            raise
        self._next += 1
        return element

    def get_state(self) -> Any:
        """Returns the index of the next element, in Grain's format of read positions."""
        return {"next_index": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the index of the next element from a result of `get_state`.

        Raises:
            InputError: The data has fewer elements.
        """
        if state["next_index"] > self._length:
            raise beyond_end_error(state["next_index"], self._length)
        self._next = state["next_index"]

    def close(self) -> None:
        """Does nothing, because this iterator has no resources to release."""


_ENDED_GENERATOR: Final = "this exception has ended the generator, which has no further elements"


def is_raised_again(error: BaseException) -> bool:
    """Returns whether `error` ended a generator at an earlier read and is now raised again."""
    return _ENDED_GENERATOR in getattr(error, "__notes__", ())


def can_continue(cursor: Cursor, before: object, error: Exception) -> bool:
    """Returns whether an iterator, after an exception for one element, can continue with the next element.

    Args:
        cursor: The iterator.
        before: Its position before the element.
        error: The exception.
    """
    return not is_raised_again(error) and cursor.get_state() != before


class IterableCursor:
    """An iterator over a Python iterable; restoring a saved position reads the earlier elements again.

    The saved position is the number of elements read.

    Args:
        make: Creates the iterable; called for every iteration.
        convert: From a yielded value and its index to an element.
        note_first: Receives the first yielded value when it is read again.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        convert: Callable[[Any, int], Element],
        note_first: Callable[[Any], object] = lambda value: None,
    ) -> None:
        self._make, self._convert, self._note_first = make, convert, note_first
        self._iterator: Iterator[Any] | None = None
        self._count = self._failed = 0  # elements, and exceptions between them: of an iterator that goes on after them
        self._failed_since = 0  # exceptions after the last element
        # What has ended a generator: without it, the data would seem to end there to `ignore_errors` of a later step.
        self._error: Exception | None = None
        self._is_interrupted = False  # an interrupt has ended a generator, so that a new one must take its place

    def __next__(self) -> Element:
        if self._is_interrupted:
            self._read_again(self._count, self._failed)
        iterator = self._iterator
        if iterator is None:
            iterator = self._iterator = self._begin()
        if self._error is not None:
            if not is_raised_again(self._error):
                self._error.add_note(_ENDED_GENERATOR)
            raise self._error
        try:
            value = next(iterator)
        except BaseException as error:
            if getattr(iterator, "gi_frame", self) is None and not isinstance(error, StopIteration):
                self._error = error if isinstance(error, Exception) else None
                self._is_interrupted = not isinstance(error, Exception)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                self._failed_since += 1
            raise
        if self._iterator is not iterator:  # another thread has called `close`, and left the iterator to this one
            close_iterator(iterator)
            raise closed_meanwhile_error()
        self._count, self._failed, self._failed_since = self._count + 1, self._failed + self._failed_since, 0
        return self._convert(value, self._count - 1)

    def _begin(self) -> Iterator[Any]:
        with no_end("the function or object that creates an iterator"):
            return iter(self._make())

    def get_state(self) -> Any:
        # Exceptions after the last element come again after the position.
        return {"count": self._count, **({"failed": self._failed} if self._failed else {})}

    def set_state(self, state: dict[str, Any]) -> None:
        self.close()
        self._count, self._error, self._is_interrupted = 0, None, False
        self._failed = self._failed_since = 0
        if state["count"]:
            self._read_again(state["count"], state.get("failed", 0))

    def _read_again(self, count: int, failed: int) -> None:
        iterator, left_to_fail, left = self._begin(), failed, count
        while left:
            try:
                value = next(iterator)
                if left == count:
                    self._note_first(value)
                left -= 1
            except StopIteration:
                raise beyond_end_error() from None
            except Exception:  # as when the position was saved, with `ignore_errors`
                if not left_to_fail:
                    raise
                left_to_fail -= 1
        self._iterator, self._is_interrupted = iterator, False
        self._count, self._failed, self._failed_since = count, failed, 0

    def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        close_or_leave(iterator)


class SequenceCursor:
    """An iterator over several streams, one after the other; implements concatenate, repeat and multi-file reading.

    Args:
        open_part: Opens part i, or returns None after the last one.
        needs_elements: Whether to stop after an empty part, for an infinite repeat: all its later parts would be empty.
    """

    def __init__(self, open_part: Callable[[int], Cursor | None], needs_elements: bool = False) -> None:
        self._open_part, self._needs_elements = open_part, needs_elements
        self._part = self._seen = 0
        self._cursor: Cursor | None = None

    def __next__(self) -> Element:
        while True:
            if self._cursor is None:
                self._cursor = self._open_part(self._part)
                if self._cursor is None:
                    raise StopIteration
            try:
                element = next(self._cursor)
            except StopIteration:
                if self._needs_elements and self._seen == 0:
                    raise
                self._cursor.close()
                self._cursor, self._part, self._seen = None, self._part + 1, 0
                continue
            self._seen += 1
            return element

    def get_state(self) -> Any:
        inner = None if self._cursor is None else self._cursor.get_state()
        return {"part": self._part, "seen": self._seen, "inner": inner}

    def set_state(self, state: dict[str, Any]) -> None:
        checked(state["inner"])  # opening a pipe again would wait for ever
        self.close()
        self._part, self._seen = state["part"], state["seen"]
        if state["inner"] is not None:
            self._cursor = self._open_part(self._part)
            if self._cursor is None:
                raise beyond_end_error()
            self._cursor.set_state(state["inner"])

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = None


class RebatchCursor:
    """An iterator that regroups the examples of batches into batches whose sizes cycle through `sizes`.

    A saved position consists of the parent's position before its current batch, the number of rows of that batch that
    were returned, and, if there are several sizes, the number of the next one. Grain's RebatchIterDataset has the same
    positions, but returns an additional batch of zero rows after a position that was saved at the last row.
    """

    def __init__(self, parent: Cursor, sizes: tuple[int, ...], drop_remainder: bool) -> None:
        self._parent, self._sizes, self._drop, self._before = parent, sizes, drop_remainder, parent.get_state()
        self._batch: Element = None
        self._length = self._row = self._turn = 0

    def __next__(self) -> Element:
        parts: list[Element] = []
        missing = size = self._sizes[self._turn]
        if not size and (self._batch is not None or self._read()):
            parts.append(self._rows(0))
        while missing:
            if self._row >= self._length and not self._read():
                break
            count = min(missing, self._length - self._row)
            if count:
                parts.append(self._rows(count))
                missing -= count
        if not parts or (missing and self._drop):
            raise StopIteration
        if not missing:  # a batch that is not full is the last one, also if the next size is 0
            self._turn = (self._turn + 1) % len(self._sizes)
        return joined(parts, "Dataset.rebatch")

    def _rows(self, count: int) -> Element:
        """Returns the next `count` examples of the current input batch."""
        rows = slice(self._row, self._row + count)
        self._row += count
        return tree_map(lambda leaf: leaf[rows], self._batch)

    def _read(self) -> bool:
        """Reads the next input batch; returns False at the end of the data."""
        before = self._parent.get_state()
        try:
            batch = next(self._parent)
            length = batch_size(batch, "Dataset.rebatch")
        except StopIteration:
            if self._batch is None and self._row:
                raise beyond_end_error() from None
            if len(self._sizes) == 1:  # else batches of size 0 may follow, which have the shapes of the last batch
                self._before, self._batch, self._length, self._row = before, None, 0, 0
            return False
        except Exception:  # `ignore_errors` goes on after this batch, and sees it by the position
            self._before, self._batch, self._length, self._row = self._parent.get_state(), None, 0, 0
            raise
        # After a restored position `_row` is the first row of this batch that was not returned.
        self._row = 0 if self._batch is not None else self._row
        if self._row > length:
            raise beyond_end_error()
        self._before, self._batch, self._length = before, batch, length
        return True

    def get_state(self) -> Any:
        # The keys are part of the format of saved positions.
        turn = {"turn": self._turn} if len(self._sizes) > 1 else {}
        return {"parent": self._before, "batch_idx": self._row, **turn}

    def set_state(self, state: Any) -> None:
        self._parent.set_state(state["parent"])
        self._before, self._row = state["parent"], state["batch_idx"]
        self._turn = state.get("turn", 0) % len(self._sizes)  # the sizes may be others
        self._batch, self._length = None, 0

    def close(self) -> None:
        self._parent.close()
