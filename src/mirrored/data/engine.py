"""Adapter for Grain: the only module that imports it. Get it by `mirrored.data.extra.engine()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grain
from grain import experimental

from mirrored.data.cursors import Cursor
from mirrored.data.elements import Element

_MAX_THREADS = 16
_QUIET = experimental.DatasetOptions(filter_warn_threshold_ratio=None)


class CursorIterator(grain.DatasetIterator):  # type: ignore[misc]  # grain ships no types
    """A Grain iterator that reads from a `Cursor`."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__()
        self._cursor = cursor

    def __next__(self) -> Any:
        self._assert_not_closed()
        return next(self._cursor)

    def get_state(self) -> Any:
        """Returns the cursor's position: how far it has read."""
        return self._cursor.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves the cursor to a position that `get_state` returned."""
        self._cursor.set_state(state)

    def close(self) -> None:
        """Closes the cursor; repeated calls have no effect."""
        # Grain calls close from __del__, also when __init__ has not finished.
        if not getattr(self, "_closed", True):
            self._closed = True
            self._cursor.close()


class CursorDataset(grain.IterDataset):  # type: ignore[misc]
    """A Grain dataset that creates a new `Cursor` for every iteration."""

    def __init__(self, make: Callable[[], Cursor], name: str) -> None:
        super().__init__()
        self._make = make
        self._name = name

    def __iter__(self) -> CursorIterator:
        return CursorIterator(self._make())

    def __str__(self) -> str:
        return self._name


def by_position(item: Callable[[int], Any], length: int, threads: int) -> Any:
    """Returns a dataset whose element i is `item(i)`, computed in `threads` threads (0: in the caller's)."""
    threads = min(threads, _MAX_THREADS)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    return grain.MapDataset.range(length).map(item).to_iter_dataset(options)


def is_beyond_end(error: IndexError) -> bool:
    """Returns whether `set_state` of a dataset of `by_position` raised `error` for a position after the end."""
    return "is out of range for dataset of length" in str(error)


def by_cursor(make: Callable[[], Cursor], name: str) -> Any:
    """Returns a Grain dataset whose iterations read from a `Cursor` that `make` creates."""
    return CursorDataset(make, name)


def map_with_index(parent: grain.IterDataset, function: Callable[[int, Any], Any]) -> Any:
    """Returns a dataset of `function(i, element)` for every element i."""
    return parent.map_with_index(function)


def filter_elements(parent: grain.IterDataset, predicate: Callable[[Any], bool]) -> Any:
    """Keeps the elements for which `predicate` is True, without Grain's warning that few remain."""
    return experimental.WithOptionsIterDataset(parent.filter(predicate), _QUIET)


def batch(
    parent: grain.IterDataset, size: int, drop_remainder: bool, make_batch: Callable[[Sequence[Any]], Any]
) -> Any:
    """Groups `size` consecutive elements, and returns a dataset of `make_batch(group)`."""
    return parent.batch(size, drop_remainder=drop_remainder, batch_fn=make_batch)


def unbatch(parent: grain.IterDataset, rows: Callable[[Any], list[Any]]) -> Any:
    """Replaces every element by the list of elements that `rows(element)` returns."""

    class GrainRows(experimental.FlatMapTransform):  # type: ignore[misc]
        def flat_map(self, element: Element) -> list[Any]:
            return rows(element)

    return experimental.FlatMapIterDataset(parent, GrainRows())


def limit(parent: grain.IterDataset, count: int) -> Any:
    """Keeps the first `count` elements; `count` is at least 1."""
    return experimental.LimitIterDataset(parent, count)


def zip_shortest(parents: Sequence[Any]) -> Any:
    """Returns a dataset of tuples with one element per parent, which ends with the shortest parent."""
    return experimental.ZipIterDataset(parents, strict=False)


def thread_prefetch(parent: grain.IterDataset, size: int) -> Any:
    """Prefetches `size` elements in a thread."""
    return experimental.ThreadPrefetchIterDataset(parent, prefetch_buffer_size=size)


def is_grain_dataset(source: object) -> bool:
    """Returns whether `source` is a Grain dataset."""
    return isinstance(source, grain.MapDataset | grain.IterDataset)


def is_grain_loader(source: object) -> bool:
    """Returns whether `source` is a Grain DataLoader."""
    return isinstance(source, grain.DataLoader)
