"""Datasets of Hugging Face and loaders of PyTorch, by stand-ins for the parts of them that are used."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.data import InputOptions
from mirrored.errors import ArgumentError, InputError, StructureError


@pytest.fixture
def strategy() -> Any:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def numbers(elements: Any, key: str | None = None) -> list[int]:
    return [
        int(n)
        for element in elements
        for share in (element if key is None else element[key]).values
        for n in np.asarray(share)
    ]


class Table:
    """Stands for `datasets.Dataset`, whose `with_format` replaces all parts of the format."""

    def __init__(self) -> None:
        self.format: dict[str, Any] = {"type": None, "columns": ["x", "y"], "format_kwargs": {}}

    def with_format(
        self, type: Any = None, columns: Any = None, output_all_columns: bool = False, **kwargs: Any
    ) -> Any:
        made = copy.copy(self)
        made.format = {
            "type": type,
            "columns": columns or ["x", "y"],
            "output_all_columns": output_all_columns,
            "format_kwargs": kwargs,
        }
        return made

    def iter(self, batch_size: int) -> Iterator[Any]:
        for start in range(0, 8, batch_size):
            numbers = list(range(start, start + batch_size))
            if self.format["type"] == "custom":
                yield self.format["format_kwargs"]["transform"]({"x": numbers})
            else:
                assert self.format["type"] == "numpy"
                yield {column: np.asarray(numbers) for column in self.format["columns"]}


class Stream:
    """Stands for `datasets.IterableDataset`, whose `with_format` makes a new one, of epoch 0."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def with_format(self, type: str) -> Stream:
        assert type == "numpy"
        return Stream()

    def iter(self, batch_size: int) -> Iterator[Any]:
        for start in range(0, 8, batch_size):
            yield {"x": np.arange(start, start + batch_size) + 100 * self.epoch}


class DatasetDict(dict[str, Any]):
    pass


Table.__module__ = Stream.__module__ = DatasetDict.__module__ = "datasets.stand_in"


@pytest.mark.parametrize("format_type", [None, "numpy", "torch"])
@pytest.mark.parametrize("columns", [None, ["x"]])
def test_the_chosen_columns_stay(strategy: Any, format_type: Any, columns: Any) -> None:
    table = Table().with_format(format_type, columns)
    batches = list(strategy.experimental_distribute_dataset(table, InputOptions(batch_size=4)))
    assert [sorted(batch) for batch in batches] == [columns or ["x", "y"]] * 2
    assert numbers(batches, "x") == list(range(8))


def test_a_transform_of_the_user_stays(strategy: Any) -> None:
    table = Table().with_format("custom", transform=lambda batch: {"x": [10 * n for n in batch["x"]]})
    batches = strategy.experimental_distribute_dataset(table, InputOptions(batch_size=4))
    assert numbers(batches, "x") == list(range(0, 80, 10))


PICTURES: dict[str, Callable[[int], Any]] = {
    "arrays": lambda n: np.full((3, 2), n),
    "arrays of one dim": lambda n: np.full(3, n),
    "arrays with as many rows as the batch has examples": lambda n: np.full((4, 2), n),
    "JAX arrays": lambda n: jnp.full((3, 2), n),
    "lists of arrays": lambda n: [np.full(2, n), np.full(2, n)],
    "nested lists": lambda n: np.array([[n, n], [n, n]]).tolist(),
    "dicts": lambda n: {"a": np.full((3, 2), n), "b": n},
}


@pytest.mark.parametrize("name", PICTURES)
def test_lists_of_arrays_of_a_transform_are_stacked(strategy: Any, name: str) -> None:
    """They were pytrees of one array for each example, which were split along the pictures' own axis."""
    make = PICTURES[name]
    table = Table().with_format("custom", transform=lambda batch: {"x": [make(n) for n in batch["x"]], "y": batch["x"]})
    dataset = strategy.experimental_distribute_dataset(table, InputOptions(batch_size=4))
    local = strategy.experimental_local_results
    shares = [share for batch in dataset for share in zip(*map(local, batch.values()), strict=True)]
    assert [np.asarray(y).tolist() for _, y in shares] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for x, y in shares:
        examples = [{"x": x, "y": 0} for x in map(make, np.asarray(y).tolist())]
        expected = jax.tree.map(lambda *rows: np.stack(rows), *examples, is_leaf=lambda part: isinstance(part, list))
        jax.tree.map(np.testing.assert_array_equal, x, expected["x"])


