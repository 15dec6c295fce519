"""The iterator of the dataset operation `unbatch`."""

from __future__ import annotations

from typing import Any

from mirrored._jax.trees import tree_map
from mirrored.data.cursors import Cursor, beyond_end_error
from mirrored.data.elements import Element
from mirrored.data.placement import batch_size


class UnbatchCursor:
    """An iterator over the single examples in the batches of another iterator.

    Saved positions have the format of Grain's FlatMapIterDataset, which returns the examples of a batch again if the
    next one cannot be split.
    """

    def __init__(self, parent: Cursor) -> None:
        self._parent, self._before = parent, parent.get_state()
        self._rows: list[Element] = []
        self._next = 0

    def __next__(self) -> Element:
        while self._next >= len(self._rows):
            self._read()
        element = self._rows[self._next]
        self._next += 1
        return element

    def _read(self) -> None:
        self._before, self._rows, self._next = self._parent.get_state(), [], 0
        try:
            self._rows = _rows_of(next(self._parent))
        except StopIteration:
            raise
        except Exception:
            self._before = self._parent.get_state()
            raise

    def get_state(self) -> Any:
        return {"parent": self._before, "next_index_in_buffer": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state["parent"])
        self._before, self._rows, self._next = state["parent"], [], 0
        if state["next_index_in_buffer"]:
            try:
                self._read()
            except StopIteration:  # positions of earlier versions at the end of the data have the last batch's index
                return
            if state["next_index_in_buffer"] > len(self._rows):
                raise beyond_end_error()
            self._next = state["next_index_in_buffer"]

    def close(self) -> None:
        self._parent.close()


def _rows_of(element: Element) -> list[Element]:
    count = batch_size(element, "Dataset.unbatch")
    return [tree_map(lambda leaf, row=row: leaf[row], element) for row in range(count)]
