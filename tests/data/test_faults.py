"""Errors in a pipeline name the element; nothing hangs, and no thread is left running."""

from __future__ import annotations

import gc
import itertools
import json
import queue
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
import pytest
from grain import experimental

import mirrored as mr
from data.readings import assert_resumes_everywhere, read
from mirrored.data import ArraySpec, Dataset, engine, feed
from mirrored.data.engine import PRIVATE_NAMES
from mirrored.errors import InputError, MissingExtraError, StructureError

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def failing(at: int) -> Iterator[Any]:
    for number in range(at):
        yield np.int64(number)
    raise KeyError("broken sensor")


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_generator_that_raises_keeps_its_error_and_traceback(prefetch: int) -> None:
    dataset = Dataset.from_generator(lambda: failing(3)).prefetch(prefetch)
    with pytest.raises(KeyError, match="broken sensor") as caught, dataset.iterator(lambda x: x) as reading:
        for _ in reading:
            pass
    assert "Dataset.from_generator: at element 3" in notes(caught.value)
    assert "failing" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize("build", [Dataset.range, lambda n: Dataset.range(n).filter(lambda x: True)])
@pytest.mark.parametrize("threads", [None, 3])
def test_a_map_that_raises_names_the_element(build: Any, threads: int | None) -> None:
    dataset = build(10).map(lambda x: 1 // int(x - 4), num_parallel_calls=threads)
    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        read(dataset)
    assert "Dataset.map: at element 4" in notes(caught.value)


def test_a_predicate_that_raises_names_the_element() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'") as caught:
        read(Dataset.range(10).filter(lambda x: x < 7 or x.nope))
    assert "Dataset.filter: at element 7" in notes(caught.value)


def test_a_stop_iteration_of_user_code_does_not_end_the_data() -> None:
    with pytest.raises(RuntimeError, match="StopIteration at element 0"):
        read(Dataset.range(3).map(lambda x: next(iter(()))))


def test_ragged_elements_are_refused_with_both_shapes() -> None:
    ragged = Dataset.range(1, 4).map(lambda n: {"x": np.zeros(n)})
    with pytest.raises(
        StructureError, match=r"element\['x'\] is float64\[1\] in element 0 .* float64\[2\] in element 1"
    ):
        read(ragged.batch(3))


def test_elements_of_two_structures_are_refused() -> None:
    with pytest.raises(StructureError, match="the same structure"):
        read(Dataset.from_generator(lambda: iter([{"a": 1}, {"b": 1}])).batch(2))


def test_a_broken_promise_of_the_signature_names_the_element() -> None:
    signature = ArraySpec((2,), np.dtype("float32"))
    dataset = Dataset.from_generator(lambda: iter([[1, 2], [1, 2, 3]]), output_signature=signature)
    with pytest.raises(StructureError, match=r"shape \(3,\)") as caught:
        read(dataset)
    assert "at element 1" in notes(caught.value)


def test_a_function_that_returns_nothing_is_refused() -> None:
    with pytest.raises(StructureError, match="the element is None"):
        read(Dataset.range(3).map(lambda x: None))


def test_flat_map_refuses_what_is_no_dataset() -> None:
    with pytest.raises(StructureError, match="returned ndarray for element 0"):
        read(Dataset.range(3).flat_map(lambda x: np.zeros(2)))


@pytest.mark.parametrize("wanted", [0, 2])
def test_an_abandoned_reading_leaves_no_thread(wanted: int) -> None:
    reading = iter(Dataset.range(1000).map(lambda x: x, num_parallel_calls=2).batch(2).prefetch(3))
    for _ in range(wanted):
        next(reading)
    del reading


def test_a_closed_reading_says_so() -> None:
    reading = iter(Dataset.range(3))
    reading.close()
    with pytest.raises(InputError, match=r"after close\(\)"):
        next(reading)


PIPELINES: dict[str, Callable[[Callable[[Any], Any]], Dataset]] = {
    "map": lambda f: Dataset.range(12).map(f),
    "batch": lambda f: Dataset.range(12).map(f).batch(2),
    "prefetch": lambda f: Dataset.range(12).map(f).prefetch(2),
    "threads": lambda f: Dataset.range(12).map(f, num_parallel_calls=2),
    "generator": lambda f: Dataset.from_generator(lambda: map(np.int64, range(12))).map(f).batch(2),
    "shuffle": lambda f: Dataset.range(12).shuffle(5, seed=1).map(f).batch(2).prefetch(1),
    "interleave": lambda f: Dataset.range(3).interleave(lambda i: Dataset.range(4).map(lambda j: f(4 * i + j))),
    "cache": lambda f: Dataset.range(12).map(f).cache().repeat(2),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("bad", [0, 5, 11])
@pytest.mark.parametrize("after", ["error", "close"])
def test_the_position_after_an_error_or_close_is_that_after_the_last_element(name: str, bad: int, after: str) -> None:
    failing = {bad} if after == "error" else set[int]()

    def function(x: Any) -> Any:
        if int(x) in failing:
            raise RuntimeError("for now")
        return x

    dataset = PIPELINES[name](function)
    iterator = iter(dataset)
    read: list[Any] = []
    if after == "error":
        with pytest.raises(RuntimeError, match="for now"):
            read.extend(np.asarray(element).tolist() for element in iterator)
    else:
        read += [np.asarray(next(iterator)).tolist() for _ in range(bad // 2)]
        iterator.close()
    failing.clear()
    states = [json.loads(json.dumps(iterator.get_state())) for _ in range(2)]
    assert states[0] == states[1]
    with pytest.raises(InputError, match=r"after close\(\)"):
        next(iterator)
    following = iter(dataset)
    following.set_state(states[0])
    read += [np.asarray(element).tolist() for element in following]
    expected = iter(dataset)
    expected.set_state({**states[0], "position": None, "count": 0})
    assert read == [np.asarray(element).tolist() for element in expected]


def test_the_position_after_close_is_not_that_of_an_earlier_pass() -> None:
    """A restored position without a place in the pipeline, from which the examples are counted, opens no pipeline."""
    dataset = Dataset.range(6).shuffle(6)
    start = iter(dataset).get_state()
    iterator = iter(dataset)
    assert len(list(iterator)) == 6
    iterator.restore(start, again=True)
    iterator.close()
    following, expected = iter(dataset), iter(dataset)
    following.set_state(iterator.get_state())
    expected.set_state(start)
    assert [int(x) for x in following] == [int(x) for x in expected]


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("prefetched", [False, True])
def test_an_iterator_that_is_collected_in_its_own_thread_closes_its_source(
    distributed: bool, prefetched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cyclic garbage collector runs in whatever thread allocates, also in the one that reads ahead."""
    collects, is_closed, errors = threading.Event(), threading.Event(), list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", errors.append)

    def elements() -> Iterator[Any]:
        try:
            for number in itertools.count():
                time.sleep(0.005)
                if collects.is_set():
                    gc.collect()
                yield np.float32(number)
        finally:
            is_closed.set()

    dataset = Dataset.from_generator(elements).batch(2)
    dataset = dataset.prefetch(2) if prefetched or not distributed else dataset
    holder: Any = types.SimpleNamespace()
    holder.iterator = iter(mr.MirroredStrategy().experimental_distribute_dataset(dataset) if distributed else dataset)
    holder.cycle = holder
    next(holder.iterator)
    gc.disable()
    try:
        del holder
        collects.set()
        deadline = time.monotonic() + 10
        while not is_closed.wait(0.2) and time.monotonic() < deadline:
            gc.collect()  # between two elements the thread may hold the iterator itself
    finally:
        gc.enable()
    assert is_closed.is_set()
    assert not errors


def test_an_empty_dataset_ends_at_once() -> None:
    for dataset in (Dataset.range(0), Dataset.range(0).batch(2), Dataset.range(0).repeat(), Dataset.range(3).take(0)):
        assert read(dataset) == []
    assert read(Dataset.from_generator(lambda: iter(())).repeat()) == []


def test_without_grain_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrored.data import extra

    monkeypatch.setitem(sys.modules, "mirrored.data.engine", None)
    with pytest.raises(MissingExtraError, match=r"grain(.|\n)*mirrored\[data\]"):
        extra.engine.__wrapped__()


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_a_prefetch(kind: type[BaseException], threads: int | None) -> None:
    """It ended Grain's thread, for whose next element the program waited forever."""
    raised = False

    def stopping(x: Any) -> Any:
        nonlocal raised
        if x == 2 and not raised:
            raised = True
            raise kind("stop")
        return x

    with iter(Dataset.range(4).map(stopping, num_parallel_calls=threads).prefetch(1)) as reading:
        assert [int(next(reading)), int(next(reading))] == [0, 1]
        with pytest.raises(kind, match="stop"):
            next(reading)
        assert [int(x) for x in reading] == [2, 3]


@pytest.mark.parametrize("prefetched", [True, False])
def test_an_interrupt_that_ends_a_generator_does_not_end_the_data(prefetched):
    raised = []

    def numbers():
        for i in range(4):
            if i == 2 and not raised:
                raised.append(i)
                raise KeyboardInterrupt
            yield i

    dataset = Dataset.from_generator(numbers)
    iterator = iter(dataset.prefetch(1) if prefetched else dataset)
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [int(element) for element in iterator] == [2, 3]


class Reader:
    """An iterator of a user's class that reads from another one."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> int:
        return next(self._numbers)


AROUND_GENERATORS: dict[str, Callable[[Iterator[int]], Iterator[int]]] = {
    "map": lambda numbers: map(int, numbers),
    "filter": lambda numbers: filter(lambda _: True, numbers),
    "zip": lambda numbers: map(sum, zip(numbers, itertools.repeat(0))),
    "enumerate": lambda numbers: map(max, enumerate(numbers)),
    "islice": lambda numbers: itertools.islice(numbers, 100),
    "chain": lambda numbers: itertools.chain(numbers, ()),
    "class": Reader,
}


def raising_once(error: type[BaseException], at: int, size: int) -> Callable[[], Iterator[int]]:
    """Returns a generator function whose first generator raises an exception before an element."""
    raised: list[bool] = []

    def numbers() -> Iterator[int]:
        for number in range(size):
            if number == at and not raised:
                raised.append(True)
                raise error("damaged")
            yield number

    return numbers


@pytest.mark.parametrize("around", AROUND_GENERATORS.values(), ids=AROUND_GENERATORS)
def test_the_end_right_after_an_error_is_warned_of(around: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A generator behind another iterator ended the data silently. It may also be the true end."""

    def numbers() -> Iterator[int]:
        yield from range(5)
        raise OSError("damaged")

    dataset = Dataset.from_generator(lambda: around(numbers())).batch(2).ignore_errors()
    for _ in range(2):
        assert read(dataset) == [[0, 1], [2, 3]]
    warned = [record.getMessage() for record in caplog.records if "right after it raised" in record.getMessage()]
    assert len(warned) == 1
    assert "OSError" in warned[0]


def test_an_iterator_that_goes_on_after_an_error_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    dataset = Dataset.from_generator(lambda: map(lambda n: 1 // (n - 3), range(8))).batch(2).ignore_errors()
    assert [len(batch) for batch in read(dataset)] == [2, 2, 2]
    assert not caplog.records


@pytest.mark.parametrize("taken", range(5))
def test_a_position_after_errors_of_an_iterator_that_goes_on_is_restored(taken: int) -> None:
    """The errors come again while the elements before the position are read again."""
    dataset = Dataset.from_generator(lambda: map(lambda n: n + 0 // (n % 4 - 3), range(14))).batch(2).ignore_errors()
    iterator = iter(dataset)
    before = [next(iterator).tolist() for _ in range(taken)]
    state = json.loads(json.dumps(iterator.get_state()))
    for again in (iter(dataset), iterator):
        again.set_state(state)
        again.set_state(again.get_state())
        assert before + [batch.tolist() for batch in again] == [[0, 1], [4, 5], [8, 9], [12, 13]]


@pytest.mark.parametrize("source", ["indexed", "stream"])
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda data: data.shard(2, 1).batch(2), [[1, 3], [5, 7]]),
        (lambda data: data.skip(3).batch(2), [[3, 4], [5, 6], [7]]),
        (lambda data: data.shard(2, 0).batch(2), [[4, 6]]),
        (lambda data: data.skip(3).shard(2, 1).shard(2, 1), [6]),
        (lambda data: Dataset.zip((data.shard(2, 1), Dataset.range(10, 14))), [(1, 10), (3, 11), (5, 12), (7, 13)]),
    ],
)
def test_a_skipped_element_that_raises_leaves_out_no_other(source: str, build: Any, expected: list[Any]) -> None:
    """In a stream, the batch that was being collected counted the element of another shard, and was left out."""

    def parsed(number: Any) -> Any:
        if number == 2:
            raise ValueError("damaged record")
        return number

    numbers = Dataset.range(8) if source == "indexed" else Dataset.from_generator(lambda: iter(np.arange(8)))
    dataset = build(numbers.map(parsed)).ignore_errors()
    assert read(dataset) == expected
    assert_resumes_everywhere(dataset)


def test_an_error_that_was_not_left_out_is_raised_again() -> None:
    def numbers(divisor: int) -> Dataset:
        return Dataset.from_generator(lambda: map(lambda n: 12 // (n - divisor), range(8))).batch(2).ignore_errors()

    iterator = iter(numbers(9))
    list(itertools.islice(iterator, 2))
    with pytest.raises(ZeroDivisionError):
        iter(numbers(1)).set_state(iterator.get_state())


@pytest.mark.parametrize("around", AROUND_GENERATORS.values(), ids=AROUND_GENERATORS)
def test_an_interrupt_of_a_generator_behind_another_iterator_does_not_end_the_data(around: Any) -> None:
    numbers = raising_once(KeyboardInterrupt, at=2, size=5)
    iterator = iter(Dataset.from_generator(lambda: around(numbers())))
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [int(element) for element in iterator] == [2, 3, 4]


def test_a_prefetched_source_that_does_not_return_is_left_to_its_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Leaving the loop waited for the next element of a live source without a limit, and so did the program's end."""
    monkeypatch.setattr(feed, "JOIN_SECONDS", 0.1)
    live, is_closed = queue.SimpleQueue[int](), threading.Event()

    def numbers() -> Iterator[int]:
        try:
            while True:
                yield live.get()
        finally:
            is_closed.set()

    for number in range(3):
        live.put(number)
    found = []
    for number in Dataset.from_generator(numbers).prefetch(2):
        found.append(int(number))
        if number == 2:
            break
    assert found == [0, 1, 2]
    assert "the prefetch thread did not stop within" in caplog.text
    assert "yield live.get()" in caplog.text, "the place is named"
    assert not is_closed.is_set()
    live.put(3)
    assert is_closed.wait(10), "the thread closes the source"


def test_a_lock_that_an_interrupt_has_left_locked_does_not_block_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """`with lock:` is not atomic for Python's signal handlers, and Grain's queue takes its mutex in each `get`."""
    monkeypatch.setattr(feed, "JOIN_SECONDS", 0.1)
    monkeypatch.setattr(engine, "_MUTEX_SECONDS", 0.1)
    source = engine.thread_prefetch(engine.CursorDataset(lambda: iter(Dataset.range(100)), "source"), 2)
    reading = iter(source)
    next(reading)
    raising = reading._cursor
    stop, mutex = raising._reading._prefetch_should_stop, raising._reading._buffer.mutex
    assert not any(isinstance(value, type(mutex)) for value in vars(stop).values())
    assert mutex.acquire(timeout=10)
    raising.close()
    mutex.release()  # the thread ends


def test_grain_has_the_private_names_by_which_a_prefetch_thread_is_stopped() -> None:
    elements = grain.MapDataset.range(3).to_iter_dataset()
    iterator = iter(experimental.ThreadPrefetchIterDataset(elements, prefetch_buffer_size=1))
    assert [name for name in PRIVATE_NAMES if not hasattr(iterator, name)] == []
    iterator.close()
