"""Exceptions that interrupt the start of a thread: nothing hangs, and the exception reaches the caller."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from interrupts import TooSlowError, each_place
from mirrored import _threads
from mirrored._jax.interrupts import DispatchJob, capture_thread_settings
from mirrored.checkpoint.writing import Writer
from mirrored.data.feed import Feed, FeedItem, InputStats
from mirrored.runtime.ambient import ambient
from mirrored.runtime.lockstep import LockStep
from mirrored.runtime.merge import Merge

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    capture_thread_settings()  # the first call searches all modules
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < end:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before


def test_threads_that_are_started_run() -> None:
    ran: list[int] = []
    threads = [threading.Thread(target=ran.append, args=(number,)) for number in range(3)]
    _threads.start(*threads)
    for thread in threads:
        thread.join()
    assert sorted(ran) == [0, 1, 2]


def test_the_error_of_a_thread_that_cannot_start_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread") as caught:
        _threads.start(threading.Thread(target=print))
    assert _threads.is_refusal(caught.value)
    assert not _threads.is_refusal(TooSlowError("too slow"))


def test_a_run_of_replicas_ends() -> None:
    add = Merge("sum", lambda payloads: [sum(payload[0] for payload in payloads)] * len(payloads))

    def run() -> list[Any]:
        lockstep = LockStep("test")
        return lockstep.run([lambda: lockstep.run_merge(add, [1])] * 2, [ambient().fork() for _ in range(2)])

    assert run() == [2, 2]  # the first run of a process imports modules and searches them, in thousands of places
    for _ in each_place(run):
        pass
    assert run() == [2, 2]


def test_a_dispatched_call_is_done_or_cancelled() -> None:
    jobs: list[DispatchJob] = []
    ran: list[int] = []

    def record() -> str:
        ran.append(1)
        return "done"

    def run() -> None:
        job = DispatchJob(record, (), {})
        jobs.append(job)
        job.run()
        if job.interruption is not None:
            raise job.interruption

    for _ in each_place(run):
        if jobs:
            job = jobs.pop()
            job.wait_or_cancel()
            assert (job.result, job.error is None) == (("done", True) if ran else (None, False))
        ran.clear()
    assert jobs.pop().result == "done"


def test_a_dispatched_call_runs_in_the_caller_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    job = DispatchJob(threading.get_ident, (), {})
    job.run()
    assert job.result == threading.get_ident()


def test_input_goes_on() -> None:
    feeds: list[Feed] = []

    def start() -> None:
        numbers = iter(range(5))

        def produce() -> FeedItem:
            return FeedItem(value=next(numbers))

        feed = Feed(produce, lambda: None, 2, InputStats(), 60.0)
        feeds.append(feed)
        feed._start_worker()

    for _ in each_place(start):
        if not feeds:
            continue
        feed, item, values = feeds.pop(), None, []
        while item is None or item.error is None:
            item = feed.next(item)
            values.append(item.value)
        feed.close()
        assert values == [0, 1, 2, 3, 4, None]
    feeds.pop().close()


def test_a_checkpoint_is_written_as_a_whole_or_not_at_all() -> None:
    log: list[str] = []
    writer = Writer()

    def work() -> None:
        log.append("begun")
        time.sleep(0.01)
        log.append("ended")

    for _ in each_place(lambda: writer.start(work)):
        writer.wait()
        before = list(log)
        assert before in ([], ["begun", "ended"])
        time.sleep(0.02)
        assert log == before, "a write begins after the exception"
        log.clear()
    with contextlib.suppress(TooSlowError):
        writer.wait()
    assert log == ["begun", "ended"]
