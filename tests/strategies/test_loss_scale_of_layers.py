"""The check of the loss scale finds a mean per replica behind every kind of layer, and is silent for right losses."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx

import mirrored as mr
from mirrored.errors import LossScaleWarning

BATCH, SIDE, CLASSES, REPLICAS = 24, 4, 3, 4


def flat(x: Any) -> Any:
    return x.reshape(x.shape[0], -1)


def halves(x: Any) -> Any:
    return nnx.avg_pool(x, (2, 2), (2, 2))


def sequence(x: Any) -> Any:
    """``[batch, positions, features]``."""
    return x.reshape(x.shape[0], SIDE, -1)


def recurrent(cell: Any, x: Any) -> Any:
    return nnx.RNN(cell)(sequence(x))


class Layers(nnx.Module):
    """A convolution or dense layer, the layer in question, and a dense layer; `apply` receives all of them."""

    def __init__(self, make: Any, apply: Any, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.between = make(rngs)
        self.apply = apply
        self.last = nnx.Linear(self._inner(jnp.zeros((1, SIDE, SIDE, 1))).shape[-1], CLASSES, rngs=rngs)

    def _inner(self, x: Any) -> Any:
        return flat(self.apply(self.first, self.between, x))

    def __call__(self, x: Any) -> Any:
        return self.last(self._inner(x))


def nothing(rngs: nnx.Rngs) -> None:
    return None


NNX = {
    "Conv": (nothing, lambda first, _, x: nnx.relu(first(x))),
    "Conv, avg_pool": (nothing, lambda first, _, x: halves(nnx.relu(first(x)))),
    "Conv, avg_pool without an activation": (nothing, lambda first, _, x: halves(first(x))),
    "avg_pool, Conv": (nothing, lambda first, _, x: nnx.relu(first(halves(x)))),
    "Conv, avg_pool twice": (nothing, lambda first, _, x: halves(halves(nnx.relu(first(x))))),
    "Conv, max_pool": (nothing, lambda first, _, x: nnx.max_pool(first(x), (2, 2), (2, 2))),
    "Conv, mean over positions": (nothing, lambda first, _, x: first(x).reshape(len(x), -1, 4).mean(axis=-1)),
    "max_pool, Conv, avg_pool": (
        lambda rngs: nnx.Conv(4, 4, (2, 2), rngs=rngs),
        lambda first, conv, x: halves(conv(nnx.max_pool(first(x), (2, 2), (1, 1), padding="SAME"))),
    ),
    "BatchNorm": (lambda rngs: nnx.BatchNorm(4, rngs=rngs), lambda first, norm, x: norm(first(x))),
    "LayerNorm": (lambda rngs: nnx.LayerNorm(4, rngs=rngs), lambda first, norm, x: norm(first(x))),
    "RMSNorm": (lambda rngs: nnx.RMSNorm(4, rngs=rngs), lambda first, norm, x: norm(first(x))),
    "GroupNorm": (lambda rngs: nnx.GroupNorm(4, 2, rngs=rngs), lambda first, norm, x: norm(first(x))),
    "Dropout": (lambda rngs: nnx.Dropout(0.75, rngs=rngs), lambda first, drop, x: drop(first(x))),
    "Embed": (
        lambda rngs: nnx.Embed(4, 4, rngs=rngs),
        lambda first, embed, x: embed((x[..., 0] > 0).astype(int)) * first(x),
    ),
    "attention": (
        lambda rngs: nnx.MultiHeadAttention(2, 16, qkv_features=32, decode=False, rngs=rngs),  # divides by sqrt(16)
        lambda first, attend, x: attend(sequence(first(x))),
    ),
    "LSTM": (lambda rngs: nnx.LSTMCell(16, 4, rngs=rngs), lambda first, cell, x: recurrent(cell, first(x))[:, -1]),
    "remat": (nothing, lambda first, _, x: nnx.remat(lambda layer, x: halves(nnx.relu(layer(x))))(first, x)),
    "gelu": (nothing, lambda first, _, x: nnx.gelu(first(x))),
    "scaled by 1 / replicas": (nothing, lambda first, _, x: jnp.tanh(first(x) / REPLICAS)),
}
layers = keras.layers
KERAS = {
    "Conv, pool": lambda: [layers.Conv2D(4, 3, padding="same"), layers.AveragePooling2D(2), layers.Flatten()],
    "Conv, norm, global pool": lambda: [
        *(layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()),
        *(layers.MaxPooling2D(), layers.GlobalAveragePooling2D(), layers.LayerNormalization()),
    ],
    "LSTM": lambda: [layers.Reshape((SIDE, SIDE)), layers.LSTM(4), layers.Dropout(0.5)],
}
SAMPLED = pytest.mark.parametrize("name", NNX)


def entropy(scores: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(scores, y)


MEAN, RIGHT = (lambda losses: losses.mean()), mr.losses.average_loss


def by_nnx(name: str, loss_of: Any, reduce: Any) -> Any:
    model = Layers(*NNX[name], nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(x: Any, y: Any) -> None:
        with mr.GradientTape() as tape:
            loss = loss_of(entropy(model(x), y))
        optimizer.update(model, reduce(tape.gradient(loss, nnx.state(model, nnx.Param))))

    return step


def by_optimizers(name: str, loss_of: Any, reduce: Any) -> Any:
    model = Layers(*NNX[name], nnx.Rngs(0))
    optimizer = mr.optimizers.SGD(0.1)
    variables = jax.tree.leaves(nnx.state(model, nnx.Param), is_leaf=lambda one: isinstance(one, mr.Variable))

    def step(x: Any, y: Any) -> None:
        with mr.GradientTape() as tape:
            loss = loss_of(entropy(model(x), y))
        optimizer.apply_gradients(zip(reduce(tape.gradient(loss, variables)), variables, strict=True))

    return step


def same(gradients: Any) -> Any:
    return gradients


def by_keras(name: str, loss_of: Any, reduce: Any) -> Any:
    model, optimizer = keras.Sequential([*KERAS[name](), keras.layers.Dense(CLASSES)]), keras.optimizers.SGD(0.1)
    model.build((None, SIDE, SIDE, 1))
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> None:
        with mr.GradientTape() as tape:
            loss = loss_of(entropy(model(x, training=True), y))
        optimizer.apply(reduce(tape.gradient(loss, model.trainable_variables)), model.trainable_variables)

    return step


def all_reduced(op: str) -> Any:
    return lambda gradients: mr.get_replica_context().all_reduce(op, gradients)


@functools.cache
def batch_and_strategy(devices: int) -> tuple[Any, Any]:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS)
    x = np.random.default_rng(0).normal(size=(BATCH, SIDE, SIDE, 1)).astype("float32")
    return next(iter(strategy.experimental_distribute_dataset([(x, np.arange(BATCH) % CLASSES)]))), strategy


def warned(make: Any, name: str, loss_of: Any, reduce: Any = same, devices: int = 2) -> list[str]:
    """Returns what the check of the loss scale says of a step, which is traced and not run."""
    batch, strategy = batch_and_strategy(devices)
    with strategy.scope():
        step = make(name, loss_of, reduce)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", LossScaleWarning)
        mr.function(lambda x, y: strategy.run(step, args=(x, y))).lower(*batch)
    return [str(one.message) for one in found if one.category is LossScaleWarning]


@SAMPLED
@pytest.mark.sampled(4)
@pytest.mark.first(2)
@pytest.mark.long
def test_a_mean_per_replica_is_warned_of_and_a_right_loss_is_not(name):
    [message] = warned(by_nnx, name, MEAN)
    assert "averaged over the 6 examples of one replica" in message
    assert warned(by_nnx, name, RIGHT) == []


@SAMPLED
@pytest.mark.sampled(8)
@pytest.mark.first(1)
@pytest.mark.parametrize("make", [by_nnx, by_optimizers])
@pytest.mark.long
def test_gradients_divided_by_the_replicas_are_right(make, name):
    divided = functools.partial(jax.tree.map, lambda gradient: gradient / REPLICAS)
    assert warned(make, name, MEAN, divided) == []
    assert warned(make, name, MEAN, all_reduced("MEAN")) != []
    assert warned(make, name, RIGHT, all_reduced("MEAN")) == []
    [message] = warned(make, name, RIGHT, all_reduced("SUM"))
    assert "omit the all_reduce" in message


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.sampled(3)
@pytest.mark.first(1)
@pytest.mark.long
def test_keras_layers_are_checked_too(name):
    [message] = warned(by_keras, name, MEAN)
    assert "averaged over the 6 examples of one replica" in message
    assert warned(by_keras, name, RIGHT) == []
    [message] = warned(by_keras, name, RIGHT, all_reduced("SUM"))
    assert "omit the all_reduce" in message
