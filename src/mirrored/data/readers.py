"""Reading for all replicas at once: global batches, or one element per replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from mirrored.data._elements import Element
from mirrored.data.input_options import InputOptions
from mirrored.data.placing import Placer
from mirrored.data.sources import Source
from mirrored.data.splitting import batch_size, pad
from mirrored.errors import ArgumentError


class Reader(Protocol):
    """Reads elements for all replicas at once, on the host."""

    @property
    def ends_together(self) -> bool:
        """Of several workers with data of their own: whether the first one to end ends all."""
        ...

    def read(self) -> tuple[Any, int]:
        """What the placer gets next, and how many examples it holds."""
        ...

    def place(self, placer: Placer, read: Any) -> Any:
        """Puts it on the devices."""
        ...

    def get_state(self) -> Any:
        """The position."""
        ...

    def set_state(self, state: Any) -> None:
        """Goes to a position."""
        ...

    def close(self) -> None:
        """Gives up the sources."""
        ...


class GlobalBatches:
    """Reads global batches and applies the rule for the last one.

    Args:
        source: Where they come from.
        options: With the rule.
        num_replicas: Of those that a batch is for; for padding.
    """

    @property
    def ends_together(self) -> bool:
        """Whether no batch can be empty."""
        return self._rule == "drop"

    @property
    def cursor(self) -> Any:
        """The reading of the source."""
        return self._cursor

    @property
    def first(self) -> Any:
        """The first batch that was read, None before."""
        return self._first

    def __init__(self, source: Source, options: InputOptions, num_replicas: int) -> None:
        self._source, self._rule, self._num_replicas = source, options.last_batch, num_replicas
        self._cursor = source.open()
        self._first: Any = None
        self._full: int | None = None
        self._consumed = 0
        self._leave_out = 0

    def read(self) -> tuple[Any, int]:
        """The next global batch as the rule makes it."""
        while True:
            batch, count = self._next_batch()
            if self._full is None:
                self._full = count
            if self._first is None:
                self._first = batch
            if self._rule == "drop" and count < self._full:
                continue
            return (pad(batch, self._num_replicas, self._full) if self._rule == "pad" else batch), count

    def _next_batch(self) -> tuple[Element, int]:
        while True:
            batch = next(self._cursor)
            count = batch_size(batch, "Strategy.experimental_distribute_dataset")
            if self._leave_out == 0:
                self._consumed += count
                return batch, count
            skipped = min(self._leave_out, count)
            self._leave_out -= skipped
            if self._full is None:
                self._full = count
            if skipped < count:
                self._consumed += count - skipped
                return jax.tree.map(lambda leaf, skipped=skipped: leaf[skipped:], batch), count - skipped

    def place(self, placer: Placer, read: Any) -> Any:
        """Cuts it and puts the shares on their devices."""
        return placer.batch(read)

    def get_state(self) -> Any:
        """How many examples of the source were consumed, and the source's own position."""
        return {
            "source": self._cursor.get_state(),
            "consumed": self._consumed,
            "leave_out": self._leave_out,
            "full": self._full,
        }

    def set_state(self, state: Any) -> None:
        """Goes there directly if the source is the same; else by leaving out as many examples."""
        self._consumed = state["consumed"]
        if self._source.restore(self._cursor, state["source"], state["full"]):
            self._full, self._leave_out = state["full"], state["leave_out"]
        else:
            self._full, self._leave_out = None, self._consumed

    def close(self) -> None:
        """Closes the source."""
        self._cursor.close()


class ElementsInTurn:
    """Reads one element for each replica: of one source in turn, or of one source each.

    Args:
        sources: One, or one per replica.
        num_replicas: How many replicas read here.
        leaves_out_incomplete: At the end, whether a row that does not reach all replicas is left out. Else the missing
            elements are empty batches.
    """

    @property
    def ends_together(self) -> bool:
        """Whether no element can be an empty batch."""
        return self._leaves_out_incomplete or self._scalars

    def __init__(self, sources: Sequence[Source], num_replicas: int, leaves_out_incomplete: bool) -> None:
        self._cursors = [source.open() for source in sources]
        self._num_replicas = num_replicas
        self._leaves_out_incomplete = leaves_out_incomplete
        self._scalars = False
        self._rows = 0

    def read(self) -> tuple[Any, int]:
        """One element per replica."""
        elements: list[Element] = []
        for replica in range(self._num_replicas):
            try:
                elements.append(next(self._cursors[replica % len(self._cursors)]))
            except StopIteration:
                break
        missing = self._num_replicas - len(elements)
        if missing and (not elements or self._leaves_out_incomplete or _has_scalars(elements[0])):
            raise StopIteration
        self._scalars = _has_scalars(elements[0])
        self._rows += 1
        count = sum(_examples(element) for element in elements)
        elements += [jax.tree.map(lambda leaf: leaf[:0], elements[0]) for _ in range(missing)]
        return elements, count

    def place(self, placer: Placer, read: Any) -> Any:
        """Puts each element on its replica's device."""
        return placer.elements(read)

    def get_state(self) -> Any:
        """The positions of the sources."""
        return {"sources": [cursor.get_state() for cursor in self._cursors], "rows": self._rows}

    def set_state(self, state: Any) -> None:
        """Goes to positions of as many sources."""
        if len(state.get("sources", ())) != len(self._cursors):
            raise ArgumentError(
                "DistributedIterator.set_state",
                found=f"a position of {len(state.get('sources', ()))} input pipelines",
                rule=f"this dataset has {len(self._cursors)}: its function is called once for each",
                remedy="resume with as many pipelines, or use experimental_distribute_dataset",
            )
        for cursor, position in zip(self._cursors, state["sources"], strict=True):
            cursor.set_state(position)

    def close(self) -> None:
        """Closes the sources."""
        for cursor in self._cursors:
            cursor.close()


def _has_scalars(element: Element) -> bool:
    return any(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(element))


def _examples(element: Element) -> int:
    return 1 if _has_scalars(element) else batch_size(element, "Strategy.distribute_datasets_from_function")
