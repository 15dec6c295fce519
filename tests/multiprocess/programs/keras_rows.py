"""Keras on all workers: ``keras_rows.py``; gives what does not depend on how many workers there are."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import mirrored as mr


class OwnStep(keras.Sequential):
    """Overrides the steps as in TensorFlow."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)

    def test_step(self, data: Any) -> Any:
        return super().test_step(data)


class Evaluating(keras.callbacks.Callback):
    """Evaluates data of another kind than those of `fit` at the end of each epoch."""

    def __init__(self, *data: Any) -> None:
        super().__init__()
        self._data, self.losses = data, []

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.losses += [self.model.evaluate(*data, verbose=0)[0] for data in self._data]


class Annealing(keras.callbacks.Callback):
    """Assigns a variable that the model does not list at the beginning of each epoch."""

    def __init__(self, variable: Any) -> None:
        super().__init__()
        self._variable = variable

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._variable.assign(1.0 + epoch)


def outcome(strategy: mr.MirroredStrategy, how: str = "dataset") -> dict[str, object]:
    if "unseeded" not in how:
        keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(57 if "uneven" in how else 60, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [3.0]], np.float32)
    dataset = mr.data.Dataset.from_tensor_slices((x, y)).batch(16)  # the last batch has 12 rows, or 9
    untracked = keras.Variable(0.0) if "outside" in how else None
    with strategy.scope():
        untracked = keras.Variable(0.0) if how == "untracked" else untracked
        wrap = keras.layers.SpectralNormalization if how == "spectral" else lambda layer: layer
        dropout = [keras.layers.Dropout(0.3)] if how == "dropout" else []
        model_class = OwnStep if "own step" in how else keras.Sequential
        model = model_class(
            [keras.Input((3,)), wrap(keras.layers.Dense(4, activation="relu")), *dropout, keras.layers.Dense(1)]
        )
        loss: Any = "mse"
        if untracked is not None:
            loss = lambda y, prediction: untracked * keras.ops.mean(keras.ops.square(y - prediction), -1)  # noqa: E731
        model.compile(optimizer=keras.optimizers.Adam(0.05), loss=loss, metrics=["mae"])
    if "unseeded" in how:
        model.fit(x, y, epochs=1, verbose=0)
    parts = strategy.experimental_distribute_dataset(dataset)
    kind, _, other = how.partition(", validated on ")
    batches = parts if "parts" in kind else dataset
    data = (batches,) if kind != "arrays" else (x, y)
    # In the callback and in `fit`, one of two loops reads parts.
    others = Evaluating((x, y), (parts,))
    callbacks = [others] if untracked is None else [others, Annealing(untracked)]
    size = {"batch_size": 16} if kind == "arrays" else {}
    validation = {"": None, "dataset": dataset, "parts": parts, "arrays": (x, y)}[other]
    history = model.fit(*data, epochs=2, verbose=0, callbacks=callbacks, validation_data=validation, **size)
    predicted = model.predict(batches, verbose=0)
    return {
        **history.history,
        "evaluated in fit": others.losses,
        "evaluated": [float(value) for value in model.evaluate(batches, verbose=0)],
        "predicted": predicted.ravel().tolist(),
        "one batch": model.predict_on_batch(x[:6]).ravel().tolist(),
        "weights": [float(np.asarray(weight.value).sum()) for weight in model.weights],
    }


if __name__ == "__main__":
    try:
        print("RESULT", json.dumps(outcome(mr.MultiWorkerMirroredStrategy(), *sys.argv[1:])), flush=True)
    except mr.errors.MirroredError as error:
        print("RESULT", json.dumps([type(error).__name__, error.found]), flush=True)
