"""Keras on all workers: ``keras_rows.py``; gives what does not depend on how many workers there are."""

from __future__ import annotations

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import mirrored as mr


def outcome(strategy: mr.MirroredStrategy, how: str = "dataset") -> dict[str, object]:
    if how != "unseeded":
        keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [3.0]], np.float32)
    dataset = mr.data.Dataset.from_tensor_slices((x, y)).batch(16)  # the last batch has 12 rows
    with strategy.scope():
        dropout = [keras.layers.Dropout(0.3)] if how == "dropout" else []
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, activation="relu"), *dropout, keras.layers.Dense(1)]
        )
        model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
    if how == "unseeded":
        model.fit(x, y, epochs=1, verbose=0)
    batches = strategy.experimental_distribute_dataset(dataset) if how == "parts" else dataset
    data = (batches,) if how != "arrays" else (x, y)
    history = model.fit(*data, epochs=2, verbose=0, **({"batch_size": 16} if how == "arrays" else {}))
    predicted = model.predict(dataset, verbose=0)
    return {
        "loss": history.history["loss"],
        "mae": history.history["mae"],
        "evaluated": [float(value) for value in model.evaluate(dataset, verbose=0)],
        "predicted": predicted.ravel().tolist(),
        "one batch": model.predict_on_batch(x[:6]).ravel().tolist(),
        "weights": [float(np.asarray(weight.value).sum()) for weight in model.weights],
    }


if __name__ == "__main__":
    try:
        print("RESULT", json.dumps(outcome(mr.MultiWorkerMirroredStrategy(), *sys.argv[1:])), flush=True)
    except mr.errors.MirroredError as error:
        print("RESULT", json.dumps([type(error).__name__, error.found]), flush=True)