def test_arrays_of_a_transform_with_several_shapes_are_refused(strategy: Any) -> None:
    table = Table().with_format("custom", transform=lambda batch: {"x": [np.zeros((n, 2)) for n in batch["x"]]})
    batches = strategy.experimental_distribute_dataset(table, InputOptions(batch_size=4))
    with pytest.raises(StructureError, match=r"float64\[0, 2\] in element 0 .* float64\[1, 2\] in element 1") as caught:
        list(batches)
    assert "their arrays are stacked" in str(caught.value.__notes__)


def test_streams_are_read_in_the_order_of_the_epoch_that_the_user_sets(strategy: Any) -> None:
    stream = Stream()
    batches = strategy.experimental_distribute_dataset(stream, InputOptions(batch_size=4))
    for epoch in (0, 0, 2, 1):
        stream.set_epoch(epoch)
        assert numbers(batches, "x") == [100 * epoch + n for n in range(8)]


class SavedStream(Stream):
    """Has positions, of which it ignores those of other epochs, as `datasets.IterableDataset` does."""

    def __init__(self) -> None:
        super().__init__()
        self.start: dict[str, int] | None = None
        self.state = {"examples": 0, "epoch": 0}

    def with_format(self, type: str) -> SavedStream:
        return SavedStream()

    def state_dict(self) -> dict[str, int]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state

    def __iter__(self) -> Iterator[Any]:
        start = self.start["examples"] if self.start and self.start["epoch"] == self.epoch else 0
        for n in range(start, 8, 4):
            self.state = {"examples": n + 4, "epoch": self.epoch}
            yield {"x": np.arange(n, n + 4) + 100 * self.epoch}


SavedStream.__module__ = Stream.__module__


@pytest.mark.parametrize("options", [None, InputOptions(batch_size=4)])
@pytest.mark.parametrize("epochs", [(3, None), (3, 3), (0, 3), (0, None)])
def test_a_position_in_a_stream_is_one_in_its_epoch(strategy: Any, options: Any, epochs: Any) -> None:
    """The dataset had the epoch of the user's again, in a new process 0, and began it."""
    readings = []
    for epoch in epochs:
        stream = SavedStream()
        dataset = strategy.experimental_distribute_dataset(stream, options)
        if epoch is not None:
            stream.set_epoch(epoch)
        readings.append((stream, dataset, iter(dataset)))
    next(readings[0][2])
    restored, dataset, iterator = readings[1]
    iterator.set_state(json.loads(json.dumps(readings[0][2].get_state())))
    assert numbers(iterator, "x") == [100 * epochs[0] + n for n in range(4, 8)]
    restored.set_epoch(5)
    again = iter(dataset)
    again.set_state(json.loads(json.dumps(iter(dataset).get_state())))
    assert numbers(again, "x") == [500 + n for n in range(8)]
    assert numbers(dataset, "x") == [500 + n for n in range(8)]


@pytest.mark.parametrize("size", [4, 2])
def test_examples_that_are_skipped_are_those_of_the_position_s_epoch(strategy: Any, size: int) -> None:
    saved_stream = Stream()
    saved_stream.set_epoch(3)
    saved = iter(strategy.experimental_distribute_dataset(saved_stream, InputOptions(batch_size=4)))
    next(saved)
    restored = iter(strategy.experimental_distribute_dataset(Stream(), InputOptions(batch_size=size)))
    restored.set_state(json.loads(json.dumps(saved.get_state())))
    assert numbers(restored, "x") == [300 + n for n in range(4, 8)]


