"""Loaders with `state_dict` and `load_state_dict`: every batch is used once, whatever happens around a restore."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import ArraySpec, InputOptions
from mirrored.errors import ArgumentError, StructureError

pytestmark = pytest.mark.timeout(60)
GROUPS = [np.arange(0, 2), np.arange(2, 6), np.arange(6, 14), np.arange(14, 18), np.arange(18, 24)]


class Buckets:
    """Yields batches of several sizes in another order in each epoch; goes on where it is."""

    def __init__(self) -> None:
        self.epoch = self.done = 0

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(self.epoch).permutation(len(GROUPS))
        while self.done < len(GROUPS):
            self.done += 1
            yield GROUPS[order[self.done - 1]]
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.done = state["epoch"], state["done"]


class Rows:
    """Imitates `torchdata.stateful_dataloader.StatefulDataLoader`: a state holds for the next `iter`."""

    def __init__(self, batch_size: int = 4) -> None:
        self.batch_size = batch_size
        self.start = 0
        self.is_initial = False  # the iterator was made for its state, and nobody has it
        self.latest: _RowsIterator | None = None

    def __iter__(self) -> Iterator[Any]:
        if not self.is_initial:
            self.latest = _RowsIterator(self.batch_size, self.start)
            self.start = 0
        self.is_initial = False
        assert self.latest is not None
        return self.latest

    def state_dict(self) -> dict[str, int]:
        if self.latest is None:
            iter(self)
            self.is_initial = True
        assert self.latest is not None
        return {"batches": self.latest.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.latest, self.start, self.is_initial = None, state["batches"], False


class _RowsIterator:
    def __init__(self, size: int, batches: int) -> None:
        self.size, self.batches = size, batches

    def __iter__(self) -> _RowsIterator:
        return self

    def __next__(self) -> Any:
        if self.size * self.batches >= 24:
            raise StopIteration
        self.batches += 1
        return np.arange(self.size * (self.batches - 1), self.size * self.batches)


class StartsOver:
    """Yields batches from the first one in each epoch; its state stays at the end of an epoch."""

    def __init__(self) -> None:
        self.start = self.done = 0

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        for index in range(start, 6):
            self.done = index + 1
            yield np.arange(4 * index, 4 * index + 4)

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = self.done = state["done"]


@pytest.fixture
def strategy() -> Any:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def numbers(batches: Any, count: int | None = None) -> list[int]:
    return [
        number
        for batch in itertools.islice(batches, count)
        for part in batch.values
        for number in np.asarray(part).tolist()
    ]


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("batches", range(6))
def test_batches_of_several_sizes_are_each_read_once(strategy: Any, batches: int, ahead: int) -> None:
    """A batch was read to compare its size with the first one, and other examples were skipped."""
    options = InputOptions(prefetch=ahead)
    dataset = strategy.experimental_distribute_dataset(Buckets(), options)
    for _ in range(3):
        iterator = iter(dataset)
        numbers(iterator, batches)
        fresh = strategy.experimental_distribute_dataset(Buckets(), options)
        restored = iter(fresh)
        restored.set_state(json.loads(json.dumps(iterator.get_state())))
        assert numbers(restored) == numbers(iterator)
        if batches < 5:
            assert numbers(fresh) == numbers(dataset)


@pytest.mark.parametrize("more", range(4))
def test_a_rollback_near_the_end(strategy: Any, more: int) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(Buckets(), InputOptions(prefetch=0)))
    numbers(iterator, 2)
    saved = iterator.get_state()
    rest = numbers(iterator, more)
    iterator.set_state(saved)
    assert numbers(iterator)[: len(rest)] == rest


@pytest.mark.parametrize("delay", [0.0, 0.004, 0.008])
def test_a_rollback_while_the_input_thread_reads_ahead(strategy: Any, delay: float) -> None:
    """The thread moved the loader on after its state was loaded."""
    iterator = iter(strategy.experimental_distribute_dataset(Slow()))
    numbers(iterator, 10)
    saved = iterator.get_state()
    expected = numbers(iterator, 10)
    time.sleep(delay)
    iterator.set_state(saved)
    assert numbers(iterator, 10) == expected


class Slow(Buckets):
    def __iter__(self) -> Iterator[Any]:
        while self.done < 60:
            time.sleep(0.006)
            self.done += 1
            yield np.full(2, self.done)


def test_a_changed_batch_size_is_refused_and_changes_nothing(strategy: Any) -> None:
    saved = iter(strategy.experimental_distribute_dataset(Rows(4)))
    numbers(saved, 2)
    position = json.loads(json.dumps(saved.get_state()))
    for read in (0, 2):
        iterator = iter(strategy.experimental_distribute_dataset(Rows(6)))
        expected = list(range(24))[len(numbers(iterator, read)) :]
        with pytest.raises(
            ArgumentError, match=r"saved with batch_size=4(.|\n)*has batch_size=6(.|\n)*with batch_size=4"
        ):
            iterator.set_state(position)
        assert numbers(iterator) == expected


@pytest.mark.parametrize("make", [Buckets, Rows, StartsOver])
@pytest.mark.parametrize("when", ["before", "restored", "started", "between epochs"])
def test_the_element_spec_takes_no_position_away(strategy: Any, make: Any, when: str) -> None:
    saved = iter(strategy.experimental_distribute_dataset(make()))
    numbers(saved, 2)
    position, rest = saved.get_state(), numbers(saved)
    dataset = strategy.experimental_distribute_dataset(make())

    def ask(now: str) -> None:
        if when == now:
            assert dataset.element_spec.components[0] == ArraySpec((None,), np.dtype("int64"))

    ask("before")
    iterator = iter(dataset)
    iterator.set_state(position)
    ask("restored")
    assert iterator.get_state() == position
    read = numbers(iterator, 1)
    ask("started")
    assert read + numbers(iterator) == rest
    ask("between epochs")
    assert len(numbers(dataset)) == 24


@pytest.mark.parametrize("make", [Buckets, Rows, StartsOver])
def test_a_position_of_an_epoch_that_has_not_begun(strategy: Any, make: Any) -> None:
    """The position was that of the end of the epoch before, after which there was no batch."""
    dataset = strategy.experimental_distribute_dataset(make())
    for _ in range(3):
        iterator = iter(dataset)
        restored = iter(strategy.experimental_distribute_dataset(make()))
        restored.set_state(json.loads(json.dumps(iterator.get_state())))
        expected = numbers(iterator)
        assert len(expected) == 24
        assert numbers(restored) == expected
        with iter(dataset) as closed:
            pass
        restored = iter(strategy.experimental_distribute_dataset(make()))
        restored.set_state(closed.get_state())
        assert len(numbers(restored)) == 24


def test_a_state_that_the_program_has_loaded_holds(strategy: Any) -> None:
    loader = Rows()
    loader.load_state_dict({"batches": 4})
    dataset = strategy.experimental_distribute_dataset(loader)
    assert numbers(dataset) == list(range(16, 24))
    assert numbers(dataset) == list(range(24))


def test_an_empty_loader_has_no_spec(strategy: Any) -> None:
    class Empty(Buckets):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    dataset = strategy.experimental_distribute_dataset(Empty())
    with pytest.raises(StructureError, match="no element"):
        _ = dataset.element_spec
    iterator = iter(dataset)
    with pytest.raises(StructureError, match="no element"):
        _ = iterator.element_spec
    assert numbers(iterator) == []


def test_the_loader_of_a_dataset_function(strategy: Any) -> None:
    dataset = strategy.distribute_datasets_from_function(lambda context: Rows())
    iterator = iter(dataset)
    numbers(iterator, 1)
    saved, rest = iterator.get_state(), numbers(iterator)
    iterator.set_state(saved)
    _ = dataset.element_spec
    assert numbers(iterator) == rest


@pytest.mark.parametrize("make", [Buckets, Rows, StartsOver])
def test_the_element_spec_reads_nothing_from_a_closed_iterator(strategy: Any, make: Any) -> None:
    """The closed iterator, which the program still held, kept the first batch."""
    dataset = strategy.experimental_distribute_dataset(make())
    with iter(dataset) as closed:
        pass
    _ = dataset.element_spec
    assert len(numbers(dataset)) == 24
    del closed
