"""Prefetching of batches: moves the next batches to the devices while the current training step runs.

While producing a batch is fast, the training loop itself produces it: transfers are asynchronous and overlap with the
step anyway, so a thread would cost more than it saves. Once batches take longer, an input thread produces them.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from mirrored._jax import distributed
from mirrored._jax.traces import eager, is_eager
from mirrored._threads import place_of, start
from mirrored.data.calling import Closeable
from mirrored.data.carrying import Settings
from mirrored.data.iterator_errors import closed_meanwhile_error, interrupted_error
from mirrored.watchdog.fail_fast_exit import in_forked_children

# Timing statistics of an input pipeline.

_WINDOW_SECONDS: Final = 3.0
_WORTH_REPORTING: Final = 0.5
log: Final = logging.getLogger("mirrored.data")


@dataclasses.dataclass
class InputStats:
    """The seconds that a distributed dataset spent on reading, mapping, transfer and waiting: the result of `stats()`.

    The seconds are totals over all batches of the latest iteration.

    Attributes:
        batches: Number of batches returned.
        examples: Number of examples returned.
        read_seconds: Time to read the source, without the functions of the pipeline.
        map_seconds: Time in functions passed to `map`, `filter` and similar steps (in the thread that reads).
        transfer_seconds: Time to split batches and place them on devices.
        wait_seconds: Time that the training loop waited for batches.
        elapsed_seconds: Time since the first batch was requested.
        uses_worker: Whether a thread prefetches. It starts when batches take long enough for it to pay off.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> dataset = strategy.experimental_distribute_dataset(mr.data.Dataset.range(6).batch(4))
        >>> for batch in dataset:
        ...     pass
        >>> dataset.stats().batches, dataset.stats().examples
        (2, 6)
    """

    batches: int = 0
    examples: int = 0
    read_seconds: float = 0.0
    map_seconds: float = 0.0
    transfer_seconds: float = 0.0
    wait_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    uses_worker: bool = False

    def breakdown(self, before: InputStats | None = None) -> str:
        """Formats the input times (since `before`, if given), as in ``read 0.1 s, map 1.8 s, transfer 0.2 s``."""
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._parts(before).items())

    def longest(self, before: InputStats | None = None) -> str:
        """Returns the slowest stage of the input: ``read``, ``map`` or ``transfer``."""
        parts = self._parts(before)
        return max(parts, key=parts.__getitem__)

    def _parts(self, before: InputStats | None) -> dict[str, float]:
        start = InputStats() if before is None else before
        return {
            "read": self.read_seconds - start.read_seconds,
            "map": self.map_seconds - start.map_seconds,
            "transfer": self.transfer_seconds - start.transfer_seconds,
        }


class StallWatch:
    """A detector of slow input: logs one warning if the training loop waits for input most of the time."""

    def __init__(self, stats: InputStats) -> None:
        self._stats = stats
        self._window_start = time.perf_counter()
        self._before = dataclasses.replace(stats)
        self._reported = False

    def after_batch(self, now: float) -> None:
        """Warns once if the training loop has mostly waited for input in the last seconds; called after each batch."""
        length = now - self._window_start
        if length < _WINDOW_SECONDS:
            return
        waited = self._stats.wait_seconds - self._before.wait_seconds
        if waited > _WORTH_REPORTING * length and not self._reported:
            self._reported = True
            log.warning(
                "the step waited %.1f s of the last %.1f s for input, mostly for %s (%s)",
                waited,
                length,
                self._stats.longest(self._before),
                self._stats.breakdown(self._before),
            )
        self._window_start, self._before = now, dataclasses.replace(self._stats)


WORKER_PAYS_SECONDS: Final = 0.0005
_SURELY_SLOW_SECONDS: Final = 0.004
_EVIDENCE: Final = 8
JOIN_SECONDS: Final = 5.0
_SHORTEST_JOIN_SECONDS: Final = 0.2
INPUT_THREAD_NAME: Final = "mirrored-input"
_CLOSING_THREAD_NAME: Final = "mirrored-closing"
_CLOSE_FAILED: Final = "a source of input data raised an exception when it was closed"


@dataclasses.dataclass(slots=True)
class FeedItem:
    """An entry of the prefetch queue: a batch on the devices, or the exception raised while producing it.

    Attributes:
        value: The batch on its devices.
        examples: Number of examples in the batch.
        state: The reader's state right after this batch. The iterator saves the state of the item that it handed out
            last, so batches that were read ahead are read again after a restore.
        error: The exception raised instead of a batch, or the StopIteration at the end.
        number: The number of the batch in its feed, counted from 1.
        is_interrupt: Whether an interrupt, such as Ctrl-C, stopped the reading.
    """

    value: Any = None
    examples: int = 0
    state: Any = None
    error: BaseException | None = None
    number: int = 0
    is_interrupt: bool = False


@dataclasses.dataclass(slots=True)
class StopFlag:
    """A flag that `Feed.close` sets, so that the feed's producer function stops using the devices."""

    is_set: bool = False


