"""An iterator goes on after an interrupt in `next` with the element that was being computed, as do saved positions."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from data.readings import plain, read
from interrupts import interrupted_at, interrupted_in
from mirrored.data import Dataset, engine
from mirrored.data.pipeline import interrupts, iterators
from mirrored.errors import InputError


def once(at: int, result: Callable[[Any], Any] = lambda x: x) -> Callable[[Any], Any]:
    """Returns a function that is interrupted at its first call with a number."""
    raised: list[int] = []

    def function(x: Any) -> Any:
        if int(x) == at and not raised:
            raised.append(at)
            raise KeyboardInterrupt
        return result(x)

    return function


def generated(size: int, at: int, make: Callable[[int], Any] = lambda n: n) -> Dataset:
    """A dataset of a generator, which is interrupted before an element."""
    number = once(at)
    return Dataset.from_generator(lambda: (make(number(n)) for n in range(size)))


def stream(size: int) -> Dataset:
    return Dataset.range(size).filter(lambda x: True)


def sourced(at: int, make: Callable[[Callable[[Any], Any]], Iterator[Any]]) -> Dataset:
    """A dataset of an iterator that calls a function, which is interrupted."""
    function = once(at)
    return Dataset.from_generator(lambda: make(function))


def files(number: Callable[[int], int]) -> Iterator[int]:
    return itertools.chain.from_iterable((number(n) for n in range(first, first + 3)) for first in (0, 3))


INTERRUPTED: dict[str, tuple[Callable[[], Dataset], list[Any]]] = {
    "indexed map": (lambda: Dataset.range(4).map(once(2)), [0, 1, 2, 3]),
    "map in threads": (lambda: Dataset.range(4).map(once(2), num_parallel_calls=2), [0, 1, 2, 3]),
    "indexed batch": (lambda: Dataset.range(6).map(once(3)).batch(2), [[0, 1], [2, 3], [4, 5]]),
    "map of a stream": (lambda: stream(4).map(once(2)), [0, 1, 2, 3]),
    "filter": (lambda: Dataset.range(4).filter(once(2, lambda x: True)), [0, 1, 2, 3]),
    "take while": (lambda: Dataset.range(4).take_while(once(2, lambda x: True)), [0, 1, 2, 3]),
    "scan": (lambda: Dataset.range(4).map(once(2)).scan(0, lambda state, x: (state + 1, x + state)), [0, 2, 4, 6]),
    "unique": (lambda: stream(4).map(once(2)).unique(), [0, 1, 2, 3]),
    "batch": (lambda: generated(6, 3).batch(2), [[0, 1], [2, 3], [4, 5]]),
    "rebatch": (
        lambda: generated(2, 1, lambda n: np.arange(3 * n, 3 * n + 3)).rebatch(2),
        [[0, 1], [2, 3], [4, 5]],
    ),
    "unbatch": (lambda: stream(4).map(once(3)).batch(2).unbatch(), [0, 1, 2, 3]),
    "window": (lambda: stream(6).map(once(3)).window(2, shift=3).flat_map(lambda w: w), [0, 1, 3, 4]),
    "zip": (lambda: Dataset.zip((Dataset.range(4), generated(4, 2))), [(n, n) for n in range(4)]),
    "flat_map": (
        lambda: Dataset.range(3).flat_map(once(1, lambda x: Dataset.range(10 * int(x), 10 * int(x) + 2))),
        [0, 1, 10, 11, 20, 21],
    ),
    "interleave": (
        lambda: Dataset.range(3).interleave(once(1, lambda x: Dataset.range(int(x), int(x) + 2)), 2),
        [0, 1, 1, 2, 2, 3],
    ),
    "choose": (
        lambda: Dataset.choose_from_datasets([Dataset.range(2), generated(2, 1)], Dataset.range(2).repeat()),
        [0, 0, 1, 1],
    ),
    "shuffle": (lambda: stream(4).map(once(2)).shuffle(1, seed=0), [0, 1, 2, 3]),
    "concatenate": (lambda: stream(2).concatenate(stream(4).map(once(2))), [0, 1, 0, 1, 2, 3]),
    "repeat": (lambda: stream(2).repeat(2).map(once(1)), [0, 1, 0, 1]),
    "cache": (lambda: stream(4).map(once(2)).cache().repeat(2), [0, 1, 2, 3, 0, 1, 2, 3]),
    "take": (lambda: stream(6).map(once(2)).take(4), [0, 1, 2, 3]),
    "skip": (lambda: stream(6).map(once(1)).skip(2), [2, 3, 4, 5]),
    "shard": (lambda: stream(6).map(once(2)).shard(2, 1), [1, 3, 5]),
    "ignore_errors": (lambda: stream(4).map(once(2)).ignore_errors(), [0, 1, 2, 3]),
    "map in a source": (lambda: sourced(2, lambda f: map(f, range(4))), [0, 1, 2, 3]),
    "filter in a source": (lambda: sourced(2, lambda f: filter(lambda x: f(x) >= 0, range(4))), [0, 1, 2, 3]),
    "chain in a source": (lambda: sourced(1, files), [0, 1, 2, 3, 4, 5]),
    "class": (lambda: sourced(2, Counting), [0, 1, 2, 3]),
}


class Counting:
    """An iterator that advances before it computes an element."""

    def __init__(self, function: Callable[[int], int]) -> None:
        self._numbers, self._function = iter(range(4)), function

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        return self._function(next(self._numbers))


@pytest.mark.parametrize("name", INTERRUPTED)
@pytest.mark.parametrize("marks", ["everywhere", "nowhere"])
@pytest.mark.parametrize("prefetched", [False, True])
def test_an_interrupt_loses_no_element(
    name: str, marks: str, prefetched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The element that was being computed was lost, with those of the same batch; pairs of `zip` were shifted."""
    apart = 0 if marks == "everywhere" else 10**9
    monkeypatch.setattr("mirrored.data.pipeline.interrupts._MARKS_APART", apart)
    make, expected = INTERRUPTED[name]
    dataset = make().prefetch(1) if prefetched else make()
    iterator, found, count = iter(dataset), list[Any](), 0
    while True:
        try:
            found.append(plain(next(iterator)))
        except StopIteration:
            break
        except KeyboardInterrupt:
            count += 1
            restored = iter(dataset)
            restored.set_state(json.loads(json.dumps(iterator.get_state())))
            assert read(restored) == expected[len(found) :]
    assert (found, count) == (expected, 1)


