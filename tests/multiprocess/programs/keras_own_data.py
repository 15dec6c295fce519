"""Keras on workers that read their own data, of which one has more.

``keras_own_data.py known|unknown|OFF`` or ``keras_own_data.py FILE FOLDER``
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

import mirrored as mr

_ROWS = (slice(0, 12), slice(12, 20))  # of each worker
_SIZE = 4
_X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
_Y = _X @ np.array([[1.0], [-2.0], [3.0]], np.float32)
_SPEC = (jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((1,), np.float32))


def own(context: Any, is_known: bool) -> mr.data.Dataset:
    rows = _ROWS[context.input_pipeline_id]
    if is_known:
        return mr.data.Dataset.from_tensor_slices((_X[rows], _Y[rows])).batch(_SIZE)
    examples = mr.data.Dataset.from_generator(lambda: zip(_X[rows], _Y[rows], strict=True), output_signature=_SPEC)
    return examples.batch(_SIZE)


def with_policy(dataset: mr.data.Dataset, policy: mr.data.AutoShardPolicy) -> mr.data.Dataset:
    options = mr.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def plain(prepare: Callable[[Any], Any], policy: str, worker: int, *folder: str) -> mr.data.Dataset:
    """A dataset that is not distributed, of global batches; with the policy FILE, a file has the rows of a worker."""
    if policy == "OFF":
        rows = mr.data.Dataset.from_tensor_slices((_X, _Y)).skip(12 * worker).take(12)
        return with_policy(prepare(rows).batch(2 * _SIZE), mr.data.AutoShardPolicy.OFF)
    names = [Path(*folder) / f"{number}-of-{worker}.txt" for number in range(len(_ROWS))]
    for name, part in zip(names, _ROWS, strict=True):
        name.write_text("".join(f"{row}\n" for row in range(*part.indices(20))))
    rows = mr.data.TextLineDataset(list(map(str, names))).map(lambda line: (_X[int(line)], _Y[int(line)]))
    return with_policy(prepare(rows).batch(2 * _SIZE), mr.data.AutoShardPolicy.FILE)


def reads_of_cached_data(strategy: mr.MirroredStrategy, *how: Any) -> list[int]:
    """How many examples each of two calls of `fit` takes from a map function before a cache."""
    seen: list[Any] = []

    def noted(x: Any, y: Any) -> Any:
        seen.append(x)
        return x, y

    data = plain(lambda rows: rows.map(noted).cache(), *how)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    counts = []
    for _ in range(2):
        seen.clear()
        model.fit(data, verbose=0)
        counts.append(len(seen))
    return counts


def together() -> Iterator[Any]:
    """The global batches, of all workers' rows."""
    for start in range(0, 12, _SIZE):
        rows = [row for part in _ROWS for row in range(*part.indices(20))[start : start + _SIZE]]
        yield _X[rows], _Y[rows]


def outcome(strategy: mr.MirroredStrategy, data: Any) -> dict[str, Any]:
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    history = model.fit(data, epochs=2, verbose=0).history
    evaluated = [float(value) for value in model.evaluate(data, verbose=0)]
    predicted = model.predict(data, verbose=0).ravel().tolist()
    return {**history, "weights": model.get_weights()[0].ravel().tolist(), "all": evaluated, "predicted": predicted}


def found(strategy: mr.MirroredStrategy, how: str, *folder: str) -> dict[str, Any]:
    if how in ("known", "unknown"):
        return outcome(
            strategy, strategy.distribute_datasets_from_function(lambda context: own(context, how == "known"))
        )
    own_part = (how, jax.process_index(), *folder)
    return {
        **outcome(strategy, plain(lambda rows: rows, *own_part)),
        "reads": reads_of_cached_data(strategy, *own_part),
    }


if __name__ == "__main__":
    workers = mr.MultiWorkerMirroredStrategy()
    try:
        print("RESULT", json.dumps(found(workers, *sys.argv[1:])), flush=True)
    except mr.errors.MirroredError as error:
        print("RESULT", json.dumps([type(error).__name__, error.found]), flush=True)
