"""Positions that are set several times, or that do not fit: the iterator continues at the one that was set last."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, DistributedDataset
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
        changed["reader"]["taken"] = [1000]
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
    state["reader"] |= {"taken": [1000], "sources": [None]}
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
