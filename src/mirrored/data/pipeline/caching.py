"""Implements `Dataset.cache()` in memory: keeps the elements of the first pass over the dataset for later passes."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from mirrored._jax.arrays import frozen
from mirrored._jax.trees import tree_map, with_new_containers
from mirrored.data.cursors import Cursor, Failed, beyond_end_error, can_continue
from mirrored.data.elements import Element
from mirrored.data.pipeline.left_out import LeftOut
from mirrored.data.pipeline.nodes import ENDLESS, ItemRows, Rows, Run, nodes, pinned, rows_of, seeds_of
from mirrored.data.pipeline.transformations import CursorTransformation, OneParent


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
