"""An epoch is left also if input does not return or cannot be closed, and if another thread uses JAX meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored._jax import distributed, private, recovery
from mirrored.checkpoint import Checkpoint, CheckpointManager, writing
from mirrored.data import Dataset, InputOptions, feed
from mirrored.data.cursors import IterableCursor
from mirrored.errors import ContextError, InputError

pytestmark = pytest.mark.timeout(60)


class Storage:
    """A generator of elements that blocks in one of them, as slow storage does."""

    def __init__(self, blocked: int) -> None:
        self.is_reached, self.may_return, self.is_closed = threading.Event(), threading.Event(), threading.Event()
        self._blocked = blocked

    def read(self) -> Iterator[Any]:
        try:
            for number in range(100):
                if number == self._blocked:
                    self.is_reached.set()
                    assert self.may_return.wait(30)
                yield np.full(2, number, np.float32)
        finally:
            self.is_closed.set()


@pytest.fixture
def storage() -> Iterator[Storage]:
    made = Storage(blocked=3)
    yield made
    made.may_return.set()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(feed, "JOIN_SECONDS", 0.2)
    caplog.set_level(logging.WARNING, "mirrored.data")


def with_thread(storage: Storage, dataset: Any) -> Any:
    """A distributed iterator whose input thread is blocked by the storage."""
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    iterator = iter(strategy.experimental_distribute_dataset(dataset, InputOptions(prefetch=4)))
    next(iterator)
    iterator._feed._start_worker()
    assert storage.is_reached.wait(10)
    return iterator


@pytest.mark.parametrize("kind", ["generator", "mapped", "prefetched", "iterable"])
def test_a_source_that_does_not_return_is_left_to_its_thread(
    storage: Storage, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[float] = []
    dataset = Dataset.from_generator(storage.read)
    if kind == "mapped":

        def note(x: Any) -> Any:
            mapped.append(float(x[0]))
            return x

        dataset = dataset.map(note)
    elif kind == "prefetched":
        dataset = dataset.prefetch(2)
    iterator = with_thread(storage, Readable(storage) if kind == "iterable" else dataset)
    worker = iterator._feed._worker
    placed: list[Any] = []
    monkeypatch.setattr(type(iterator._placer), "batch", lambda _, batch: placed.append(batch))
    healthy = iter(Dataset.range(3).map(lambda x: x + 1))
    next(healthy)

    began = time.perf_counter()
    distributed.reset_for_another_job()
    assert time.perf_counter() - began < 5
    placed.clear()  # the batches that the source had returned before
    # The prefetch thread is waited for before or after the input thread, which waits for the prefetch thread.
    assert "did not stop within" in caplog.text
    places = ("in __next__", "may_return.wait") if kind == "prefetched" else ("may_return.wait",)
    assert any(place in caplog.text for place in places), "the place is named"
    with pytest.raises(InputError, match=r"after close\(\)"):
        next(healthy)

    storage.may_return.set()
    worker.join(10)
    assert not worker.is_alive()
    assert storage.is_closed.wait(10), "the thread closes the source that was left to it"
    assert placed == [], "nothing is moved to the devices of the epoch that was left"
    assert 4.0 not in mapped, "no further element is read"
    distributed.reset_for_another_job()


class Readable:
    """An iterable of another library."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __iter__(self) -> Iterator[Any]:
        return self._storage.read()


def failing_at_the_end() -> Iterator[Any]:
    try:
        while True:
            yield np.zeros(2, np.float32)
    finally:
        raise OSError("the storage is gone")


def test_a_source_that_fails_when_it_is_closed_is_logged_and_the_others_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    iterators = [iter(Dataset.from_generator(failing_at_the_end)) for _ in range(2)]
    iterators += [iter(Dataset.range(3)) for _ in range(2)]
    for iterator in iterators:
        next(iterator)
    distributed.reset_for_another_job()
    records = [record for record in caplog.records if "when it was closed" in record.getMessage()]
    assert len(records) == 2
    assert all("DatasetIterator" in record.getMessage() for record in records)
    assert "the storage is gone" in caplog.text
    assert "failing_at_the_end" in caplog.text
    for iterator in iterators:
        with pytest.raises(InputError, match=r"after close\(\)"):
            next(iterator)
    caplog.clear()
    distributed.reset_for_another_job()
    assert caplog.text == ""


