"""Distributed datasets: iterables of per-replica batches on the devices, with a read position that can be saved."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from mirrored._typing import PyTree
from mirrored.data.calling import function_seconds, taking_turn
from mirrored.data.feed import Feed, FeedItem, InputStats, StopFlag, close_at_exit
from mirrored.data.input_options import InputOptions
from mirrored.data.iterator_errors import closed_error, interrupted_error, refuse_transformation, warn_exhausted
from mirrored.data.options import Optional, next_as_optional
from mirrored.data.placement import Placer
from mirrored.data.readers import Reader
from mirrored.data.specs import elements_html
from mirrored.data.worker_steps import WorkerSteps, worker_steps
from mirrored.errors import ArgumentError, ContextError, EndOfDataError, InputError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.hooks import IteratedAsPython, note_created, note_iteration, note_moved, stop_iteration

_VERSION: Final = 1
_ITERATOR: Final = "DistributedIterator"


class DistributedIterator(IteratedAsPython):
    """An iterator over a distributed dataset: each element holds one batch per replica, on the devices.

    Context: cross-replica. Use it in a `for` loop, with `next`, `get_next` or `get_next_as_optional`. It is also a
    context manager: its exit stops the input thread. Otherwise the thread stops when the iterator is garbage-collected.
    Several threads can share it in a job of one process: each element is returned to one of them.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> dataset = strategy.experimental_distribute_dataset(mr.data.Dataset.range(6).batch(4))
        >>> with iter(dataset) as iterator:
        ...     [part.tolist() for part in strategy.experimental_local_results(next(iterator))]
        [[0, 1], [2, 3]]

    TensorFlow: `tf.distribute.DistributedIterator`.
    """

    def __init__(
        self,
        open_reader: Callable[[], Reader],
        placer: Placer,
        options: InputOptions,
        stats: InputStats,
        element_spec: PyTree,
        end_error: Callable[..., EndOfDataError] = EndOfDataError,
    ) -> None:
        self._end_error = end_error
        self._open_reader, self._reader = open_reader, open_reader()
        self._placer, self._options, self._stats = placer, options, stats
        self._element_spec = element_spec
        # The item that was handed out last, the position after it and the examples so far: one attribute, so that an
        # interrupt finds all three of one batch. The position is None before the first batch is read ahead.
        self._handed: tuple[FeedItem | None, Any, int] = (None, None, 0)
        self._started: float | None = None
        self._was_moved = False  # by set_state, after which the reader is not at its start
        self._done: str | None = None
        # Reentrant: an interrupt that leaves it held must not block the next call of the same thread. `close` and the
        # garbage collector do not take it, because they must not wait for a batch.
        self._turn = threading.RLock()
        self._worker_steps = self._steps_of(self._reader)
        self._feed = self._new_feed()
        close_at_exit(self._feed)
        note_created(self)

    def _steps_of(self, reader: Reader) -> WorkerSteps | None:
        return worker_steps(reader, self._placer)

    def _new_feed(self) -> Feed:
        reader, placer, stats, stop = self._reader, self._placer, self._stats, StopFlag()
        numbers = itertools.count(1)

        # The closure captures the parts, not self: the input thread must not keep a dropped iterator alive.
        def produce() -> FeedItem:
            start, in_functions = time.perf_counter(), function_seconds()
            read, examples = reader.read()
            if stop.is_set:  # the devices may belong to an earlier epoch of an elastic job
                raise StopIteration
            done, mapped = time.perf_counter(), function_seconds() - in_functions
            value = reader.place(placer, read)
            stats.map_seconds += mapped
            stats.read_seconds += done - start - mapped
            stats.transfer_seconds += time.perf_counter() - done
            return FeedItem(value, examples, reader.get_state(), number=next(numbers))

        ahead = self._options.ahead(placer.num_replicas)
        return Feed(produce, reader.close, ahead, stats, self._options.stall_seconds, stop)

    def __iter__(self) -> DistributedIterator:
        if self._done == "ended":
            warn_exhausted("DistributedIterator")
        return self

    def __next__(self) -> Any:
        note_iteration(self)
        self._refuse_in_replica()
        taken = None
        try:
            with self._turn:
                item, value = self._next()
                before = self._handed
                if item.error is None:
                    taken = self._handed = (item, item.state, before[2] + item.examples)
                    item.value = None  # the feed keeps the item, and must not keep the arrays on the devices
                return value
        except BaseException as error:
            # CPython runs signal handlers after C functions, such as the release of the lock: the caller has not
            # received the batch. But several workers have agreed on the batch, and cannot do so again.
            if taken is not None and self._worker_steps is None and not isinstance(error, Exception):
                with self._turn:
                    if self._handed is taken:
                        item.value, self._handed = value, before
            raise

    def _next(self) -> tuple[FeedItem, Any]:
        """Returns the item after the one that was handed out last, and its batch."""
        if self._done is not None:
            if self._done == "ended":
                raise stop_iteration(self._no_element_error)
            raise interrupted_error(_ITERATOR) if self._done == "interrupted" else closed_error(_ITERATOR)
        last, state, examples = self._handed
        if self._started is None:
            if state is None:
                # Later the reader is ahead of what was handed out, and closed after an error.
                state = self._reader.get_state()
                self._handed = (last, state, examples)
            self._started = time.perf_counter()
        item = self._feed.next(last)
        self._stats.elapsed_seconds = time.perf_counter() - self._started
        if item.error is not None and not (self._worker_steps and isinstance(item.error, StopIteration)):
            self._finish(_how(item))
            if isinstance(item.error, StopIteration):
                raise stop_iteration(self._no_element_error)
            raise item.error
        value = item.value if self._worker_steps is None else self._agreed_input(item)
        self._stats.batches += 1
        self._stats.examples += item.examples
        return item, value

    def _agreed_input(self, item: FeedItem) -> Any:
        """Returns this worker's input for the next step; an empty batch if only other workers still have data.

        A worker that has no more data continues with empty batches: the feed returns the item that marks the end again
        at the next call, because this item is not the one that was handed out last.
        """
        assert self._worker_steps is not None
        try:
            return self._worker_steps.agreed_input(item.value, item.error is not None, item.number)
        except StopIteration:
            self._finish("ended")
            raise stop_iteration(self._no_element_error) from None

    def get_next(self) -> Any:
        """Returns the next element: per-replica values on the devices.

        Raises:
            EndOfDataError: There are no more elements.
        """
        try:
            return self.__next__()  # not `next(self)`: an interrupt after this C function would lose the batch
        except StopIteration:
            raise self._no_element_error() from None

    def _no_element_error(self) -> EndOfDataError:
        return self._end_error(
            "DistributedIterator.get_next",
            found="End of sequence: the dataset has no more elements",
            rule="get_next can be called only while elements remain",
            remedy="iterate with for, use get_next_as_optional, or repeat the dataset",
        )

    def get_next_as_optional(self) -> Optional:
        """Returns the next element as an `Optional`, which has no value after the last element."""
        return next_as_optional(self, self._end_error, self._element_spec)

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of the elements, as in `DistributedDataset.element_spec`."""
        return self._element_spec()

    def __repr__(self) -> str:
        count = self._placer.num_replicas
        return f"<{type(self).__name__} over {count} replica{'s' * (count != 1)}, {self._handed[2]} examples read>"

    def get_state(self) -> dict[str, Any]:
        """Returns the read position after the last returned element, as data that a checkpoint can save.

        The position counts examples of the global stream. It therefore also fits a different number of replicas or a
        different batch size, and a `Dataset` with other steps that keep the examples, such as `map` or `cache`. A
        `cache` behind a `shuffle` that reshuffles may be added or removed only in the first epoch: it keeps its order.
        The position of a loader with `state_dict` and `load_state_dict` is the loader's state, and fits only its batch
        size.
        """
        while True:
            handed = self._handed
            _, position, examples = handed
            if position is not None:
                break
            # Nothing was handed out yet, so nothing was read ahead either, unless another thread has begun to: it has
            # stored the position before. No lock: the other thread holds that of `next` while it waits for a batch.
            try:
                position = self._reader.get_state()
            except Exception:
                if self._handed is handed:
                    raise
                continue
            if self._handed is handed:
                break
        return {"version": _VERSION, "examples": examples, "reader": self._reader.as_of_now(position)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a saved read position: the iteration continues with the first example after that position.

        Context: at any time, also after the end. Prefetched elements are dropped.

        Args:
            state: A result of `get_state`, possibly from a run with a different number of replicas.

        Raises:
            ArgumentError: `state` is not a position of a distributed iterator, or belongs to another dataset.
            InputError: The iterator is closed, or the dataset ends before that position. After an error, the iteration
                continues where it was, unless the dataset can be iterated only once.
            ContextError: Another thread has waited in `next` for a batch for a long time, and still waits. Or the input
                thread waits for a batch of a loader with `state_dict`; such an iterator has failed.
        """
        if state.get("version") != _VERSION or "reader" not in state:
            raise ArgumentError(
                "DistributedIterator.set_state",
                found=f"{state!r} is not a position of a distributed iterator",
                rule="a position must be a value that get_state() of a distributed iterator returned",
                remedy="pass the result of get_state() unchanged",
            )
        with taking_turn(self._turn, "DistributedIterator.set_state"):
            try:
                self._move_to(state)
            except Exception:
                raise
            except BaseException:
                if self._done == "failed" or (self._done is None and self._feed.is_closed):
                    self._done = "interrupted"
                raise
            note_moved(self)

    def _move_to(self, state: dict[str, Any]) -> None:
        if self._done == "closed":
            raise closed_error(_ITERATOR)
        try:
            then = (None, state["reader"], state["examples"])
            if self._started is None and not self._was_moved:
                self._move_unread(state["reader"], then)
            else:
                self._replace_reader(state["reader"], then)
        except (KeyError, AttributeError, TypeError) as error:
            raise ArgumentError(
                "DistributedIterator.set_state",
                found=f"restoring the position raised {type(error).__name__}: {error}",
                rule="a position can be restored only in a dataset of the kind in which it was saved",
                remedy="build the dataset from the same kind of source (arrays, a Dataset, a loader with state_dict, "
                "...) as when the position was saved; if a function of the dataset raised the error, correct the "
                "function and restore the position again",
            ) from error

    def _move_unread(self, position: Any, then: tuple[FeedItem | None, Any, int]) -> None:
        """Restores a read position in the current reader, from which nothing has been read yet.

        On failure, replaces the reader by a new one at the old position, and re-raises the error.
        """
        start, before = self._reader.get_state(), self._handed
        self._was_moved = True
        try:
            self._reader.set_state(position)
            self._handed = then
        except BaseException:
            self._done = "failed"  # unless the dataset can be opened again
            with contextlib.suppress(InputError):
                self._replace_reader(start, before)
            raise

    def _replace_reader(self, position: Any, then: tuple[FeedItem | None, Any, int]) -> None:
        """Replaces the reader by a new one at `position`; if that fails, calls `_go_back` and re-raises the error.

        Args:
            position: The position of the new reader.
            then: The new value of `_handed`.
        """
        if self._reader.shares_position:  # reading ahead would move the new reader, too
            self._stop_reading()
        handed = self._handed[1]
        before = None if handed is None else self._reader.as_of_now(handed)  # opening a reader counts a pass
        reader = self._open_reader()
        try:
            steps = self._steps_of(reader)
            reader.set_state(position)
        except BaseException:
            self._go_back(reader, before)
            raise
        self._feed.close()
        self._done, self._handed = "interrupted", then  # should an interrupt come below: it is at the new position
        self._continue_with(reader, steps)
        self._done = None

    def _stop_reading(self) -> None:
        self._feed.close()
        if self._feed.is_reading:
            self._finish("failed")
            raise ContextError(
                "DistributedIterator.set_state",
                found="the input thread still waits for a batch of the loader",
                rule="the position belongs to the loader, which reads one batch at a time",
                remedy="create a new loader, distribute it and restore the position in its iterator",
            )

    def _go_back(self, reader: Reader, before: Any) -> None:
        """Undoes a failed replacement of the reader.

        Closes the new `reader`. If old and new reader share one position, the old one cannot go on: the iterator
        continues with the new one at the position `before`.
        """
        with contextlib.suppress(Exception):  # also resets the datasets' numbers of the next epoch
            reader.set_state(before)
            if reader.shares_position and self._done is None:
                self._continue_with(reader, self._steps_of(reader))
                return
        reader.close()
        if reader.shares_position:
            self._finish("failed")

    def _continue_with(self, reader: Reader, steps: WorkerSteps | None) -> None:
        self._reader, self._worker_steps = reader, steps
        self._feed = self._new_feed()
        close_at_exit(self._feed)

    def stats(self) -> InputStats:
        """Returns how many seconds were spent on reading, mapping, transfer to devices, and waiting for input."""
        return self._stats

    def close(self) -> None:
        """Stops the prefetching thread and closes the dataset; `get_state` still works afterwards."""
        if self._done is None and self._handed[1] is None:
            with contextlib.suppress(Exception):  # a source that cannot be opened can still be closed
                self.get_state()
        self._finish("closed")

    def _finish(self, how: str) -> None:
        if self._done is None:
            self._done = how
        self._feed.close()

    def _refuse_in_replica(self) -> None:
        replica = ambient().replica
        if replica is not None and replica.strategy.device_assignment is not None:
            raise ArgumentError(
                "next(iterator)",
                found="it was called inside a replica function",
                rule="next(iterator) should be called from outside of replica_fn",
                remedy="call strategy.run(replica_fn, args=(next(iterator),))",
            )

    def __enter__(self) -> DistributedIterator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        feed = getattr(self, "_feed", None)
        if feed is not None:
            feed.close()

    def __getattr__(self, name: str) -> NoReturn:
        refuse_transformation("DistributedIterator", name)


def _how(item: FeedItem) -> str:
    """Returns how an iterator ends that reads an item with an exception."""
    if item.is_interrupt:
        return "interrupted"
    return "ended" if isinstance(item.error, StopIteration) else "failed"


class DistributedDataset(IteratedAsPython):
    """An iterable dataset of per-replica values; the result of `Strategy.experimental_distribute_dataset`.

    Each iteration starts a new epoch. With one replica, elements are plain arrays.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> dataset = strategy.experimental_distribute_dataset(mr.data.Dataset.range(6).batch(4))
        >>> [strategy.gather(batch, axis=0).tolist() for batch in dataset]
        [[0, 1, 2, 3], [4, 5]]

    TensorFlow: `tf.distribute.DistributedDataset`.
    """

    def __init__(
        self,
        open_reader: Callable[[], Reader],
        placer: Placer,
        options: InputOptions,
        element_spec: Callable[[], Any],
        cardinality: Callable[[], int],
        end_error: Callable[..., EndOfDataError] = EndOfDataError,
    ) -> None:
        self._end_error = end_error
        self._open_reader, self._placer, self._options = open_reader, placer, options
        self._element_spec, self._cardinality = element_spec, cardinality
        self._stats = InputStats()

    def __iter__(self) -> DistributedIterator:
        note_iteration()
        self._stats = InputStats()
        return DistributedIterator(
            self._open_reader, self._placer, self._options, self._stats, self._element_spec, self._end_error
        )

    @property
    def element_spec(self) -> Any:
        """The elements' shapes and dtypes, as a pytree of `PerReplicaSpec` (of `ArraySpec` if there is one replica)."""
        return self._element_spec()

    @property
    def cardinality(self) -> int:
        """The number of elements, or the constant INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return self._cardinality()

    def stats(self) -> InputStats:
        """Returns the seconds that the latest pass spent on reading, mapping, transfer and waiting for input."""
        return self._stats

    def __repr__(self) -> str:
        count = self._placer.num_replicas
        return f"<{type(self).__name__} over {count} replica{'s' * (count != 1)}>"

    def _repr_html_(self) -> str:
        """Returns an HTML table for notebooks: for each leaf of an element, the dtype and shape of its global batch."""
        return elements_html(repr(self).strip("<>"), self._element_spec)

    def __getattr__(self, name: str) -> NoReturn:
        refuse_transformation("DistributedDataset", name)
