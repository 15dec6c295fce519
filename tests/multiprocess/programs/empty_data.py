"""Reads with worker 1 without any data: ``empty_data.py``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import mirrored as mr
from mirrored.data import AutoShardPolicy, Dataset, InputOptions, Options
from mirrored.errors import DisagreementError

strategy = mr.MultiWorkerMirroredStrategy()
here = strategy.cluster_resolver.task_id


def numbers() -> Iterator[Any]:
    yield from (np.float32(one) for one in ([1, 2, 3] if here == 0 else []))


SIGNATURE = np.zeros((), np.float32)
GENERATED = Dataset.from_generator(numbers, output_signature=SIGNATURE).batch(2)
UNKNOWN = Dataset.from_generator(numbers).batch(2)


def shared(dataset: Any, **options: Any) -> Any:
    off = Options()
    off.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    return strategy.experimental_distribute_dataset(dataset.with_options(off), InputOptions(**options))


def from_function(dataset: Any) -> Any:
    return strategy.distribute_datasets_from_function(lambda context: dataset)


def sums(distributed: Iterable[Any]) -> Any:
    """Returns the sum over all examples of each batch, or the error and the seconds that it took."""
    step = mr.function(lambda batch: strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(batch,)), axis=None))
    start = time.monotonic()
    try:
        return [float(step(batch)) for batch in distributed]
    except DisagreementError as error:
        return [str(error), time.monotonic() - start]


found = {
    "elements of a known structure": sums(from_function(GENERATED)),
    "elements of a list": sums(from_function([np.float32([1, 2]), np.float32([3])] if here == 0 else [])),
    "elements of an unknown structure": sums(from_function(UNKNOWN)),
    "batches of a known structure": sums(shared(GENERATED)),
    "batches of an unknown structure": sums(shared(UNKNOWN)),
    "padded": [np.asarray(mask.values[0]).tolist() for _, mask in shared(GENERATED, last_batch="pad")],
}
print("RESULT", json.dumps(found), flush=True)
