"""Exceptions injected into `Feed.next` at every line leave no lock held: `close` of another thread returns."""

from __future__ import annotations

import itertools
import threading
import time

from interrupts import interrupted_at
from mirrored.data.feed import Feed, FeedItem, InputStats


def feed_with_thread() -> tuple[Feed, list[bool]]:
    """A feed whose input thread is running, and a list that receives an entry when its source is closed."""
    numbers, closed = itertools.count(), list[bool]()

    def produce() -> FeedItem:
        time.sleep(0.001)
        return FeedItem(value=next(numbers))

    feed = Feed(produce, lambda: closed.append(True), 2, InputStats(), 5.0)
    feed._start_worker()
    return feed, closed


def test_an_interrupt_in_next_holds_up_neither_the_input_thread_nor_close() -> None:
    for event_number in range(1000):
        feed, closed = feed_with_thread()
        first = feed.next(None)
        came, second = interrupted_at(event_number, lambda feed=feed, first=first: feed.next(first))  # type: ignore[misc]
        assert feed.next(first).value == 1  # whether or not the interrupted call has taken it
        assert second is None or second.value == 1
        closing = threading.Thread(target=feed.close, daemon=True)
        closing.start()
        closing.join(10.0)
        assert not closing.is_alive(), f"close waits after an interrupt at event {event_number}"
        assert closed == [True]
        feed.close()
        assert closed == [True]
        if not came:
            break
    assert event_number > 10