class Feed:
    """A prefetch queue: produces batches on the devices before the training loop requests them.

    Args:
        produce: Produces the next item; raises StopIteration after the last one.
        close_source: Closes the source that `produce` reads from.
        ahead: Number of items to keep ready.
        stats: Statistics to which times are added.
        stall_seconds: A longer wait for an item is logged as a warning.
        stop: Set by `close`. An input thread that returns from the source afterwards must not use the devices.
    """

    def __init__(
        self,
        produce: Callable[[], FeedItem],
        close_source: Callable[[], None],
        ahead: int,
        stats: InputStats,
        stall_seconds: float,
        stop: StopFlag | None = None,
    ) -> None:
        self._produce, self._close_source, self._ahead = produce, close_source, ahead
        self._stats, self._stall_seconds = stats, stall_seconds
        self._ready: collections.deque[FeedItem] = collections.deque()
        self._given: FeedItem | None = None  # the item that `next` returned last
        self._claims: dict[str, object] = {}  # by action that may be done once: a token of who did it
        # Two events, each with at most one entry: the queue has an item, and it has room. An event is only a hint: who
        # waits checks the queue itself. `SimpleQueue` is written in C. `threading.Condition` is written in Python, so
        # that Ctrl-C in `next` could leave its lock held, and `close`, which the garbage collector calls in any thread,
        # would wait for it forever.
        self._arrived: SimpleQueue[None] = SimpleQueue()
        self._has_room: SimpleQueue[None] = SimpleQueue()
        # A wait for the thread can be interrupted when the workers of an elastic job change; a read in `next` cannot.
        self._uses_worker = stats.uses_worker = ahead > 0 and distributed.is_elastic()
        self._was_started = False
        self._worker: threading.Thread | None = None  # set by the input thread
        self._stop = StopFlag() if stop is None else stop
        self._ended = False
        self._slow = 0
        self._watch = StallWatch(stats)

    def next(self, last: FeedItem | None) -> FeedItem:
        """Returns the next queue entry, which holds a batch or an exception (StopIteration at the end of the data).

        Args:
            last: The item that the training loop received last. If the feed has returned a later item that the loop
                never received (an interrupt) or did not accept, that item is returned again.
        """
        if self._given is not None and self._given is not last:
            return self._given
        start = time.perf_counter()
        if self._uses_worker:
            self._ensure_started()
            item = self._from_worker()
        else:
            item = self._from_caller()
        now = time.perf_counter()
        self._stats.wait_seconds += now - start
        self._watch.after_batch(now)
        return item

    def _from_caller(self) -> FeedItem:
        # At most two per call, so that the first batch is not delayed until the whole buffer is full.
        for _ in range(2):
            if len(self._ready) <= self._ahead and not self._ended:
                self._make()
        item = self._take()
        if self._slow >= _EVIDENCE and self._ahead and not self._ended:
            self._start_worker()
        return item

    def _make(self) -> None:
        start = time.perf_counter()
        try:
            if is_eager():
                item = self._produce()
            else:  # inside a tape or a trace: input must not be recorded or traced
                with eager():
                    item = self._produce()
            self._ready.append(item)
        except BaseException as error:  # also an interrupt, after which the reader's position is unknown
            self._ended = True
            is_awaited = not self._ready or self._ready[-1] is self._given
            if not isinstance(error, Exception) and not is_awaited:
                # An interrupt must not wait until the loop has taken the batches that are ready.
                self._ready.append(_interrupted())
                raise
            self._ready.append(FeedItem(error=error, is_interrupt=not isinstance(error, Exception)))
        # Only a series of slow batches counts: the first ones include one-time setup, and any single one may be slow
        # on a busy machine. (Processor time would exclude that, but `time.thread_time` can cost 20 us a call.)
        took = time.perf_counter() - start
        weight = 3 if took > _SURELY_SLOW_SECONDS else 1
        self._slow = self._slow + weight if took > WORKER_PAYS_SECONDS else 0

    def _start_worker(self) -> None:
        self._stats.uses_worker = self._uses_worker = True
        self._ensure_started()

    def _ensure_started(self) -> None:
        """Starts the input thread, unless it was started; can be repeated if an interrupt stopped an earlier call."""
        if self._was_started:
            return
        # The thread runs user functions, so it needs the settings of the training loop.
        start(threading.Thread(target=Settings().run, args=(self._work,), name=INPUT_THREAD_NAME, daemon=True))
        self._was_started = True

    def _is_first(self, action: str) -> bool:
        """Returns True for the first call with each `action`, such as ``"close"``; the check is atomic."""
        me = object()
        return self._claims.setdefault(action, me) is me

    def _work(self) -> None:
        if not self._is_first("work"):  # the interrupted start and the repeated one have each launched a thread
            return
        self._worker = threading.current_thread()
        self._produce_all()
        if not self._is_first("end"):  # `close` has left the source to this thread
            try:
                self._close_source()
            except Exception:
                log.warning("%s", _CLOSE_FAILED, exc_info=True)

    def _produce_all(self) -> None:
        while True:
            while not self._stop.is_set and len(self._ready) >= self._ahead:
                self._has_room.get()
            item = None if self._stop.is_set else self._next_item()
            if item is None or self._stop.is_set:  # what a stopped feed gets from its source is discarded
                return
            if item.error is not None:
                self._ended = True
            self._ready.append(item)
            _signal(self._arrived)
            if item.error is not None:
                return

    def _next_item(self) -> FeedItem:
        try:
            return self._produce()
        except BaseException as error:  # the training loop raises it, with its traceback
            return FeedItem(error=error)

    def _from_worker(self) -> FeedItem:
        self._drop_given()
        while not self._ready and not self._stop.is_set:
            _signal(self._has_room)  # an interrupt may have come before the one below
            self._await_item()
            if not self._ready and not self._stop.is_set:
                self._report_stall()
        item = self._take()
        _signal(self._has_room)
        return item

    def _await_item(self) -> None:
        """Waits until the queue has an item, at most `stall_seconds`.

        Raises:
            WorkersChanged: This worker of an elastic job must leave its epoch. The item that it waits for is not lost.
        """
        end = time.monotonic() + self._stall_seconds
        while not self._ready and not self._stop.is_set and (left := end - time.monotonic()) > 0:
            some = distributed.next_wait_seconds(left)
            with contextlib.suppress(Empty):
                self._arrived.get(timeout=some)

    def _take(self) -> FeedItem:
        """Takes the first ready item from the queue; an interrupt during the call neither loses nor repeats an item.

        An item that was taken but did not reach the training loop is returned again by `next`. If another thread has
        closed the feed meanwhile, the result is an error.
        """
        self._drop_given()
        try:
            item = self._given = self._ready[0]
        except IndexError:  # `close` has cleared the queue, or an interrupt came where `_make` handles the end
            item = _interrupted()
        self._drop_given()
        # What a stopped feed gets from its source is the end of the data, which would end a loop quietly.
        return FeedItem(error=closed_meanwhile_error("DistributedIterator")) if self._stop.is_set else item

    def _drop_given(self) -> None:
        if self._ready and self._ready[0] is self._given:
            self._ready.popleft()

    def _report_stall(self) -> None:
        log.warning(
            "the step has waited more than %.1f s for the next batch (so far: %s); the input thread is at\n%s",
            self._stall_seconds,
            self._stats.breakdown(),
            place_of(self._worker),
        )

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._stop.is_set

    @property
    def is_reading(self) -> bool:
        """Whether the input thread is alive."""
        return self._worker is not None and self._worker.is_alive()

    def close(self) -> None:
        """Stops the input thread, waits at most 5 s for the thread to end, and closes the dataset.

        If the thread still waits for an element after these 5 s, it discards the element when it arrives, and closes
        the dataset itself.
        """
        if not self._is_first("close"):
            return
        self._stop.is_set = self._ended = True
        self._ready.clear()
        _signal(self._has_room)
        _signal(self._arrived)  # a thread that waits in `next`
        worker = self._worker
        # An input thread that begins later finds that the feed is stopped.
        if worker is threading.current_thread():  # the garbage collector has found the iterator in this thread
            if self._is_first("end"):
                return
        elif worker is not None and worker.is_alive() and not sys.is_finalizing():
            worker.join(JOIN_SECONDS)
            if worker.is_alive() and self._is_first("end"):
                log.warning(
                    "the input thread did not stop within %.0f s: the source stays open until it returns from\n%s",
                    JOIN_SECONDS,
                    place_of(worker),
                )
                return
        self._close_source()


