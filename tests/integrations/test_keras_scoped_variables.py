"""Branches, loops and recomputed functions of layers assign Keras variables in Keras' own steps: as without them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import TransformError
from mirrored.integrations.keras import keras

L = keras.layers
X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Function = Callable[[Any], Any]


def _branch(function: Function) -> Function:
    return lambda x: tf.cond(tf.reduce_sum(x) > -1e9, lambda: function(x), lambda: 0 * x)


def _loop(function: Function) -> Function:
    return lambda x: tf.while_loop(lambda i, _: i < 1, lambda i, y: (i + 1, function(y)), (0, x), maximum_iterations=1)[
        1
    ]


BLOCKS: dict[str, Callable[[Function], Function]] = {
    "plain": lambda function: function,
    "recomputed": tf.recompute_grad,
    "keras.remat": keras.remat,
    "recomputed twice": lambda function: tf.recompute_grad(tf.recompute_grad(function)),
    "branch": _branch,
    "loop": _loop,
    "map": lambda function: lambda x: tf.map_fn(function, x[None])[0],
    "recomputed in a branch": lambda function: _branch(tf.recompute_grad(function)),
    "branch in a recomputed function": lambda function: tf.recompute_grad(_branch(function)),
}


class State(L.Layer):
    """Reads and assigns variables of several kinds, and reads them again; gradients flow through what it assigns."""

    def build(self, _: Any) -> None:
        self.w = self.add_weight(shape=(4,), initializer="ones", name="w")
        self.n = self.add_weight(shape=(), initializer="zeros", trainable=False, name="n")
        self.v = tf.Variable(1.0, trainable=False)
        self.seed = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        x = x * self.w + self.n
        self.n.assign(tf.tanh(self.n + 1.0 + tf.reduce_mean(x)))
        self.v.assign(tf.tanh(self.v + tf.reduce_mean(x)))
        x = x * self.n * self.v
        return x + keras.random.normal((4,), seed=self.seed)


LAYERS: dict[str, Callable[[], Any]] = {
    "dropout": lambda: L.Dropout(0.5, seed=1),
    "statistics": L.BatchNormalization,
    "state": State,
}


class Block(L.Layer):
    def __init__(self, inner: Any, wrap: Callable[[Function], Function]) -> None:
        super().__init__()
        self.inner = inner
        self.function = wrap(lambda x: self.inner(x, training=True) if isinstance(inner, L.Dropout) else self.inner(x))

    def build(self, shape: Any) -> None:
        self.inner.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return self.function(x)


def _model(inner: Callable[[], Any], wrap: Callable[[Function], Function], replicas: int, **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    with mr.MirroredStrategy(jax.devices()[:replicas]).scope() if replicas else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((4,)), L.Dense(4), Block(inner(), wrap), L.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", **options)
    return model


@functools.cache
def _trained(layer: str, block: str, replicas: int, **options: Any) -> list[Any]:
    model, y = _model(LAYERS[layer], BLOCKS[block], replicas, **options), X[:, :1]
    found = [model.fit(X, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]]
    found += [model.evaluate(X, y, batch_size=8, verbose=0), model.predict(X, batch_size=8, verbose=0)]
    found += [model.train_on_batch(X, y), model.test_on_batch(X, y), model.predict_on_batch(X)]
    return [np.asarray(one) for one in (*found, *model.variables)]


CASES = [("state", block, 0) for block in BLOCKS if block != "plain"] + [
    (layer, block, replicas)
    for layer in ("dropout", "statistics")
    for block, replicas in (("recomputed", 0), ("recomputed", 2), ("loop", 2))
]


@pytest.mark.first(3)
@pytest.mark.parametrize(("layer", "block", "replicas"), CASES)
def test_a_block_assigns_the_state_of_a_layer(layer: str, block: str, replicas: int) -> None:
    """Keras' step kept a tracer of the block, which raised `UnexpectedTracerError`."""
    for one, other in zip(_trained(layer, block, replicas), _trained(layer, "plain", replicas), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.first(2)
@pytest.mark.parametrize("replicas", [0, 1], ids=["no strategy", "1 replica"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_recomputed_function_assigns_the_state_of_a_layer_in_eager_steps(layer: str, replicas: int) -> None:
    expected, found = (_trained(layer, block, replicas, run_eagerly=True) for block in ("plain", "recomputed"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", ["dropout", "statistics"])
def test_a_layer_in_a_rematerialization_scope_changes_its_state(layer: str) -> None:
    """Keras could not build the model. Its `keras.remat` lost changes of state, so that a dropout had one mask."""

    def run(scope: Any) -> list[Any]:
        keras.utils.set_random_seed(0)
        with scope:
            inner = LAYERS[layer]()
        model = keras.Sequential([keras.Input((4,)), inner, L.Dense(1)])
        model.compile("sgd", "mse")
        losses = model.fit(X, X[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
        return [losses, *(np.asarray(one) for one in model.variables)]

    for one, other in zip(run(keras.RematScope(mode="full")), run(contextlib.nullcontext()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


class Adding(L.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(tf.reduce_mean(x))
        return x


@pytest.mark.parametrize("block", ["recomputed", "branch"])
def test_a_loss_of_a_block_is_refused(block: str) -> None:
    model = _model(Adding, BLOCKS[block], 0)
    with pytest.raises(TransformError, match=r"Layer\.add_loss: the loss was computed in a branch"):
        model.fit(X, X[:, :1], verbose=0)


def test_a_block_adds_a_loss_from_outside() -> None:
    class Outside(L.Layer):
        def call(self, x: Any) -> Any:
            loss = tf.reduce_mean(x)

            def adding(x: Any) -> Any:
                self.add_loss(loss)
                return x

            return tf.recompute_grad(adding)(x)

    histories = [
        _model(inner, lambda function: function, 0).fit(X, X[:, :1], verbose=0).history for inner in (Adding, Outside)
    ]
    assert histories[0] == histories[1]


def test_a_block_in_a_stateless_call_in_a_function_cannot_assign() -> None:
    model = _model(LAYERS["dropout"], tf.recompute_grad, 0)

    def loss(x: Any) -> Any:
        weights, state = ([one.value for one in group] for group in (model.weights[:4], model.non_trainable_variables))
        return jax.grad(lambda x: model.stateless_call(weights, state, x)[0].sum())(x)

    with pytest.raises(TransformError, match=r"in a keras\.StatelessScope"):
        tf.function(loss)(tf.constant(X))


def test_the_value_of_a_closed_scope() -> None:
    variable = keras.Variable(1.0)
    with keras.StatelessScope([(variable, np.float32(2.0))]) as scope:
        variable.assign(3.0)
    found: list[Any] = []

    def recomputed(x: Any) -> Any:
        found.append(scope.get_current_value(variable))
        return x

    jax.grad(tf.recompute_grad(recomputed))(1.0)
    assert found == [3.0]