@pytest.mark.parametrize("is_dataset", [True, False])
def test_an_iterator_can_be_closed_while_another_thread_waits_for_its_element(
    storage: Storage, is_dataset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    iterator: Any = iter(Dataset.from_generator(storage.read))
    if not is_dataset:
        iterator = IterableCursor(storage.read, lambda value, _: value)
    outcome: list[Any] = []

    def read() -> None:
        try:
            while True:
                outcome.append(next(iterator))
        except InputError as error:
            outcome.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    assert storage.is_reached.wait(10)
    iterator.close()
    if not is_dataset:
        assert "another thread executes it" in caplog.text
        assert "Storage.read" in caplog.text
    assert not storage.is_closed.is_set()
    storage.may_return.set()
    reading.join(10)
    assert storage.is_closed.is_set()
    assert len(outcome) == 4
    assert "another thread closed it" in str(outcome[-1])


def test_a_grain_thread_that_does_not_return_does_not_hold_up_the_worker(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    iterator = iter(Dataset.from_generator(storage.read).prefetch(2))
    next(iterator)
    assert storage.is_reached.wait(10)
    began = time.perf_counter()
    distributed.reset_for_another_job()
    assert time.perf_counter() - began < 5
    assert "the prefetch thread did not stop within" in caplog.text
    assert "may_return.wait" in caplog.text, "the place is named"
    storage.may_return.set()
    assert storage.is_closed.wait(10)


# Backends that another thread makes while this process joins a job.


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes this process appear as process 1 of 2, whose backends have one process until they are removed."""
    removed: list[str] = []
    state = private.distributed.global_state
    monkeypatch.setattr(state, "num_processes", 2)
    monkeypatch.setattr(state, "process_id", 1)
    monkeypatch.setattr(recovery, "_remove_backends", lambda: removed.append("removed"))
    monkeypatch.setattr(jax, "process_count", lambda: 2 if removed else 1)
    monkeypatch.setattr(jax, "process_index", lambda: 1 if removed else 0)
    return removed


def test_a_backend_of_another_thread_is_replaced_by_one_of_the_job(joined: list[str]) -> None:
    assert recovery.make_backend() == jax.devices()
    assert joined == ["removed"]


def test_a_process_that_cannot_get_a_backend_of_its_job_raises_instead_of_waiting(
    joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    with pytest.raises(ContextError, match=r"process 1 of 2, another thread used JAX(?s:.*)keep NumPy arrays"):
        recovery.make_backend()
    assert len(joined) == 3


# Input for which the training function waits when the workers change.


class Change(BaseException):
    """What the link to the launcher raises."""


@pytest.fixture
def change() -> Iterator[threading.Event]:
    """Makes this process a worker of an elastic job; its workers change once the event is set."""
    happened = threading.Event()

    def check() -> None:
        if happened.is_set():
            raise Change

    distributed.interrupt_waits_by(check)
    yield happened
    distributed.interrupt_waits_by(None)


@pytest.mark.parametrize("blocked", [0, 3])
def test_a_wait_for_input_ends_when_the_workers_change(change: threading.Event, blocked: int) -> None:
    storage = Storage(blocked)
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = strategy.experimental_distribute_dataset(Dataset.from_generator(storage.read), InputOptions(prefetch=1))
    iterator = iter(dataset)
    for _ in range(blocked):
        next(iterator)
    threading.Thread(target=lambda: (storage.is_reached.wait(10), change.set())).start()
    with pytest.raises(Change):  # a wait that does not end meets the timeout of the test
        next(iterator)
    change.clear()
    storage.may_return.set()
    element = next(iterator)
    assert float(np.asarray(strategy.local_results(element)[0])[0]) == blocked, "the batch is not lost"
    distributed.reset_for_another_job()


def test_without_prefetching_the_training_function_reads_itself(change: threading.Event) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = strategy.experimental_distribute_dataset(Dataset.range(8).batch(2), InputOptions(prefetch=0))
    assert len(list(dataset)) == 4
    assert not dataset.stats().uses_worker


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_checkpoint_that_is_being_written_is_finished_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """Training continued after its step, so that it was never written."""
    begun, may_end = threading.Event(), threading.Event()

    def flush(path: Path) -> None:
        begun.set()
        assert may_end.wait(30)

    monkeypatch.setattr(writing, "_flush", flush)
    monkeypatch.setattr(writing, "_LAST_WRITE_SECONDS", 0.2 if is_slow else 30.0)
    manager = CheckpointManager(Checkpoint(v=mr.Variable(1.0)), tmp_path)
    manager.save(1)
    assert begun.wait(30)
    if not is_slow:
        threading.Timer(0.2, may_end.set).start()
    distributed.reset_for_another_job()
    may_end.set()
    manager.wait()
    assert [Path(path).name for path in manager.checkpoints] == ([] if is_slow else ["ckpt-1"])