def test_a_dict_of_splits_is_refused(strategy: Any) -> None:
    with pytest.raises(ArgumentError, match=r"the splits \['test', 'train'\](.|\n)*dataset\['test'\]"):
        strategy.experimental_distribute_dataset(DatasetDict(test=Table(), train=Table()), InputOptions(batch_size=4))


class _Iterator:
    def __init__(self) -> None:
        self.index = 0

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        if self.index == 6:
            raise StopIteration
        self.index += 1
        return np.arange(4 * (self.index - 1), 4 * self.index)


class DataLoader:
    """Stands for `torch.utils.data.DataLoader` with persistent workers, which resets its only iterator."""

    persistent_workers = True

    def __init__(self) -> None:
        self.iterator = _Iterator()

    def __iter__(self) -> _Iterator:
        self.iterator.index = 0
        return self.iterator


DataLoader.__module__ = "torch.utils.data.dataloader"


class DerivedLoader(DataLoader):
    pass


@pytest.mark.parametrize("kind", [DataLoader, DerivedLoader])
def test_a_loader_with_persistent_workers_has_many_epochs(strategy: Any, kind: Any) -> None:
    dataset = strategy.experimental_distribute_dataset(kind())
    assert dataset.element_spec is not None
    for _ in range(3):
        assert numbers(dataset) == list(range(24))


def test_a_position_of_a_loader_with_persistent_workers(strategy: Any) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(DataLoader()))
    next(iterator)
    state = iterator.get_state()
    assert numbers([next(iterator)]) == [4, 5, 6, 7]
    iterator.set_state(state)
    assert numbers(iterator) == list(range(4, 24))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_position_of_a_grain_dataset_is_restored_again(strategy: Any, count: int) -> None:
    """Grain's interleave goes on with lists of the position that it restores."""
    grain = pytest.importorskip("grain")
    parts = [grain.MapDataset.range(start, start + 4).to_iter_dataset().batch(2) for start in range(0, 20, 4)]
    interleaved = grain.experimental.InterleaveIterDataset(parts, cycle_length=2)
    iterator = iter(strategy.experimental_distribute_dataset(interleaved))
    for _ in range(count):
        next(iterator)
    state = iterator.get_state()
    saved = json.loads(json.dumps(state))
    expected = numbers(iterator)
    assert len(expected) == 20 - 2 * count
    for _ in range(2):
        iterator.set_state(state)
        assert iterator.get_state() == saved
        assert numbers(iterator) == expected
    assert state == saved


def test_an_earlier_iteration_of_a_loader_with_persistent_workers_takes_no_batches(strategy: Any) -> None:
    dataset = strategy.experimental_distribute_dataset(DataLoader(), InputOptions(prefetch=0))
    earlier = iter(dataset)
    next(earlier)
    later = iter(dataset)
    assert numbers([next(later)]) == [0, 1, 2, 3]
    with pytest.raises(InputError, match="a later iteration over the same DataLoader has begun"):
        next(earlier)
    assert numbers(later) == list(range(4, 24))


def test_iterations_of_a_loader_without_persistent_workers_are_independent(strategy: Any) -> None:
    class Loader(DataLoader):
        persistent_workers = False

        def __iter__(self) -> _Iterator:
            return _Iterator()

    dataset = strategy.experimental_distribute_dataset(Loader(), InputOptions(prefetch=0))
    earlier, later = iter(dataset), iter(dataset)
    assert numbers([next(earlier), next(later), next(earlier)]) == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]


def test_a_loader_of_the_user_that_returns_the_same_iterator_is_refused(strategy: Any) -> None:
    class Loader(DataLoader):
        persistent_workers = False

        def __iter__(self) -> _Iterator:
            return self.iterator

    dataset = strategy.experimental_distribute_dataset(Loader())
    assert numbers(dataset) == list(range(24))
    with pytest.raises(InputError, match="a second iteration got the same iterator"):
        list(dataset)
