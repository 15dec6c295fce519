"""The operation `zip`, with and without random access."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mirrored._jax.trees import Structure
from mirrored.data.calling import close_each
from mirrored.data.cursors import Cursor
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.data.pipeline.nodes import Rows, Run, rows_of
from mirrored.data.pipeline.transformations import Several


@dataclasses.dataclass(frozen=True, eq=False)
class Zipped(Several):
    """The operation `zip`: combines elements at the same index into a pytree."""

    treedef: Any

    @property
    def cardinality(self) -> int:
        known = [member.cardinality for member in self.members]
        if UNKNOWN_CARDINALITY in known:
            return UNKNOWN_CARDINALITY
        return min((count for count in known if count >= 0), default=INFINITE_CARDINALITY)

    @property
    def spec(self) -> Any:
        return self.treedef.unflatten([member.spec for member in self.members])

    def open(self, run: Run) -> Rows:
        return _ZippedRows([rows_of(member, own) for member, own in self.members.with_runs(run)], self.treedef)

    def in_sequence(self, run: Run) -> Any:
        def cursor() -> Cursor:
            return ZipCursor([member.cursor(own) for member, own in self.members.with_runs(run)])

        return engine().map_with_index(
            engine().by_cursor(cursor, "zip"), lambda _, parts: self.treedef.unflatten(parts)
        )


class ZipCursor:
    """An iterator that zips several iterators into lists of elements; ends with the shortest iterator.

    If one of them raises an exception, the others are read, too, so that the next elements belong together
    (`ignore_errors`). Saved positions have the format of Grain's ZipIterDataset, which does not read the others.

    Source: `tf.data.Dataset.zip`.
    """

    def __init__(self, members: Sequence[Cursor]) -> None:
        self._members = members

    def __next__(self) -> list[Element]:
        parts: list[Element] = []
        first: Exception | None = None
        for member in self._members:
            try:
                parts.append(next(member))
            except StopIteration:
                if first is None:
                    raise
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
        return parts

    def get_state(self) -> Any:
        return {"parents": [member.get_state() for member in self._members]}

    def set_state(self, state: dict[str, Any]) -> None:
        for member, position in zip(self._members, state["parents"], strict=True):
            member.set_state(position)

    def close(self) -> None:
        close_each(self._members)


class _ZippedRows:
    def __init__(self, members: list[Rows], treedef: Structure) -> None:
        self._members, self._treedef = members, treedef
        self.length = min(member.length for member in members)

    def item(self, index: int) -> Element:
        return self._treedef.unflatten([member.item(index) for member in self._members])

    def rows(self, positions: range | np.ndarray) -> Element:
        return self._treedef.unflatten([member.rows(positions) for member in self._members])
