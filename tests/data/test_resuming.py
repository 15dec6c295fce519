"""A saved position continues with the next example, also with another number of replicas or batch size."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirrored as mr
import mirrored.tf as tf
from interrupts import interrupted_at
from mirrored.data import AutoShardPolicy, Dataset, InputOptions, Options
from mirrored.data.distributed import DistributedIterator
from mirrored.data.feed import Feed
from mirrored.data.pipeline import dataset_source
from mirrored.data.readers import ElementsInTurn, GlobalBatches, Reader
from mirrored.data.sources import WorkerShare, as_source
from mirrored.errors import ArgumentError, InputError

REPLICAS = (1, 2, 4, 8)
REMEDY = r"continue with iterator\.set_state\(iterator\.get_state\(\)\)"

PIPELINES: dict[str, Callable[[int, int], Dataset]] = {
    "shuffled": lambda n, b: Dataset.range(n).shuffle(n + 1).batch(b),
    "buffered": lambda n, b: Dataset.range(n).shuffle(3).batch(b),
    "epochs": lambda n, b: Dataset.range(n).shuffle(n + 1).repeat(2).batch(b),
    "stream": lambda n, b: Dataset.range(n).filter(lambda x: x % 3 != 1).shuffle(5).batch(b),
    "prefetched": lambda n, b: Dataset.range(n).shuffle(n + 1).map(lambda x: x).batch(b).prefetch(2),
}


def strategy_of(replicas: int) -> Any:
    return mr.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def numbers(element: Any, strategy: Any) -> list[int]:
    return [int(n) for share in strategy.local_results(element) for n in np.asarray(share)]


def read(dataset: Dataset, replicas: int, state: Any = None, stop: int | None = None) -> tuple[list[int], Any]:
    strategy = strategy_of(replicas)
    with iter(strategy.experimental_distribute_dataset(dataset)) as reading:
        if state is not None:
            reading.set_state(state)
        found = [n for element in itertools.islice(reading, stop) for n in numbers(element, strategy)]
        return found, json.loads(json.dumps(reading.get_state()))


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(PIPELINES)),
    size=st.integers(1, 24),
    stops=st.lists(st.integers(0, 5), max_size=3),
    replicas=st.lists(st.sampled_from(REPLICAS), min_size=4, max_size=4),
    batches=st.lists(st.integers(1, 6), min_size=4, max_size=4),
)
def test_no_example_twice_and_none_lost(
    name: str, size: int, stops: list[int], replicas: list[int], batches: list[int]
) -> None:
    build = PIPELINES[name]
    found: list[int] = []
    state = None
    # Every part runs in a "new process": a new dataset, whose shuffle draws another seed, until it gets the position.
    for part, stop in enumerate([*stops, None]):
        more, state = read(build(size, batches[part]), replicas[part], state, stop)
        found += more
    expected = [n for n in range(size) if name != "stream" or n % 3 != 1]
    assert sorted(found) == sorted(expected * (2 if name == "epochs" else 1))
    if name == "epochs":
        assert sorted(found[:size]) == expected


@pytest.mark.parametrize("name", sorted(PIPELINES))
@pytest.mark.parametrize(("before", "after"), [(1, 4), (8, 2)])
def test_the_order_is_that_of_an_uninterrupted_run(name: str, before: int, after: int) -> None:
    strategy = strategy_of(before)
    reading = iter(strategy.experimental_distribute_dataset(PIPELINES[name](20, 4)))
    next(reading)
    next(reading)
    state = json.loads(json.dumps(reading.get_state()))
    rest = [n for element in reading for n in numbers(element, strategy)]
    for batch in (4, 3):
        assert read(PIPELINES[name](20, batch), after, state)[0] == rest


def test_prefetched_batches_do_not_count_as_consumed() -> None:
    strategy = strategy_of(2)
    reading = iter(strategy.experimental_distribute_dataset(Dataset.range(40).batch(4), InputOptions(prefetch=5)))
    for count in range(4):
        assert reading.get_state()["examples"] == 4 * count
        next(reading)


@pytest.mark.parametrize("rule", ["pad", "drop"])
def test_padding_and_dropping_resume_too(rule: Any) -> None:
    strategy = strategy_of(2)

    def fresh() -> Any:
        return iter(strategy.experimental_distribute_dataset(Dataset.range(11).batch(4), InputOptions(last_batch=rule)))

    whole = [str(element) for element in fresh()]
    for stop in range(len(whole) + 1):
        reading = fresh()
        for _ in range(stop):
            next(reading)
        restored = fresh()
        restored.set_state(reading.get_state())
        assert [str(element) for element in restored] == whole[stop:]


@pytest.mark.parametrize(
    ("after", "expected"), [(6, [[4, 5], [6, 7, 8, 9, 10, 11]]), (3, [[4, 5], [6, 7, 8], [9, 10, 11]])]
)
def test_dropping_keeps_the_rest_of_a_batch_of_another_size(after: int, expected: list[list[int]]) -> None:
    strategy = strategy_of(2)

    def reading(size: int) -> Any:
        dataset = Dataset.range(13).batch(size)
        return iter(strategy.experimental_distribute_dataset(dataset, InputOptions(last_batch="drop")))

    saved = reading(4)
    assert numbers(next(saved), strategy) == [0, 1, 2, 3]
    restored = reading(after)
    restored.set_state(saved.get_state())
    assert [numbers(batch, strategy) for batch in restored] == expected


@pytest.mark.parametrize("rule", ["drop", "pad", "split"])
@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8), (8, 6), (8, 8), (8, 16)])
@pytest.mark.parametrize("then", [lambda d: d, lambda d: d.prefetch(1), lambda d: d.map(lambda x: x).prefetch(1)])
def test_a_full_batch_has_the_new_size_of_rebatch(rule: Any, before: int, after: int, then: Any) -> None:
    strategy = strategy_of(1)

    def reading(size: int) -> Any:
        dataset = then(Dataset.range(23).batch(2).rebatch(size))
        return iter(strategy.experimental_distribute_dataset(dataset, InputOptions(last_batch=rule)))

    def counts(iterator: Any) -> list[int]:
        return [len(batch if rule != "pad" else batch[0]) for batch in iterator]

    saved = reading(before)
    next(saved)
    restored = reading(after)
    restored.set_state(json.loads(json.dumps(saved.get_state())))
    rest = 23 - before
    last = {"drop": [], "pad": [after], "split": [rest % after]}[rule] if rest % after else []
    assert counts(restored) == [after] * (rest // after) + last


def test_batches_that_anybody_yields_resume_by_counting() -> None:
    batches = [np.arange(0, 4), np.arange(4, 8), np.arange(8, 10)]
    strategy = strategy_of(2)
    reading = iter(strategy.experimental_distribute_dataset(batches))
    next(reading)
    elsewhere = iter(strategy.experimental_distribute_dataset([np.arange(0, 5), np.arange(5, 10)]))
    elsewhere.set_state(json.loads(json.dumps(reading.get_state())))
    assert [numbers(element, strategy) for element in elsewhere] == [[4], [5, 6, 7, 8, 9]]


def generated(size: int) -> Dataset:
    return Dataset.from_generator(lambda: (np.arange(i, i + size) for i in range(0, 24, size)))


def numbered(size: int) -> Dataset:
    return Dataset.range(0, 24, size).map(lambda start: np.arange(start, start + size))


def every(_: object) -> bool:
    return True


def not_negative(start: Any, size: int) -> np.ndarray:
    if start < 0:
        raise ValueError("the batch is broken")
    return np.arange(start, start + size)


BATCHES_OF_USERS: dict[str, Callable[[int], Dataset]] = {
    "generator": lambda n: generated(n),
    "list": lambda n: Dataset.from_generator(lambda: [np.arange(i, i + n) for i in range(0, 24, n)]),
    "prefetched": lambda n: Dataset.from_generator(lambda: map(np.arange, range(0, 24, n), range(n, 25, n))).prefetch(
        2
    ),
    "map of numbers": lambda n: numbered(n),
    "flat_map": lambda n: Dataset.range(0, 24, 12).flat_map(lambda start: Dataset.range(start, start + 12).batch(n)),
    "generator, filter": lambda n: generated(n).filter(every),
    "generator, cache": lambda n: generated(n).cache(),
    "generator, map, take, prefetch": lambda n: generated(n).map(lambda x: x).take(99).prefetch(2),
    "generator, shuffle": lambda n: generated(n).shuffle(1),
    "generator, random_map": lambda n: generated(n).random_map(lambda x, rng: x),
    "generator, ignore_errors": lambda n: generated(n).ignore_errors(),
    "concatenation": lambda n: generated(n).take(0).concatenate(generated(n)),
    "zip": lambda n: Dataset.zip((generated(n), generated(n))).map(lambda x, y: x),
    "cached map of numbers": lambda n: numbered(n).cache(),
    "cached stream": lambda n: numbered(n).filter(every).cache(),
    "first batch fails": lambda n: Dataset.range(-n, 24, n).map(lambda start: not_negative(start, n)).ignore_errors(),
    "shuffled": lambda n: (
        Dataset.range(2).shuffle(2, seed=3).flat_map(lambda i: Dataset.range(12 * i, 12 * i + 12).batch(n - 2 * int(i)))
    ),
}


@pytest.mark.parametrize("name", BATCHES_OF_USERS)
@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8), (4, 4)])
@pytest.mark.parametrize("epoch", [0, 1])
def test_batches_of_user_functions_resume_after_the_examples(name: str, before: int, after: int, epoch: int) -> None:
    """Nothing in the steps shows their size; a number of batches would be another number of examples."""
    make, strategy = BATCHES_OF_USERS[name], strategy_of(1)

    def reading(size: int) -> tuple[Any, Any]:
        dataset = strategy.experimental_distribute_dataset(make(size))
        return dataset, iter(dataset)

    dataset, saved = reading(before)
    for _ in range(epoch):
        list(saved)
        saved = iter(dataset)
    taken = [n for _ in range(2) for n in numbers(next(saved), strategy)]
    restored = reading(after)[1]
    restored.set_state(json.loads(json.dumps(saved.get_state())))
    rest = [n for element in saved for n in numbers(element, strategy)]
    assert [n for element in restored for n in numbers(element, strategy)] == rest
    assert sorted(taken + rest) == list(range(24))


@pytest.mark.parametrize("make", [generated, numbered, lambda n: generated(n).filter(every)])
def test_a_position_after_more_batches_than_the_data_now_has(make: Callable[[int], Dataset]) -> None:
    """The same examples are fewer batches if these are larger."""
    assert rest_after(make(2), make(6), steps=8) == list(range(16, 24))


def test_the_size_of_the_first_batch_fills_no_cache() -> None:
    seen: list[int] = []

    def batch(start: Any) -> np.ndarray:
        seen.append(int(start))
        return np.arange(start, start + 4)

    dataset = Dataset.range(0, 24, 4).map(batch).cache()
    assert rest_after(numbered(4).cache(), dataset, steps=3) == list(range(12, 24))
    assert seen == [0, 12, 16, 20]
    assert len(list(dataset)) == 6
    assert seen == [0, 12, 16, 20, 0, 4, 8]


STEPS_BEHIND_GENERATORS: dict[str, Callable[[Dataset], Dataset]] = {
    "filter": lambda d: d.filter(every),
    "shuffle": lambda d: d.shuffle(1),
    "take, repeat": lambda d: d.take(99).repeat(1),
    "random_map": lambda d: d.random_map(lambda x, rng: x),
    "ignore_errors": lambda d: d.ignore_errors(),
    "take_while": lambda d: d.take_while(every),
    "enumerate": lambda d: d.enumerate().map(lambda i, x: x),
    "zip": lambda d: Dataset.zip((d, generated(2))).map(lambda x, y: x),
}


@pytest.mark.parametrize("name", STEPS_BEHIND_GENERATORS)
def test_batches_of_the_same_size_are_not_computed_again(name: str) -> None:
    """Their examples were counted, so that `map` was called for each batch before the position."""
    seen: list[int] = []

    def batches() -> Dataset:
        return STEPS_BEHIND_GENERATORS[name](generated(2)).map(lambda x: (seen.append(int(x[0])), x)[1])

    saved, restored = (iter(strategy_of(1).experimental_distribute_dataset(batches())) for _ in range(2))
    for _ in range(8):
        next(saved)
    state = json.loads(json.dumps(saved.get_state()))
    seen.clear()
    restored.set_state(state)
    assert numbers(next(restored), strategy_of(1)) == [16, 17]
    assert set(seen) <= {0, 16, 18, 20, 22}


def from_file(size: int, rewinds: bool) -> Dataset:
    """24 numbers from a file that all generators of the dataset share, `size` in each element."""
    file = io.BytesIO(bytes(range(24)))

    def parts() -> Iterator[Any]:
        if rewinds:
            file.seek(0)
        while data := file.read(size):
            yield np.frombuffer(data, np.uint8)

    return Dataset.from_generator(parts)


def rest_after(saved: Dataset, restored: Dataset, steps: int = 1) -> list[int]:
    """What `restored` reads from the position at which `saved` is after some steps, each on one replica."""
    strategy = strategy_of(1)
    before = iter(strategy.experimental_distribute_dataset(saved))
    after = iter(strategy.experimental_distribute_dataset(restored))
    for _ in range(steps):
        next(before)
    after.set_state(json.loads(json.dumps(before.get_state())))
    return [n for element in after for n in numbers(element, strategy)]


@pytest.mark.parametrize(("rewinds", "before", "after"), [(True, 4, 4), (False, 4, 4), (True, 8, 4)])
@pytest.mark.parametrize("then", [lambda d: d, lambda d: d.map(lambda x: x).repeat(1), lambda d: d.filter(every)])
def test_generators_may_share_a_file(then: Any, rewinds: bool, before: int, after: int) -> None:
    """A second generator, which showed the size of the first batch, moved the file that the restored one reads."""
    rest = rest_after(then(from_file(before, rewinds)), then(from_file(after, rewinds)))
    assert rest == list(range(before, 24))


def test_a_map_behind_a_generator_makes_the_batch() -> None:
    """The size of the generator's number, which is none, was compared with that of the batch."""

    def batches(size: int) -> Dataset:
        starts = Dataset.from_generator(lambda: iter(range(0, 24, size)))
        return starts.map(lambda start: np.arange(start, start + size))

    assert rest_after(batches(8), batches(4), steps=2) == list(range(16, 24))


