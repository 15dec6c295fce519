"""Callbacks of `fit` that write to one path on all workers: ``keras_callbacks.py FOLDER``."""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np
from keras import Input, Model, Sequential, callbacks, layers, utils

import mirrored as mr

strategy, folder = mr.MultiWorkerMirroredStrategy(), sys.argv[1]
x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
y = x.sum(1, keepdims=True)


class Interrupt(callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if epoch == 2:
            raise KeyboardInterrupt


def made() -> Model:
    utils.set_random_seed(0)
    with strategy.scope():
        model = Sequential([Input((4,)), layers.Dense(64), layers.BatchNormalization(), layers.Dense(1)])
        model.compile("adam", "mse")
    return model


def fit(model: Model, *given: callbacks.Callback) -> list[list[float]]:
    history = model.fit(x, y, batch_size=8, epochs=5, shuffle=False, verbose=0, callbacks=[*given])
    return [history.history["loss"], *(np.asarray(one).ravel().tolist() for one in model.get_weights())]


def writing() -> list[callbacks.Callback]:
    return [
        callbacks.BackupAndRestore(f"{folder}/backup"),
        callbacks.ModelCheckpoint(f"{folder}/m.weights.h5", save_weights_only=True),
        callbacks.ModelCheckpoint(f"{folder}/m.keras"),
    ]


whole = fit(made())
try:
    fit(made(), *writing(), Interrupt())
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
    found[name] = all(np.array_equal(a, b) for a, b in zip(other.get_weights(), resumed.get_weights(), strict=True))
print("RESULT", json.dumps(found), flush=True)
