"""Caches the elements of the first iteration in memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from mirrored._jax.host_memory import frozen
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.indexed import ItemRows, OneParent
from mirrored.data.pipeline import ENDLESS, Cursor, Rows, Run, nodes
from mirrored.data.streams import StreamStep


def _pinned(run: Run) -> Run:
    """Returns the run without its epoch path. The steps before a cache run once, so they never reshuffle."""
    return Run(seeds=run.seeds)


@dataclasses.dataclass(frozen=True, eq=False)
class Cached(OneParent):
    """Caches every computed element by position. If no step before it computes anything, it fixes only the order."""

    items: dict[int, Element] = dataclasses.field(default_factory=dict)

    def open(self, run: Run) -> Rows:
        rows = self.parent.open(_pinned(run))
        computes = any(hasattr(step, "function") for step in nodes(self.parent))
        return _CachedRows(rows, self.items) if computes and rows.length < ENDLESS else rows


class _CachedRows(ItemRows):
    def __init__(self, parent: Rows, items: dict[int, Element]) -> None:
        self.length, self._parent, self._items = parent.length, parent, items

    def item(self, index: int) -> Element:
        if index not in self._items:
            self._items[index] = jax.tree.map(frozen, self._parent.item(index))
        return self._items[index]


@dataclasses.dataclass(frozen=True, eq=False)
class StreamCached(StreamStep):
    """Caches the elements of a stream after it has been read to its end."""

    complete: list[list[Element]] = dataclasses.field(default_factory=list)

    def stream(self, run: Run) -> Any:
        return engine().by_cursor(lambda: _CacheCursor(self, _pinned(run)), "cache")


class _CacheCursor:
    def __init__(self, node: StreamCached, run: Run) -> None:
        self._node, self._run = node, run
        self._place = 0
        self._reading: Cursor | None = None
        self._read: list[Element] = []

    def __next__(self) -> Element:
        if self._node.complete:
            elements = self._node.complete[0]
            if self._place >= len(elements):
                raise StopIteration
            self._place += 1
            return elements[self._place - 1]
        self._fill(self._place + 1)
        self._place += 1
        return self._read[self._place - 1]

    def _fill(self, count: int) -> None:
        if self._reading is None:
            self._reading = self._node.parent.cursor(self._run)
        while len(self._read) < count:
            try:
                self._read.append(jax.tree.map(frozen, next(self._reading)))
            except StopIteration:
                self._node.complete[:] = [self._read]
                raise

    def get_state(self) -> Any:
        return {"place": self._place}

    def set_state(self, state: Any) -> None:
        # A position contains no elements: unless the cache is complete, the parent is read again up to this index.
        self._place = state["place"]

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()
