"""Implements `Dataset.cache` and `snapshot`: the elements of the first pass are kept, in memory or in a file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from mirrored._jax.arrays import frozen
from mirrored._jax.trees import tree_map, with_new_containers
from mirrored.data.cursors import Cursor, Failed, PositionCursor, beyond_end_error, can_continue
from mirrored.data.elements import Element
from mirrored.data.pipeline.left_out import LeftOut
from mirrored.data.pipeline.nodes import (
    ENDLESS,
    CursorNode,
    ItemRows,
    Node,
    Rows,
    Run,
    elements_of,
    nodes,
    pinned,
    rows_of,
    seeded,
    seeds_of,
)
from mirrored.data.pipeline.storing import FILE, Stored, rows_in, store
from mirrored.data.pipeline.streams import StreamStep
from mirrored.data.pipeline.transformations import CursorTransformation, OneParent
from mirrored.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class Cached(OneParent, CursorTransformation):
    """The operation `cache()`: keeps the elements of the first pass over the dataset in memory for later passes.

    A random-access cache keeps each computed element by its index. If the operations before it call no user function
    and decode no file, it stores no elements and only fixes the shuffled order. That holds for memory-mapped arrays,
    too: the operating system caches their pages, and single elements are much slower to put into batches than rows of
    an array. A sequential cache is complete after one full iteration.

    Attributes:
        items: The elements by index, for each version of keys and set of seeds. A restored position has its own.
        complete: All elements of a sequential dataset, for each version of keys and set of seeds.
        made: The state of `Run.inner` after the pass that read these elements, for the positions of later passes.

    The receiver of an element may change its dict or list, so each pass returns new ones of the same arrays.

    A copy of the operation, such as the one that reads a worker's files, starts with an empty cache.
    """

    keeps_elements: ClassVar[bool] = True

    items: dict[tuple[int, ...], dict[int, Element]] = dataclasses.field(init=False, default_factory=dict)
    complete: dict[tuple[int, ...], list[Element]] = dataclasses.field(init=False, default_factory=dict)
    made: dict[tuple[int, ...], dict[str, Any]] = dataclasses.field(init=False, default_factory=dict)

    def open(self, run: Run) -> Rows:
        rows = rows_of(self.parent, pinned(run))
        computes = any(hasattr(step, "function") or step.reads_files for step in nodes(self.parent))
        if not computes or rows.length >= ENDLESS:
            return rows
        items = self.items.setdefault(self._key(run), {})

        def kept(index: int) -> Element:
            if index not in items:
                element = tree_map(frozen, rows.item(index))
                if not run.fills_caches:
                    return element
                items.setdefault(index, element)
            return with_new_containers(items[index])

        return ItemRows(rows.length, kept)

    def open_cursor(self, run: Run) -> Cursor:
        key = self._key(run)
        if not run.fills_caches and key not in self.complete:
            return self.parent.cursor(pinned(run))
        if run.inner is not None:
            run.inner.add(self.made.get(key, {}))
        if key in self.complete:
            run.forget_left_out()
        # Grain's cache belongs to one iterator, so that every epoch would compute the elements again.
        return _CacheCursor(self, pinned(run), key)

    def _key(self, run: Run) -> tuple[int, ...]:
        return (run.keys, *seeds_of(self.parent, run).values())


class _CacheCursor:
    """An iterator that fills and reads the in-memory cache of a sequential dataset."""

    def __init__(self, node: Cached, run: Run, key: tuple[int, ...]) -> None:
        self._node, self._run, self._key = node, run, key
        self._place = 0
        self._reading: Cursor | None = None
        self._read: list[Any] = []
        self._left_out = LeftOut(None) if run.inner is None else run.inner.left_out
        self._lacks = False  # elements that raised an exception; a later pass reads the parent again

    def __next__(self) -> Element:
        elements = self._node.complete.get(self._key)
        if elements is not None:
            self._check_place(len(elements))
            if self._place == len(elements):
                raise StopIteration
            self._place += 1
            return with_new_containers(elements[self._place - 1])
        self._fill(self._place + 1)
        self._place += 1
        element = self._read[self._place - 1]
        if type(element) is Failed:
            raise element.error
        return with_new_containers(element)

    def _fill(self, count: int) -> None:
        if self._reading is None:
            self._reading = self._node.parent.cursor(self._run)
        while len(self._read) < count:
            before = self._reading.get_state() if self._run.ignores_errors else None
            rereads = len(self._read) < self._place
            try:
                with self._left_out.rereading(rereads):
                    self._read.append(tree_map(frozen, next(self._reading)))
            except StopIteration:
                self._check_place(len(self._read))
                if not self._lacks:
                    self._node.complete[self._key] = self._read
                    self._node.made[self._key] = {} if self._run.inner is None else self._run.inner.get_state()
                raise
            except Exception as error:
                self._lacks = True
                # Without `ignore_errors` the iteration ends here. Otherwise it goes on, unless the parent cannot.
                if not self._run.ignores_errors or not can_continue(self._reading, before, error):
                    raise
                with self._left_out.rereading(rereads):
                    self._left_out.note(error)
                self._read.append(Failed(error))
            except BaseException:
                self._lacks = True
                raise

    def _check_place(self, length: int) -> None:
        if self._place > length:
            raise beyond_end_error(self._place, length)

    def get_state(self) -> Any:
        return {"place": self._place}

    def set_state(self, state: dict[str, Any]) -> None:
        # A position contains no elements: unless the cache is complete, the parent is read again up to this index.
        self._place = state["place"]

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Kept(StreamStep, CursorNode):
    """The operations `cache(filename)` and `snapshot`: write all elements to a file, which later passes read.

    Attributes:
        folder: The folder of the file.
        called: The function that the user called, for messages.
        stored: The file, after it was opened; it is opened or written again if it was deleted or replaced.
    """

    keeps_elements: ClassVar[bool] = True

    folder: str
    called: str
    stored: list[Stored] = dataclasses.field(init=False, default_factory=list)

    def fields_of_worker(self, worker: int, workers: int) -> dict[str, Any]:
        return {"folder": os.path.join(self.folder, f"worker-{worker}-of-{workers}")}

    def open_cursor(self, run: Run) -> Cursor:
        if not run.fills_caches and self._existing() is None:
            return self.parent.cursor(pinned(run))
        run.forget_left_out()
        rows = rows_in(self._open(run))
        return PositionCursor(rows.item, rows.length)

    def kept_seeds(self) -> dict[int, int]:
        """Returns the random seeds stored in the cache file, as a dict keyed by `id(operation)`.

        An earlier run of the program can have written the file, with other seeds than those of the steps.
        """
        stored = self._existing()
        known = [] if stored is None else stored.seeds
        return {id(step): seed for step, seed in zip(seeded(self.parent), known, strict=False)}

    def _existing(self) -> Stored | None:
        if self.stored and not self.stored[0].is_current:
            self.stored.clear()
        if not self.stored and (Path(self.folder) / FILE).exists():
            self.stored.append(Stored(self.folder, self.called))
        return next(iter(self.stored), None)

    def _open(self, run: Run) -> Stored:
        if self._existing() is None:
            used = set[int]()
            own = dataclasses.replace(pinned(run), makers=(), used_makers=used)
            with contextlib.closing(elements_of(self.parent, own)) as elements:
                seeds = list(seeds_of(self.parent, run).values())
                store(self.parent, self.folder, self.called, elements, seeds, self._unused(used))
        stored = self._existing()
        assert stored is not None
        others = (n for n, (step, seed) in enumerate(self.kept_seeds().items()) if run.seeds.get(step, seed) != seed)
        if run.continues and not set(stored.unused).issuperset(others):
            raise InputError(
                self.called,
                found=f"{self.folder} was written with other shuffle seeds than the position that you restore (or than "
                "worker 0 uses)",
                rule="the stored order must be the order in which the iteration began; another order would lose or "
                "repeat elements",
                remedy="delete the folder, so that it is written again with the right seeds, or copy the folder of the "
                "run that saved the position",
            )
        return stored

    def _unused(self, used: set[int]) -> Iterator[int]:
        """Yields the places, among the seeded steps, of those whose seed affected no element of a pass.

        Such a step makes datasets in which nothing is random, as `flat_map` of files. A step before another cache
        counts as used, because that cache can have elements of another pass, unless its file says that the step's
        seed affected none of them.

        Args:
            used: `Run.used_makers` of the pass, which is over when the first place is asked for.
        """
        inner = [cache for cache in nodes(self.parent) if cache.keeps_elements]
        kept = {id(step) for cache in inner for step in set(nodes(cache)) - set(_without_effect(cache))}
        for place, step in enumerate(seeded(self.parent)):
            if step.makes_datasets and id(step) not in used | kept:
                yield place


def _without_effect(cache: Node) -> list[Node]:
    """Returns the steps before a cache whose seeds affected no element in its file."""
    if not isinstance(cache, Kept) or (stored := cache._existing()) is None:
        return []
    steps = seeded(cache.parent)
    return [steps[place] for place in stored.unused]
