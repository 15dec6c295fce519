"""Positions inside datasets that functions make, whose functions make other datasets when the position is restored."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from data.readings import read
from mirrored.data import Dataset
from mirrored.data.common_position import common_position
from mirrored.errors import ArgumentError

Inner = Callable[[Dataset, Any], Dataset]


def numbers(part: Any) -> Dataset:
    return Dataset.range(int(part) * 6, int(part) * 6 + 6)


MAKERS: dict[str, Callable[[Inner], Dataset]] = {
    "flat_map": lambda inner: Dataset.range(5).flat_map(lambda n: inner(numbers(n), n)),
    "interleave": lambda inner: Dataset.range(5).interleave(lambda n: inner(numbers(n), n), cycle_length=2),
    "two levels": lambda inner: Dataset.range(2).flat_map(
        lambda k: Dataset.range(int(k) * 3, int(k) * 3 + 3).flat_map(lambda n: inner(numbers(n), n))
    ),
    "group_by_window": lambda inner: Dataset.range(30).group_by_window(
        lambda x: x // 6, lambda key, window: inner(window, key), 6
    ),
    "bucket_by_sequence_length": lambda inner: (
        Dataset.range(30)
        .bucket_by_sequence_length(lambda x: x // 15, [1], [6, 6])
        .flat_map(lambda batch: inner(Dataset.from_tensor_slices(batch), batch[0] // 6))
    ),
    "window": lambda inner: (
        Dataset.range(30).window(6).enumerate().flat_map(lambda number, window: inner(window, number))
    ),
}
LATER: dict[str, Callable[[Dataset], Dataset]] = {
    "alone": lambda d: d,
    "shuffle": lambda d: d.shuffle(99, seed=1),
    "window": lambda d: d.window(4).flat_map(lambda window: window),
    "flat_map": lambda d: d.flat_map(lambda x: Dataset.from_tensors(x)),
    "cache": lambda d: d.cache(),
    "scan": lambda d: d.scan(np.int64(0), lambda state, x: (state, x)),
    "ignore_errors": lambda d: d.ignore_errors(),
    "prefetch": lambda d: d.prefetch(3),
    "zip": lambda d: Dataset.zip((d, Dataset.range(100))).map(lambda x, _: x),
}
REFUSED: dict[str, tuple[Inner, Inner, str]] = {
    "shuffle added": (lambda d, _: d, lambda d, _: d.shuffle(3, seed=1), "made the dataset"),
    "shuffle removed": (lambda d, _: d.shuffle(3, seed=1), lambda d, _: d, "made the dataset"),
    "filter added": (lambda d, _: d, lambda d, _: d.filter(lambda x: x % 2 == 0), "made the dataset"),
    "shuffle: buffer size": (lambda d, _: d.shuffle(3, seed=1), lambda d, _: d.shuffle(6, seed=1), r"shuffle\(3"),
    "skip": (lambda d, _: d.skip(1), lambda d, _: d.skip(2), "elements 1, 2"),
    "batch": (lambda d, _: d.batch(2).unbatch(), lambda d, _: d.batch(3).unbatch(), "made the dataset"),
    "seeds of each": (
        lambda d, n: d.shuffle(3, seed=int(n)),
        lambda d, n: d.shuffle(3, seed=int(n) + 1),
        "with the seeds",
    ),
    "seeds of each instead of one": (
        lambda d, n: d.shuffle(3, seed=1),
        lambda d, n: d.shuffle(3, seed=int(n)),
        "with the seeds",
    ),
    "a given seed instead of drawn ones": (
        lambda d, _: d.shuffle(3),
        lambda d, _: d.shuffle(3, seed=1),
        "with the seeds",
    ),
    "the second dataset": (
        lambda d, n: d.shuffle(3, seed=1) if int(n) % 2 else d,
        lambda d, n: d if int(n) % 2 else d.shuffle(3, seed=1),
        "made the dataset",
    ),
}


def position_after(dataset: Dataset, count: int) -> tuple[list[Any], Any, list[Any]]:
    """Reads a number of elements; returns them, the position, and the elements after it."""
    reading = iter(dataset)
    head = [int(x) for x in itertools.islice(reading, count)]
    return head, json.loads(json.dumps(reading.get_state())), [int(x) for x in reading]


def first_after(iterator: Any, state: Any) -> None:
    """Restores a position, and reads an element: only then a cache reads again what precedes the position."""
    iterator.set_state(state)
    next(iterator)


@pytest.mark.first(80)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("later", LATER)
def test_a_function_that_makes_other_datasets_is_refused(name: str, maker: str, later: str) -> None:
    before, after, found = REFUSED[name]
    for count in (7, 8, 14):
        _, state, rest = position_after(LATER[later](MAKERS[maker](before)), count)
        same = iter(LATER[later](MAKERS[maker](before)))
        same.set_state(state)
        assert name.startswith("a given") or [int(x) for x in same] == rest
        restored = iter(LATER[later](MAKERS[maker](after)))
        with pytest.raises(ArgumentError, match=f"saved.*{found}"):
            first_after(restored, state)


@pytest.mark.first(26)
@pytest.mark.parametrize("inner", ["shuffle", "shuffle of a stream", "random_map"])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("later", LATER)
def test_the_saved_seeds_of_inner_datasets_are_used(inner: str, maker: str, later: str) -> None:
    made: dict[str, Callable[[int], Inner]] = {
        "shuffle": lambda seed: lambda d, _: d.shuffle(4, seed=seed),
        "shuffle of a stream": lambda seed: lambda d, _: d.filter(lambda x: True).shuffle(4, seed=seed),
        "random_map": lambda seed: lambda d, _: d.random_map(lambda x, rng: x + rng.integers(99), seed=seed),
    }
    for count in (1, 7, 14):
        _, state, rest = position_after(LATER[later](MAKERS[maker](made[inner](1))), count)
        restored = iter(LATER[later](MAKERS[maker](made[inner](2))))
        restored.set_state(state)
        assert [int(x) for x in restored] == rest
        again = iter(LATER[later](MAKERS[maker](made[inner](3))))
        restored.set_state(state)
        again.set_state(restored.get_state())
        assert [int(x) for x in again] == rest


@pytest.mark.parametrize("maker", MAKERS)
def test_positions_of_earlier_versions_have_no_inner_datasets(maker: str) -> None:
    dataset = MAKERS[maker](lambda d, _: d.shuffle(3, seed=1))
    _, state, rest = position_after(dataset, 8)
    assert state.pop("made")
    restored = iter(dataset)
    restored.set_state(state)
    assert [int(x) for x in restored] == rest


@pytest.mark.parametrize("maker", MAKERS)
def test_functions_may_make_other_datasets_before_the_first_element(maker: str) -> None:
    first, second = (MAKERS[maker](lambda d, _, size=size: d.shuffle(size, seed=1)) for size in (3, 6))
    _, start, _ = position_after(first, 0)
    restored = iter(second)
    restored.set_state(start)
    assert sorted(read(restored)) == sorted(read(second))


def test_later_passes_over_a_cache_have_the_datasets_of_the_first_one() -> None:
    def cached(seed: int | None) -> Dataset:
        return MAKERS["flat_map"](lambda d, _: d if seed is None else d.shuffle(3, seed=seed)).cache()

    dataset = cached(1)
    read(dataset)
    _, state, rest = position_after(dataset, 8)
    restored = iter(cached(2))
    restored.set_state(state)
    assert read(restored) == rest
    with pytest.raises(ArgumentError, match="made the dataset"):
        first_after(iter(cached(None)), state)


def test_a_refused_position_leaves_the_iterator_where_it_was() -> None:
    _, state, _ = position_after(MAKERS["flat_map"](lambda d, _: d), 8)
    reading = iter(MAKERS["flat_map"](lambda d, _: d.skip(1)))
    expected = read(MAKERS["flat_map"](lambda d, _: d.skip(1)))
    assert [int(next(reading)) for _ in range(7)] == expected[:7]
    with pytest.raises(ArgumentError, match="made the dataset"):
        reading.set_state(state)
    assert read(reading) == expected[7:]


def test_a_function_that_cannot_make_a_dataset_again_is_not_compared() -> None:
    """Such as: a file is deleted after it was read."""
    deleted = set[int]()

    def made(number: Any) -> Dataset:
        if int(number) in deleted:
            raise FileNotFoundError(number)
        return numbers(number)

    _, state, rest = position_after(Dataset.range(5).flat_map(made), 20)
    deleted.update(range(3))
    restored = iter(Dataset.range(5).flat_map(made))
    restored.set_state(state)
    assert read(restored) == rest


@pytest.mark.parametrize("inner", [lambda d, _: d.shuffle(3, seed=1), lambda d, n: d.take(n).batch(n + 1)])
def test_positions_stay_small(inner: Inner) -> None:
    dataset = (
        Dataset.range(100)
        .flat_map(lambda k: Dataset.range(int(k) * 50, int(k) * 50 + 50).flat_map(lambda n: inner(numbers(n), n)))
        .repeat(2)
    )
    reading, sizes = iter(dataset), []
    for number, _ in enumerate(itertools.islice(reading, 20_000)):
        if number % 2000 == 0:
            sizes.append(len(json.dumps(reading.get_state())))
    assert max(sizes) < 6000


def test_workers_whose_threads_have_made_other_datasets_have_a_common_position() -> None:
    positions = [{"count": 4, "made": {"0": [{"numbers": [[0, 0, n] for n in range(count)]}]}} for count in (1, 2)]
    assert common_position(positions) == positions[0]


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("seed", lambda d: d.shuffle(3, seed=2)),
        ("map", lambda d: d.map(lambda x: x).shuffle(3, seed=1)),
        ("buffer", lambda d: d.shuffle(6, seed=1)),
        ("filter", lambda d: d.filter(lambda x: x % 2 == 0).shuffle(3, seed=1)),
    ],
)
def test_distributed_positions_have_inner_datasets(name: str, after: Callable[[Dataset], Dataset], size: int) -> None:
    """With another batch size, or further steps that keep the examples, these are counted."""

    def reading(inner: Callable[[Dataset], Dataset], size: int) -> Any:
        dataset = Dataset.range(5).flat_map(lambda n: inner(numbers(n)).batch(6).unbatch()).batch(size)
        return iter(mr.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(dataset))

    saved = reading(lambda d: d.shuffle(3, seed=1), 4)
    for _ in range(2):
        next(saved)
    state = json.loads(json.dumps(saved.get_state()))
    restored = reading(after, size)
    if name in ("seed", "map"):
        restored.set_state(state)
        rest = [np.asarray(batch).tolist() for batch in restored]
        assert list(itertools.chain(*rest)) == [int(x) for batch in saved for x in np.asarray(batch)]
        return
    with pytest.raises(ArgumentError, match="saved.*"):
        first_after(restored, state)
