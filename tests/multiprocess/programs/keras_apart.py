"""Workers whose Keras models differ: ``keras_apart.py [new_step]``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np

import mirrored as mr

strategy = mr.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
y = x @ np.array([[1.0], [-2.0], [3.0]], np.float32)


def compiled(optimizer: Callable[[], Any], loss: Any = "mse", **options: Any) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(optimizer=optimizer(), loss=loss, **options)
    return model


def fit(optimizer: Callable[[], Any], loss: Any = "mse", **options: Any) -> None:
    compiled(optimizer, loss, **options).fit(x, y, batch_size=8, verbose=0, shuffle=False)


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


def eager() -> None:
    fit(lambda: keras.optimizers.SGD(0.05, momentum=0.5 + 0.4 * me), run_eagerly=True)


class MorePrecise(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes a setting of JAX on worker 1, which compiles the step anew."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if me == 1 and batch == 1:
            print("NEW", flush=True)
            jax.config.update("jax_default_matmul_precision", "float32")


def new_step() -> None:
    model = compiled(lambda: keras.optimizers.SGD(0.05))
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[MorePrecise()])


if sys.argv[1:] == ["new_step"]:
    new_step()
    sys.exit()
found = {}
for how in (momentum, schedule, captured, evaluated, eager):
    try:
        how()
        found[how.__name__] = None
    except mr.errors.DisagreementError as error:
        found[how.__name__] = error.found
me = 0
momentum()
eager()
found["equal models"] = "trained"
print("RESULT", json.dumps(found), flush=True)
