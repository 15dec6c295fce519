"""Sequential operations for use before `ignore_errors`, in which an element that raises an exception keeps its index.

Grain's sequential map and batch do not count such an element, so that later elements would have other indices and
batches than in an indexed pipeline. The iterators here count it. Their saved positions have the formats of Grain's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from mirrored.data.cursors import Cursor, Failed, can_continue, is_raised_again
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.pipeline.nodes import Node, Run

FAULTS: Final = (TypeError, NameError, AttributeError, AssertionError)
"""Exceptions of programs, not of data: `ignore_errors` raises them."""


def mapped(parent: Node, run: Run, function: Callable[[int, Element], Element], name: str) -> Any:
    """Returns a Grain dataset that applies `function(index, element)` to each element.

    If `ignore_errors` follows, the index also counts the elements that raise an exception.

    Args:
        parent: The operation whose elements are mapped.
        run: The pass over the dataset.
        function: Computes an element.
        name: The operation's name.
    """
    if run.ignores_errors:
        return engine().by_cursor(lambda: _MapCursor(parent.cursor(run), function), name)
    return engine().map_with_index(parent.stream(run), function)


class CountingCursor:
    """Base class of iterators that count the elements of a parent iterator, including those that raise an exception.

    Attributes:
        count_key: The name of the count in saved positions.
    """

    count_key: ClassVar[str]

    def __init__(self, parent: Cursor) -> None:
        self._parent, self._count = parent, 0

    def _read(self) -> Element:
        """Reads and counts the parent iterator's next element."""
        before = self._parent.get_state()
        try:
            element = next(self._parent)
        except StopIteration:
            raise
        except Exception as error:
            self._count += can_continue(self._parent, before, error)
            raise
        self._count += 1
        return element

    def get_state(self) -> Any:
        """Returns the parent iterator's position, and the number of its elements read so far."""
        return {"parent": self._parent.get_state(), self.count_key: self._count}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the parent iterator's position and the element count that `get_state` returned."""
        self._parent.set_state(state["parent"])
        self._count = state[self.count_key]

    def close(self) -> None:
        """Closes the parent iterator."""
        self._parent.close()


class _MapCursor(CountingCursor):
    count_key = "counter"

    def __init__(self, parent: Cursor, function: Callable[[int, Element], Element]) -> None:
        super().__init__(parent)
        self._function = function

    def __next__(self) -> Element:
        element = self._read()
        return self._function(self._count - 1, element)


class FailingReads:
    """Reads the elements of an iterator, and returns a `Failed` for each element that raises an exception.

    Args:
        parent: The iterator. If it raises twice at one position, it cannot go on, and the exception is raised.
        ignores_errors: Whether `ignore_errors` follows. Otherwise every exception is raised.
    """

    def __init__(self, parent: Cursor, ignores_errors: bool = True) -> None:
        self._parent, self._ignores_errors = parent, ignores_errors
        self._failed_at: Any = None  # the iterator's position after the last exception

    def read(self) -> Element | Failed:
        """Returns the next element, or a `Failed` if reading it raises an exception.

        Raises:
            StopIteration: There are no more elements.
        """
        try:
            return next(self._parent)
        except (StopIteration, *FAULTS):
            raise
        except Exception as error:
            place = self._parent.get_state()
            if not self._ignores_errors or place == self._failed_at or is_raised_again(error):
                raise
            self._failed_at = place
            return Failed(error)

    def forget_exception(self) -> None:
        """Forgets the last exception, because the iterator was moved to another position."""
        self._failed_at = None


class BatchCursor:
    """An iterator that batches another iterator's elements; for a batch with failed elements, raises the first error.

    The iterator raises the exception of the first such element, after all elements of the batch.

    Args:
        parent: The other iterator.
        size: The number of elements in a batch.
        drop_remainder: Whether to drop the last batch if it is not full.
        make_batch: From the elements to the batch.
    """

    def __init__(
        self, parent: Cursor, size: int, drop_remainder: bool, make_batch: Callable[[Sequence[Element]], Element]
    ) -> None:
        self._parent, self._size, self._drop, self._make_batch = parent, size, drop_remainder, make_batch
        self._reads = FailingReads(parent)
        self._ended = False

    def __next__(self) -> Element:
        elements = list[Element | Failed]()
        while len(elements) < self._size and not self._ended:
            try:
                elements.append(self._reads.read())
            except StopIteration:
                self._ended = True
        if not elements or (self._drop and len(elements) < self._size):
            raise StopIteration
        raise_failed(elements)
        return self._make_batch(elements)

    def get_state(self) -> Any:
        """Returns the parent iterator's position."""
        return self._parent.get_state()

    def set_state(self, state: Any) -> None:
        """Moves the parent iterator to a position that `get_state` returned."""
        self._parent.set_state(state)
        self._reads.forget_exception()
        self._ended = False

    def close(self) -> None:
        """Closes the parent iterator."""
        self._parent.close()


def raise_failed(elements: Sequence[Element | Failed]) -> None:
    """Raises the exception of the first `Failed` placeholder in `elements`, if there is one."""
    for element in elements:
        if type(element) is Failed:
            raise element.error
