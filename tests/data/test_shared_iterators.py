"""One iterator that several threads share: each element reaches one of them, as with iterators of TensorFlow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputOptions
from mirrored.data.pipeline.iterators import DatasetIterator
from mirrored.errors import ContextError, InputError

N, THREADS, SECONDS = 600, 4, 60.0


def yielded() -> Iterator[int]:
    yield from range(N)


PIPELINES: dict[str, Callable[[], Dataset]] = {
    "batch": lambda: Dataset.range(N).batch(2),
    "filter": lambda: Dataset.range(N).shuffle(10, seed=1).filter(lambda x: True),
    "interleave": lambda: Dataset.range(N).interleave(Dataset.from_tensors, cycle_length=3),
    "from_generator": lambda: Dataset.from_generator(yielded).batch(3).unbatch(),
    "prefetch": lambda: Dataset.range(N).filter(lambda x: True).prefetch(3),
}


def read_by_threads(iterator: Iterator[Any], flat: Callable[[Any], Iterable[int]]) -> list[int]:
    """Reads an iterator in several threads until each has seen its end; returns all elements, sorted."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                found.append(next(iterator))
        except StopIteration:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    return sorted(int(one) for element in found for one in flat(element))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_each_element_of_a_dataset_reaches_one_thread(pipeline: str) -> None:
    assert read_by_threads(iter(PIPELINES[pipeline]()), np.ravel) == list(range(N))


@pytest.mark.parametrize("prefetch", [0, None])
def test_each_batch_of_a_distributed_dataset_reaches_one_thread(prefetch: int | None) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = strategy.experimental_distribute_dataset(Dataset.range(N).batch(6), InputOptions(prefetch=prefetch))
    assert read_by_threads(iter(dataset), lambda batch: np.asarray(strategy.gather(batch, axis=0))) == list(range(N))


def test_a_position_taken_while_another_thread_reads_is_between_two_elements() -> None:
    """The element that the other thread is reading precedes the position."""
    reads, goes_on = threading.Event(), threading.Event()

    def slow(x: int) -> int:
        if x == 1:
            reads.set()
            assert goes_on.wait(SECONDS)
        return x

    iterator = iter(Dataset.range(5).filter(lambda x: True).map(slow))
    assert next(iterator) == 0
    reader = threading.Thread(target=lambda: next(iterator), daemon=True)
    reader.start()
    assert reads.wait(SECONDS)
    states: list[dict[str, Any]] = []
    saver = threading.Thread(target=lambda: states.append(iterator.get_state()), daemon=True)
    saver.start()
    saver.join(0.05)
    goes_on.set()
    for thread in (reader, saver):
        thread.join(SECONDS)
    iterator.set_state(states[0])
    assert [int(x) for x in iterator] == [2, 3, 4]


@pytest.mark.parametrize("is_distributed", [False, True])
def test_a_position_is_set_after_the_element_that_another_thread_is_reading(is_distributed: bool) -> None:
    reads, goes_on = threading.Event(), threading.Event()

    def slow(x: int) -> int:
        if x == 1:
            reads.set()
            assert goes_on.wait(SECONDS)
        return x

    dataset: Any = Dataset.range(5).filter(lambda x: True).map(slow)
    if is_distributed:
        strategy = mr.MirroredStrategy(["CPU:0"])
        dataset = strategy.experimental_distribute_dataset(dataset.batch(1), InputOptions(prefetch=0))
    iterator = iter(dataset)
    start = iterator.get_state()
    next(iterator)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(int(np.ravel(next(iterator))[0])), daemon=True)
    reader.start()
    assert reads.wait(SECONDS)
    setter = threading.Thread(target=lambda: iterator.set_state(start), daemon=True)
    setter.start()
    setter.join(0.05)
    assert setter.is_alive()
    goes_on.set()
    for thread in (reader, setter):
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert found == [1]
    assert [int(np.ravel(x)[0]) for x in iterator] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_distributed", [False, True])
