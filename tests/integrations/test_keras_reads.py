"""Gradients of a Keras weight are those of a `mirrored.Variable` in every construct that traces the reading code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf

VALUE = np.array([1.0, 2.0], np.float32)
X = jnp.array([2.0, 3.0])


def in_if_statement(w: Any, x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        y = x * w
    else:
        y = x
    return tf.reduce_sum(y * w)


def in_while_statement(w: Any, x: Any) -> Any:
    y, n = x, tf.constant(0)
    while n < 3:
        y = y * w
        n += 1
    return tf.reduce_sum(y)


def in_inner_tape(w: Any, x: Any) -> Any:
    with mr.GradientTape() as tape:
        tape.watch(x)
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.reduce_sum(x * x * w), lambda: tf.reduce_sum(x))
    return tf.reduce_sum(tape.gradient(y, x) ** 2)


def one() -> Any:
    return tf.constant(1)


READS: dict[str, Callable[[Any, Any], Any]] = {
    "operation": lambda w, x: tf.reduce_sum((x * w) ** 2),
    "if": in_if_statement,
    "while": in_while_statement,
    "inner tape": in_inner_tape,
    "tf.cond": lambda w, x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.reduce_sum(x * w * w), lambda: tf.reduce_sum(x)),
    "tf.switch_case": lambda w, x: tf.switch_case(one(), [lambda: tf.reduce_sum(x), lambda: tf.reduce_sum(w * x * w)]),
    "tf.while_loop": lambda w, x: tf.reduce_sum(
        tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * w), (tf.constant(0), x), maximum_iterations=3)[1]
    ),
    "tf.map_fn": lambda w, x: tf.reduce_sum(tf.map_fn(lambda v: v * w, x)),
    "tf.scan": lambda w, x: tf.reduce_sum(tf.scan(lambda a, v: a * w + v, tf.stack([x, x]))),
    "tf.vectorized_map": lambda w, x: tf.reduce_sum(tf.vectorized_map(lambda v: v * w * w, x)),
    "tf.recompute_grad": lambda w, x: tf.reduce_sum(tf.recompute_grad(lambda x: x * w * w)(x)),
    "jax.jit": lambda w, x: jax.jit(lambda x: jnp.sum(x * w * w))(x),
    "jax.checkpoint": lambda w, x: jax.checkpoint(lambda x: jnp.sum(x * w * w))(x),
    "lax.scan": lambda w, x: jnp.sum(jax.lax.scan(lambda c, _: (c * w, None), x, length=2)[0]),
    "lax.cond": lambda w, x: jax.lax.cond(x.sum() > 0, lambda x: jnp.sum(x * w), lambda x: x.sum(), x),
    "fori_loop": lambda w, x: jnp.sum(jax.lax.fori_loop(0, 2, lambda i, c: c * w, x)),
    "jax.vmap": lambda w, x: jnp.sum(jax.vmap(lambda v: v * w)(x)),
    "jax.grad": lambda w, x: jnp.sum(jax.grad(lambda x: jnp.sum(x * x * w))(x)),
    "mr.function": lambda w, x: mr.function(lambda x: jnp.sum(x * w * w))(x),
    "keras.ops.cond": lambda w, x: keras.ops.cond(
        keras.ops.sum(x) > 0, lambda: keras.ops.sum(x * w * w), lambda: keras.ops.sum(x)
    ),
    "keras.ops.scan": lambda w, x: keras.ops.sum(keras.ops.scan(lambda c, v: (c * w + v, c), x, jnp.stack([x, x]))[0]),
    "keras.ops.fori_loop": lambda w, x: keras.ops.sum(keras.ops.fori_loop(0, 2, lambda i, c: c * w, x)),
    "keras.ops.vectorized_map": lambda w, x: keras.ops.sum(keras.ops.vectorized_map(lambda v: v * w, x)),
}


def weight(kind: str) -> Any:
    if kind == "variable":
        return mr.Variable(VALUE)
    return keras.layers.Layer().add_weight(shape=(2,), initializer=lambda shape, dtype=None: jnp.asarray(VALUE))


def around(w: Any, strategy: mr.MirroredStrategy, read: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A step with a tape in cross-replica context."""

    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            y = read(w, x)
        return y, tape.gradient(y, w)

    return step


def jacobian(w: Any, strategy: mr.MirroredStrategy, read: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A step with a Jacobian in cross-replica context."""

    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            y = read(w, x)
        return y, tape.jacobian(y, w)

    return step


def in_replica(w: Any, strategy: mr.MirroredStrategy, read: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A step with a tape in each replica."""

    def replica(x: Any) -> Any:
        with mr.GradientTape() as tape:
            y = read(w, x)
        return y, tape.gradient(y, w)

    def step(x: Any) -> Any:
        y, gradient = strategy.run(replica, args=(x,))
        return strategy.reduce("SUM", y, axis=None), strategy.reduce("SUM", gradient, axis=None)

    return step


@pytest.mark.sampled(4)
@pytest.mark.first(4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("make_step", "scoped"),
    [(around, True), (around, False), (jacobian, True), (jacobian, False), (in_replica, True)],
    ids=["tape", "tape, plain", "jacobian", "jacobian, plain", "tape in a run"],
)
@pytest.mark.parametrize("read", READS)
def test_gradients_are_those_of_a_variable(
    read: str, make_step: Callable[..., Callable[[Any], Any]], scoped: bool, compiled: bool
) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    found = []
    for kind in ("variable", "weight"):
        with strategy.scope() if scoped else contextlib.nullcontext():
            w = weight(kind)
        step = make_step(w, strategy, READS[read])
        found.append((tf.function(step) if compiled else step)(X))
    (y, gradient), (y_of_weight, gradient_of_weight) = found
    assert float(np.abs(gradient).min()) > 0
    np.testing.assert_allclose(y_of_weight, y, rtol=1e-6)
    np.testing.assert_allclose(gradient_of_weight, gradient, rtol=1e-6)
