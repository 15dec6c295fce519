"""Keras 3 on JAX with `keras.distribution.DataParallel`: a model whose call is the shared network, `train_on_batch`."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from spec import BETA_1, BETA_2, EPSILON, LEARNING_RATE, Workload

from contenders import jax_ops as ops
from contenders.job import Job


class Network(keras.Model):
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        self.parameters = {
            name: self.add_weight(
                shape=value.shape, initializer=keras.initializers.Constant(0.0), name=name.replace(".", "_")
            )
            for name, value in workload.parameters().items()
        }

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, x: Any) -> Any:
        return self.workload.network.logits(ops, {k: p.value for k, p in self.parameters.items()}, x)


def train(workload: Workload, devices: int) -> Job:
    """A training step; the batch comes from NumPy, as in every Keras program."""
    names = keras.distribution.list_devices()[:devices]
    if devices > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=names))
    model = Network(workload)
    for name, value in workload.parameters().items():
        model.parameters[name].assign(value)
    model.compile(
        optimizer=keras.optimizers.Adam(LEARNING_RATE, BETA_1, BETA_2, EPSILON),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = workload.examples()

    def call() -> float:
        model.reset_metrics()  # else the loss returned is a running mean
        return float(np.asarray(model.train_on_batch(x, y)))

    return Job(call)
