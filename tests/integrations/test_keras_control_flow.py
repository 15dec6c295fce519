"""Loops and conditionals of Keras over the weights of a layer, in eager code: the results of Keras without mirrored."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import TransformError
from mirrored.integrations.keras import keras

ops = keras.ops
X = np.arange(6, dtype=np.float32).reshape(3, 2)
ZEROS = np.zeros(2, np.float32)

# From a function that returns the value of the weight to the result, and what the result is if the weight is 2.
OPERATIONS: dict[str, tuple[Callable[[Callable[[], Any]], Any], Any]] = {
    "cond": (lambda w: ops.cond(True, lambda: X * w(), lambda: X), 2 * X),
    "fori_loop": (lambda w: ops.fori_loop(0, 3, lambda _, total: total + w(), ZEROS), ZEROS + 6),
    "map": (lambda w: ops.map(lambda row: row * w(), X), 2 * X),
    "remat": (lambda w: keras.remat(lambda x: x * w())(X), 2 * X),
    "scan": (lambda w: ops.scan(lambda total, row: (total + row * w(), row), ZEROS, X)[0], 2 * X.sum(0)),
    "switch": (lambda w: ops.switch(1, [lambda x: x, lambda x: x * w()], X), 2 * X),
    "vectorized_map": (lambda w: ops.vectorized_map(lambda row: row * w(), X), 2 * X),
    "while_loop": (
        lambda w: ops.while_loop(lambda total: ops.sum(total) < 8, lambda total: total + w(), ZEROS),
        ZEROS + 4,
    ),
}


class Operation(keras.layers.Layer):  # type: ignore[misc]
    """A layer that calls an operation on its weight, which is 2."""

    def __init__(self, operation: Callable[[Callable[[], Any]], Any], reads: str) -> None:
        super().__init__()
        self.operation, self.reads = operation, reads

    def build(self, _: Any) -> None:
        self.kernel = self.add_weight(shape=(), initializer=keras.initializers.Constant(2.0), name="kernel")

    def call(self, x: Any) -> Any:
        del x
        return self.operation(lambda: self.kernel.value if self.reads == "value" else ops.add(self.kernel, 0.0))


@pytest.mark.first(20)
@pytest.mark.parametrize("where", ["no strategy", "outside", "eager", "compiled", "tape"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_functions_of_an_operation_read_weights(name: str, where: str) -> None:
    operation, expected = OPERATIONS[name]
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with contextlib.nullcontext() if where == "no strategy" else strategy.scope():
        layer = Operation(operation, "value" if where == "eager" else "variable")
        layer.build(None)

    def run() -> Any:
        results = strategy.run(lambda: layer(X))
        return strategy.reduce("MEAN", results, axis=None)

    if where == "tape" and name != "while_loop":  # which has no reverse-mode derivative
        with mr.GradientTape() as tape:
            result = layer(X)
        assert tape.gradient(result, layer.kernel) is not None
    else:
        calls = {"eager": run, "compiled": mr.function(run)}
        result = calls.get(where, lambda: layer(X))()
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["cond", "fori_loop", "map", "scan", "switch", "while_loop"])
def test_a_function_that_is_passed_again_reads_the_new_value(name: str) -> None:
    """JAX keeps the trace of a function, with the values that are constants in it."""
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        weight = keras.Variable(2.0)
    add, both, less = lambda *x: x[-1] + weight, lambda a, b: (a + weight, b), lambda x: x < 3 * weight
    calls: dict[str, Callable[[], Any]] = {
        "cond": lambda: ops.cond(True, weight_of, weight_of),
        "fori_loop": lambda: ops.fori_loop(0, 1, add, 0.0),
        "map": lambda: ops.map(add, ZEROS)[0],
        "scan": lambda: ops.scan(both, 0.0, ZEROS[:1])[0],
        "switch": lambda: ops.switch(0, [add, add], 0.0),
        "while_loop": lambda: ops.while_loop(less, add, 0.0) / 3,
    }

    def weight_of() -> Any:
        return weight + 0.0

    assert float(calls[name]()) == 2.0
    weight.assign(5.0)
    assert float(calls[name]()) == 5.0


@pytest.mark.parametrize("inner", ["map", "scan", "switch", "while_loop"])
def test_an_operation_within_an_operation_reads_the_new_value(inner: str) -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        weight = keras.Variable(2.0)
    add, both, less = lambda x: x + weight, lambda a, b: (a + weight, b), lambda x: x < 3 * weight
    inners: dict[str, Callable[[Any], Any]] = {
        "map": lambda x: ops.map(add, x[None])[0],
        "scan": lambda x: ops.scan(both, x, ZEROS[:1])[0],
        "switch": lambda x: ops.switch(0, [add, add], x),
        "while_loop": lambda x: ops.while_loop(less, add, x) / 3,
    }
    assert ops.map(inners[inner], ZEROS)[0] == 2.0
    weight.assign(5.0)
    assert ops.map(inners[inner], ZEROS)[0] == 5.0


def test_a_jitted_function_in_an_operation_does_not_read_weights() -> None:
    """`jax.jit` would keep the value of the first call."""
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        weight = keras.Variable(2.0)
    jitted = jax.jit(lambda row: row * weight)
    with pytest.raises(TransformError, match="was read under a JAX transform"):
        ops.map(lambda row: jitted(row), X)


def test_a_rematerialized_function_keeps_its_name() -> None:
    def step(x: Any) -> Any:
        return x

    assert keras.remat(step).__name__ == "step"


def test_the_trace_of_a_function_without_weights_is_kept() -> None:
    traces = []

    def step(total: Any, row: Any) -> Any:
        traces.append(1)
        return total + row, row

    for _ in range(3):
        ops.scan(step, ZEROS, X)
    assert len(traces) == 1


@pytest.mark.parametrize("strategy", [False, True])
def test_a_function_of_an_operation_cannot_assign_weights(strategy: bool) -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope() if strategy else contextlib.nullcontext():
        weight = keras.Variable(2.0)
    with pytest.raises(TransformError, match="was assigned under a JAX transform"):
        ops.map(lambda row: row * weight.assign_add(1.0), X)
    assert float(weight.value) == 2.0


def test_a_layer_under_a_rematerialization_scope() -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope(), keras.RematScope(mode="full"):
        layer = keras.layers.Dense(2, kernel_initializer="identity")
        np.testing.assert_array_equal(layer(X), X)