def test_setting_a_position_does_not_wait_forever(is_distributed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrored.data.calling.LONGEST_WAIT", 0.1)
    reads, goes_on = threading.Event(), threading.Event()

    def stuck(x: int) -> int:
        reads.set()
        assert goes_on.wait(SECONDS)
        return x

    dataset: Any = Dataset.range(2).map(stuck)
    if is_distributed:
        strategy = mr.MirroredStrategy(["CPU:0"])
        dataset = strategy.experimental_distribute_dataset(dataset.batch(1), InputOptions(prefetch=0))
    iterator = iter(dataset)
    state = iterator.get_state()
    reader = threading.Thread(target=lambda: next(iterator), daemon=True)
    reader.start()
    assert reads.wait(SECONDS)
    with pytest.raises(ContextError, match="set_state: another thread has been reading"):
        iterator.set_state(state)
    goes_on.set()
    reader.join(SECONDS)
    iterator.set_state(state)
    assert len(list(iterator)) == 2


def test_a_checkpoint_that_waits_for_a_function_that_waits_for_it_ends_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrored.data.calling.LONGEST_WAIT", 0.5)
    count, reads, asked = mr.Variable(0), threading.Event(), threading.Event()
    get_state = DatasetIterator.get_state

    def noted(self: DatasetIterator) -> Any:
        asked.set()
        return get_state(self)

    def counted(x: Any) -> Any:
        reads.set()
        asked.wait(SECONDS)  # the checkpoint has the lock for assignments by then
        count.assign_add(1)
        return x

    monkeypatch.setattr(DatasetIterator, "get_state", noted)
    iterator = iter(Dataset.range(4).map(counted))
    reader = threading.Thread(target=lambda: next(iterator), daemon=True)
    reader.start()
    assert reads.wait(SECONDS)
    checkpoint = mr.checkpoint.Checkpoint(count=count, iterator=iterator)
    with pytest.raises(ContextError, match="another thread has been reading"):
        checkpoint.write(tmp_path / "c")
    reader.join(SECONDS)
    assert not reader.is_alive()
    checkpoint.write(tmp_path / "c")
    assert int(count.numpy()) == 1


@pytest.mark.parametrize("has_input_thread", [False, True])
def test_a_thread_that_waits_for_a_batch_learns_that_another_one_closes_the_iterator(has_input_thread: bool) -> None:
    gate, is_waiting, slow = threading.Event(), threading.Event(), 12 if has_input_thread else 0

    def batches() -> Iterator[Any]:
        for number in range(100):
            if number < slow:
                time.sleep(0.006)
            else:
                is_waiting.set()
                gate.wait(SECONDS)
            yield np.full(4, number)

    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    dataset = strategy.experimental_distribute_dataset(Dataset.from_generator(batches))
    iterator = iter(dataset)
    for _ in range(slow):
        next(iterator)
    assert dataset.stats().uses_worker is has_input_thread
    outcome: list[Any] = []

    def wait() -> None:
        try:
            outcome.append(next(iterator))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert is_waiting.wait(SECONDS)
    time.sleep(0.05)
    assert not outcome
    threading.Timer(0.1, gate.set).start()
    iterator.close()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert isinstance(outcome[0], InputError)
    assert "another thread closed it while this thread waited" in str(outcome[0])


@pytest.mark.parametrize("read", [1, 3])
@pytest.mark.parametrize(
    "make", [lambda: Dataset.range(N), *list(PIPELINES.values())[1:]], ids=["range", *list(PIPELINES)[1:]]
)
def test_a_position_taken_while_another_thread_reads_the_first_batches(
    make: Callable[[], Dataset], read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`get_state` put the iterator back to its start, so that `next` returned None; or the position was further on."""
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = strategy.experimental_distribute_dataset(make().batch(40))
    iterator, found = iter(dataset), []
    reader = iterator._reader
    get_state, main = reader.get_state, threading.current_thread()

    def reading_meanwhile() -> Any:
        if found or threading.current_thread() is not main:
            return get_state()
        other = threading.Thread(target=lambda: found.extend(next(iterator) for _ in range(read)))
        other.start()
        other.join(SECONDS)
        return get_state()

    monkeypatch.setattr(reader, "get_state", reading_meanwhile)
    position = iterator.get_state()
    found += iterator
    batches = [strategy.gather(batch, axis=0).tolist() for batch in found]
    assert sorted(sum(batches, [])) == list(range(N))
    continued = iter(dataset)
    continued.set_state(position)
    assert [strategy.gather(batch, axis=0).tolist() for batch in continued] == batches[read:]