@pytest.mark.parametrize(
    ("rewinds", "after", "expected"),
    [(False, 8, [8, 9, 10, 11, 16, 17, 18, 19]), (True, 4, [8, 9, 12, 13, 16, 17, 20, 21])],
)
def test_a_map_behind_a_generator_changes_the_size(rewinds: bool, after: int, expected: list[int]) -> None:
    def halves(size: int) -> Dataset:
        return from_file(size, rewinds).map(lambda batch: batch[: len(batch) // 2])

    assert rest_after(halves(8), halves(after)) == expected


@pytest.mark.parametrize("kind", ["generator", "class"])
def test_a_source_that_can_be_read_only_once_is_restored(kind: str) -> None:
    class Restarting:
        def __iter__(self) -> Restarting:
            self.place = 0
            return self

        def __next__(self) -> Any:
            if self.place == 24:
                raise StopIteration
            self.place += 4
            return np.arange(self.place - 4, self.place)

    def fresh() -> Any:
        once = (np.arange(i, i + 4) for i in range(0, 24, 4)) if kind == "generator" else Restarting()
        return iter(strategy_of(1).experimental_distribute_dataset(Dataset.from_generator(lambda: once)))

    saved, restored = fresh(), fresh()
    next(saved)
    restored.set_state(saved.get_state())
    assert [n for element in restored for n in numbers(element, strategy_of(1))] == list(range(4, 24))


def test_datasets_from_a_function_resume() -> None:
    strategy = strategy_of(2)
    distributed = strategy.distribute_datasets_from_function(lambda context: Dataset.range(9).batch(2))
    reading = iter(distributed)
    next(reading)
    restored = iter(distributed)
    restored.set_state(json.loads(json.dumps(reading.get_state())))
    assert [numbers(element, strategy) for element in restored] == [[4, 5, 6, 7], [8]]


@pytest.mark.parametrize(("before", "after"), [(0, [[0, 1], [2, 3], [4]]), (1, [[2, 3], [4]]), (2, [[4]]), (3, [])])
def test_lists_from_a_function_resume(before: int, after: list[list[int]]) -> None:
    """A list has no position of its own: its elements are read again."""
    strategy = strategy_of(2)
    distributed = strategy.distribute_datasets_from_function(lambda context: [np.array([i]) for i in range(5)])
    reading = iter(distributed)
    for _ in range(before):
        next(reading)
    restored, twice = iter(distributed), iter(distributed)
    restored.set_state(json.loads(json.dumps(reading.get_state())))
    twice.set_state(json.loads(json.dumps(restored.get_state())))
    for continued in (restored, twice):
        assert [numbers(element, strategy) for element in continued] == after


FROM_FUNCTIONS: dict[str, Callable[[int], Any]] = {
    "list": lambda n: [np.arange(i, i + n) for i in range(0, 24, n)],
    "generator": generated,
    "generator, filter": lambda n: generated(n).filter(every),
    "map of numbers": numbered,
    "batch": lambda n: Dataset.range(24).batch(n),
    "batch, map": lambda n: Dataset.range(24).batch(n).map(lambda x: x),
}


@pytest.mark.parametrize("name", FROM_FUNCTIONS)
@pytest.mark.parametrize(("before", "after"), [(1, 4), (2, 4), (4, 2), (2, 2)])
def test_datasets_from_a_function_resume_on_another_number_of_replicas(name: str, before: int, after: int) -> None:
    """The function makes smaller batches for more replicas: a number of batches would be another number of examples."""

    def reading(replicas: int) -> Any:
        return iter(
            strategy_of(replicas).distribute_datasets_from_function(
                lambda context: FROM_FUNCTIONS[name](context.get_per_replica_batch_size(8))
            )
        )

    saved = reading(before)
    next(saved)
    state = json.loads(json.dumps(saved.get_state()))
    restored = reading(after)
    restored.set_state(state)
    assert numbers(next(restored), strategy_of(after)) == list(range(8, 16))
    state = json.loads(json.dumps(restored.get_state()))
    for replicas in (before, after):
        again = reading(replicas)
        again.set_state(state)
        assert [numbers(element, strategy_of(replicas)) for element in again] == [list(range(16, 24))]


@pytest.mark.parametrize("name", FROM_FUNCTIONS)
def test_a_position_inside_an_element_from_a_function_is_refused(name: str) -> None:
    strategy = strategy_of(1)
    saved, restored = (
        iter(strategy.distribute_datasets_from_function(lambda context, n=n: FROM_FUNCTIONS[name](n))) for n in (3, 4)
    )
    next(saved)
    with pytest.raises(ArgumentError, match="after 3 examples, inside an element of 4 examples"):
        restored.set_state(saved.get_state())
    assert numbers(next(restored), strategy) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", FROM_FUNCTIONS)
@pytest.mark.parametrize("kind", ["taken", "rows"])
def test_positions_from_a_function_of_earlier_versions_are_restored(name: str, kind: str) -> None:
    strategy = strategy_of(2)
    distributed = strategy.distribute_datasets_from_function(lambda context: FROM_FUNCTIONS[name](4))
    reading = iter(distributed)
    next(reading)
    state = reading.get_state()
    del state["reader"]["given"], state["reader"]["full"]
    state["reader"][kind] = [2] if kind == "taken" else 1
    for expected in (list(range(8, 16)), list(range(16, 24))):
        restored = iter(distributed)
        restored.set_state(json.loads(json.dumps(state)))
        assert numbers(next(restored), strategy) == expected
        state = restored.get_state()


DATA: dict[str, Callable[[Any], Any]] = {
    "dataset": lambda strategy: strategy.experimental_distribute_dataset(Dataset.range(30).batch(2)),
    "shuffled": lambda strategy: strategy.experimental_distribute_dataset(Dataset.range(30).shuffle(9).batch(2)),
    "stream": lambda strategy: strategy.experimental_distribute_dataset(
        Dataset.range(30).filter(lambda x: x >= 0).shuffle(9).batch(2)
    ),
    "batches": lambda strategy: strategy.experimental_distribute_dataset(
        [np.arange(i, i + 2) for i in range(0, 30, 2)]
    ),
    "function": lambda strategy: strategy.distribute_datasets_from_function(lambda context: Dataset.range(30).batch(1)),
    "threads": lambda strategy: strategy.experimental_distribute_dataset(
        Dataset.range(30).map(lambda x: x, num_parallel_calls=2).batch(2).prefetch(2)
    ),
}


@pytest.mark.parametrize("name", sorted(DATA))
def test_a_position_may_be_set_again_and_again(name: str) -> None:
    strategy = strategy_of(2)
    reading = iter(DATA[name](strategy))
    states, found = [], []
    for _ in range(6):
        states.append(json.loads(json.dumps(reading.get_state())))
        found.append(numbers(next(reading), strategy))
    for place in (4, 0, 5, 2):
        reading.set_state(states[place])
        assert reading.get_state()["examples"] == 2 * place
        assert [numbers(next(reading), strategy) for _ in range(6 - place)] == found[place:]
    reading.close()


def test_a_position_is_set_while_a_worker_reads_ahead() -> None:
    def slow(number: Any) -> Any:
        time.sleep(0.003)
        return number

    strategy = strategy_of(2)
    distributed = strategy.experimental_distribute_dataset(Dataset.range(60).map(slow).batch(2))
    with iter(distributed) as reading:
        found = [numbers(next(reading), strategy) for _ in range(14)]
        assert distributed.stats().uses_worker
        reading.set_state({**reading.get_state()})
        assert numbers(next(reading), strategy) == [28, 29]
    assert found == [[i, i + 1] for i in range(0, 28, 2)]


def test_a_position_is_set_after_the_end_but_not_after_close() -> None:
    strategy = strategy_of(2)
    reading = iter(strategy.experimental_distribute_dataset(Dataset.range(9).batch(2)))
    state = reading.get_state()
    whole = [numbers(element, strategy) for element in reading]
    reading.set_state(state)
    assert [numbers(element, strategy) for element in reading] == whole
    reading.close()
    reading.set_state(state)
    reading.close()
    with pytest.raises(InputError, match="after close"):
        reading.set_state(state)


@pytest.mark.parametrize("before", REPLICAS)
@pytest.mark.parametrize("after", [1, 4])
@pytest.mark.parametrize("size", [11, 12])
def test_dropped_remainders_are_those_of_an_uninterrupted_run(before: int, after: int, size: int) -> None:
    def build() -> Dataset:
        return Dataset.range(size).shuffle(size, seed=5).batch(4, drop_remainder=True).repeat(2)

    whole = read(build(), 1)[0]
    assert len(whole) == 2 * (size - size % 4)
    for stop in range(len(whole) // 4 + 1):
        begun, state = read(build(), before, None, stop)
        assert begun + read(build(), after, state)[0] == whole


def test_what_is_no_position_is_refused() -> None:
    reading = iter(strategy_of(2).experimental_distribute_dataset(Dataset.range(9).batch(2)))
    with pytest.raises(ArgumentError, match="a position must be a value that get_state"):
        reading.set_state({"next_index": 3})


def test_a_position_of_other_shuffles_is_refused() -> None:
    strategy = strategy_of(2)
    state = iter(strategy.experimental_distribute_dataset(Dataset.range(9).shuffle(9).batch(2))).get_state()
    reading = iter(strategy.experimental_distribute_dataset(Dataset.range(9).batch(2)))
    with pytest.raises(ArgumentError, match="the same steps"):
        reading.set_state(state)


EPOCHS: dict[str, Callable[[], Dataset]] = {
    "shuffled": lambda: Dataset.range(12).shuffle(12, seed=1).batch(3),
    "without a seed": lambda: Dataset.range(12).shuffle(12).batch(3),
    "buffered": lambda: Dataset.range(12).shuffle(4, seed=1).batch(3),
    "stream": lambda: Dataset.range(18).filter(lambda x: x % 3 != 1).shuffle(5, seed=1).batch(3),
    "stream without a seed": lambda: Dataset.range(18).filter(lambda x: x % 3 != 1).shuffle(5).batch(3),
    "not reshuffled": lambda: Dataset.range(12).shuffle(12, seed=1, reshuffle_each_iteration=False).batch(3),
    "shuffled batches": lambda: Dataset.range(12).batch(3).shuffle(4, seed=1),
    "shuffled twice": lambda: Dataset.range(12).shuffle(12).shuffle(5).batch(3),
    "repeated": lambda: Dataset.range(6).shuffle(6, seed=1).repeat(2).batch(3),
    "cached": lambda: Dataset.range(12).cache().shuffle(12, seed=1).batch(3),
    "cached stream": lambda: Dataset.from_generator(lambda: range(12)).cache().shuffle(12, seed=1).batch(3),
    "prefetched": lambda: Dataset.range(12).shuffle(12, seed=1).batch(3).prefetch(2),
    "random map": lambda: Dataset.range(12).random_map(lambda x, rng: x + 100 * rng.integers(9), seed=1).batch(3),
    "interleaved": lambda: (
        Dataset.range(4)
        .shuffle(4, seed=1)
        .interleave(lambda n: Dataset.range(int(n) * 3, int(n) * 3 + 3).shuffle(3, seed=2), cycle_length=2)
        .batch(3)
    ),
    "zipped": lambda: (
        Dataset.zip((Dataset.range(12).shuffle(12, seed=1), Dataset.range(12))).map(lambda a, b: a).batch(3)
    ),
    "concatenated": lambda: (
        Dataset.range(6).shuffle(6, seed=1).concatenate(Dataset.range(6, 12).shuffle(6, seed=2)).batch(3)
    ),
}


def plainly(dataset: Dataset) -> Callable[[], Any]:
    return lambda: dataset.as_numpy_iterator()


def distributed(dataset: Dataset) -> Callable[[], Any]:
    readable = strategy_of(2).experimental_distribute_dataset(dataset)
    return lambda: iter(readable)


def from_function(dataset: Dataset) -> Callable[[], Any]:
    readable = strategy_of(2).distribute_datasets_from_function(lambda _: dataset)
    return lambda: iter(readable)


def all_numbers(elements: Any) -> list[int]:
    strategy = strategy_of(2)
    return [n for element in elements for n in numbers(element, strategy)]


def saved_as_json(reading: Any) -> Callable[[Any], None]:
    text = json.dumps(reading.get_state())
    return lambda other: other.set_state(json.loads(text))


@pytest.mark.parametrize("name", sorted(EPOCHS))
@pytest.mark.parametrize("way_of_reading", [plainly, distributed, from_function])
@pytest.mark.parametrize("batches", [0, 2, 4])
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.first(144)
def test_epochs_after_a_restored_one_are_those_of_an_undisturbed_run(
    epoch: int, batches: int, way_of_reading: Callable[[Dataset], Callable[[], Any]], name: str
) -> None:
    begin = way_of_reading(EPOCHS[name]())
    for _ in range(epoch):
        all_numbers(begin())
    reading = begin()
    head = all_numbers(itertools.islice(reading, batches if way_of_reading is not from_function else batches // 2))
    restore = saved_as_json(reading)
    undisturbed = [all_numbers(reading)] + [all_numbers(begin()) for _ in range(3)]
    elsewhere = way_of_reading(EPOCHS[name]())
    restored = elsewhere()
    restore(restored)
    assert [all_numbers(restored)] + [all_numbers(elsewhere()) for _ in range(3)] == undisturbed
    assert len(head) + len(undisturbed[0]) == len(undisturbed[1])


@pytest.mark.parametrize("kind", ["tf", "mr"])
@pytest.mark.parametrize("is_distributed", [False, True])
def test_checkpoints_restore_the_number_of_the_epoch(tmp_path: Any, is_distributed: bool, kind: str) -> None:
    make_checkpoint = tf.train.Checkpoint if kind == "tf" else mr.checkpoint.Checkpoint
    way_of_reading = distributed if is_distributed else plainly
    begin = way_of_reading(EPOCHS["without a seed"]())
    all_numbers(begin())
    reading = begin()
    next(reading)
    path = make_checkpoint(iterator=reading).write(str(tmp_path / "checkpoint"))
    undisturbed = [all_numbers(reading)] + [all_numbers(begin()) for _ in range(2)]
    elsewhere = way_of_reading(EPOCHS["without a seed"]())
    restored = elsewhere()
    make_checkpoint(iterator=restored).read(path)
    assert [all_numbers(restored)] + [all_numbers(elsewhere()) for _ in range(2)] == undisturbed


@pytest.mark.parametrize("way_of_reading", [plainly, distributed, from_function])
@pytest.mark.parametrize("saves_both", [False, True])
def test_epochs_of_datasets_with_one_shuffle_are_those_of_an_undisturbed_run(
    saves_both: bool, way_of_reading: Callable[[Dataset], Callable[[], Any]]
) -> None:
    """A batch is read ahead before validation begins, which takes the next order of the shuffle."""

    def begin() -> tuple[Callable[[], Any], Callable[[], Any]]:
        shuffled = Dataset.range(48).shuffle(48)
        return way_of_reading(shuffled.batch(8)), lambda: iter(shuffled.take(12).batch(4))

    train, validate = begin()
    reading, validation = train(), validate()
    next(reading)
    all_numbers(validate())
    next(validation)
    restores = [saved_as_json(reading), saved_as_json(validation)]
    undisturbed = [all_numbers(one) for one in (reading, validation)]
    undisturbed += [all_numbers(one()) for one in (validate, train, validate, train)]
    train, validate = begin()
    reading, validation = train(), validate()
    restores[0](reading)
    if saves_both:
        restores[1](validation)
    again = [all_numbers(one) for one in (reading, validation)]
    again += [all_numbers(one()) for one in (validate, train, validate, train)]
    assert again[0] == undisturbed[0]
    assert again[2:] == undisturbed[2:]
    assert not saves_both or again[1] == undisturbed[1]


def test_positions_of_earlier_versions_lower_no_number_of_the_next_epoch() -> None:
    """There each dataset counted its own passes, so that the positions of two with one shuffle differ."""

    def begin() -> tuple[Dataset, Dataset]:
        shuffled = Dataset.range(48).shuffle(48, seed=1)
        return shuffled.take(48).batch(8), shuffled.take(12).batch(4)

    (train, validation), states = begin(), []
    for one, number in ((train, 5), (validation, 2)):
        state = iter(one).get_state()
        del state["shared"]
        states.append({**state, "iteration": number - 1, "next_iteration": number})
    train, validation = begin()
    for iterator, state in zip([iter(train), iter(validation)], states, strict=True):
        iterator.set_state(state)
    reference = Dataset.range(48).shuffle(48, seed=1).batch(8)
    assert all_numbers(train) == [all_numbers(reference) for _ in range(6)][5]


def test_a_position_without_the_number_of_the_next_epoch_is_followed_by_it() -> None:
    dataset = EPOCHS["shuffled"]()
    orders = [[batch.tolist() for batch in dataset] for _ in range(3)]
    again = EPOCHS["shuffled"]()
    state = iter(dataset).get_state()
    state["iteration"] = 1
    del state["next_iteration"]
    reading = iter(again)
    reading.set_state(state)
    assert [[batch.tolist() for batch in epoch] for epoch in (reading, again)] == orders[1:]


def test_datasets_of_grain_have_the_same_epochs_after_a_restored_one() -> None:
    grain = pytest.importorskip("grain")

    def begin() -> Callable[[], Any]:
        data = grain.MapDataset.range(8).shuffle(seed=1).repeat(3).batch(4)
        readable = strategy_of(2).experimental_distribute_dataset(data)
        return lambda: iter(readable)

    first = begin()
    all_numbers(first())
    reading = first()
    next(reading)
    restore = saved_as_json(reading)
    undisturbed = [all_numbers(reading), all_numbers(first())]
    second = begin()
    restored = second()
    restore(restored)
    assert [all_numbers(restored), all_numbers(second())] == undisturbed


@pytest.mark.parametrize("at", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("replicas", [1, 2])
def test_after_an_error_the_position_is_the_one_after_the_last_good_batch(at: int, replicas: int) -> None:
    broken = [True]

    def elements() -> Any:
        for number in range(12):
            if number == at and broken[0]:
                raise KeyError("sensor")
            yield np.int32(number)

    strategy = mr.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])
    dataset = Dataset.from_generator(elements, output_signature=mr.tf.TensorSpec((), np.int32)).batch(2)
    distributed = strategy.experimental_distribute_dataset(dataset)
    reading, seen = iter(distributed), []
    with contextlib.suppress(KeyError):
        for batch in reading:
            seen.append(numbers(batch, strategy))
    assert len(seen) < 6
    state = json.loads(json.dumps(reading.get_state()))
    broken[0] = False
    elsewhere = iter(distributed)
    elsewhere.set_state(state)
    assert seen + [numbers(batch, strategy) for batch in elsewhere] == [[n, n + 1] for n in range(0, 12, 2)]
    reading.set_state(state)
    assert seen + [numbers(batch, strategy) for batch in reading] == [[n, n + 1] for n in range(0, 12, 2)]


def test_the_position_of_an_iterator_that_was_closed_at_once() -> None:
    dataset = mr.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(Dataset.range(4).batch(2))
    with iter(dataset) as reading:
        pass
    elsewhere = iter(dataset)
    elsewhere.set_state(reading.get_state())
    assert [np.asarray(batch).tolist() for batch in elsewhere] == [[0, 1], [2, 3]]


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Collects no cycles in the test: an iterator of another test would be interrupted in its `__del__`."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("taken", [0, 1, 6])
@pytest.mark.first(1)
def test_an_interrupt_at_any_line_or_return_neither_loses_a_batch_nor_gives_one_twice(taken: int) -> None:
    """With 6 slow batches taken a worker reads ahead."""
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    slow = lambda n: (time.sleep(0.005 * (taken == 6)), n)[1]  # noqa: E731
    dataset = strategy.experimental_distribute_dataset(Dataset.range(100).map(slow).batch(2))
    first = lambda batch: int(np.asarray(batch.values[0])[0]) // 2  # noqa: E731
    files = {inspect.getfile(Feed), inspect.getfile(DistributedIterator)}
    outcomes, lost = set(), 0
    for event_number in range(400):
        reading = iter(dataset)
        for _ in range(taken):
            next(reading)
        came, got = interrupted_at(event_number, reading.__next__, files)
        state = reading.get_state()
        elsewhere = iter(dataset)
        elsewhere.set_state(state)
        expected = first(next(elsewhere))
        assert expected == taken + (got is not None) or (got is None and expected == taken + 1), event_number
        lost += got is None and expected == taken + 1
        try:
            assert first(next(reading)) == expected, event_number
            outcomes.add("goes on")
        except InputError as error:  # that one where the batch after it was being read ahead
            with pytest.raises(InputError, match=REMEDY):
                raise error
            reading.set_state(reading.get_state())
            assert first(next(reading)) == expected, event_number
            outcomes.add("continues from its position")
        reading.close()
        elsewhere.close()
        if not came:
            break
    assert "goes on" in outcomes
    assert lost <= 1  # after the last instruction of `__next__`, where CPython delivers none
    assert not came


SHORTENED: dict[str, Callable[[int], Dataset]] = {
    "indexed": lambda n: Dataset.range(n).map(lambda x: x),
    "shuffled": lambda n: Dataset.range(n).shuffle(20, seed=1),
    "threads": lambda n: Dataset.range(n).map(lambda x: x, num_parallel_calls=2),
    "prefetched": lambda n: Dataset.range(n).map(lambda x: x, num_parallel_calls=2).prefetch(2),
    "stream": lambda n: Dataset.range(n).filter(lambda x: True),
    "cached stream": lambda n: Dataset.range(n).filter(lambda x: True).cache(),
    "generated": lambda n: Dataset.from_generator(lambda: iter(range(n))),
    "examples of a batch": lambda n: Dataset.from_generator(lambda: iter([np.arange(n)])).unbatch(),
    "examples of batches": lambda n: Dataset.from_generator(lambda: iter([np.arange(n), np.arange(9)])).unbatch(),
    "regrouped examples": lambda n: Dataset.from_generator(lambda: iter([np.arange(n), np.arange(9)])).rebatch(1),
}


@pytest.mark.parametrize("name", SHORTENED)
def test_a_position_beyond_the_end_of_shorter_data_is_refused(name: str) -> None:
    reading = iter(SHORTENED[name](10))
    list(itertools.islice(reading, 8))
    state = json.loads(json.dumps(reading.get_state()))
    again = iter(SHORTENED[name](5))

    def resumed() -> list[Any]:
        again.set_state(state)
        return list(again)

    with pytest.raises(InputError, match=r"fewer elements than when the position was saved(?s:.*)begin a new epoch"):
        resumed()


@pytest.mark.parametrize("name", ["indexed", "shuffled", "threads", "prefetched"])
@pytest.mark.parametrize("left", [5, 8])
def test_the_position_and_the_number_of_elements_are_named_and_the_iterator_is_unchanged(name: str, left: int) -> None:
    reading = iter(SHORTENED[name](10))
    list(itertools.islice(reading, 8))
    again = iter(SHORTENED[name](left))
    first = next(again)
    with pytest.raises(InputError, match=f"the position is after 8 elements, and it has {left}"):
        again.set_state(reading.get_state())
    assert [first, *again] == list(SHORTENED[name](left)) or name == "shuffled"
    assert again.get_state()["count"] == left


@pytest.mark.parametrize("name", [name for name in SHORTENED if "batches" not in name and "regrouped" not in name])
@pytest.mark.parametrize("ended", [False, True])
def test_a_position_at_the_end_of_unchanged_data_is_restored(name: str, ended: bool) -> None:
    reading = iter(SHORTENED[name](10))
    list(reading if ended else itertools.islice(reading, 10))
    again = iter(SHORTENED[name](10))
    again.set_state(json.loads(json.dumps(reading.get_state())))
    assert list(again) == []


@pytest.mark.parametrize("batch", [4, 2])
def test_a_distributed_position_beyond_the_end_of_shorter_data_is_refused(batch: int) -> None:
    """With another batch size, the examples before the position are read again and skipped."""
    _, state = read(Dataset.range(16).batch(4), 2, stop=3)
    with pytest.raises(InputError, match="the position is after (?:3|12) elements, and it has (?:2|8)"):
        read(Dataset.range(8).batch(batch), 2, state)


@pytest.mark.parametrize("saved", [1, 2])
@pytest.mark.parametrize("restored", [1, 2, 4])
def test_equal_positions_of_other_numbers_of_workers_are_refused(
    tmp_path: Any, saved: int, restored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_source, "host_allgather", lambda called, question, value: [value])  # in one process
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
    for number in range(4):
        (tmp_path / f"{number}").write_text("a\nb\nc\nd\n")
    lines = Dataset.from_text_lines([tmp_path / f"{number}" for number in range(4)]).map(len)
    source = as_source(lines.batch(4).with_options(options), None, "test")

    def readers(workers: int) -> list[Reader]:
        shares = [WorkerShare(worker, tuple(range(workers)), 1, workers) for worker in range(workers)]
        parts = [source if workers == 1 else source.of_worker(share, "test") for share in shares]
        files = [GlobalBatches(part, InputOptions(), 1) for part in parts if part is not None]
        return [*files, ElementsInTurn([source], 1, workers)]

    for number, reader in enumerate(readers(saved)):
        start = reader.get_state()
        reader.read()
        state = json.loads(json.dumps(reader.get_state()))
        kind = -1 if number == saved else 0
        readers(restored)[kind].set_state(start)
        if restored == saved:
            readers(restored)[kind].set_state({name: value for name, value in state.items() if name != "workers"})
            readers(restored)[kind].set_state(state)
        else:
            with pytest.raises(ArgumentError, match="only with the same number of workers"):
                readers(restored)[kind].set_state(state)
