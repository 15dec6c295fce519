"""Gradients of Keras layers that loop over time steps, and of masked layers, equal those of JAX, however they run.

Keras runs the loop of a recurrent layer in a `StatelessScope`, where its own variables are read from the scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.integrations.keras import keras

layers = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

ROWS, STEPS, FEATURES = 4, 5, 3
LAYERS: dict[str, Callable[[], Any]] = {
    "SimpleRNN": lambda: layers.SimpleRNN(2),
    "LSTM": lambda: layers.LSTM(2),
    "GRU": lambda: layers.GRU(2),
    "LSTM_sequences": lambda: layers.LSTM(2, return_sequences=True),
    "GRU_backwards": lambda: layers.GRU(2, go_backwards=True),
    "LSTM_unrolled": lambda: layers.LSTM(2, unroll=True),
    "LSTM_dropout": lambda: layers.LSTM(2, dropout=0.0, recurrent_dropout=0.0),
    "RNN_of_cell": lambda: layers.RNN(layers.LSTMCell(2)),
    "RNN_of_cells": lambda: layers.RNN([layers.GRUCell(2), layers.SimpleRNNCell(3)]),
    "Bidirectional": lambda: layers.Bidirectional(layers.LSTM(2)),
    "TimeDistributed": lambda: layers.TimeDistributed(layers.Dense(2)),
    "MaskedLSTM": lambda: keras.Sequential([layers.Masking(0.0), layers.LSTM(2)]),
    "MaskedDistributed": lambda: keras.Sequential([layers.Masking(0.0), layers.TimeDistributed(layers.Dense(2))]),
    "ConvLSTM1D": lambda: keras.Sequential([layers.Reshape((STEPS, FEATURES, 1)), layers.ConvLSTM1D(2, 2)]),
    "MaskedDense": lambda: keras.Sequential([layers.Masking(0.0), layers.Dense(2), layers.LayerNormalization()]),
}
WAYS = ("eager", "function", "run_eager", "run_compiled")


def examples() -> jax.Array:
    x = np.random.default_rng(0).normal(size=(ROWS, STEPS, FEATURES)).astype("float32")
    x[1, 3:] = 0.0  # Masked time steps.
    return jnp.asarray(x)


def built(kind: str) -> Any:
    keras.utils.set_random_seed(1)
    layer = LAYERS[kind]()
    layer.build((None, STEPS, FEATURES))
    return layer


def gradients_of_jax(layer: Any, x: jax.Array) -> list[np.ndarray]:
    values = [jnp.asarray(np.asarray(v.value)) for v in layer.non_trainable_variables]

    def loss(weights: list[jax.Array]) -> jax.Array:
        outputs, _ = layer.stateless_call(weights, values, x)
        return (outputs**2).sum()

    found = jax.grad(loss)([jnp.asarray(np.asarray(v.value)) for v in layer.trainable_variables])
    return [np.asarray(gradient) for gradient in found]


def gradients_of_tape(way: str, layer: Any, strategy: mr.Strategy, x: jax.Array) -> list[np.ndarray]:
    def gradients(rows: jax.Array) -> list[jax.Array]:
        with mr.GradientTape() as tape:
            loss = (layer(rows) ** 2).sum()
        found = tape.gradient(loss, layer.trainable_variables)
        assert all(gradient is not None for gradient in found)
        return found

    if way == "eager":
        return [np.asarray(gradient) for gradient in gradients(x)]
    if way == "function":
        return [np.asarray(gradient) for gradient in mr.function(gradients)(x)]
    share = ROWS // strategy.num_replicas_in_sync
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: x[context.replica_id_in_sync_group * share :][:share]
    )

    def step(rows: jax.Array) -> Any:
        found = strategy.run(gradients, args=(rows,))
        return [strategy.reduce("SUM", gradient, axis=None) for gradient in found]

    found = mr.function(step)(rows) if way == "run_compiled" else step(rows)
    return [np.asarray(gradient) for gradient in found]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.long
def test_gradients_are_those_of_jax(kind: str, replicas: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        layer = built(kind)
    x = examples()
    expected = gradients_of_jax(layer, x)
    for way in WAYS:
        found = gradients_of_tape(way, layer, strategy, x)
        assert len(found) == len(expected) > 0
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, err_msg=way)


@pytest.mark.parametrize("kind", ["LSTM", "MaskedLSTM", "Bidirectional"])
@pytest.mark.long
def test_second_derivatives_are_those_of_jax(kind: str) -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        layer = built(kind)
    x = examples()
    with mr.GradientTape() as outer:
        outer.watch(x)
        with mr.GradientTape() as inner:
            inner.watch(x)
            loss = (layer(x) ** 2).sum()
        penalty = (inner.gradient(loss, x) ** 2).sum()
    found = outer.gradient(penalty, layer.trainable_variables)

    values = [jnp.asarray(np.asarray(v.value)) for v in layer.non_trainable_variables]

    def expected_penalty(weights: list[jax.Array]) -> jax.Array:
        slope = jax.grad(lambda rows: (layer.stateless_call(weights, values, rows)[0] ** 2).sum())(x)
        return (slope**2).sum()

    expected = jax.grad(expected_penalty)([jnp.asarray(np.asarray(v.value)) for v in layer.trainable_variables])
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_model_that_is_made_under_a_tape_has_gradients() -> None:
    """Keras infers the shapes of its layers' outputs under the tape."""
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        layer = built("LSTM")
        dense = layers.Dense(2)
        with mr.GradientTape() as tape:
            inputs = keras.Input((STEPS, FEATURES))
            model = keras.Model(inputs, dense(layer(inputs)))
            loss = model(examples()).sum()
        found = tape.gradient(loss, model.trainable_variables)
    assert [tuple(gradient.shape) for gradient in found] == [tuple(v.shape) for v in model.trainable_variables]
