"""The adapter for the library Grain: the only module of `mirrored` that imports Grain."""

from __future__ import annotations

import dataclasses
import itertools
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

import grain
from grain import experimental

from mirrored._threads import place_of
from mirrored.data import feed
from mirrored.data.carrying import Settings
from mirrored.data.cursors import Cursor

_MAX_THREADS = 16
_PAST_ELEMENT_SECONDS = 0.05
_MUTEX_SECONDS: Final = 1.0
PRIVATE_NAMES: Final = ("_prefetch_thread", "_prefetch_should_stop", "_buffer", "_clear_buffer")
"""The private names of Grain's prefetch iterator that `_Raising` uses."""
_QUIET = experimental.DatasetOptions(filter_warn_threshold_ratio=None)


class CursorIterator(grain.DatasetIterator):  # type: ignore[misc]  # grain ships no types
    """A Grain iterator that wraps a `Cursor` (an iterator whose read position can be saved)."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__()
        self._cursor = cursor

    def __next__(self) -> Any:
        self._assert_not_closed()
        return next(self._cursor)

    def get_state(self) -> Any:
        """Returns how far the iterator has read, as data that a checkpoint can save."""
        return self._cursor.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves the iterator to a read position that `get_state` returned."""
        self._cursor.set_state(state)

    def close(self) -> None:
        """Closes the wrapped iterator; repeated calls have no effect."""
        # Grain calls close from __del__, also when __init__ has not finished.
        if not getattr(self, "_closed", True):
            self._closed = True
            self._cursor.close()


class CursorDataset(grain.IterDataset):  # type: ignore[misc]
    """A Grain dataset that wraps a factory of `Cursor` iterators: each pass creates a new iterator."""

    def __init__(self, make: Callable[[], Cursor], name: str) -> None:
        super().__init__()
        self._make = make
        self._name = name

    def __iter__(self) -> CursorIterator:
        return CursorIterator(self._make())

    def __str__(self) -> str:
        return self._name


class _Wrapper:
    """Base class of iterators that wrap another iterator and handle its exceptions.

    Args:
        reading: The other iterator.
        settings: Those of the thread that reads, for Grain's threads.
    """

    def __init__(self, reading: Cursor, settings: Settings) -> None:
        self._reading, self._settings = reading, settings

    def get_state(self) -> Any:
        return self._reading.get_state()

    def set_state(self, state: Any) -> None:
        self._reading.set_state(state)

    def close(self) -> None:
        self._reading.close()


class _PastErrors(_Wrapper):
    """A wrapper of a Grain iterator over indexed elements: after an exception, continues with the next element.

    Grain stays at the element that raised the exception, which its threads do not compute again.
    """

    def __next__(self) -> Any:
        self._settings.reader = threading.get_ident()
        try:
            return next(self._reading)
        except StopIteration:
            raise
        except BaseException as error:
            # An interrupt belongs to no element: the one that was waited for is computed again.
            index = self.get_state()["next_index"] + isinstance(error, Exception)
            self.set_state({"next_index": index})
            raise


def by_position(item: Callable[[int], Any], length: int, threads: int) -> Any:
    """Returns a Grain dataset whose element i is `item(i)`, computed in `threads` threads (at least 1)."""
    threads = min(threads, _MAX_THREADS)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    settings = Settings()

    def computed(index: int) -> Any:
        settings.adopt()
        return item(index)

    elements = grain.MapDataset.range(length).map(computed).to_iter_dataset(options)
    return CursorDataset(lambda: _PastErrors(iter(elements), settings), "by_position")


def is_beyond_end(error: IndexError) -> bool:
    """Returns whether an exception of Grain says that a restored read position lies after the end of the data."""
    return "is out of range for dataset of length" in str(error)


def by_cursor(make: Callable[[], Cursor], name: str) -> Any:
    """Returns a Grain dataset; each pass over the dataset reads from a new `Cursor` that `make()` creates."""
    return CursorDataset(make, name)


def map_with_index(parent: grain.IterDataset, function: Callable[[int, Any], Any]) -> Any:
    """Returns a Grain dataset with the elements `function(i, element)`, where i is the element's index."""
    return parent.map_with_index(function)


def filter_elements(parent: grain.IterDataset, predicate: Callable[[Any], bool]) -> Any:
    """Filters a Grain dataset by `predicate`, without Grain's warning if few elements remain."""
    return experimental.WithOptionsIterDataset(parent.filter(predicate), _QUIET)


def batch(
    parent: grain.IterDataset, size: int, drop_remainder: bool, make_batch: Callable[[Sequence[Any]], Any]
) -> Any:
    """Returns a Grain dataset of `make_batch(group)` for every group of `size` consecutive elements."""
    return parent.batch(size, drop_remainder=drop_remainder, batch_fn=make_batch)


def limit(parent: grain.IterDataset, count: int) -> Any:
    """Returns a Grain dataset of the first `count` elements (`count` must be at least 1)."""
    return experimental.LimitIterDataset(parent, count)


@dataclasses.dataclass(frozen=True)
class _Raised:
    """A placeholder for an element; holds the exception that its computation raised."""

    error: BaseException


class _Caught(_Wrapper):
    """An iterator that catches the exceptions of another iterator and returns them as `_Raised` elements.

    Attributes:
        is_left: Whether the thread that reads closes the other iterator, because `close` no longer waits for it.
        is_reading: Whether the other iterator computes an element.
    """

    is_left = is_reading = False

    def __next__(self) -> Any:
        self._settings.adopt()
        self.is_reading = True
        try:
            return next(self._reading)
        except StopIteration:
            raise
        except BaseException as error:
            return _Raised(error)
        finally:
            self.is_reading = False
            if self.is_left:
                self._reading.close()

    def close(self) -> None:
        if not self.is_left:
            self._reading.close()


