"""Workers whose Keras models differ: ``keras_apart.py``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax.numpy as jnp
import keras
import numpy as np

import mirrored as mr

strategy = mr.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
y = x @ np.array([[1.0], [-2.0], [3.0]], np.float32)


def compiled(optimizer: Callable[[], Any], loss: Any = "mse") -> keras.Model:
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(optimizer=optimizer(), loss=loss)
    return model


def fit(optimizer: Callable[[], Any], loss: Any = "mse") -> None:
    compiled(optimizer, loss).fit(x, y, batch_size=8, verbose=0, shuffle=False)


def momentum() -> None:
    fit(lambda: keras.optimizers.SGD(0.05, momentum=0.5 + 0.4 * me))


def schedule() -> None:
    steps = 8 + 8 * me  # of the data of this worker
    fit(lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, decay_steps=steps)))


def captured() -> None:
    weight = jnp.full(1, 1.0 + me)
    fit(lambda: keras.optimizers.SGD(0.05), lambda true, predicted: weight * (true - predicted) ** 2)


def evaluated() -> None:
    factor = 1.0 + me
    model = compiled(lambda: keras.optimizers.SGD(0.05), lambda true, predicted: factor * (true - predicted) ** 2)
    model.evaluate(x, y, batch_size=8, verbose=0)


found = {}
for how in (momentum, schedule, captured, evaluated):
    try:
        how()
        found[how.__name__] = None
    except mr.errors.DisagreementError as error:
        found[how.__name__] = error.found
me = 0
momentum()
found["equal models"] = "trained"
print("RESULT", json.dumps(found), flush=True)
