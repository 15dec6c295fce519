"""Tapes watch a `mirrored.Variable` that a Keras layer uses, by the variable or by its Keras variable."""

from __future__ import annotations

import contextlib
import copy
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.integrations.keras.variables import as_keras
from mirrored.tape.forward_accumulator import ForwardAccumulator


class Layer(keras.layers.Layer):
    def __init__(self, factor: mr.Variable) -> None:
        super().__init__()
        self.factor = factor
        self.built = True

    def call(self, x: Any) -> Any:
        return x * self.factor


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("accessed", [True, False])
@pytest.mark.parametrize("by_view", [True, False])
def test_watching_either_watches_both(by_view: bool, accessed: bool, trainable: bool) -> None:
    variable = mr.Variable(3.0, trainable=trainable)
    layer = Layer(variable)
    [view] = layer.variables
    assert view is as_keras(variable) is not variable
    with mr.GradientTape(persistent=True, watch_accessed_variables=accessed) as tape:
        tape.watch(view if by_view else variable)
        y = layer(jnp.array(2.0)) * variable
    assert [float(tape.gradient(y, one)) for one in (view, variable)] == [12.0, 12.0]
    assert tape.watched_variables() == (variable,)


def test_a_direction_of_either() -> None:
    variable = mr.Variable(3.0)
    for primal in (variable, as_keras(variable)):
        with ForwardAccumulator(primal, jnp.array(1.0)) as accumulator:
            y = variable * variable
        assert float(accumulator.jvp(y)) == 6.0


def _in_a_branch(kernel: Any, x: Any) -> Any:
    return jnp.sum(tf.cond(x[0] > 0, lambda: x * kernel, lambda: x) ** 2)


def _before_and_in_a_branch(kernel: Any, x: Any) -> Any:
    y = x * kernel
    if y[0] > 0:
        y = y * kernel.value
    return jnp.sum(y**2)


def _in_a_loop(kernel: Any, x: Any) -> Any:
    for _ in range(3):
        x = x * kernel
        if x[0] > 100:
            break
    return jnp.sum(x**2)


@pytest.mark.parametrize("strategy", [False, True])
@pytest.mark.parametrize("loss", [_in_a_branch, _before_and_in_a_branch, _in_a_loop])
def test_gradients_of_a_weight_that_a_branch_reads(loss: Any, strategy: bool) -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope() if strategy else contextlib.nullcontext():
        layer = keras.layers.Layer()
        kernel = layer.add_weight(shape=(2,), initializer="ones", name="kernel")

    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            y = loss(kernel, x)
        [watched] = tape.watched_variables()
        assert watched is kernel
        return tape.gradient(y, kernel)

    x = jnp.array([2.0, 3.0])
    np.testing.assert_allclose(tf.function(step)(x), step(x), rtol=1e-6)


def test_gradients_of_a_weight_that_a_compiled_function_reads() -> None:
    kernel = keras.layers.Layer().add_weight(shape=(2,), initializer="ones", name="kernel")
    inner = mr.function(lambda x: jnp.sum((x * kernel) ** 2))
    with mr.GradientTape() as tape:
        y = inner(jnp.array([2.0, 3.0]))
    np.testing.assert_allclose(tape.gradient(y, kernel), [8.0, 18.0])
    [watched] = tape.watched_variables()
    assert watched is kernel


def test_gradients_of_the_weight_of_a_copied_layer_that_a_branch_reads() -> None:
    first = keras.layers.Dense(1, use_bias=False)
    first.build((None, 2))
    first(jnp.ones((1, 2)))
    second = copy.deepcopy(first)

    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            y = tf.cond(x > 0, lambda: second(x * jnp.ones((1, 2))), lambda: x * jnp.ones((1, 1)))
        return tape.gradient(y, [first.kernel, second.kernel])

    of_first, of_second = tf.function(step)(jnp.array(3.0))
    assert of_first is None
    np.testing.assert_allclose(of_second, [[3.0], [3.0]])


READS = {
    "operation": lambda weight: lambda x: x * weight,
    "jitted helper": lambda weight: jax.jit(lambda x: x * weight),
    "branch": lambda weight: lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: weight * x, lambda: x),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("read", READS)
def test_a_recomputed_function_reads_the_weight_that_it_has_assigned(read: str, compiled: bool) -> None:
    """The read returned the old value in eager code, and had a part of the gradient in compiled functions."""
    with mr.MirroredStrategy(jax.devices()[:1]).scope():
        weight = keras.layers.Layer().add_weight(shape=(), initializer="ones", name="weight")
    product = READS[read](weight)

    def block(x: Any) -> Any:
        before = product(x)
        weight.assign(weight * 2.0)
        return before + product(x)

    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.recompute_grad(block)(x))
        return y, tape.gradient(y, [x, weight])

    y, (of_x, of_weight) = (tf.function(step) if compiled else step)(jnp.array([1.0, 2.0]))
    assert float(y) == 9.0
    np.testing.assert_allclose(of_x, [3.0, 3.0])
    assert float(of_weight) == 6.0  # as with a `tf.Variable`: both reads are of the variable
    assert float(weight.numpy()) == 2.0
