from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset, InputReplicationMode
from mirrored.data.legacy import make_dataset_iterator, make_input_fn_iterator
from mirrored.errors import ArgumentError, EndOfDataError


@pytest.fixture
def strategy() -> Any:
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def shown(element: Any) -> list[Any]:
    return [np.asarray(share).tolist() for share in element.values]


def test_global_batches_are_split(strategy: Any) -> None:
    iterator = make_dataset_iterator(strategy, Dataset.range(4).batch(2))
    assert [shown(iterator.get_next()) for _ in range(2)] == [[[0], [1]], [[2], [3]]]
    with pytest.raises(EndOfDataError, match="End of sequence"):
        iterator.get_next()
    iterator.initialize()
    assert shown(next(iterator)) == [[0], [1]]


def test_input_functions_give_consecutive_elements(strategy: Any) -> None:
    iterator = make_input_fn_iterator(strategy, lambda context: Dataset.range(4).batch(context.num_replicas_in_sync))
    iterator.initialize()
    assert shown(iterator.get_next()) == [[0, 1], [2, 3]]


def test_input_functions_may_give_a_function(strategy: Any) -> None:
    numbers = iter(range(10))
    iterator = make_input_fn_iterator(strategy, lambda _: lambda: np.full(2, next(numbers)))
    assert shown(iterator.get_next()) == [[0, 0], [1, 1]]


def test_other_replication_modes_are_refused(strategy: Any) -> None:
    with pytest.raises(ArgumentError, match="Input replication mode not supported"):
        make_input_fn_iterator(strategy, lambda _: Dataset.range(4), InputReplicationMode.PER_REPLICA)


def test_the_initializer_moves_back_to_the_start(strategy: Any) -> None:
    iterator = make_dataset_iterator(strategy, Dataset.range(4).batch(2))
    iterator.get_next()
    assert iterator.initializer is None  # programs evaluate it in a session
    assert shown(iterator.get_next()) == [[0], [1]]
