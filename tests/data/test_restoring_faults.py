"""A function or source that fails once while a position is restored: the error is raised, and a retry goes on."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from data.readings import plain
from mirrored.data import Dataset
from mirrored.errors import ArgumentError

Read = Callable[[Any], Any]
pytestmark = pytest.mark.timeout(60)


class Once:
    """A function that returns its argument, and raises an exception at one of its calls."""

    def __init__(self, error: type[Exception] = OSError) -> None:
        self._error, self._left = error, 0
        self.has_raised = False
        self.calls = 0

    def raise_at(self, call: int) -> None:
        """Lets the call with this number, counted from 1, raise the exception; 0 for none."""
        self._left, self.has_raised, self.calls = call, False, 0

    def __call__(self, value: Any) -> Any:
        self._left -= 1
        self.calls += 1
        if self._left == 0:
            self.has_raised = True
            raise self._error("transient")
        return value


def generated(read: Read) -> Iterator[Any]:
    for number in range(10):
        yield read(np.int64(number))


FAILING: dict[str, Callable[[Read], Dataset]] = {
    "map": lambda read: Dataset.range(10).map(read),
    "map in threads": lambda read: Dataset.range(10).map(read, num_parallel_calls=2),
    "filter": lambda read: Dataset.range(10).filter(lambda x: read(x) % 4 != 3),
    "take_while": lambda read: Dataset.range(10).take_while(lambda x: read(x) < 9),
    "flat_map": lambda read: Dataset.range(10).flat_map(lambda x: Dataset.from_tensors(read(x))),
    "inner map": lambda read: Dataset.range(5).flat_map(lambda k: Dataset.range(2).map(lambda i: read(2 * k + i))),
    "inner shuffle": lambda read: Dataset.range(5).flat_map(
        lambda k: Dataset.range(3 * read(k), 3 * k + 3).shuffle(3, seed=1)
    ),
    "scan": lambda read: Dataset.range(10).scan(np.int64(0), lambda state, x: (state + read(x), x + 0 * state)),
    "generator": lambda read: Dataset.from_generator(lambda: generated(read)),
    "iterator": lambda read: Dataset.from_generator(lambda: map(read, np.arange(10))),
    "batches": lambda read: Dataset.range(10).batch(3).map(read).unbatch(),
    "random_map": lambda read: Dataset.range(10).random_map(lambda x, rng: read(x) * 9 + rng.integers(9), seed=2),
}
KEEPING: dict[str, Callable[[Dataset], Dataset]] = {
    "nothing": lambda d: d,
    "shuffle": lambda d: d.shuffle(3, seed=4),
    "window": lambda d: d.window(3).flat_map(lambda window: window),
    "overlapping windows": lambda d: d.window(3, shift=2).flat_map(lambda window: window),
    "flat_map": lambda d: d.flat_map(lambda x: Dataset.range(2).map(lambda i: 2 * x + i)),
    "interleave": lambda d: d.interleave(lambda x: Dataset.from_tensors(x).repeat(3), cycle_length=3),
    "group_by_window": lambda d: d.group_by_window(lambda x: x % 2, lambda key, window: window, 3),
    "cache": lambda d: d.cache(),
    "cached epochs": lambda d: d.cache().repeat(2),
    "epochs": lambda d: d.repeat(2),
    "take": lambda d: d.take(7),
    "skip": lambda d: d.skip(2),
    "shard": lambda d: d.shard(2, 1),
    "rebatch": lambda d: d.batch(4).rebatch(3).unbatch(),
    "prefetch": lambda d: d.prefetch(2),
    "zip": lambda d: Dataset.zip(d, Dataset.range(99)).map(lambda x, y: x + 0 * y),
    "concatenate": lambda d: Dataset.range(50, 53).concatenate(d),
    "unique": lambda d: d.unique(),
    "scan": lambda d: d.scan(np.int64(0), lambda state, x: (state + x, x)),
    "sample": lambda d: Dataset.sample_from_datasets([d, Dataset.range(70, 76)], seed=2),
    "random_map": lambda d: d.random_map(lambda x, rng: x * 9 + rng.integers(9), seed=5),
}


def batches(dataset: Any) -> list[Any]:
    return [values(batch) for batch in dataset]


def values(batch: Any) -> Any:
    return plain(np.asarray(batch))


def made(dataset: Dataset, way: str) -> Any:
    if way == "plain":
        return dataset
    strategy = mr.MirroredStrategy(["CPU:0"])
    return strategy.experimental_distribute_dataset(dataset.batch(2))


def restores_all_the_same(build: Callable[[Read], Any], count: int, calls: range) -> int:
    """Restores a position while one of the calls of a function fails, and then again; returns how many calls failed.

    The exception must reach the caller of `set_state`, which leaves the iterator as it was, or of `next`.
    """
    whole, saved = batches(build(Once())), iter(build(Once()))
    list(itertools.islice(saved, min(count, len(whole) - 1)))
    state = json.loads(json.dumps(saved.get_state()))
    rest, failed = batches(saved), 0
    for call, is_used in itertools.product(calls, (False, True)):
        once = Once()
        dataset = build(once)
        restored = iter(dataset)
        if is_used:
            next(restored)
        before = place(restored)
        once.raise_at(call)
        try:
            restored.set_state(state)
        except OSError:
            assert place(restored) == before
            restored.set_state(state)
        found = list[Any]()
        try:
            found.extend(values(batch) for batch in restored)
        except OSError:
            following = iter(dataset)
            following.set_state(json.loads(json.dumps(restored.get_state())))
            found += batches(following)
        assert found == rest, (count, call, is_used)
        failed += once.has_raised
    return failed


def place(iterator: Any) -> Any:
    """Returns the position of an iterator, without the inner datasets, which prefetching makes ahead."""
    return json.dumps(_without(iterator.get_state(), "made"))


def _without(state: Any, name: str) -> Any:
    if isinstance(state, dict):
        return {key: _without(part, name) for key, part in state.items() if key != name}
    return state


CASES = sorted(itertools.product(FAILING, KEEPING, KEEPING, ["plain", "distributed"]))
random.Random(0).shuffle(CASES)
FOUND = [("filter", "nothing", "window"), ("take_while", "shuffle", "flat_map"), ("inner shuffle", "cache", "flat_map")]


@pytest.mark.first(30)
@pytest.mark.parametrize("case", [(*case, "plain") for case in FOUND] + CASES[:300], ids="-".join)
def test_an_error_while_elements_are_read_again_reaches_the_caller(case: tuple[str, str, str, str]) -> None:
    """`flat_map` and `interleave` caught it, and returned elements twice or never."""
    failing, first, second, way = case

    def build(read: Read) -> Any:
        return made(KEEPING[second](KEEPING[first](FAILING[failing](read))), way)

    assert sum(restores_all_the_same(build, count, range(1, 14, 4)) for count in (1, 3))


@pytest.mark.parametrize("error", [OSError, MemoryError])
def test_a_checkpoint_is_not_restored_in_part(error: type[Exception], tmp_path: Path) -> None:
    def build(read: Read) -> Any:
        return made(Dataset.range(12).map(read).window(3).flat_map(lambda window: window), "distributed")

    saved = iter(build(Once()))
    before = [values(next(saved)) for _ in range(2)]
    path = mr.checkpoint.Checkpoint(iterator=saved, step=2).write(tmp_path / "saved")
    once = Once(error)
    restored = iter(build(once))
    checkpoint = mr.checkpoint.Checkpoint(iterator=restored, step=0)
    once.raise_at(2)
    with pytest.raises(error, match="transient"):
        checkpoint.restore(path)
    checkpoint.restore(path).assert_consumed()
    assert before + batches(restored) == [[n, n + 1] for n in range(0, 12, 2)]


@pytest.mark.parametrize("call", range(1, 6))
def test_the_seeds_of_inner_datasets_are_restored_after_an_error_of_their_function(call: int) -> None:
    """The function makes those before the position again, of which the seeds of the later ones are replaced."""

    def build(read: Read, seed: int) -> Dataset:
        return Dataset.range(6).flat_map(lambda k: Dataset.range(4 * read(k), 4 * k + 4).shuffle(4, seed=seed))

    saved = iter(build(Once(), 1))
    list(itertools.islice(saved, 12))
    state, rest, once = saved.get_state(), batches(saved), Once()
    restored = iter(build(once, 2))
    once.raise_at(call)
    if call <= 3:
        with pytest.raises(OSError, match="transient"):
            restored.set_state(state)
    restored.set_state(state)
    once.raise_at(0)
    assert batches(restored) == rest


class Damaged(Once):
    """`Once`, which always raises an exception for two of the elements, too."""

    def __call__(self, value: Any) -> Any:
        if np.ravel(super().__call__(value))[0] in (2, 5):
            raise ValueError("damaged")
        return value


BEFORE_ERRORS = ["map", "filter", "iterator", "batches", "inner map", "random_map"]
IGNORING = [
    case
    for case in CASES
    if case[0] in BEFORE_ERRORS and "prefetch" not in case and case != ("iterator", "cache", "flat_map", "plain")
]


@pytest.mark.first(30)
@pytest.mark.parametrize("kind", [Once, Damaged])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("case", IGNORING[:50], ids="-".join)
def test_ignore_errors_leaves_out_no_other_element_when_elements_are_read_again(
    case: tuple[str, str, str, str], at: int, kind: type[Once]
) -> None:
    """All later elements moved by one."""
    failing, first, second, _ = case

    def build(read: Read) -> Dataset:
        steps = [KEEPING[first], KEEPING[second]]
        steps.insert(at, lambda dataset: dataset.ignore_errors())
        dataset = FAILING[failing](read)
        for step in steps:
            dataset = step(dataset)
        return dataset

    whole = 0
    try:
        whole = len(batches(build(kind())))
    except ValueError:
        return  # a step between ignore_errors and the function ends at an exception
    for count in (1, 3):
        saved = iter(build(kind()))
        list(itertools.islice(saved, max(0, min(count, whole - 1))))
        state, rest = json.loads(json.dumps(saved.get_state())), batches(saved)
        once = kind()
        once.raise_at(0)
        iter(build(once)).set_state(state)
        for call in range(1, once.calls + 1, 3):
            restored = iter(build(once))
            once.raise_at(call)
            with contextlib.suppress(OSError, ValueError):  # the first one can end a window, so that a later one is new
                restored.set_state(state)
                assert batches(restored) == rest
                continue
            restored = iter(build(once))
            restored.set_state(state)
            assert batches(restored) == rest


def test_a_position_without_the_exceptions_that_were_left_out_is_restored() -> None:
    """Such as one of an earlier version, or of an iterator that has left out many kinds."""
    dataset = Dataset.range(10).map(Damaged()).ignore_errors().shuffle(3, seed=1).flat_map(Dataset.from_tensors)
    saved = iter(dataset.ignore_errors())
    list(itertools.islice(saved, 4))
    state = saved.get_state()
    assert state.pop("left_out") == ["ValueError, at element 2", "ValueError, at element 5"]
    del state["position"]["failed"]
    restored = iter(dataset.ignore_errors())
    restored.set_state(state)
    assert batches(restored) == batches(saved)


def test_the_position_after_a_pass_without_elements_over_a_full_cache_is_restored() -> None:
    """No element was read before the position, but an earlier pass left out exceptions."""

    def build() -> Dataset:
        kept = Dataset.from_tensor_slices([2, 5, 1]).map(Damaged()).ignore_errors().cache()
        return Dataset.zip(kept, kept.skip(1))

    iterator = iter(build())
    beginning = iterator.get_state()
    assert batches(iterator) == []
    iterator.set_state(beginning)
    assert batches(iterator) == []
    restored = iter(build())
    restored.set_state(iterator.get_state())
    assert batches(restored) == []


@pytest.mark.parametrize("kind", [KeyError, TypeError, AttributeError])
def test_the_message_of_a_distributed_iterator_allows_for_an_error_of_a_function(kind: type[Exception]) -> None:
    """These errors are also those of a position of another kind of source; the iterator stays where it was."""
    read = Once(kind)
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = Dataset.from_generator(lambda: generated(read)).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    def following() -> list[Any]:
        return [np.asarray(strategy.gather(next(iterator), axis=0)).tolist() for _ in range(2)]

    next(iterator)
    state = iterator.get_state()
    expected = following()
    read.raise_at(1)
    with pytest.raises(ArgumentError, match="if a function of the dataset raised the error, correct the function"):
        iterator.set_state(state)
    assert read.has_raised
    read.raise_at(0)
    iterator.set_state(state)
    assert following() == expected
