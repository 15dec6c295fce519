"""Saves a position after the end of worker 1's data, and continues from it: ``ended_data.py``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

import mirrored as mr
from mirrored.data import AutoShardPolicy, Dataset, InputOptions, Options

strategy = mr.MultiWorkerMirroredStrategy()
COUNT = 6 if strategy.cluster_resolver.task_id == 0 else 2


def batches() -> Iterator[Any]:
    for number in range(COUNT):
        yield {"x": np.full((2, 3), number, np.float32), "y": (np.int32([number, number]),)}


def of_growing_length() -> Dataset:
    """The lengths of the padded examples differ between the batches."""
    return Dataset.range(1, 2 * COUNT + 1).map(lambda size: np.zeros(int(size), np.float32)).padded_batch(2)


def from_function(make: Callable[[], Any]) -> Iterable[Any]:
    return strategy.distribute_datasets_from_function(lambda context: make())


def shared(**options: Any) -> Iterable[Any]:
    off = Options()
    off.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    # The global batch of two workers has four examples, of which each worker reads two.
    dataset = Dataset.from_generator(lambda: (row for batch in batches() for row in batch["x"])).batch(4)
    return strategy.experimental_distribute_dataset(dataset.with_options(off), InputOptions(**options))


def shapes(distributed: Iterable[Any]) -> list[list[tuple[int, ...]]]:
    """Returns the shapes of this worker's component of each leaf of each batch."""
    return [[leaf.values[0].shape for leaf in jax.tree.leaves(batch, is_leaf=is_split)] for batch in distributed]


def is_split(value: object) -> bool:
    return isinstance(value, mr.PerReplica)


def rests(make: Callable[[], Iterable[Any]]) -> tuple[list[Any], list[Any]]:
    """Returns what follows four batches, without an interruption and from the saved position."""
    iterator: Any = iter(make())
    for _ in range(4):
        next(iterator)
    position = json.loads(json.dumps(iterator.get_state()))
    rest = shapes(iterator)
    continued: Any = iter(make())
    continued.set_state(position)
    return rest, shapes(continued)


found = {
    "a list": rests(lambda: from_function(lambda: list(batches()))),
    "a generator": rests(lambda: from_function(lambda: Dataset.from_generator(batches))),
    "varying lengths": rests(lambda: from_function(of_growing_length)),
    "own batches": rests(shared),
    "padded": rests(lambda: shared(last_batch="pad")),
}
print("RESULT", json.dumps(found), flush=True)
