"""Small Keras models, their data, and three ways of training them: one device, `fit`, a custom loop."""

from __future__ import annotations

import contextlib
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np

import mirrored as mr
from mirrored.integrations.keras import SyncBatchNormalization, keras

BATCH = 8
Trained = tuple[list[float], list[np.ndarray]]


def build(kind: str) -> Any:
    """A small model; the same weights for the same kind."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    layers = keras.layers
    if kind == "dense":
        return keras.Sequential([keras.Input((6, 4)), layers.Flatten(), layers.Dense(5, "tanh"), layers.Dense(1)])
    if kind == "lstm":
        return keras.Sequential([keras.Input((6, 4)), layers.LSTM(3), layers.Dense(1)])
    if kind == "strided":
        return keras.Sequential([keras.Input((6, 4)), layers.Conv1D(3, 3, 2), layers.Flatten(), layers.Dense(1)])
    if kind == "conv":
        body = [layers.Conv1D(3, 3), SyncBatchNormalization(), layers.ReLU(), layers.Flatten()]
        return keras.Sequential([keras.Input((6, 4)), *body, layers.Dense(1)])
    inputs = keras.Input((6, 4))
    attended = layers.MultiHeadAttention(2, 3)(inputs, inputs)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.LayerNormalization()(inputs + attended))))


def data(count: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    """Examples."""
    x = np.random.default_rng(0).normal(size=(count, 6, 4)).astype("float32")
    return x, x.sum((1, 2))[:, None].astype("float32")


def scope(replicas: int | None) -> Any:
    """The scope of a strategy; nothing for None."""
    return contextlib.nullcontext() if replicas is None else mr.MirroredStrategy(jax.devices()[:replicas]).scope()


def compiled_model(kind: str, replicas: int | None, **options: Any) -> Any:
    """A model ready for `fit`."""
    with scope(replicas):
        model = build(kind)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", **options)
    return model


def train_by_keras(kind: str, steps: int) -> Trained:
    """Single-device Keras."""
    model = compiled_model(kind, None)
    x, y = data()
    losses = [float(model.train_on_batch(x, y)) for _ in range(steps)]
    return losses, model.get_weights()


def train_by_fit(kind: str, replicas: int, steps: int) -> Trained:
    """`fit` on replicas: one batch per epoch."""
    model = compiled_model(kind, replicas)
    history = model.fit(*data(), batch_size=BATCH, epochs=steps, shuffle=False, verbose=0).history
    return history["loss"], model.get_weights()


def train_by_loop(kind: str, replicas: int, steps: int, *, compiled: bool = True) -> Trained:
    """The custom loop on replicas."""
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model, optimizer = build(kind), keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.MeanSquaredError(reduction=None)

    def replica_step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(loss_fn(y, model(x, training=True)))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    step = mr.function(step) if compiled else step
    losses = [float(step(x, y)) for x, y in strategy.distribute_dataset([data()] * steps)]
    return losses, model.get_weights()
