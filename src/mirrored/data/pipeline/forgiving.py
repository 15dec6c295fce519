"""The sequential forms of map and batch before `ignore_errors`, where an element that raises keeps its place.

Grain's forms do not count such an element: the later ones would have other indices and batches than in an indexed
pipeline. Saved positions have the formats of Grain's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from mirrored.data.cursors import Cursor, has_ended_generator, has_passed
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.pipeline.nodes import Node, Run

FAULTS: Final = (TypeError, NameError, AttributeError, AssertionError)
"""Exceptions of programs, not of data: `ignore_errors` raises them."""


def mapped(parent: Node, run: Run, function: Callable[[int, Element], Element], name: str) -> Any:
    """Returns a Grain dataset with the elements `function(i, element)`, where i is the element's index.

    Args:
        parent: The operation whose elements are mapped.
        run: The pass. Before `ignore_errors` an element that raises has an index, too.
        function: Computes an element.
        name: The operation's name.
    """
    if run.forgives:
        return engine().by_cursor(lambda: _MapCursor(parent.cursor(run), function), name)
    return engine().map_with_index(parent.stream(run), function)


class _MapCursor:
    def __init__(self, parent: Cursor, function: Callable[[int, Element], Element]) -> None:
        self._parent, self._function, self._index = parent, function, 0

    def __next__(self) -> Element:
        before = self._parent.get_state()
        try:
            element = next(self._parent)
        except StopIteration:
            raise
        except Exception as error:
            self._index += has_passed(self._parent, before, error)
            raise
        self._index += 1
        return self._function(self._index - 1, element)

    def get_state(self) -> Any:
        return {"parent": self._parent.get_state(), "counter": self._index}

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state["parent"])
        self._index = state["counter"]

    def close(self) -> None:
        self._parent.close()


class BatchCursor:
    """An iterator over the batches of another iterator's elements; a batch with an element that raises is left out.

    The iterator raises the exception of the first such element, after all elements of the batch. If the other iterator
    raises twice at one position, it cannot go on.

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
        self._failed_at: Any = None  # the parent's position after the last error
        self._ended = False

    def __next__(self) -> Element:
        elements, errors = list[Element](), list[Exception]()
        while len(elements) + len(errors) < self._size and not self._ended:
            try:
                elements.append(next(self._parent))
            except StopIteration:
                self._ended = True
            except FAULTS:
                raise
            except Exception as error:
                place = self._parent.get_state()
                if place == self._failed_at or has_ended_generator(error):
                    raise
                self._failed_at = place
                errors.append(error)
        count = len(elements) + len(errors)
        if not count or (self._drop and count < self._size):
            raise StopIteration
        if errors:
            raise errors[0]
        return self._make_batch(elements)

    def get_state(self) -> Any:
        """Returns the position of the other iterator."""
        return self._parent.get_state()

    def set_state(self, state: Any) -> None:
        """Moves to a position that `get_state` returned."""
        self._parent.set_state(state)
        self._failed_at, self._ended = None, False

    def close(self) -> None:
        """Closes the other iterator."""
        self._parent.close()
