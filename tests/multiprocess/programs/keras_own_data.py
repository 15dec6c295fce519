"""Keras on workers that read their own data, of which one has more: ``keras_own_data.py known|unknown``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
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


if __name__ == "__main__":
    workers = mr.MultiWorkerMirroredStrategy()
    try:
        parts = workers.distribute_datasets_from_function(lambda context: own(context, sys.argv[1] == "known"))
        print("RESULT", json.dumps(outcome(workers, parts)), flush=True)
    except mr.errors.MirroredError as error:
        print("RESULT", json.dumps([type(error).__name__, error.found]), flush=True)
