"""Reading for all replicas at once: global batches, or one element per replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import jax
import numpy as np

from mirrored._jax.host_memory import owned
from mirrored.data.elements import Element
from mirrored.data.input_options import InputOptions
from mirrored.data.placing import Placer
from mirrored.data.sources import Source
from mirrored.data.splitting import batch_size, pad
from mirrored.data.stats import log
from mirrored.errors import ArgumentError

_NOTHING: Final = object()


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


def is_power_of_two(number: int) -> bool:
    """Whether a positive number is 1, 2, 4, 8, ..."""
    return number & (number - 1) == 0


class GlobalBatches:
    """Reads global batches and applies the rule for the last one.

    Args:
        source: Where they come from.
        options: With the rule.
        num_replicas: Of those that a batch is for; for padding.

    Raises:
        StructureError: The steps of the dataset show that its elements are single examples.
    """

    _samples: dict[int, Any] | None

    @property
    def ends_together(self) -> bool:
        """Whether no batch can be empty."""
        return self._rule == "drop"

    @property
    def cursor(self) -> Any:
        """The reading of the source."""
        return self._cursor

    @property
    def empty(self) -> Any:
        """A batch without examples, None where none is known."""
        return self._source.empty

    def keep_samples(self) -> None:
        """Has the batches with the numbers 1, 2, 4, 8, ... kept for `sample`. Context: before the first `read`."""
        self._samples = {}

    def sample(self, number: int) -> Any:
        """One of these batches. Each is given once."""
        return None if self._samples is None else self._samples.pop(number)

    def __init__(self, source: Source, options: InputOptions, num_replicas: int) -> None:
        source.refuse_unbatched("Strategy.experimental_distribute_dataset")
        self._source, self._rule, self._num_replicas = source, options.last_batch, num_replicas
        self._cursor = source.open()
        self._count = 0
        self._samples = None
        self._full: int | None = None
        self._consumed = 0
        self._leave_out = 0
        self._may_be_rows = source.may_be_unbatched
        self._before: Any = None

    def read(self) -> tuple[Any, int]:
        """The next global batch as the rule makes it."""
        while True:
            batch, count = self._next_batch()
            if self._may_be_rows:
                self._look_for_rows(batch, count)
            if self._full is None:
                self._full = count
            if self._samples is not None and is_power_of_two(self._count + 1):
                self._samples[self._count + 1] = jax.tree.map(owned, batch)
            if self._rule == "drop" and count < self._full:
                continue
            self._count += 1
            return (pad(batch, self._num_replicas, self._full) if self._rule == "pad" else batch), count

    def _look_for_rows(self, batch: Element, count: int) -> None:
        """Warns if the first two batches look like single examples: vectors that do not split evenly.

        Nothing in their structure tells a vector of features from a batch of numbers.
        """
        if self._before is None and all(np.ndim(leaf) == 1 for leaf in jax.tree.leaves(batch)):
            self._before = count
            return
        self._may_be_rows = False
        if self._before == count and count % self._num_replicas:
            log.warning(
                "experimental_distribute_dataset takes each vector of %d numbers as a batch of %d examples, which do "
                "not split evenly over %d replicas. If a vector is one example, the dataset is not batched: %s",
                count,
                count,
                self._num_replicas,
                self._source.batching,
            )

    def _next_batch(self) -> tuple[Element, int]:
        while True:
            batch = next(self._cursor)
            count = batch_size(batch, "Strategy.experimental_distribute_dataset", self._source.batching)
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

    Where the elements end before the replicas do, the missing ones are empty batches, so that every example is used.
    Scalars have no empty form: such a row is left out, and a warning is logged.

    Args:
        sources: One, or one per replica.
        num_replicas: How many replicas read here.
    """

    @property
    def ends_together(self) -> bool:
        """Whether no element can be an empty batch."""
        return self._scalars

    def __init__(self, sources: Sequence[Source], num_replicas: int) -> None:
        self._cursors = [source.open() for source in sources]
        self._num_replicas = num_replicas
        self._scalars = False
        self._rows = 0
        self._ended: set[int] = set()

    def read(self) -> tuple[Any, int]:
        """One element per replica."""
        elements = [self._next(replica % len(self._cursors)) for replica in range(self._num_replicas)]
        given = [element for element in elements if element is not _NOTHING]
        if not given:
            raise StopIteration
        self._scalars = _has_scalars(given[0])
        if self._scalars and len(given) < self._num_replicas:
            log.warning(
                "distribute_datasets_from_function leaves out %d element(s) at the end of the dataset: they do not "
                "reach all %d replicas, and the others cannot get an empty batch, since the elements are scalars. "
                "Call .batch(per_replica_batch_size), or make the number of elements a multiple of the replicas",
                len(given),
                self._num_replicas,
            )
            raise StopIteration
        self._rows += 1
        count = sum(_examples(element) for element in given)
        empty = jax.tree.map(lambda leaf: leaf[:0], given[0]) if len(given) < self._num_replicas else None
        return [empty if element is _NOTHING else element for element in elements], count

    def _next(self, place: int) -> Element:
        """The next element of a source, _NOTHING after its end."""
        if place in self._ended:
            return _NOTHING
        try:
            element = next(self._cursors[place])
        except StopIteration:
            self._ended.add(place)
            return _NOTHING
        # The source may refill the buffers for the next replica's element.
        return jax.tree.map(owned, element)

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
        self._ended.clear()
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
