"""Before `ignore_errors` an element that raises an exception keeps its place, in indexed pipelines and in streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from data.readings import assert_resumes_everywhere, read
from mirrored.data import Dataset


def damaged(*places: int) -> Callable[[Any], Any]:
    def check(x: Any) -> Any:
        if int(x) in places:
            raise OSError("damaged")
        return x

    return check


PIPELINES: dict[str, Callable[[int], Dataset]] = {
    "indexed": Dataset.range,
    "stream": lambda size: Dataset.range(size).filter(lambda x: True),
}
SLICES: dict[str, tuple[Callable[[Dataset], Dataset], list[int]]] = {
    "take": (lambda d: d.take(5), [0, 2, 3]),
    "take all": (lambda d: d.take(9), [0, 2, 3, 5, 6, 7]),
    "take of errors": (lambda d: d.skip(1).take(1), []),
    "shard 0": (lambda d: d.shard(2, 0), [0, 2, 6]),
    "shard 1": (lambda d: d.shard(2, 1), [3, 5, 7]),
    "shard of three": (lambda d: d.shard(3, 1), [7]),
    "skip": (lambda d: d.skip(2), [2, 3, 5, 6, 7]),
    "take of shard": (lambda d: d.shard(2, 0).take(3), [0, 2]),
    "shard of take": (lambda d: d.take(6).shard(2, 1), [3, 5]),
    "in a dataset": (lambda d: Dataset.range(2).flat_map(lambda _: d.take(3)), [0, 2, 0, 2]),
    "prefetched": (lambda d: d.take(5).prefetch(2).shard(2, 0), [0, 2]),
}
GROUPED: dict[str, Callable[[Dataset], Dataset]] = {
    "batch": lambda d: d.batch(3),
    "batches": lambda d: d.batch(2).batch(2),
    "map": lambda d: d.map(lambda x: x),
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("kind", PIPELINES)
def test_take_skip_and_shard_count_elements_that_raise(kind: str, name: str) -> None:
    """Streams did not count them: `take` had further elements, and `shard` other ones."""
    step, expected = SLICES[name]
    dataset = step(PIPELINES[kind](8).map(damaged(1, 4))).ignore_errors()
    assert read(dataset) == expected
    assert_resumes_everywhere(dataset)


def drawn(x: Any, rng: Any) -> Any:
    return x * 1000 + rng.integers(1000)


NUMBERED: dict[str, Callable[[Dataset], Dataset]] = {
    "batch": lambda d: d.map(damaged(1)).batch(3),
    "batch of several errors": lambda d: d.map(damaged(3, 4, 6)).batch(2),
    "partial batch": lambda d: d.map(damaged(8)).batch(4),
    "dropped batch": lambda d: d.map(damaged(4)).batch(4, drop_remainder=True),
    "padded batch": lambda d: d.map(damaged(4)).padded_batch(3, padded_shapes=()),
    "batch of batches": lambda d: d.map(damaged(1)).batch(2).batch(2),
    "prefetched batch": lambda d: d.map(damaged(1)).prefetch(2).batch(3).prefetch(1),
    "batch of a cache": lambda d: d.map(damaged(1)).cache().batch(3).cache().repeat(2),
    "batch of parts": lambda d: d.map(damaged(1)).concatenate(Dataset.range(3)).batch(4),
    "shard of batches": lambda d: d.map(damaged(1)).batch(3).shard(2, 1),
    "rebatch": lambda d: d.map(damaged(1)).batch(3).rebatch(2),
    "rebatch to several": lambda d: d.map(damaged(4)).batch(3).rebatch([2, 0, 1]),
    "unbatch": lambda d: d.map(damaged(4)).batch(3).unbatch(),
    "random_map": lambda d: d.map(damaged(1, 4)).random_map(drawn, seed=3),
    "random_map that raises": lambda d: d.random_map(lambda x, rng: drawn(damaged(1, 4)(x), rng), seed=3),
    "random_map of epochs": lambda d: d.map(damaged(1)).random_map(drawn, seed=3).repeat(2),
    "enumerate": lambda d: d.map(damaged(1)).enumerate(),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_batches_and_random_numbers_are_those_of_an_indexed_pipeline(name: str) -> None:
    """Streams had other batches after an error, and `random_map` other numbers; `rebatch` raised it."""
    step = NUMBERED[name]
    indexed, stream = (step(make(9)).ignore_errors() for make in PIPELINES.values())
    assert read(stream) == read(indexed) != []
    assert_resumes_everywhere(stream)


@pytest.mark.parametrize("step", [lambda d: d.rebatch(1).unbatch(), lambda d: d.unbatch()], ids=["rebatch", "unbatch"])
def test_an_element_that_is_no_batch_is_left_out(step: Callable[[Dataset], Dataset]) -> None:
    """`rebatch` raised the error, because its position was still before the element."""
    batches = [np.arange(2), np.int64(9), np.arange(2)]
    dataset = step(Dataset.from_generator(lambda: iter(batches))).ignore_errors()
    assert read(dataset) == [0, 1, 0, 1]
    assert_resumes_everywhere(dataset)


def test_the_index_of_a_predicate_counts_elements_that_raise() -> None:
    dataset = Dataset.range(8).map(damaged(1, 4)).filter(lambda x: x < 6 or x.nope).ignore_errors()
    with pytest.raises(AttributeError) as caught:
        read(dataset)
    assert "Dataset.filter: at element 6" in str(caught.value.__notes__)


@pytest.mark.parametrize("name", ["take", "shard 0", "skip"])
@pytest.mark.parametrize("kind", PIPELINES)
def test_errors_are_raised_without_ignore_errors(kind: str, name: str) -> None:
    with pytest.raises(OSError, match="damaged"):
        read(SLICES[name][0](PIPELINES[kind](8).map(damaged(2, 4))))


@pytest.mark.parametrize("ended", ["generator", "scan"])
@pytest.mark.parametrize("name", ["take", "shard 0", "skip", "batch", "batches", "map"])
def test_what_cannot_go_on_after_an_error_raises_it(name: str, ended: str) -> None:
    check = damaged(1)
    numbers = Dataset.from_generator(lambda: (check(n) for n in range(8)))
    if ended == "scan":
        numbers = Dataset.range(8).map(check).scan(0, lambda state, x: (state, x))
    step = GROUPED[name] if name in GROUPED else SLICES[name][0]
    with pytest.raises(OSError, match="damaged") as caught:
        read(step(numbers).ignore_errors())
    assert "call ignore_errors before this step" in str(caught.value.__notes__)


CACHES: dict[str, tuple[Callable[[Dataset], Dataset], list[Any]]] = {
    "alone": (lambda d: d, [0, 2, 3, 5, 6, 7]),
    "zip": (lambda d: Dataset.zip((Dataset.range(8), d)), [(x, x) for x in (0, 2, 3, 5, 6, 7)]),
    "zip, the last": (lambda d: Dataset.zip((d, Dataset.range(8))), [(x, x) for x in (0, 2, 3, 5, 6, 7)]),
    "choose": (
        lambda d: Dataset.choose_from_datasets([d, Dataset.range(10, 14)], Dataset.range(2).repeat()),
        [0, 10, 11, 2, 12, 3, 13],
    ),
    "shard": (lambda d: d.shard(2, 1), [3, 5, 7]),
    "repeat": (lambda d: d.repeat(2), [0, 2, 3, 5, 6, 7] * 2),
    "prefetch": (lambda d: d.prefetch(2), [0, 2, 3, 5, 6, 7]),
}


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("kind", PIPELINES)
def test_a_position_behind_a_cache_with_errors_is_restored(kind: str, name: str) -> None:
    """It counted the elements without the errors, so that the restored pass raised these in place of other elements."""
    step, expected = CACHES[name]
    dataset = step(PIPELINES[kind](8).map(damaged(1, 4)).cache()).ignore_errors()
    assert read(dataset) == expected
    assert_resumes_everywhere(dataset)


def test_an_error_that_does_not_come_again_does_not_move_a_position_behind_a_cache() -> None:
    fails = [True]

    def check(x: Any) -> Any:
        if x == 1 and fails:
            raise OSError("damaged")
        return x

    dataset = PIPELINES["stream"](6).map(check).cache().ignore_errors()
    iterator = iter(dataset)
    assert [int(next(iterator)) for _ in range(3)] == [0, 2, 3]
    restored = iter(dataset)
    restored.set_state(iterator.get_state())
    fails.clear()
    assert read(restored) == [4, 5]
    assert read(dataset) == [0, 1, 2, 3, 4, 5]
    assert read(iterator) == [4, 5]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (3, [[0, 1, 2], [3, 4, 5], [8, 9, 10], [11]]),
        (5, [[0, 1, 2, 3, 4], [8, 9, 10, 11]]),
        ([1, 4], [[0], [1, 2, 3, 4], [5], [8, 9, 10, 11]]),
    ],
)
def test_rebatch_drops_the_examples_of_the_batch_that_an_error_ends(sizes: Any, expected: list[list[int]]) -> None:
    """The batches are those of TensorFlow 2.21."""
    batches = Dataset.range(12).batch(2).map(lambda batch: (damaged(6)(batch[0]), batch)[1])
    assert read(batches.rebatch(sizes).ignore_errors()) == expected
