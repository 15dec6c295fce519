"""Metrics that a layer updates in its `call` count in Keras' own step, as on TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

keras = tf.keras

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = X.sum(1, keepdims=True)
STRATEGIES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "1 replica": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
    "2 replicas": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "deterministic": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], deterministic=True),
}
UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "directly": lambda update, x: update(x),
    "in a branch": lambda update, x: tf.cond(tf.reduce_sum(x) > -1.0, lambda: update(x), lambda: x),
    "recomputed": lambda update, x: tf.recompute_grad(update)(x),
    "twice": lambda update, x: update(update(x) * 1.0),
}


class Counting(keras.layers.Layer):
    def __init__(self, update: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.total, self.mean = keras.metrics.Sum(name="total"), keras.metrics.Mean(name="mean")
        self.dense = keras.layers.Dense(1)
        self._update_by = update

    def call(self, x: Any) -> Any:
        return self.dense(self._update_by(self._update, x))

    def _update(self, x: Any) -> Any:
        self.total.update_state(x)
        self.mean.update_state(x)
        return x * 1.0


@pytest.mark.first(9)
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("where", STRATEGIES)
def test_updates_in_call_count(where: str, update: str, options: dict[str, Any]) -> None:
    """They had no effect, silently; plain Keras raises an error."""
    strategy = STRATEGIES[where]()
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((2,)), Counting(UPDATES[update])])
        model.compile("sgd", "mse", metrics=["mae"], **options)
    history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    times = 2 if update == "twice" else 1
    np.testing.assert_allclose(history["total"], [times * X.sum()] * 2)
    np.testing.assert_allclose(history["mean"], [X.mean()] * 2, rtol=1e-6)
    assert history["mae"][0] != history["mae"][1]
    found = model.evaluate(X[:8], Y[:8], batch_size=4, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["total"], times * X[:8].sum())
    np.testing.assert_allclose(model.layers[0].total.result(), times * X[:8].sum())


@pytest.mark.parametrize("where", STRATEGIES)
def test_updates_in_predict_are_dropped(where: str) -> None:
    strategy = STRATEGIES[where]()
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((2,)), Counting(UPDATES["directly"])])
        model.compile("sgd", "mse")
    expected = X @ model.layers[0].dense.kernel.numpy() + model.layers[0].dense.bias.numpy()
    np.testing.assert_allclose(model.predict(X, batch_size=4, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert float(model.layers[0].total.result()) == 0
