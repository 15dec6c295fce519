"""Conditions on tensors in functions that Keras traces although the layer is called eagerly: TensorFlow's results."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.tf import keras

pytest.importorskip("malt")

layers, ops = keras.layers, keras.ops
X = np.array([1.0, 2.0, 3.0], np.float32)
SEQUENCES = np.array([[[1.0], [2.0], [300.0]]], np.float32)


class Cell(layers.Layer):  # type: ignore[misc, name-defined]
    """A cell that sets a state above 100 to zero."""

    state_size = output_size = 1

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def build(self, _: Any) -> None:
        self.kernel = self.add_weight(shape=(1, 1), initializer="ones", name="kernel")

    def call(self, x: Any, states: Any) -> Any:
        new = states[0] * 0.5 + tf.matmul(x, self.kernel)
        if tf.reduce_sum(new) > 100.0:
            new = new * (self.kernel - 1.0)
        return new, [new]


def recurrent(**kwargs: Any) -> Any:
    return layers.RNN(Cell(), return_sequences=True, **kwargs)


def both_ways() -> Any:
    return layers.Bidirectional(recurrent(), backward_layer=recurrent(go_backwards=True), merge_mode="sum")


RECURRENT: dict[str, tuple[Callable[[], Any], list[float]]] = {
    "RNN": (recurrent, [1, 2.5, 0]),
    "stateful": (lambda: recurrent(stateful=True), [1, 2.5, 0]),
    "cells": (lambda: layers.RNN([Cell(), Cell()], return_sequences=True), [1, 3, 1.5]),
    "Bidirectional": (both_ways, [3, 4.5, 0]),
}


@pytest.fixture(autouse=True)
def _registered() -> Any:
    with keras.utils.custom_object_scope({"Cell": Cell}):
        yield


def called(how: str, function: Callable[[], Any]) -> Any:
    """Returns the result of a function that is called as the name of a way says."""
    if how == "tape":
        with tf.GradientTape():
            return function()
    if how == "replica":
        strategy = tf.distribute.MirroredStrategy(jax.devices()[:2])
        return strategy.experimental_local_results(strategy.run(function))[1]
    return tf.function(function)() if how == "compiled" else function()


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "eager") for name in RECURRENT), *(("RNN", how) for how in ("tape", "replica", "compiled"))],
)
def test_cells_of_recurrent_layers_have_conditions(name: str, how: str) -> None:
    make, expected = RECURRENT[name]
    layer = make()
    layer.build(SEQUENCES.shape)
    np.testing.assert_array_equal(np.ravel(called(how, lambda: layer(SEQUENCES))), expected)


def test_a_cell_has_the_gradient_of_the_branch_that_is_taken() -> None:
    layer = recurrent()
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(SEQUENCES[:, :2]))
    np.testing.assert_array_equal(tape.gradient(total, layer.cell.kernel), [[3.5]])


def times_ten(x: Any) -> Any:
    if x > 1.5:
        return x * 10.0
    return x


def accumulated(total: Any, x: Any) -> Any:
    if x > 2.0:
        total = total + x
    else:
        total = total - x
    return total, total


def grown(_: Any, x: Any) -> Any:
    if x > 2.0:
        x = x + 10.0
    else:
        x = x + 1.0
    return x


def weighted(layer: Any) -> Callable[[Any], Any]:
    def row(x: Any) -> Any:
        if x > 1.5:
            return x * 10.0 * layer.kernel
        return x

    return row


def within_map(layer: Any) -> Callable[[Any], Any]:
    def row(x: Any) -> Any:
        return ops.fori_loop(0, 5, grown, x) * layer.kernel

    return row


def chosen(layer: Any, x: Any) -> Any:
    def taken() -> Any:
        return times_ten(ops.sum(x)) * layer.kernel

    def other() -> Any:
        return ops.sum(x)

    return ops.cond(True, taken, other)


OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "associative_scan": (lambda _, x: ops.associative_scan(lambda a, b: accumulated(a, b)[0], x), [1, -1, 2]),
    "cond": (chosen, 60),
    "fori_loop": (lambda _, x: ops.fori_loop(0, 5, grown, x[0]), 33),
    "map": (lambda _, x: ops.map(times_ten, x), [1, 20, 30]),
    "map with a weight": (lambda layer, x: ops.map(weighted(layer), x), [1, 20, 30]),
    "nested": (lambda layer, x: ops.map(within_map(layer), x), [33, 43, 53]),
    "remat": (lambda _, x: keras.remat(times_ten)(x[1]), 20),
    "scan": (lambda _, x: ops.scan(accumulated, x[0] - 1, x)[1], [-1, -3, 0]),
    "switch": (lambda _, x: ops.switch(1, [ops.sum, times_ten], x[1]), 20),
    "vectorized_map": (lambda layer, x: ops.vectorized_map(weighted(layer), x), [1, 20, 30]),
    "while_loop": (lambda _, x: ops.while_loop(lambda x: x < 30, functools.partial(grown, 0), x[0]), 33),
}


class Operation(layers.Layer):  # type: ignore[misc, name-defined]
    """A layer that calls an operation of Keras."""

    def __init__(self, operation: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.operation = operation

    def build(self, _: Any) -> None:
        self.kernel = self.add_weight(shape=(), initializer="ones", name="kernel")

    def call(self, x: Any) -> Any:
        return self.operation(self, x)


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("nested", how) for how in ("eager", "tape", "replica")),
        *((name, "eager") for name in OPERATIONS if name != "nested"),
    ],
)
def test_functions_of_operations_have_conditions(name: str, how: str) -> None:
    operation, expected = OPERATIONS[name]
    layer = Operation(operation)
    layer.build(X.shape)
    np.testing.assert_array_equal(called(how, lambda: layer(X)), expected)


def test_a_converted_function_reads_the_new_value_of_a_weight() -> None:
    layer = Operation(OPERATIONS["map with a weight"][0])
    layer.build(X.shape)
    layer(X)
    layer.kernel.assign(2.0)
    np.testing.assert_array_equal(layer(X), [1, 40, 60])


@pytest.mark.parametrize("how", ["compiled", "predict"])
def test_a_replaced_call_of_a_class_has_conditions(how: str) -> None:
    class Kept(layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            return x

    class Derived(Kept):
        pass

    def doubled(_: Any, x: Any) -> Any:
        if ops.sum(x) > 1.0:
            x = x * 2.0
        return x

    layer = Derived()
    layer(X)
    Kept.call = doubled  # type: ignore[method-assign, assignment]
    model = keras.Sequential([keras.Input((3,)), layer])
    got = model.predict(X[None], verbose=0)[0] if how == "predict" else called(how, lambda: layer(X))
    np.testing.assert_array_equal(got, X * 2)
