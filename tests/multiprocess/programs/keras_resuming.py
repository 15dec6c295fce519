"""Interrupts and resumes `fit`, with other data on each worker: ``keras_resuming.py FOLDER``."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np
from keras import Input, Sequential, callbacks, layers, optimizers, utils

import mirrored as mr
from mirrored.data import Dataset

strategy, folder = mr.MultiWorkerMirroredStrategy(), sys.argv[1]
x = np.eye(24, dtype=np.float32)
y = np.arange(1, 25, dtype=np.float32)[:, None]


class Interrupt(callbacks.Callback):
    left = 10

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def own_data(context: mr.InputContext) -> Dataset:
    part = slice(12 * context.input_pipeline_id, 12 * context.input_pipeline_id + 12)
    return Dataset.from_tensor_slices((x[part], y[part])).shuffle(12, seed=3 + context.input_pipeline_id).batch(2)


def fit(*given: callbacks.Callback) -> Any:
    utils.set_random_seed(0)
    with strategy.scope():
        model = Sequential([Input((24,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)), "mse")
    data = strategy.distribute_datasets_from_function(own_data)
    model.fit(data, epochs=3, verbose=0, callbacks=[*given])
    return model.get_weights()[0]


whole = fit()
try:
    fit(callbacks.BackupAndRestore(folder, save_freq=3), Interrupt())
except KeyboardInterrupt:
    warnings.simplefilter("error", UserWarning)
    resumed = fit(callbacks.BackupAndRestore(folder, save_freq=3))
print("RESULT", json.dumps({"is the same": bool(np.array_equal(resumed, whole))}), flush=True)
