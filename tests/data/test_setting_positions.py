"""Positions that are set several times, or that do not fit: the iterator continues at the one that was set last."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, DatasetIterator, DistributedDataset
from mirrored.errors import ArgumentError, InputError, MirroredError

ELEMENTS = [np.full(2, number, np.float32) for number in range(8)]


def in_turn(elements: list[Any]) -> DistributedDataset:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    return strategy.distribute_datasets_from_function(lambda context: elements)


def batches(elements: list[Any]) -> DistributedDataset:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(elements)


def with_positions(elements: list[Any]) -> DistributedDataset:
    dataset = Dataset.from_tensor_slices(np.asarray(elements))
    return mr.MirroredStrategy(["CPU:0", "CPU:1"]).distribute_datasets_from_function(lambda context: dataset)


KINDS = pytest.mark.parametrize("distribute", [in_turn, batches, with_positions])
Distribute = Callable[[list[Any]], DistributedDataset]


def read(iterator: Any) -> list[float]:
    return [float(np.asarray(part)[0]) for part in next(iterator).values]


def state_after(distribute: Distribute, count: int) -> dict[str, Any]:
    iterator = iter(distribute(ELEMENTS))
    for _ in range(count):
        next(iterator)
    return iterator.get_state()


@KINDS
@pytest.mark.parametrize("first", [0, 1, 3])
def test_the_position_set_last_counts(distribute: Distribute, first: int) -> None:
    state = state_after(distribute, 2)
    reference = iter(distribute(ELEMENTS))
    reference.set_state(state)
    expected = read(reference)
    iterator = iter(distribute(ELEMENTS))
    iterator.set_state(state_after(distribute, first))
    iterator.set_state(state)
    assert read(iterator) == expected
    iterator.set_state(state)
    iterator.set_state(state)
    assert read(iterator) == expected


def wrong(state: dict[str, Any], kind: str) -> dict[str, Any]:
    changed = copy.deepcopy(state)
    if kind == "pipelines":
        changed["reader"]["sources"] = [None] * 3
    else:
        changed["reader"]["given"] = [1000]
    return changed


@pytest.mark.parametrize("kind", ["pipelines", "beyond the end"])
@pytest.mark.parametrize("started", [0, 1])
def test_a_position_that_does_not_fit_changes_nothing(kind: str, started: int) -> None:
    iterator, reference = iter(in_turn(ELEMENTS)), iter(in_turn(ELEMENTS))
    for _ in range(started):
        assert read(iterator) == read(reference)
    before = iterator.get_state()
    with pytest.raises(MirroredError):
        iterator.set_state(wrong(before, kind))
    assert iterator.get_state() == before
    assert read(iterator) == read(reference)


@pytest.mark.parametrize("started", [0, 1])
def test_a_position_that_does_not_fit_leaves_the_order_of_the_epochs(started: int) -> None:
    def distributed() -> DistributedDataset:
        shuffled = Dataset.range(16).shuffle(16, seed=3).batch(1)
        return mr.MirroredStrategy(["CPU:0", "CPU:1"]).distribute_datasets_from_function(lambda context: shuffled)

    reference, dataset = distributed(), distributed()
    expected, iterator = iter(reference), iter(dataset)
    for _ in range(started):
        assert read(iterator) == read(expected)
    with pytest.raises(ArgumentError):
        iterator.set_state(wrong(iterator.get_state(), "pipelines"))
    for _ in range(8 - started):
        assert read(iterator) == read(expected)
    for _ in range(2):
        expected, iterator = iter(reference), iter(dataset)
        assert [read(iterator) for _ in range(8)] == [read(expected) for _ in range(8)]


def test_an_iterator_whose_position_is_lost_does_not_start_over_silently() -> None:
    """A one-shot iterator cannot be read again from its start."""
    once = iter(ELEMENTS)
    dataset = Dataset.from_generator(lambda: once)
    iterator = iter(mr.MirroredStrategy(["CPU:0"]).distribute_datasets_from_function(lambda context: dataset))
    state = iterator.get_state()
    state["reader"] |= {"given": [1000], "sources": [None]}
    with pytest.raises(InputError):
        iterator.set_state(state)
    with pytest.raises((InputError, ArgumentError)):
        next(iterator)


class _Loader:
    """A loader of another library that can save its position."""

    def __init__(self) -> None:
        self._next = 0

    def __iter__(self) -> Any:
        while self._next < len(ELEMENTS):
            self._next += 1
            yield ELEMENTS[self._next - 1]

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


def of_arrays(elements: list[Any]) -> DistributedDataset:
    dataset = Dataset.from_tensor_slices(np.asarray(elements)).batch(2)
    return mr.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(dataset)


def of_a_loader(elements: list[Any]) -> DistributedDataset:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(_Loader())


ALL_KINDS: dict[str, Distribute] = {
    "in turn": in_turn,
    "batches": batches,
    "with positions": with_positions,
    "arrays": of_arrays,
    "loader": of_a_loader,
}


@pytest.mark.parametrize("saved", ALL_KINDS)
@pytest.mark.parametrize("restored", ALL_KINDS)
@pytest.mark.parametrize("read_before", [0, 1])
def test_a_position_of_another_kind_of_dataset_is_refused_or_restored(
    saved: str, restored: str, read_before: int
) -> None:
    iterator, other = (iter(ALL_KINDS[restored](ELEMENTS)) for _ in range(2))
    for _ in range(read_before):
        next(iterator), next(other)
    refused = None
    try:
        iterator.set_state(state_after(ALL_KINDS[saved], 1))
    except MirroredError as error:
        refused = error
    assert saved != restored or refused is None
    if refused is not None and restored != "loader":  # which can be iterated only once
        assert "remedy" in str(refused)
        assert [np.asarray(part).tolist() for part in next(iterator).values] == [
            np.asarray(part).tolist() for part in next(other).values
        ]


def test_a_position_of_a_distributed_iterator_does_not_fit_one_of_a_dataset() -> None:
    iterator = iter(Dataset.from_tensor_slices(np.asarray(ELEMENTS)))
    with pytest.raises(ArgumentError, match="the same steps"):
        iterator.set_state(state_after(of_arrays, 1))


def numbers(count: int = 20) -> Dataset:
    return Dataset.range(count)


def streamed(count: int = 20) -> Dataset:
    return numbers(count).filter(lambda number: True)


def by_length(sizes: list[int]) -> Dataset:
    return numbers().map(lambda n: np.full(n % 3 + 1, n)).bucket_by_sequence_length(len, [2, 3], sizes)


OTHER_ORDERS: dict[str, tuple[Dataset, Dataset]] = {
    "shuffle: buffer size": (numbers().shuffle(4, 1).batch(2), numbers().shuffle(10, 1).batch(2)),
    "shuffle: buffer size and batch": (numbers().shuffle(4, 1).batch(2), numbers().shuffle(9, 1).batch(4)),
    "shuffle of a stream: buffer size": (streamed().shuffle(4, 1).batch(2), streamed().shuffle(10, 1).batch(2)),
    "shuffle: number of elements": (numbers().shuffle(40, 1).batch(2), numbers(24).shuffle(40, 1).batch(2)),
    "shuffle of batches": (numbers().batch(2).shuffle(4, 1), numbers().batch(4).shuffle(4, 1)),
    "shuffle of batches of a stream": (streamed().batch(2).shuffle(4, 1), streamed().batch(4).shuffle(4, 1)),
    "shuffle: reshuffle": (
        numbers().shuffle(20, 1).repeat(2).batch(2),
        numbers().shuffle(20, 1, reshuffle_each_iteration=False).repeat(2).batch(2),
    ),
    "skip": (numbers().skip(2).batch(2), numbers().skip(5).batch(2)),
    "shard": (numbers().shard(2, 0).batch(2), numbers().shard(3, 0).batch(2)),
    "window": (
        numbers().window(4, 2).flat_map(lambda window: window).batch(2),
        numbers().window(4, 4).flat_map(lambda window: window).batch(2),
    ),
    "group_by_window": (
        numbers().group_by_window(lambda n: n % 2, lambda _, window: window.batch(2), 2),
        numbers().group_by_window(lambda n: n % 2, lambda _, window: window.batch(4), 4),
    ),
    "bucket_by_sequence_length": (by_length([2, 2, 2]), by_length([4, 4, 4])),
    "take: repeat": (numbers().take(4).repeat(3).batch(2), numbers().take(8).repeat(3).batch(2)),
    "take: concatenate": (
        numbers().take(2).concatenate(numbers()).batch(2),
        numbers().take(4).concatenate(numbers()).batch(2),
    ),
    "repeat: concatenate": (
        numbers(2).repeat(1).concatenate(numbers()).batch(2),
        numbers(2).repeat(2).concatenate(numbers()).batch(2),
    ),
    "skip: batch": (numbers().batch(2).skip(2), numbers().batch(4).skip(2)),
    "shard: batch": (numbers().batch(2).shard(2, 0), numbers().batch(4).shard(2, 0)),
}


@pytest.mark.parametrize("name", OTHER_ORDERS)
@pytest.mark.parametrize("distributed", [False, True])
def test_a_position_of_another_order_is_refused(name: str, distributed: bool) -> None:
    """The next elements would not be those after the ones that were read: some would be lost, others used twice."""
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    saved, other = (iter(strategy.experimental_distribute_dataset(d) if distributed else d) for d in OTHER_ORDERS[name])
    for _ in range(3):
        next(saved)
    with pytest.raises(ArgumentError, match="remedy"):
        other.set_state(saved.get_state())
    fresh = iter(OTHER_ORDERS[name][1])
    assert len(list(other)) == len(list(fresh))


KEPT_ORDERS: dict[str, tuple[Dataset, Dataset]] = {
    "shuffle: batch": (numbers().shuffle(4, 1).batch(2), numbers().shuffle(4, 1).batch(4)),
    "take": (numbers().take(12).batch(2), numbers().take(20).batch(2)),
    "take: last": (
        numbers(8).concatenate(numbers().skip(8).take(4)).batch(2),
        numbers(8).concatenate(numbers().skip(8).take(12)).batch(2),
    ),
    "rebatch": (numbers().batch(2).rebatch(4), numbers().batch(2).rebatch(5)),
    "interleave": (
        numbers(4).interleave(lambda n: Dataset.range(5 * n, 5 * n + 5), cycle_length=2).batch(2),
        numbers(4).interleave(lambda n: Dataset.range(5 * n, 5 * n + 5), cycle_length=4, block_length=2).batch(2),
    ),
    "seed": (streamed().shuffle(4, 1).batch(2), streamed().shuffle(4, 2).prefetch(1).batch(2)),
}


@pytest.mark.parametrize("name", KEPT_ORDERS)
def test_a_position_with_another_argument_that_keeps_the_order_is_restored(name: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    saved, other = (iter(strategy.experimental_distribute_dataset(dataset)) for dataset in KEPT_ORDERS[name])

    def values(batch: Any) -> list[int]:
        return [int(number) for part in batch.values for number in np.asarray(part)]

    before = [number for _ in range(3) for number in values(next(saved))]
    other.set_state(saved.get_state())
    assert sorted(before + [number for batch in other for number in values(batch)]) == list(range(20))


def test_a_position_of_an_earlier_version_has_no_arguments() -> None:
    iterator = iter(numbers().shuffle(4, 1))
    state = iterator.get_state()
    del state["settings"]
    iterator.set_state(state)
    assert sorted(int(n) for n in iterator) == list(range(20))


def mixed(first: float) -> Dataset:
    return Dataset.sample_from_datasets([Dataset.range(12), Dataset.range(12, 24)], [first, 1 - first], seed=3)


def interleaved(cycle: int | None, block: int = 1) -> Dataset:
    return Dataset.range(6).interleave(lambda n: Dataset.range(int(n) * 4, int(n) * 4 + 4), cycle, block)


def resampled(target: list[float]) -> Dataset:
    return Dataset.range(24).rejection_resample(lambda x: x % 2, target, seed=1)


CHANGES: dict[str, tuple[Callable[[], Dataset], Callable[[], Dataset], str]] = {
    "cycle": (lambda: interleaved(2).shuffle(4, seed=1), lambda: interleaved(4).shuffle(4, seed=1), "cycle_length=2"),
    "smaller cycle": (lambda: interleaved(4), lambda: interleaved(2), "cycle_length=4"),
    "block": (
        lambda: interleaved(2).shuffle(4, seed=1),
        lambda: interleaved(2, 2).shuffle(4, seed=1),
        "block_length=1",
    ),
    "cycle before unbatch": (
        lambda: interleaved(2).batch(4).unbatch(),
        lambda: interleaved(4).batch(4).unbatch(),
        "cycle_length=2",
    ),
    "block before rebatch": (
        lambda: interleaved(2).batch(4).rebatch(3),
        lambda: interleaved(2, 2).batch(4).rebatch(3),
        "block_length=1",
    ),
    "inner cycle": (
        lambda: Dataset.range(2).flat_map(lambda _: interleaved(4)),
        lambda: Dataset.range(2).flat_map(lambda _: interleaved(2)),
        "cycle_length=4",
    ),
    "weights": (lambda: mixed(0.5).shuffle(5, seed=1), lambda: mixed(0.9).shuffle(5, seed=1), "weights"),
    "target": (lambda: resampled([0.5, 0.5]), lambda: resampled([0.9, 0.1]), "target_dist"),
    "rebatch": (
        lambda: Dataset.range(24).batch(2).rebatch(4).shuffle(3, seed=1),
        lambda: Dataset.range(24).batch(2).rebatch(6).shuffle(3, seed=1),
        r"rebatch\(4",
    ),
    "remainder": (
        lambda: Dataset.range(10).batch(4, drop_remainder=True).repeat(),
        lambda: Dataset.range(10).batch(4).repeat(),
        "drop_remainder=True",
    ),
    "remainder of windows": (
        lambda: Dataset.range(10).window(4, drop_remainder=True).repeat(),
        lambda: Dataset.range(10).window(4).repeat(),
        "drop_remainder=True",
    ),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_position_of_other_arguments_is_refused(change: str) -> None:
    saved, changed, found = CHANGES[change]
    iterator = iter(saved())
    for _ in range(3):
        next(iterator)
    position = iterator.get_state()
    iter(saved()).set_state(position)
    restored = iter(changed())
    with pytest.raises(ArgumentError, match=rf"saved with .*{found}.*\n.*rule"):
        restored.set_state(position)
    assert str(next(restored)) == str(next(iter(changed())))


@pytest.mark.parametrize("is_distributed", [False, True])
def test_the_default_number_of_interleaved_datasets_is_part_of_a_position(
    monkeypatch: pytest.MonkeyPatch, is_distributed: bool
) -> None:
    def reading(cycle: int | None, size: int) -> Any:
        if not is_distributed:
            return iter(interleaved(cycle).shuffle(4, seed=1))
        dataset = interleaved(cycle).batch(size)
        return iter(mr.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(dataset))

    monkeypatch.setattr("os.cpu_count", lambda: 2)
    position = reading(None, 4).get_state()
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with pytest.raises(ArgumentError, match="cycle_length=2"):
        reading(None, 6).set_state(position)
    reading(2, 6).set_state(position)


def test_another_number_of_parallel_reads_is_refused(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("x\n1\n2\n")

    def reading(reads: int) -> Any:
        return iter(Dataset.csv_batches(str(tmp_path / "*.csv"), 2, shuffle_seed=1, num_parallel_reads=reads))

    with pytest.raises(ArgumentError, match="cycle_length=3"):
        reading(1).set_state(reading(3).get_state())


@pytest.mark.parametrize("changed", ["size", "sizes", "remainder"])
def test_a_distributed_position_fits_another_grouping(changed: str) -> None:
    """The position counts examples, as with another batch size."""

    def reading(is_changed: bool) -> Any:
        if changed == "size":
            dataset = Dataset.range(24).batch(2).rebatch(6 if is_changed else 4).take(6)
        elif changed == "sizes":
            dataset = Dataset.range(24).batch(2).rebatch([5, 1] if is_changed else [1, 2, 5])
        else:
            dataset = Dataset.range(10).batch(4, drop_remainder=is_changed).repeat(2)
        return iter(mr.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(dataset))

    iterator = reading(False)
    for _ in range(2):
        next(iterator)
    restored = reading(True)
    restored.set_state(iterator.get_state())
    examples = [int(x) for batch in restored for x in np.asarray(batch)]
    expected = {"size": list(range(8, 24)), "sizes": list(range(3, 24)), "remainder": list(range(8))}
    assert examples == expected[changed]


@pytest.mark.parametrize(
    ("steps", "read", "is_refused"),
    [
        (lambda d, n: d.batch(n, drop_remainder=True).repeat(2), 2, False),  # the first epoch
        (lambda d, n: d.batch(n, drop_remainder=True).repeat(2), 3, True),
        (lambda d, n: d.batch(n, drop_remainder=True).map(lambda x: x).repeat(), 3, True),
        (lambda d, n: d.filter(lambda x: True).batch(n, drop_remainder=True).repeat(2), 3, True),
        (lambda d, n: d.batch(2).rebatch(n, drop_remainder=True).repeat(2), 3, True),
        (lambda d, n: d.batch(4, drop_remainder=True).repeat(2).rebatch(n), 3, False),
        (
            lambda d, n: (
                d.batch(4, drop_remainder=True).repeat(2).rebatch(n)
                if n == 5
                else d.batch(4, drop_remainder=True).repeat(2)
            ),
            3,
            False,
        ),
        (lambda d, n: d.repeat(2).batch(n, drop_remainder=True), 3, False),
        (lambda d, n: d.take(0).concatenate(d).repeat(2).batch(n), 3, False),
        (lambda d, n: d.concatenate(d).batch(n, drop_remainder=True).repeat(2), 6, False),  # 20 examples
    ],
)
def test_another_batch_size_is_refused_after_examples_were_dropped(
    steps: Callable[[Dataset, int], Dataset], read: int, is_refused: bool
) -> None:
    def reading(size: int) -> Any:
        strategy = mr.MirroredStrategy(["CPU:0"])
        return iter(strategy.experimental_distribute_dataset(steps(Dataset.range(10), size)))

    iterator, restored = reading(4), reading(5)
    before = [int(x) for _ in range(read) for x in np.asarray(next(iterator))]
    if is_refused:
        with pytest.raises(ArgumentError, match="another number of them in each epoch"):
            restored.set_state(iterator.get_state())
        return
    restored.set_state(iterator.get_state())
    after = [int(x) for batch in restored for x in np.asarray(batch)]
    whole = [int(x) for batch in reading(5) for x in np.asarray(batch)]
    assert before + after == whole


def _in_pairs(dataset: Dataset) -> Dataset:
    return dataset.window(2, shift=2, drop_remainder=True).flat_map(lambda window: window.batch(2)).map(np.sum)


DROPPING: dict[str, Callable[[], Dataset]] = {
    "batch, batch": lambda: Dataset.range(23).batch(10).map(lambda x: x + 50).unbatch().batch(4, drop_remainder=True),
    "batch, rebatch": lambda: Dataset.range(23).batch(10).map(lambda x: x + 50).rebatch(4, drop_remainder=True),
    "rebatch, batch": lambda: Dataset.range(23).batch(5).rebatch(3).unbatch().batch(4, drop_remainder=True),
    "batch, batches": lambda: Dataset.range(23).batch(3).batch(3, drop_remainder=True).unbatch(),
    "rebatch, window": lambda: _in_pairs(Dataset.range(23).batch(2).rebatch(4).map(np.max)),
    "batch, window": lambda: _in_pairs(Dataset.range(23).batch(5).map(np.max)),
}
FOLLOWING: dict[str, Callable[[Dataset], Dataset]] = {
    "repeat": lambda dataset: dataset.repeat(3),
    "repeat, shuffle": lambda dataset: dataset.repeat(3).shuffle(3, seed=1),
    "concatenate": lambda dataset: dataset.concatenate(dataset.take(3)),
}


@pytest.mark.first(9)
@pytest.mark.parametrize("after", FOLLOWING)
@pytest.mark.parametrize("name", DROPPING)
def test_the_last_batch_size_may_change_after_a_batch_before_dropped_examples(name: str, after: str) -> None:
    def reading(size: int) -> Any:
        strategy = mr.MirroredStrategy(["CPU:0"])
        return iter(strategy.experimental_distribute_dataset(FOLLOWING[after](DROPPING[name]()).batch(size)))

    def elements(iterator: Any) -> list[Any]:
        return [element for batch in iterator for element in np.asarray(batch).tolist()]

    whole = elements(reading(1))
    for saved, now in ((4, 2), (2, 4), (2, 3)):
        for count in range(len(whole) // saved):
            iterator, restored = reading(saved), reading(now)
            for _ in range(count):
                next(iterator)
            restored.set_state(json.loads(json.dumps(iterator.get_state())))
            assert elements(restored) == whole[count * saved :]


REGROUPED: dict[str, tuple[Callable[[], Dataset], Callable[[], Dataset]]] = {
    "drop moved": (
        lambda: Dataset.range(23).batch(10, drop_remainder=True).unbatch().batch(4),
        lambda: Dataset.range(23).batch(10).unbatch().batch(4, drop_remainder=True),
    ),
    "drop added": (
        lambda: Dataset.range(23).batch(10).unbatch().batch(4, drop_remainder=True),
        lambda: Dataset.range(23).batch(10, drop_remainder=True).unbatch().batch(4, drop_remainder=True),
    ),
    "drop of rebatch removed": (
        lambda: Dataset.from_generator(lambda: iter([np.arange(23)])).rebatch(4, drop_remainder=True),
        lambda: Dataset.from_generator(lambda: iter([np.arange(23)])).rebatch(4),
    ),
    "other batches in dropped ones": (
        lambda: Dataset.from_generator(lambda: iter([np.arange(30)])).rebatch(6).batch(2, drop_remainder=True),
        lambda: Dataset.from_generator(lambda: iter([np.arange(30)])).rebatch(5).batch(2, drop_remainder=True),
    ),
}


@pytest.mark.parametrize("size", [2, 1])
@pytest.mark.parametrize("name", REGROUPED)
def test_steps_that_drop_others_than_before_are_refused(name: str, size: int) -> None:
    saved, now = (
        iter(
            mr.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(
                build().unbatch().repeat().map(lambda x: x[..., None]).batch(batch)
            )
        )
        for build, batch in zip(REGROUPED[name], (2, size), strict=True)
    )
    for _ in range(15):
        next(saved)
    with pytest.raises(ArgumentError, match=r"drop_remainder"):
        now.set_state(saved.get_state())


EARLIER_KEYS = (
    "version",
    "pipeline",
    "settings",
    "iteration",
    "next_iteration",
    "seeds",
    "count",
    "cardinality",
    "position",
)


def test_positions_of_earlier_versions_are_restored() -> None:
    iterator = iter(interleaved(2))
    next(iterator)
    position = {key: part for key, part in iterator.get_state().items() if key in EARLIER_KEYS}
    restored = iter(interleaved(2))
    restored.set_state(position)
    assert next(restored) == next(iterator)


EPOCHS: dict[str, Callable[[int], Dataset]] = {
    "take": lambda n: Dataset.range(9).take(n).repeat(),
    "more examples": lambda n: Dataset.range(n).repeat(),
    "batch": lambda n: Dataset.range(n).repeat().batch(2).prefetch(1),
    "batches": lambda n: Dataset.range(n).batch(2).map(lambda x: x).repeat(),
}


@pytest.mark.parametrize(("saved", "now"), [(4, 6), (6, 4)])
@pytest.mark.parametrize("name", EPOCHS)
def test_a_later_epoch_keeps_its_number_of_examples(name: str, saved: int, now: int) -> None:
    reading, batch = iter(EPOCHS[name](saved)), 2 if "batch" in name else 1
    for _ in range(4 // batch):
        next(reading)
    first = json.loads(json.dumps(reading.get_state()))
    for _ in range(4 // batch):
        next(reading)
    later = json.loads(json.dumps(reading.get_state()))
    for put in (DatasetIterator.set_state, DatasetIterator.restore):
        restored = iter(EPOCHS[name](now))
        put(restored, first)
        assert int(np.ravel(next(restored))[0]) == (4 if now == 6 else 0)
        with pytest.raises(ArgumentError, match=rf"the epochs had \[{saved}\] elements when"):
            put(restored, later)
    del later["epochs"]  # as earlier versions save it
    iter(EPOCHS[name](now)).set_state(later)


def test_a_repeat_may_be_added_or_its_count_raised_in_the_first_epoch():
    for saved, built in ((2, 3), (1, 3)):
        before = iter(Dataset.range(8).repeat(saved).batch(2))
        next(before), next(before)
        after = iter(Dataset.range(8).repeat(built).batch(2))
        after.set_state(before.get_state())
        assert next(after).tolist() == [4, 5]
    before = iter(Dataset.range(8).batch(2))
    next(before)
    after = iter(Dataset.range(8).repeat(3).batch(2))
    assert not after.restore(before.get_state()), "the operations have changed, so the epoch begins again"
    assert next(after).tolist() == [0, 1]


def test_a_part_before_others_keeps_its_number_of_elements():
    before = iter(Dataset.range(10).concatenate(Dataset.range(100, 110)))
    assert [int(next(before)) for _ in range(12)][-1] == 101
    after = iter(Dataset.range(15).concatenate(Dataset.range(100, 110)))
    with pytest.raises(ArgumentError, match="10 elements before others"):
        after.set_state(before.get_state())
    same = iter(Dataset.range(10).take(60).concatenate(Dataset.range(100, 110)))
    between = iter(Dataset.range(10).take(50).concatenate(Dataset.range(100, 110)))
    assert [int(next(between)) for _ in range(12)][-1] == 101
    same.set_state(between.get_state())
    assert int(next(same)) == 102


@pytest.mark.parametrize("size", [8, 4])
@pytest.mark.parametrize("count", range(5))
def test_a_part_before_others_may_change_its_number_of_elements_while_it_is_read(count: int, size: int) -> None:
    def dataset(size: int) -> Dataset:
        return Dataset.range(20).take(size).concatenate(Dataset.range(100, 104)).map(lambda x: x).batch(2)

    before, after = iter(dataset(6)), iter(dataset(size))
    for _ in range(count):
        next(before)
    if count * 2 > min(size, 6):
        with pytest.raises((ArgumentError, InputError), match="6 elements before others|the position is after"):
            after.set_state(before.get_state())
    else:
        after.set_state(before.get_state())
        assert [batch.tolist() for batch in after] == [batch.tolist() for batch in dataset(size)][count:]


@pytest.mark.parametrize("saved", [5, 6])
@pytest.mark.parametrize("outer", [1, 2])
def test_a_partial_batch_of_the_first_part_precedes_no_position_in_another_length(saved: int, outer: int) -> None:
    """A longer part has a full batch in its place, whose other examples no batch would contain."""

    def dataset(size: int) -> Dataset:
        joined = Dataset.range(40).take(size).batch(2).concatenate(Dataset.range(100, 108).batch(2))
        return joined.batch(outer) if outer > 1 else joined

    before, after = iter(dataset(saved * outer)), iter(dataset(8 * outer))
    for _ in range(2):
        next(before)
    after.set_state(before.get_state())
    assert [batch.tolist() for batch in after] == [batch.tolist() for batch in dataset(8 * outer)][2:]
    next(before)
    with pytest.raises(ArgumentError, match="elements before others"):
        iter(dataset(8 * outer)).set_state(before.get_state())


def test_full_batches_of_the_first_part_precede_positions_in_another_length() -> None:
    def dataset(size: int) -> Dataset:
        first = Dataset.range(40).take(size).batch(2, drop_remainder=True)
        return first.concatenate(Dataset.range(100, 104).batch(2))

    before, after = iter(dataset(7)), iter(dataset(8))
    for _ in range(3):
        next(before)
    after.set_state(before.get_state())
    assert [batch.tolist() for batch in after] == [[6, 7], [100, 101], [102, 103]]


def test_a_position_that_counts_examples_keeps_the_number_of_elements_before_others() -> None:
    def dataset(size: int, batch: int) -> Dataset:
        return Dataset.range(20).take(size).concatenate(Dataset.range(100, 104)).batch(batch)

    before = iter(dataset(6, 2))
    next(before)
    with pytest.raises(ArgumentError, match="6 elements before others"):
        iter(dataset(8, 4)).restore(before.get_state())


@pytest.mark.parametrize("first", [numbers, streamed], ids=["indexed", "stream"])
def test_a_position_after_a_part_that_drops_examples_keeps_the_batch_size(first: Callable[[int], Dataset]) -> None:
    """With another batch size the first part of a stream has dropped other examples: some came twice, others never."""
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)

    def reading(batch: int) -> Any:
        parts = [part.batch(batch, drop_remainder=True) for part in (first(10), Dataset.range(100, 108))]
        return iter(strategy.experimental_distribute_dataset(parts[0].concatenate(parts[1])))

    before, same = reading(4), reading(4)
    for count in range(3):
        if first is streamed:  # in the first part, whose examples all come
            after = reading(2)
            after.set_state(json.loads(json.dumps(before.get_state())))
            examples = [x for batch in after for x in strategy.gather(batch, axis=0).tolist()]
            assert examples == [*range(10), *range(100, 108)][4 * count :]
        next(before)
    with pytest.raises(ArgumentError, match="elements before others|in each epoch or part"):
        reading(2).set_state(before.get_state())
    same.set_state(before.get_state())
    assert strategy.gather(next(same), axis=0).tolist() == [104, 105, 106, 107]


@pytest.mark.parametrize("kind", ["chain", "prefetched chain", "zip", "exact", "before"])
def test_parts_that_drop_examples_are_found_in_nested_positions(kind: str) -> None:
    """The outer part 0 hid the inner part 1; parts in lists were not seen; nothing was known to drop no examples."""
    strategy = mr.MirroredStrategy(["CPU:0"])

    def reading(size: int) -> Any:
        first = Dataset.range(8) if kind == "exact" else streamed(10)
        others = (streamed(108).skip(100) if kind == "exact" else Dataset.range(100, 108), Dataset.range(200, 208))
        made, *parts = [part.batch(size, drop_remainder=True) for part in (first, *others)]
        for part in parts:
            made = made.concatenate(part)
        made = {"zip": lambda: Dataset.zip((made,) * 2), "prefetched chain": lambda: made.prefetch(1)}.get(
            kind, lambda: made
        )()
        return iter(strategy.experimental_distribute_dataset(made))

    before = reading(4)
    for _ in range(2 if kind == "before" else 3):
        next(before)
    after, state = reading(2), json.loads(json.dumps(before.get_state()))
    if kind in ("exact", "before"):
        after.set_state(state)
        assert np.asarray(next(after)).tolist() == ([104, 105] if kind == "exact" else [8, 9])
        return
    with pytest.raises(ArgumentError, match="in each epoch or part"):
        after.set_state(state)


@pytest.mark.parametrize("after", [0, 3, 5, 100])
@pytest.mark.parametrize(("before", "read"), [(0, 0), (3, 2), (5, 0), (5, 2), (100, 5)])
def test_a_position_of_take_fits_another_count(before: int, read: int, after: int) -> None:
    """Those of `take(0)` had another format in a pipeline that is not indexed: `KeyError`."""

    def reading(count: int) -> Any:
        return iter(streamed(10).take(count))

    iterator, restored = reading(before), reading(after)
    for _ in range(read):
        next(iterator)
    restored.set_state(json.loads(json.dumps(iterator.get_state())))
    assert [int(element) for element in restored] == list(range(read, min(after, 10)))
