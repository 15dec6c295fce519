"""Readers: objects that read the input of each training step, for all replicas, from one or several datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import jax
import numpy as np

from mirrored._jax.arrays import owned
from mirrored._jax.trees import tree_map
from mirrored.data.calling import close_each
from mirrored.data.common_position import check_workers
from mirrored.data.cursors import beyond_end_error, read_again
from mirrored.data.elements import Element
from mirrored.data.feed import log
from mirrored.data.input_options import InputOptions
from mirrored.data.layout import Layout
from mirrored.data.placement import Placer, batch_size, pad
from mirrored.data.sources import Source
from mirrored.errors import ArgumentError, StructureError

_CALLED = "next(iterator)"


_NOTHING: Final = object()


class Reader(Protocol):
    """Protocol of objects that read the input of a training step, for all replicas, into host memory.

    Attributes:
        layout: The structure, shapes and dtypes of its inputs.
    """

    layout: Layout

    @property
    def ends_together(self) -> bool:
        """Whether all workers stop when one worker has no more data; if False, that worker gets empty batches instead.

        It matters only if each worker reads its own data.
        """
        ...

    @property
    def shares_position(self) -> bool:
        """Whether readers of the same dataset share one read position, so that reading with one moves the others."""
        ...

    def read(self) -> tuple[Any, int]:
        """Reads the next training step's input into host memory; returns the input and its number of examples."""
        ...

    def no_examples(self) -> Any:
        """Returns an input with 0 examples, in the form that `place` accepts; None if the structure is not known."""
        ...

    def place(self, placer: Placer, read: Element | list[Element]) -> Any:
        """Moves a result of `read` from host memory to the devices, as per-replica values."""
        ...

    def get_state(self) -> Any:
        """Returns how far the reader has read, as data that a checkpoint can save."""
        ...

    def as_of_now(self, state: Any) -> Any:
        """Returns an earlier result of `get_state` with the pass counters updated to their current values."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves a newly opened reader, which has read nothing, to a read position that `get_state` returned."""
        ...

    def close(self) -> None:
        """Closes the reader's iterators over its datasets."""
        ...


def is_power_of_two(number: int) -> bool:
    """Returns whether a positive integer is a power of two."""
    return number & (number - 1) == 0


