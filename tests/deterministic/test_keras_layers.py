"""The layers and losses of Keras train with the same bits on any number of devices, in a custom loop and in `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

keras = pytest.importorskip("keras")
layers = keras.layers

Train = Callable[[mr.MirroredStrategy, Any, Any], list[bytes]]  # of a model with a loss, which have no types here
REPLICAS, BATCH = 4, 16
random = np.random.default_rng(0)
X = random.normal(size=(2 * BATCH, 6, 4)).astype(np.float32)
Y = np.clip(np.abs(random.normal(size=(2 * BATCH, 3))) + 0.1, 0.0, 1.0).astype(np.float32)
LAYERS: dict[str, Callable[[Any], Any]] = {
    "LayerNormalization": lambda x: layers.LayerNormalization()(x),
    "BatchNormalization": lambda x: layers.BatchNormalization()(x),
    "GRU": lambda x: layers.GRU(4, return_sequences=True)(x),
    "Dropout": lambda x: layers.Dropout(0.3, seed=1)(x),
    "synchronized": lambda x: layers.BatchNormalization(synchronized=True)(x),
    "RMSNormalization": lambda x: layers.RMSNormalization()(x),
    "GroupNormalization": lambda x: layers.GroupNormalization(2)(x),
    "UnitNormalization": lambda x: layers.UnitNormalization()(x),
    "SpectralNormalization": lambda x: layers.SpectralNormalization(layers.Dense(4))(x),
    "LSTM": lambda x: layers.LSTM(4, return_sequences=True)(x),
    "SimpleRNN": lambda x: layers.SimpleRNN(4, return_sequences=True)(x),
    "Bidirectional": lambda x: layers.Bidirectional(layers.GRU(2, return_sequences=True))(x),
    "Conv1D": lambda x: layers.Conv1D(4, 3, padding="same")(x),
    "SeparableConv1D": lambda x: layers.SeparableConv1D(4, 3, padding="same")(x),
    "DepthwiseConv1D": lambda x: layers.DepthwiseConv1D(3, padding="same")(x),
    "Conv1DTranspose": lambda x: layers.Conv1DTranspose(4, 3, padding="same")(x),
    "AveragePooling1D": lambda x: layers.AveragePooling1D(2, padding="same")(x),
    "EinsumDense": lambda x: layers.EinsumDense("bti,io->bto", output_shape=(None, 4))(x),
    "MultiHeadAttention": lambda x: layers.MultiHeadAttention(2, 2)(x, x),
    "PReLU": lambda x: layers.PReLU()(x),
    "Softmax": lambda x: layers.Softmax()(x),
    "gelu": lambda x: layers.Activation("gelu")(x),
    "hard_silu": lambda x: layers.Activation("hard_silu")(x),
    "GaussianDropout": lambda x: layers.GaussianDropout(0.3, seed=1)(x),
    "constrained": lambda x: layers.Dense(4, kernel_constraint="unit_norm", kernel_regularizer="l2")(x),
}
LOSSES = [
    "CosineSimilarity",
    "KLDivergence",
    "Poisson",
    "LogCosh",
    "Huber",
    "MeanSquaredLogarithmicError",
    "MeanAbsolutePercentageError",
    "CategoricalHinge",
    "CategoricalCrossentropy",
    "BinaryCrossentropy",
    "CategoricalFocalCrossentropy",
    "Dice",
    "Tversky",
]


def per_example(loss: Any, y: jax.Array, predictions: jax.Array) -> jax.Array:
    values = loss(y, predictions)
    return jnp.broadcast_to(values, y.shape[:1])  # `Dice` and `Tversky` are those of a whole batch


def in_a_loop(strategy: mr.MirroredStrategy, model: Any, loss: Any) -> list[bytes]:
    with strategy.scope():
        optimizer = keras.optimizers.RMSprop(0.01)

    @mr.function
    def step(x: mr.PerReplica, y: mr.PerReplica) -> jax.Array:
        def replica(x: jax.Array, y: jax.Array) -> jax.Array:
            with mr.GradientTape() as tape:
                value = mr.losses.average_loss(per_example(loss, y, model(x, training=True)))
                value = value + mr.losses.scale_regularization_loss(sum(model.losses) + jnp.zeros(()))
            weights = model.trainable_variables
            optimizer.apply_gradients(list(zip(tape.gradient(value, weights), weights, strict=True)))
            return value

        return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

    dataset = mr.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    return [np.asarray(step(x, y)).tobytes() for x, y in strategy.experimental_distribute_dataset(dataset)]


def in_fit(strategy: mr.MirroredStrategy, model: Any, loss: Any) -> list[bytes]:
    with strategy.scope():
        metrics = ["mae", keras.metrics.CosineSimilarity(), keras.metrics.R2Score()]
        model.compile(keras.optimizers.RMSprop(0.01), loss, metrics=metrics)
    history = model.fit(X, Y, batch_size=BATCH, verbose=0).history
    found = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    return [np.float64(one).tobytes() for one in (*history.values(), *found)] + [model.predict(X, verbose=0).tobytes()]


def trained(devices: int, how: Train, layer: Callable[[Any], Any], loss: Callable[[], Any]) -> list[bytes]:
    keras.utils.set_random_seed(0)
    names = [f"CPU:{index}" for index in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=REPLICAS, deterministic=True)
    with strategy.scope():
        inputs = keras.Input(X.shape[1:])
        hidden = layers.GlobalAveragePooling1D()(layer(layers.Dense(4)(inputs)))
        model = keras.Model(inputs, layers.Dense(3, activation="sigmoid")(hidden))
    return how(strategy, model, loss()) + [np.asarray(weight.numpy()).tobytes() for weight in model.weights]


@pytest.mark.first(1)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("how", [in_a_loop, in_fit])
def test_layers_have_the_same_bits_on_any_number_of_devices(how: Train, name: str) -> None:
    reduction = None if how is in_a_loop else "sum_over_batch_size"
    one, other = (
        trained(devices, how, LAYERS[name], lambda: keras.losses.MeanSquaredError(reduction=reduction))
        for devices in (1, 3)
    )
    assert other == one


@pytest.mark.first(1)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("how", [in_a_loop, in_fit])
def test_losses_have_the_same_bits_on_any_number_of_devices(how: Train, name: str) -> None:
    kind = getattr(keras.losses, name)
    reduction = None if how is in_a_loop else "sum_over_batch_size"
    one, other = (
        trained(devices, how, lambda x: layers.Activation("tanh")(x), lambda: kind(reduction=reduction))
        for devices in (1, 4)
    )
    assert other == one
