"""Rows per second of `tf.data` for `benchmarks/transformations.py`, in TensorFlow's own environment.

python benchmarks/contenders/tensorflow_data.py NAME,NAME,... ROUNDS
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

ROWS, WIDTH, BATCH, BUFFER, PARTS = 8192, 784, 512, 1024, 8
data = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


def sliced(rows: np.ndarray = data) -> Any:
    """Returns the rows as a dataset."""
    return tf.data.Dataset.from_tensor_slices(rows)


def pipelines() -> dict[str, Any]:
    """Returns the datasets of batches, by the names of the transformations."""
    rows, (first, second) = sliced(), (sliced(half) for half in np.split(data, 2))
    parts = tf.constant(np.stack(np.split(data, PARTS)))
    datasets = {
        "batch": rows,
        "map": rows.map(lambda x: x * 2),
        "random_map": rows.map(lambda x: x * tf.random.uniform(())),
        "filter": rows.filter(lambda x: x[0] > 0),
        "take": rows.take(6000),
        "skip": rows.skip(100),
        "shard": rows.shard(4, 1),
        "repeat": rows.repeat(2),
        "zip": tf.data.Dataset.zip((rows, rows)),
        "concatenate": first.concatenate(second),
        "shuffle": rows.shuffle(BUFFER, seed=0),
        "cache": rows.map(lambda x: x * 2).cache(),
        "prefetch": rows.prefetch(2),
        "unbatch": rows.batch(BATCH).unbatch(),
        "interleave": tf.data.Dataset.range(PARTS).interleave(
            lambda n: tf.data.Dataset.from_tensor_slices(parts[n]), cycle_length=4
        ),
        "mix": tf.data.Dataset.sample_from_datasets([first, second], seed=0),
    }
    made = {name: dataset.batch(BATCH) for name, dataset in datasets.items()}
    return {
        **made,
        "map of batches": rows.batch(BATCH).map(lambda x: x * 2),
        "rebatch": rows.batch(384).rebatch(BATCH),
    }


def rate(dataset: Any) -> float:
    """Reads a dataset to its end, and returns rows per second."""
    start, count = time.perf_counter(), 0
    for element in dataset:
        count += (element[0] if isinstance(element, tuple) else element).shape[0]
    return count / (time.perf_counter() - start)


def main() -> None:
    """Prints the figures of all rounds as JSON."""
    wanted, rounds = sys.argv[1].split(","), int(sys.argv[2])
    datasets = pipelines()
    found: dict[str, list[float]] = {name: [] for name in wanted if name in datasets}
    for round_ in range(rounds + 1):
        for name, figures in found.items():
            one = rate(datasets[name])
            if round_:
                figures.append(one)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