class GlobalBatches:
    """A reader of global batches; drops, pads or keeps an incomplete batch as the option `last_batch` says.

    Args:
        source: The source of the batches.
        options: The options, which contain the `last_batch` rule.
        num_replicas: The number of replicas that share a batch, for padding.

    Raises:
        StructureError: The steps of the dataset show that its elements are single examples. Also raised when a batch is
            read that is larger than the first, if batches are padded.
    """

    _samples: dict[int, Any] | None

    @property
    def ends_together(self) -> bool:
        """Whether all workers stop as soon as one worker has no more data; True if incomplete batches are dropped."""
        return self._rule == "drop"

    @property
    def shares_position(self) -> bool:
        """Whether all iterators over the dataset share one read position."""
        return self._source.shares_position

    def no_examples(self) -> Any:
        """Returns a batch with 0 examples, in the form that `place` accepts; None if the structure is not known."""
        known = self.layout.empty()
        if known is not None:
            return known
        empty = self._source.no_examples()
        return empty if empty is None or self._rule != "pad" else (empty, np.zeros(0, bool))

    def share_seeds(self) -> None:
        """Makes all workers use worker 0's shuffle seeds; must be called before the first batch is read."""
        self._source.share_seeds(self._cursor)

    def keep_samples(self) -> None:
        """Starts to keep copies of batches 1, 2, 4, 8, ... for `sample`, to compare the batches between workers."""
        self._samples = {}

    def sample(self, number: int) -> Any:
        """Returns the cached copy of the batch with the given number, counted from 1.

        Copies of batches 1, 2, 4, 8, ... are kept to compare the batches between workers (`keep_samples`). Returns None
        if there is no copy.
        """
        return None if self._samples is None else self._samples.get(number)

    def drop_sample(self, number: int) -> None:
        """Drops the kept copy of batch `number`."""
        if self._samples is not None:
            self._samples.pop(number, None)

    def __init__(self, source: Source, options: InputOptions, num_replicas: int) -> None:
        source.refuse_unbatched("Strategy.experimental_distribute_dataset")
        self._source, self._rule, self._num_replicas = source, options.last_batch, num_replicas
        self._cursor = source.open()
        self._count = 0
        self._samples = None
        self.layout = Layout()
        self._full: int | None = None
        self._final_rebatch_size = source.final_rebatch_size
        self._consumed = 0
        self._to_skip = 0  # examples
        self._may_be_rows = source.may_be_unbatched
        self._before: Any = None

    def read(self) -> tuple[Any, int]:
        """Reads the next global batch; returns the batch, padded if requested, and its number of real examples."""
        while True:
            batch, count, whole = self._next_batch()
            if self._may_be_rows:
                self._warn_if_unbatched(batch, count)
            if self._full is None:
                self._full = count
            if self._samples is not None and is_power_of_two(self._count + 1):
                self._samples[self._count + 1] = tree_map(owned, batch)
            if self._rule == "drop" and whole < self._full:
                continue
            self._count += 1
            result = self._padded(batch, count) if self._rule == "pad" else batch
            self.layout.note(result)
            return result, count

    def _padded(self, batch: Element, count: int) -> tuple[Element, np.ndarray]:
        padded, mask = pad(batch, self._num_replicas, self._full)
        size = -(-(self._full or 0) // self._num_replicas) * self._num_replicas
        if count > size:
            raise StructureError(
                "Strategy.experimental_distribute_dataset",
                found=f"batch {self._count} has {count} examples, and the first one has {self._full}",
                rule=f"last_batch='pad' pads all batches to the size of the first, here {size}, so none may be larger",
                remedy=f"yield batches of one size (Dataset.rebatch({count})), or use last_batch='split'",
            )
        return padded, mask

    def _warn_if_unbatched(self, batch: Element, count: int) -> None:
        """Warns if the first two batches look like single examples: vectors that do not split evenly over the replicas.

        The structure of a vector of features is the same as that of a batch of numbers.
        """
        if self._before is None and all(np.ndim(leaf) == 1 for leaf in jax.tree.leaves(batch)):
            self._before = count
            return
        self._may_be_rows = False
        if self._before == count and count % self._num_replicas:
            log.warning(
                "experimental_distribute_dataset treats each vector of %d numbers as a batch of %d examples, which do "
                "not split evenly over %d replicas. If a vector is one example, the dataset is not batched: %s",
                count,
                count,
                self._num_replicas,
                self._source.batching,
            )

    def _next_batch(self) -> tuple[Element, int, int]:
        """Returns the unread examples of the next batch, their number, and the size of the whole batch.

        A full batch of which a restored position has used a part is the rest of that batch: it is not dropped.
        """
        while True:
            try:
                batch = next(self._cursor)
            except StopIteration:
                if self._to_skip:
                    raise beyond_end_error(self._consumed, self._consumed - self._to_skip) from None
                raise
            count = batch_size(batch, "Strategy.experimental_distribute_dataset", self._source.batching)
            if self._to_skip == 0:
                self._consumed += count
                return batch, count, count
            skipped = min(self._to_skip, count)
            self._to_skip -= skipped
            if self._full is None:
                self._full = count
            if skipped < count:
                self._consumed += count - skipped
                return tree_map(lambda leaf, skipped=skipped: leaf[skipped:], batch), count - skipped, count

    def place(self, placer: Placer, read: Element | list[Element]) -> Any:
        """Splits a global batch, and moves each per-replica batch to its replica's device."""
        return placer.batch(read)

    def get_state(self) -> Any:
        """Returns how far the reader has read: the dataset iterator's state and the number of examples read.

        The state also contains the number of examples that a restored reader has yet to skip (`leave_out`), the size of
        a full batch (`full`), and the layout, if it is recorded.
        """
        return {
            "source": self._cursor.get_state(),
            "consumed": self._consumed,
            "leave_out": self._to_skip,
            "full": self._full,
            "workers": self._source.workers,
            **({} if self._final_rebatch_size is None else {"regrouped_to": self._final_rebatch_size}),
            **self.layout.get_state(),
        }

    def as_of_now(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns `state`, an earlier result of `get_state`, with the current value of the iteration counter."""
        return {**state, "source": self._source.as_of_now(self._cursor, state["source"])}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a saved read position; if the dataset cannot restore the position, skips the examples before it.

        The reader is newly opened and has read nothing. The dataset cannot restore the position if its source cannot
        save positions, or has another batch size than when the position was saved (`Source.restore` may read a batch
        from a second iterator to find out, unless the iterators share one position).

        Raises:
            ArgumentError: Each worker reads its own data, and the position is one of another number of workers.
        """
        check_workers(state, self._source.workers, state["consumed"] > 0)
        self._consumed = state["consumed"]
        self.layout.set_state(state)
        if self._source.restore(self._cursor, state["source"], state["full"]):
            size = self._final_rebatch_size
            self._full = state["full"] if state.get("regrouped_to", size) == size else size
            self._to_skip = state["leave_out"]
        else:
            self._full, self._to_skip = None, self._consumed

    def close(self) -> None:
        """Closes the iterator over the dataset."""
        self._cursor.close()


class ElementsInTurn:
    """A reader that reads a per-replica batch for each replica, from one common dataset or one dataset per replica.

    If the last elements do not reach all replicas, the other replicas receive empty batches, so that every example is
    used. Scalars have no empty form: an incomplete row of them is dropped, and a warning is logged.

    Args:
        sources: One source, or one per replica.
        num_replicas: Number of replicas of this process.
        workers: The number of workers that each read such datasets.
    """

    @property
    def ends_together(self) -> bool:
        """Whether all workers stop when one worker has no more data.

        True for scalars: a worker without data cannot continue with empty batches of scalars.
        """
        return self._scalars

    @property
    def shares_position(self) -> bool:
        """Whether one of the datasets has a read position that all its iterators share."""
        return any(source.shares_position for source in self._sources)

    def iterators(self) -> list[tuple[Source, Any]]:
        """Returns the datasets and their iterators."""
        return list(zip(self._sources, self._cursors, strict=True))

    def __init__(self, sources: Sequence[Source], num_replicas: int, workers: int = 1) -> None:
        self._sources, self._workers = sources, workers
        self._cursors = [source.open() for source in sources]
        self._num_replicas = num_replicas
        self._scalars = False
        self.layout = Layout()
        self._given: list[int | None] = [0] * len(sources)  # examples; None after a position of an earlier version
        self._full: list[int | None] = [None] * len(sources)  # examples of the first element; None for a scalar
        self._ended: set[int] = set()

    def read(self) -> tuple[Any, int]:
        """Reads the next element of every replica; returns the list of elements, and their total number of examples."""
        elements = [self._next(replica % len(self._cursors)) for replica in range(self._num_replicas)]
        given = [element for element in elements if element is not _NOTHING]
        if not given:
            raise StopIteration
        self._scalars = _has_scalars(given[0])
        if self._scalars and len(given) < self._num_replicas:
            log.warning(
                "distribute_datasets_from_function drops %d element(s) at the end of the dataset: they do not "
                "reach all %d replicas, and the others cannot get an empty batch, since the elements are scalars. "
                "Call .batch(per_replica_batch_size), or make the number of elements a multiple of the replicas",
                len(given),
                self._num_replicas,
            )
            raise StopIteration
        count = sum(_examples(element) for element in given)
        empty = tree_map(lambda leaf: leaf[:0], given[0]) if len(given) < self._num_replicas else None
        result = [empty if element is _NOTHING else element for element in elements]
        self.layout.note(result)
        return result, count

    def _next(self, index: int) -> Element:
        """Returns the next element of dataset number `index`; the constant `_NOTHING` after the last element."""
        if index in self._ended:
            return _NOTHING
        try:
            element = next(self._cursors[index])
        except StopIteration:
            self._ended.add(index)
            return _NOTHING
        self._count(index, element)
        # The source may reuse its buffers for the next replica's element.
        return tree_map(owned, element)

    def _count(self, index: int, element: Element) -> None:
        given, size = self._given[index], _examples(element)
        if given == 0:
            self._full[index] = None if _has_scalars(element) else size
        self._given[index] = None if given is None else given + size

    def no_examples(self) -> Any:
        """Returns a batch with 0 examples for every replica; None if the structure of the batches is not known."""
        known = self.layout.empty()
        if known is not None:
            return known
        empty = self._sources[0].no_examples()
        return None if empty is None else [empty] * self._num_replicas

    def place(self, placer: Placer, read: Element | list[Element]) -> Any:
        """Moves each element to the device of its replica."""
        return placer.elements(read)

    def get_state(self) -> Any:
        """Returns how far each dataset was read: the iterators' states and the numbers of examples read."""
        positions = [cursor.get_state() for cursor in self._cursors]
        return {
            "sources": positions,
            "given": list(self._given),
            "full": list(self._full),
            "workers": self._workers,
            **self.layout.get_state(),
        }

    def as_of_now(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the read position `state` with the current values of the iteration counters.

        `state` is an earlier result of `get_state`.
        """
        places = zip(self._sources, self._cursors, state["sources"], strict=True)
        return {**state, "sources": [source.as_of_now(cursor, position) for source, cursor, position in places]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a read position; the number of datasets must be the same as when the position was saved.

        The reader is newly opened and has read nothing. The elements before the position of a source that cannot save
        one, such as a list, or has elements of another size than when it was saved, are read again.

        Raises:
            ArgumentError: The position is one of another number of datasets or workers, or inside an element.
        """
        if len(state.get("sources", ())) != len(self._cursors):
            raise ArgumentError(
                "DistributedIterator.set_state",
                found=f"the position was saved with {len(state.get('sources', ()))} input pipelines, this dataset has "
                f"{len(self._cursors)}",
                rule="the number of input pipelines (calls of the dataset function) must stay the same",
                remedy="resume with the same number of input pipelines, or use experimental_distribute_dataset",
            )
        # Positions of earlier versions have the number of elements: "taken", or "rows", that of each replica.
        of_each = state.get("rows", 0) * self._num_replicas // len(self._cursors)
        taken = list(state.get("taken", [of_each] * len(self._cursors)))
        self._given = list(state.get("given", [None if count else 0 for count in taken]))
        check_workers(state, self._workers, any(count != 0 for count in self._given))
        self._ended.clear()
        self.layout.set_state(state)
        self._full = list(state.get("full", self._full))
        for index, (source, cursor) in enumerate(zip(self._sources, self._cursors, strict=True)):
            position, examples = state["sources"][index], self._given[index]
            if examples is not None:
                if not source.restore(cursor, position, self._full[index]):
                    self._read_again(index, examples)
            elif position is not None:
                cursor.set_state(position)
            else:
                self._given[index] = 0
                for _ in range(taken[index]):
                    self._count(index, read_again(cursor))

    def _read_again(self, index: int, examples: int) -> None:
        """Reads the elements of dataset number `index` again, until they have the given number of examples.

        Raises:
            ArgumentError: The number of examples ends inside an element.
        """
        self._given[index] = 0
        while (self._given[index] or 0) < examples:
            self._count(index, read_again(self._cursors[index]))
        if self._given[index] != examples:
            raise ArgumentError(
                "DistributedIterator.set_state",
                found=f"the position is after {examples} examples, inside an element of {self._full[index]} examples",
                rule="each element goes to one replica, so a position lies between two elements of the dataset",
                remedy="return batches whose size divides the number of examples before the position",
            )

    def close(self) -> None:
        """Closes the iterators over the datasets."""
        close_each(self._cursors)


def _has_scalars(element: Element) -> bool:
    return any(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(element))


def _examples(element: Element) -> int:
    return 1 if _has_scalars(element) else batch_size(element, "Strategy.distribute_datasets_from_function")
