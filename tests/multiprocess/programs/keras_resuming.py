"""Interrupts and resumes `fit`, with callbacks that write to one path, and with other data on each worker.

``keras_resuming.py FOLDER``
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
from keras import Input, Model, Sequential, callbacks, layers, optimizers, utils

import mirrored as mr
from mirrored.data import AutoShardPolicy, Dataset, Options

strategy, folder = mr.MultiWorkerMirroredStrategy(), sys.argv[1]


class Interrupt(callbacks.Callback):
    """Interrupts `fit` at the end of an epoch, or after a number of steps."""

    def __init__(self, epoch: int = -1, steps: int = -1) -> None:
        super().__init__()
        self._epoch, self._left = epoch, steps

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if epoch == self._epoch:
            raise KeyboardInterrupt

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def made() -> Model:
    utils.set_random_seed(0)
    with strategy.scope():
        model = Sequential([Input((4,)), layers.Dense(64), layers.BatchNormalization(), layers.Dense(1)])
        model.compile("adam", "mse")
    return model


def fit(model: Model, *given: callbacks.Callback) -> list[list[float]]:
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    history = model.fit(x, y, batch_size=8, epochs=5, shuffle=False, verbose=0, callbacks=[*given])
    return [history.history["loss"], *(np.asarray(one).ravel().tolist() for one in model.get_weights())]


def writing() -> list[callbacks.Callback]:
    return [
        callbacks.BackupAndRestore(f"{folder}/backup"),
        callbacks.ModelCheckpoint(f"{folder}/m.weights.h5", save_weights_only=True),
        callbacks.ModelCheckpoint(f"{folder}/m.keras"),
    ]


def callbacks_that_write() -> dict[str, object]:
    whole = fit(made())
    try:
        fit(made(), *writing(), Interrupt(epoch=2))
    except KeyboardInterrupt:
        left = sorted(os.listdir(f"{folder}/backup"))
    resumed = made()
    losses, *weights = fit(resumed, *writing())
    found = {"left": left, "is removed": not os.path.exists(f"{folder}/backup")}
    found["epochs"] = len(losses)
    found["goes on"] = bool(np.allclose(losses, whole[0][-2:], rtol=1e-5)) and all(
        np.allclose(mine, theirs, rtol=1e-5, atol=1e-6) for mine, theirs in zip(weights, whole[1:], strict=True)
    )
    for name in ("m.weights.h5", "m.keras"):
        other = made()
        other.load_weights(f"{folder}/{name}")
        same = zip(other.get_weights(), resumed.get_weights(), strict=True)
        found[name] = all(np.array_equal(a, b) for a, b in same)
    return found


def own_examples(worker: int, seed: int) -> Dataset:
    x = np.eye(24, dtype=np.float32)
    y = np.arange(1, 25, dtype=np.float32)[:, None]
    part = slice(12 * worker, 12 * worker + 12)
    return Dataset.from_tensor_slices((x[part], y[part])).shuffle(12, seed=seed)


def own_data(context: mr.InputContext) -> Dataset:
    return own_examples(context.input_pipeline_id, 3 + context.input_pipeline_id).batch(2)


def plain_own_data() -> Dataset:
    """A dataset of global batches of which each worker reads its own."""
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    return own_examples(jax.process_index(), 3).batch(4).with_options(options)


def fit_own_data(is_plain: bool, *given: callbacks.Callback) -> Any:
    utils.set_random_seed(0)
    with strategy.scope():
        model = Sequential([Input((24,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)), "mse")
    data = plain_own_data() if is_plain else strategy.distribute_datasets_from_function(own_data)
    model.fit(data, epochs=3, verbose=0, callbacks=[*given])
    return model.get_weights()[0]


def positions_of_own_data(is_plain: bool) -> dict[str, object]:
    backup = f"{folder}/positions"
    whole = fit_own_data(is_plain)
    try:
        fit_own_data(is_plain, callbacks.BackupAndRestore(backup, save_freq=3), Interrupt(steps=10))
    except KeyboardInterrupt:
        warnings.simplefilter("error", UserWarning)
        resumed = fit_own_data(is_plain, callbacks.BackupAndRestore(backup, save_freq=3))
    return {"is the same": bool(np.array_equal(resumed, whole))}


found = {
    "callbacks": callbacks_that_write(),
    "positions": [positions_of_own_data(is_plain) for is_plain in (False, True)],
}
print("RESULT", json.dumps(found), flush=True)
