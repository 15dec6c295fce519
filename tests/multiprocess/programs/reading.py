"""Each way of sharing data between workers: ``reading.py FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.data import AutoShardPolicy, Dataset, Options, TextLineDataset

strategy = mr.MultiWorkerMirroredStrategy()
folder = Path(sys.argv[1])


def policy(dataset: Any, kind: AutoShardPolicy) -> Any:
    options = Options()
    options.experimental_distribute.auto_shard_policy = kind
    return dataset.with_options(options)


def mine(distributed: Any) -> list[Any]:
    return [[np.asarray(one).tolist() for one in strategy.local_results(batch)] for batch in distributed]


def summed(distributed: Any) -> list[float]:
    """The sum over all examples of each batch: every replica's share counts once, also empty ones."""
    step = mr.function(lambda batch: strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(batch,)), axis=None))
    return [float(step(batch)) for batch in distributed]


files = [str(folder / f"part-{i}.txt") for i in range(3)]
numbers = TextLineDataset(files).map(lambda line: np.float32(line)).batch(4)
by_file = strategy.experimental_distribute_dataset(policy(numbers, AutoShardPolicy.FILE))
lengths = strategy.distribute_datasets_from_function(
    lambda context: Dataset.range(3 + 4 * context.input_pipeline_id).map(lambda x: np.float32(x)).batch(1)
)
(folder / "none.txt").touch()
one_file_is_empty = TextLineDataset([files[0], str(folder / "none.txt")]).map(lambda line: np.float32(line)).batch(4)
alone = strategy.experimental_distribute_dataset(policy(one_file_is_empty, AutoShardPolicy.FILE))
unseeded = strategy.experimental_distribute_dataset(Dataset.range(16).shuffle(16).batch(16))


def shard_of_shuffled(context: Any) -> Any:
    whole = Dataset.range(16).shuffle(16).shuffle(4)
    return whole.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(8).batch(2)


found = {
    "file": mine(by_file),
    "file sums": summed(by_file),
    "off": mine(strategy.experimental_distribute_dataset(policy(Dataset.range(8).batch(8), AutoShardPolicy.OFF))),
    "alone": [mine(alone), summed(alone)],
    "lengths": summed(lengths),
    "shards": [mine(strategy.distribute_datasets_from_function(shard_of_shuffled)) for _ in range(2)],
    "one order": [np.asarray(strategy.gather(batch, 0)).tolist() for batch in unseeded],
}

# A position that differs between workers is kept for each.
iterator = iter(by_file)
next(iterator)
checkpoint = Checkpoint(iterator=iterator)
path = checkpoint.write(folder / "position")
rest = mine(iterator)
again = iter(by_file)
Checkpoint(iterator=again).read(path)
found["resumed"] = mine(again) == rest
found["rest"] = rest
print("RESULT", json.dumps(found), flush=True)
