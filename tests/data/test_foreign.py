"""Datasets of Hugging Face, by stand-ins for the parts of them that are used."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import InputOptions
from mirrored.errors import ArgumentError


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


def test_streams_are_read_in_the_order_of_the_epoch_that_the_user_sets(strategy: Any) -> None:
    stream = Stream()
    batches = strategy.experimental_distribute_dataset(stream, InputOptions(batch_size=4))
    for epoch in (0, 0, 2, 1):
        stream.set_epoch(epoch)
        assert numbers(batches, "x") == [100 * epoch + n for n in range(8)]


def test_a_dict_of_splits_is_refused(strategy: Any) -> None:
    with pytest.raises(ArgumentError, match=r"the splits \['test', 'train'\](.|\n)*dataset\['test'\]"):
        strategy.experimental_distribute_dataset(DatasetDict(test=Table(), train=Table()), InputOptions(batch_size=4))