def _interrupted() -> FeedItem:
    return FeedItem(error=interrupted_error("DistributedIterator"), is_interrupt=True)


def _signal(event: SimpleQueue[None]) -> None:
    """Sets an event that is implemented as a queue of at most one item; does nothing if the event is set already."""
    if event.empty():
        event.put(None)


# All dataset iterators: closing at interpreter exit, and a warning about exhausted iterators.


_open: weakref.WeakSet[Closeable] = weakref.WeakSet()


def close_at_exit(resource: Closeable) -> None:
    """Registers `resource.close()` to run at interpreter exit, unless the resource was garbage-collected earlier.

    A Grain thread that still reads at exit can abort the process.
    """
    _open.add(resource)


@atexit.register
def _close_all() -> None:
    """Closes all resources; logs the exception of a resource and continues with the others."""
    for resource in list(_open):
        _close(resource)


def _close(resource: Closeable) -> None:
    try:
        resource.close()
    except Exception:  # of the program: a generator's `finally`, or the method `close` of an iterator
        log.warning("%s: %r", _CLOSE_FAILED, resource, exc_info=True)


@distributed.on_leave
def _close_all_in_time() -> None:
    """Closes all resources in separate threads, and stops waiting for these threads after a time limit.

    Each waits for its threads, which may wait for slow storage, or for the `close` of its source, and the other workers
    of an elastic job wait for this one.
    """
    deadline = time.monotonic() + 2 * JOIN_SECONDS
    for resource in list(_open):
        closing = threading.Thread(target=_close, args=(resource,), name=_CLOSING_THREAD_NAME, daemon=True)
        start(closing)
        closing.join(max(_SHORTEST_JOIN_SECONDS, deadline - time.monotonic()))
        if closing.is_alive():
            log.warning(
                "%r does not close: it stays open until its source returns from\n%s", resource, place_of(closing)
            )


# In a forked child the threads of these resources do not exist, so `close` would wait for them indefinitely.
in_forked_children(_open.clear)
