"""Positions of distributed datasets that are restored after steps were added, removed or moved."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset
from mirrored.data.pipeline import positions
from mirrored.data.pipeline.nodes import Node
from mirrored.errors import ArgumentError

Steps = Callable[[Dataset], Dataset]

OTHER_ELEMENTS: dict[str, Steps] = {
    "filter": lambda d: d.filter(lambda x: x % 2 == 0),
    "unique": lambda d: d.unique(),
    "take_while": lambda d: d.take_while(lambda x: x < 20),
    "flat_map": lambda d: d.flat_map(lambda x: Dataset.from_tensors(x).repeat(2)),
    "interleave": lambda d: d.interleave(lambda x: Dataset.from_tensors(x).repeat(2), cycle_length=1),
    "interleave in parallel": lambda d: d.interleave(lambda x: Dataset.from_tensors(x), cycle_length=2),
    "unbatch": lambda d: d.map(lambda x: np.stack([x, x])).unbatch(),
    "window": lambda d: d.window(3).flat_map(lambda window: window),
    "group_by_window": lambda d: d.group_by_window(lambda x: x % 2, lambda _, window: window, 3),
    "group_by_window of functions": lambda d: d.group_by_window(
        lambda x: x % 2, lambda _, window: window, window_size_func=lambda key: 3
    ),
    "rejection_resample": lambda d: d.rejection_resample(lambda x: x % 2, [0.9, 0.1], seed=1).map(lambda _, x: x),
    "choose_from_datasets": lambda d: Dataset.choose_from_datasets([d, d], Dataset.range(2).repeat()),
    "sample_from_datasets": lambda d: Dataset.sample_from_datasets([d, d], seed=1),
    "concatenate": lambda d: Dataset.range(50, 55).concatenate(d),
    "concatenate of a stream": lambda d: Dataset.range(50, 55).filter(lambda x: True).concatenate(d),
    "skip": lambda d: d.skip(2),
    "shard": lambda d: d.shard(2, 0),
    "shuffle": lambda d: d.shuffle(30, seed=1),
    "take before repeat": lambda d: d.take(3).repeat(),
}
SAME_ELEMENTS: dict[str, Steps] = {
    "map": lambda d: d.map(lambda x: x),
    "prefetch": lambda d: d.prefetch(2),
    "cache": lambda d: d.cache(),
    "scan": lambda d: d.scan(np.int64(0), lambda state, x: (state, x)),
    "enumerate": lambda d: d.enumerate().map(lambda _, x: x),
    "zip": lambda d: Dataset.zip((d, Dataset.range(100))).map(lambda x, _: x),
    "take": lambda d: d.take(28),
    "repeat": lambda d: d.repeat(2),
    "assert_cardinality": lambda d: d.assert_cardinality(30),
    "ignore_errors": lambda d: d.ignore_errors(),
    "batch and unbatch": lambda d: d.batch(3).unbatch(),
    "rebatch": lambda d: d.batch(3).rebatch(4).unbatch(),
}
BASES: dict[str, Steps] = {
    "indexed": lambda d: d,
    "stream": lambda d: d.filter(lambda x: True),
    "repeated stream": lambda d: d.filter(lambda x: True).repeat(3),
}


def reading(dataset: Dataset, size: int) -> Any:
    return iter(mr.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(dataset.batch(size)))


def examples(iterator: Iterator[Any], count: int | None = None) -> list[int]:
    return [int(x) for batch in itertools.islice(iterator, count) for x in np.asarray(batch)]


def saved_after(dataset: Dataset, count: int) -> Any:
    iterator = reading(dataset, 4)
    examples(iterator, count)
    return json.loads(json.dumps(iterator.get_state()))


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("base", ["indexed", "stream"])
@pytest.mark.parametrize("name", OTHER_ELEMENTS)
def test_added_or_removed_steps_with_other_elements_are_refused(name: str, base: str, size: int) -> None:
    without = BASES[base](Dataset.range(30))
    with_step = BASES[base](OTHER_ELEMENTS[name](Dataset.range(30)))
    if name == "take before repeat":
        without, with_step = (BASES["stream"](Dataset.range(30)).take(n).repeat() for n in (30, 5))
        without = BASES["stream"](Dataset.range(30)).repeat()
    for before, after in ((without, with_step), (with_step, without)):
        restored = reading(after, size)
        with pytest.raises(ArgumentError, match="position.*\n.*rule"):
            restored.set_state(saved_after(before, 3))
        assert len(examples(restored, 1)) == size, "the iterator can go on"


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", SAME_ELEMENTS)
def test_steps_that_keep_the_elements_may_be_added(name: str, base: str, size: int) -> None:
    restored = reading(SAME_ELEMENTS[name](BASES[base](Dataset.range(30))), size)
    restored.set_state(saved_after(BASES[base](Dataset.range(30)), 3))
    assert examples(restored, 3)[:12] == list(range(12, 24))


def test_a_removed_ignore_errors_is_refused() -> None:
    """It may have left out elements before the position."""
    with pytest.raises(ArgumentError, match="Forgiving"):
        reading(Dataset.range(30), 4).set_state(saved_after(Dataset.range(30).ignore_errors(), 2))


def test_positions_of_earlier_versions_are_compared_too() -> None:
    """They have the names of the steps."""
    saved = saved_after(Dataset.range(30), 2)
    for name in ("made", "grouped", "arguments", "slices"):
        del saved["reader"]["source"][name]
    restored = reading(Dataset.range(30).map(lambda x: x), 5)
    restored.set_state(saved)
    assert examples(restored)[0] == 8
    with pytest.raises(ArgumentError, match="Filtered"):
        reading(Dataset.range(30).filter(lambda x: True), 4).set_state(saved)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda d: d.filter(lambda x: np.sum(x) % 2 == 0).batch(2), lambda d: d.batch(2).filter(lambda x: True)),
        (lambda d: d.filter(lambda x: True).unique(), lambda d: d.unique().filter(lambda x: True)),
        (lambda d: d.batch(2).ignore_errors(), lambda d: d.ignore_errors().batch(2)),
    ],
)
def test_moved_steps_with_other_elements_are_refused(before: Steps, after: Steps) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"])
    saved, restored = (
        iter(strategy.experimental_distribute_dataset(steps(Dataset.range(30)).prefetch(1).apply(batched)))
        for steps in (before, after)
    )
    next(saved)
    with pytest.raises(ArgumentError, match="saved with"):
        restored.set_state(saved.get_state())


def batched(dataset: Dataset) -> Dataset:
    return dataset.map(lambda x: np.atleast_1d(x))


@pytest.mark.parametrize("function", [lambda d: d, lambda d: d.filter(lambda x: x % 2 == 0)])
def test_datasets_from_a_function_are_compared_too(function: Steps) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"])
    saved, restored = (
        iter(strategy.distribute_datasets_from_function(lambda _, steps=steps: steps(Dataset.range(30)).batch(2)))
        for steps in (lambda d: d, function)
    )
    next(saved)
    if function(Dataset.range(3)).node.name == "RangeSource":
        return restored.set_state(saved.get_state())
    with pytest.raises(ArgumentError, match="Filtered"):
        restored.set_state(saved.get_state())


SHUFFLES: dict[str, Steps] = {
    "shuffle": lambda d: d.shuffle(12, seed=9),
    "stream": lambda d: d.filter(lambda x: True).shuffle(12, seed=9),
    "sample": lambda d: Dataset.sample_from_datasets([d, d], seed=3, rerandomize_each_iteration=True),
    "same order": lambda d: d.shuffle(12, seed=9, reshuffle_each_iteration=False),
}
CACHES: dict[str, Callable[[Steps, str], Steps]] = {
    "none": lambda shuffle, folder: shuffle,
    "before": lambda shuffle, folder: lambda d: shuffle(d.cache()),
    "behind": lambda shuffle, folder: lambda d: shuffle(d).cache(),
    "behind map": lambda shuffle, folder: lambda d: shuffle(d).map(lambda x: x).cache(),
    "behind batch": lambda shuffle, folder: lambda d: shuffle(d).batch(3).cache().unbatch(),
    "both": lambda shuffle, folder: lambda d: shuffle(d.cache()).cache(),
    "file": lambda shuffle, folder: lambda d: shuffle(d).cache(folder),
    "snapshot": lambda shuffle, folder: lambda d: shuffle(d).snapshot(folder),
}


STREAMS = ("behind batch", "file", "snapshot")  # the others have random access, if the shuffle has


def repeated(dataset: Dataset, epochs: int) -> Dataset:
    return dataset.repeat(epochs) if epochs > 1 else dataset


@pytest.mark.first(30)
@pytest.mark.parametrize("change", list(itertools.permutations(CACHES, 2)), ids=" to ".join)
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("passes", [1, 0, 2])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_cache_that_keeps_another_order_is_refused_after_the_first_pass(
    change: tuple[str, str], shuffle: str, epochs: int, passes: int, tmp_path: Any
) -> None:
    """Where it is accepted, each example comes once in each epoch; it was accepted always."""
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    distributed = [
        strategy.experimental_distribute_dataset(
            repeated(CACHES[cache](SHUFFLES[shuffle], f"{tmp_path}/{place}")(Dataset.range(12)), epochs).batch(4)
        )
        for place, cache in enumerate(change)
    ]
    for _ in range(passes):
        for _ in distributed[0]:
            pass
    iterator = iter(distributed[0])
    ids = functools.partial(strategy.gather, axis=0)
    before = [int(x) for batch in itertools.islice(iterator, 2) for x in ids(batch)]
    saved, rest = iterator.get_state(), [int(x) for batch in iterator for x in ids(batch)]
    restored = iter(distributed[1])
    kept = [cache not in ("none", "before") for cache in change]
    if shuffle != "same order" and kept[0] != kept[1] and (passes or epochs > 1):
        with pytest.raises(ArgumentError, match="a `cache` behind a `shuffle` that reshuffles|the epochs had"):
            restored.set_state(saved)
        return
    if shuffle in ("shuffle", "same order") and epochs > 1 and (change[0] in STREAMS) != (change[1] in STREAMS):
        with pytest.raises(ArgumentError, match="the epochs had"):
            restored.set_state(saved)
        return
    restored.set_state(saved)
    found = [int(x) for batch in restored for x in ids(batch)]
    assert found[:4] == rest[:4]
    assert sorted(before + found) == sorted(before + rest)


def all_steps(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from all_steps(one)


KEEPING = {
    *("Batched", "Cached", "CsvBatches", "CsvRows", "Kept", "Mapped", "Prefetched", "Promised", "RandomMapped"),
    *("Rebatched", "Repeated", "Scanned", "Zipped"),
}
COMPARED_BY_ARGUMENTS = {"Shuffled", "Sliced"}


def test_it_is_known_of_every_step_whether_it_keeps_the_elements() -> None:
    """A new step belongs to `positions._CHANGES_NUMBER`, if it leaves out elements or adds others, or to `KEEPING`."""
    concrete = {
        kind.__name__
        for kind in all_steps(Node)
        if not getattr(kind, "__abstractmethods__", None) and kind.__module__.startswith("mirrored")
    }
    sources = {name for name in concrete if name.endswith("Source")} | {"Endless", "Uniform"}
    known = KEEPING | COMPARED_BY_ARGUMENTS | sources | {"Unbatched"}
    assert concrete - known == set(positions._CHANGES_NUMBER)