def test_a_restored_iterator_goes_on_after_an_interrupt() -> None:
    dataset = stream(8).map(once(5)).batch(2)
    iterator = iter(dataset)
    next(iterator)
    restored = iter(dataset)
    restored.set_state(iterator.get_state())
    assert next(restored).tolist() == [2, 3]
    with pytest.raises(KeyboardInterrupt):
        next(restored)
    assert read(restored) == [[4, 5], [6, 7]]
    assert read(iterator) == [[2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("around", [None, lambda numbers: map(int, numbers)], ids=["itself", "behind map"])
def test_an_iterator_that_cannot_be_created_again_is_refused_after_an_interrupt(around: Any) -> None:
    """The iteration went on with the next element."""
    numbers = map(once(3), range(5))
    iterator = iter(Dataset.from_generator(lambda: around(numbers) if around else numbers))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    with pytest.raises(InputError, match="fewer elements" if around else "same iterator") as caught:
        next(iterator)
    assert "an interrupt stopped" in str(caught.value.__notes__)


def test_an_interrupt_while_an_element_is_converted_does_not_lose_it() -> None:
    iterator = stream(4).iterator(once(1))
    assert next(iterator) == 0
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [int(x) for x in iterator] == [1, 2, 3]


def test_an_interrupt_at_any_line_loses_no_element() -> None:
    for event in range(1000):
        iterator = iter(stream(4).batch(2).unbatch())
        assert next(iterator) == 0
        came, _ = interrupted_at(event, lambda iterator=iterator: next(iterator), {interrupts.__file__})  # type: ignore[misc]
        assert [int(x) for x in iterator] == ([1, 2, 3] if came else [2, 3])
        if not came:
            break
    assert event > 5


def test_an_interrupt_between_an_element_and_the_caller_takes_the_element_back() -> None:
    """The count of elements had advanced when the lock was released, a C function after which an interrupt comes."""
    came, event, lost = True, 0, 0
    while came:
        iterator = iter(stream(4).batch(2).unbatch())
        assert next(iterator) == 0
        came, _ = interrupted_at(event, iterator.__next__, {iterators.__file__})
        rest = [int(x) for x in iterator]
        assert rest in ([1, 2, 3], [2, 3])
        lost += came and rest == [2, 3]
        event += 1
    assert event > 5
    assert lost == 1  # after the last instruction of `__next__`, where CPython delivers none


@pytest.mark.parametrize("kind", ["dataset", "distributed"])
def test_an_interrupt_before_an_optional_is_returned_takes_the_element_back(kind: str) -> None:
    """The optional was made of the element after `next`, a C function after which an interrupt comes."""
    dataset, error, place = Dataset.range(4), KeyboardInterrupt(), 0
    strategy = mr.MirroredStrategy(["CPU:0"])
    reading = dataset.batch(1) if kind == "dataset" else strategy.experimental_distribute_dataset(dataset.batch(1))
    while error is not None:
        iterator = iter(reading)
        assert int(next(iterator)[0]) == 0
        error = interrupted_in(place, iterator.get_next_as_optional)
        if error is not None:  # a batch that was being read ahead needs the position
            iterator.set_state(iterator.get_state())
        first = 1 if error is not None else 2
        assert [int(x[0]) for x in iterator] == [*range(first, 4)], error
        place += 1
    assert place > 5


def taken_from(items: queue.SimpleQueue[int | None]) -> Iterator[int]:
    while (item := items.get()) is not None:
        yield item


@pytest.mark.parametrize("live", [lambda items: iter(items.get, None), taken_from], ids=["iterator", "generator"])
def test_an_interrupt_while_a_prefetched_element_is_awaited_loses_nothing(live: Any) -> None:
    """The source was read again, of which a live one has other elements; those that were prefetched were lost."""
    items = queue.SimpleQueue[int | None]()

    def put(*numbers: int | None) -> None:
        for number in numbers:
            items.put(number)

    put(0, 1)
    iterator = iter(Dataset.from_generator(lambda: live(items)).prefetch(2))
    found = [int(next(iterator)) for _ in range(2)]
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(2):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
            assert iterator.get_state()["position"]["count"] == 2
    finally:
        signal.signal(signal.SIGALRM, before)
    put(*range(2, 8), None)
    assert found + [int(x) for x in iterator] == list(range(8))


def test_an_interrupt_at_any_line_loses_no_prefetched_element() -> None:
    files = {interrupts.__file__, engine.__file__}
    came, event = True, 0
    while came:
        iterator = iter(stream(4).prefetch(1))
        assert next(iterator) == 0
        came, _ = interrupted_at(event, lambda iterator=iterator: next(iterator), files)  # type: ignore[misc]
        assert [int(x) for x in iterator] == ([1, 2, 3] if came else [2, 3])
        event += 1
    assert event > 5


def test_an_interrupt_while_the_thread_of_prefetch_starts_loses_no_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grain waited for a thread that had not begun, which raised a RuntimeError and closed the iterator."""

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    read, closed = (iter(stream(4).prefetch(2)) for _ in range(2))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        for iterator in (read, closed):
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
    assert [int(x) for x in read] == list(range(4))
    closed.close()


AFTER_PIPES: dict[str, Callable[[Dataset], Dataset]] = {
    "nothing": lambda d: d,
    "prefetch": lambda d: d.prefetch(2),
    "batch and prefetch": lambda d: d.prefetch(1).batch(5).prefetch(2).unbatch(),
    "shuffle": lambda d: d.shuffle(1),
    "rebatch": lambda d: d.batch(5).rebatch(4).unbatch(),
    "flat_map": lambda d: d.flat_map(Dataset.from_tensors),
    "interleave": lambda d: d.interleave(Dataset.from_tensors, cycle_length=1).prefetch(1),
    "flat_map of pipes": lambda d: Dataset.range(1).flat_map(lambda _: d).prefetch(1),
    "ignore_errors": lambda d: d.map(lambda x: x).batch(5).unbatch().ignore_errors().prefetch(1),
}


@pytest.mark.parametrize("name", AFTER_PIPES)
def test_a_source_without_positions_is_read_to_its_end(name: str, tmp_path: Path) -> None:
    """Positions which steps keep, or to which an interrupt would go back, raised `OSError: Illegal seek`."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    expected = [b"%d" % n for n in range(50)]
    writer = threading.Thread(target=path.write_bytes, args=(b"\n".join(expected),))
    writer.start()
    assert list(AFTER_PIPES[name](Dataset.from_text_lines(path))) == expected
    writer.join()


@pytest.mark.parametrize("packing", ["", "GZIP"])
@pytest.mark.parametrize("name", ["nothing", "prefetch", "flat_map of pipes"])
def test_a_position_in_a_pipe_is_not_saved(name: str, packing: str, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    data = b"0\n1\n2\n"
    writer = threading.Thread(target=path.write_bytes, args=(gzip.compress(data) if packing else data,))
    writer.start()
    iterator = iter(AFTER_PIPES[name](Dataset.from_text_lines(path, packing)))
    assert next(iterator) == b"0"
    with pytest.raises(OSError, match=r"seek: .*pipe"):  # of GZIP files it was saved, and not restored
        iterator.get_state()
    assert list(iterator) == [b"1", b"2"]
    writer.join()


def test_an_interrupt_in_the_wait_for_a_prefetched_line_of_a_pipe_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    more = threading.Event()

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            pipe.write(b"0\n1\n")
            more.wait(20)
            pipe.write(b"2\n3\n")

    writer = threading.Thread(target=write)
    writer.start()
    iterator = iter(Dataset.from_text_lines(path).prefetch(2))
    found = [next(iterator), next(iterator)]
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    finally:
        signal.signal(signal.SIGALRM, before)
    more.set()
    assert [*found, *iterator] == [b"0", b"1", b"2", b"3"]
    writer.join()


def test_the_end_before_that_of_a_source_without_positions(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"0\n1\n2\n3\n",))
    writer.start()
    iterator = iter(Dataset.from_text_lines(path).take(2))
    assert list(iterator) == [b"0", b"1"]
    with pytest.raises(OSError, match="seek"):
        iterator.get_state()
    writer.join()


@pytest.mark.parametrize("taken", [0, 2])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_pipe_is_not_read_again_after_an_interrupt(prefetch: int, taken: int, tmp_path: Path) -> None:
    """It would be opened again, and wait for another writer for ever."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"0\n1\n2\n3\n4\n",))
    writer.start()
    dataset = Dataset.from_text_lines(path).map(once(taken))
    iterator = iter(dataset.prefetch(prefetch) if prefetch else dataset)
    assert [int(next(iterator)) for _ in range(taken)] == list(range(taken))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    writer.join()
    for _ in range(2):
        with pytest.raises(InputError, match=r"has no position.*Illegal seek|closed|after it raised"):
            next(iterator)