class _Flag:
    """An event without a lock. An interrupt in `threading.Event.set` can leave the event's lock locked."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set


class _Raising(_Wrapper):
    """An iterator that raises the exceptions in the `_Raised` elements of another iterator.

    Grain waits for its thread without a limit, and cannot wait for one whose start was interrupted. So this class stops
    the thread, by private names of Grain 0.2.18; if they are missing, Grain does.

    Args:
        reading: Grain's iterator, which reads `caught` in its thread.
        settings: Those of the thread that reads.
        caught: The iterator over the source.
    """

    def __init__(self, reading: Cursor, settings: Settings, caught: _Caught) -> None:
        super().__init__(reading, settings)
        self._caught = caught
        # Grain's `__del__` calls `close`, too, and waits for the thread. In a reference cycle it may come first, and
        # even in that thread.
        vars(reading)["close"] = lambda: None
        vars(reading)["_prefetch_should_stop"] = _Flag()

    def __next__(self) -> Any:
        self._settings.reader = threading.get_ident()
        element = next(self._reading)
        if type(element) is not _Raised:
            return element
        if not isinstance(element.error, Exception):  # which leaves the iterator open: ends the thread until it goes on
            try:
                self.set_state(self.get_state())
            except OSError as error:  # of a pipe, which `RestartingCursor` does not read again
                element.error.add_note(f"prefetch: the elements that were read ahead are lost: {error}")
        raise element.error

    def set_state(self, state: Any) -> None:
        self._started_thread()
        self._reading.set_state(state)

    def close(self) -> None:
        """Stops the prefetch thread and closes the source.

        Waits at most 5 s for the thread. If it still runs, the thread closes the source when its read returns.
        """
        try:
            self._stop()
        finally:
            type(self._reading).close(self._reading)

    def _stop(self) -> None:
        thread = self._started_thread()
        if thread is None or sys.is_finalizing():
            return
        grain_iterator: Any = self._reading
        grain_iterator._prefetch_should_stop.set()
        if thread is threading.current_thread():  # the garbage collector has found the iterator in this thread
            self._caught.is_left, grain_iterator._prefetch_thread = self._caught.is_reading, None
            return
        try:
            # An interrupt in `next` can have left the queue's mutex locked. Then the thread cannot end, either.
            if grain_iterator._buffer.mutex.acquire(timeout=_MUTEX_SECONDS):
                grain_iterator._buffer.mutex.release()
                grain_iterator._clear_buffer()
            thread.join(feed.JOIN_SECONDS)
            if thread.is_alive():
                feed.log.warning(
                    "the prefetch thread did not stop within %.0f s: the source stays open until it returns from\n%s",
                    feed.JOIN_SECONDS,
                    place_of(thread),
                )
        finally:
            grain_iterator._prefetch_thread = None  # Grain would wait for the same thread and locks, without a limit
            if thread.is_alive():
                self._caught.is_left = True
                thread.join(_PAST_ELEMENT_SECONDS)  # it may have tested `is_left` before
                self._caught.is_left = thread.is_alive()

    def _started_thread(self) -> threading.Thread | None:
        """Returns Grain's prefetch thread; if an interrupt stopped its start, discards the thread and returns None.

        Grain cannot wait for a thread that has not been started.
        """
        grain_iterator: Any = self._reading
        if not all(hasattr(grain_iterator, name) for name in PRIVATE_NAMES):
            return None
        thread: threading.Thread | None = grain_iterator._prefetch_thread
        if thread is None or thread.ident is not None:
            return thread
        grain_iterator._prefetch_should_stop.set()  # if it begins yet, it reads nothing; the next one has its own event
        grain_iterator._prefetch_should_stop, grain_iterator._prefetch_thread = _Flag(), None
        return None


def thread_prefetch(parent: grain.IterDataset, size: int) -> Any:
    """Returns a Grain dataset that prefetches up to `size` elements in a background thread.

    Exceptions pass Grain's thread as elements. Others than `Exception` (SystemExit, KeyboardInterrupt) would end the
    thread, for which the consumer would wait forever; after an `Exception` Grain's position is still before it.
    """
    settings = Settings()

    def opened() -> Cursor:
        caught = _Caught(iter(parent), settings)
        source = CursorDataset(lambda: caught, "prefetch")
        read = experimental.ThreadPrefetchIterDataset(source, prefetch_buffer_size=size)
        return _Raising(iter(read), settings, caught)

    return CursorDataset(opened, "prefetch")


def interrupted_while_waiting(error: BaseException) -> bool:
    """Returns whether an interrupt came while `next` of a `thread_prefetch` iterator waited for its prefetch thread."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = _Raising.__next__.__code__
    # What the thread raises has its frames, which begin at `_Caught`.
    if own not in codes or _Caught.__next__.__code__ in codes:
        return False
    within = codes[codes.index(own) :]
    return (queue.Queue.get.__code__, threading.Condition.wait.__code__) in itertools.pairwise(within)


def is_grain_dataset(source: object) -> bool:
    """Returns whether `source` is a dataset of the library Grain."""
    return isinstance(source, grain.MapDataset | grain.IterDataset)


def is_grain_loader(source: object) -> bool:
    """Returns whether `source` is a `DataLoader` of the library Grain."""
    return isinstance(source, grain.DataLoader)
