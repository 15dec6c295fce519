"""Stateful recurrent layers keep their states from batch to batch in `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf

keras = tf.keras
L = keras.layers
X = np.random.default_rng(0).normal(size=(8, 6, 2)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(8, 6, 3)).astype(np.float32)
STRATEGIES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "1 replica": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
    "2 replicas": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "deterministic": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], deterministic=True),
}
LAYERS: dict[str, Callable[..., Any]] = {
    "gru": L.GRU,
    "lstm": L.LSTM,
    "simple": L.SimpleRNN,
    "cell": lambda units, **options: L.RNN(L.GRUCell(units), **options),
    "bidirectional": lambda units, **options: L.Bidirectional(L.GRU(units, **options), merge_mode="sum"),
}
OPTIONS: dict[str, dict[str, Any]] = {"compiled": {}, "eager": {"run_eagerly": True}, "two": {"steps_per_execution": 2}}


def _model(kind: str, **options: Any) -> Any:
    layer = LAYERS[kind](3, stateful=True, return_sequences=True)
    model = keras.Sequential([keras.Input(batch_shape=(4, None, 2)), layer])
    model.compile(keras.optimizers.SGD(0.0), "mse", **options)
    return model


def _states(model: Any) -> list[Any]:
    return [np.asarray(state) for state in keras.tree.flatten(model.layers[0].states)]


def _assert_states_after(model: Any, batches: list[Any]) -> None:
    """Checks the states against those of direct calls, which assign them."""
    called = keras.models.clone_model(model)
    called.set_weights(model.get_weights())
    for batch in batches:
        called(batch)
    for state, expected in zip(_states(model), _states(called), strict=True):
        np.testing.assert_allclose(state, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.first(8)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("where", STRATEGIES)
def test_loops_continue_from_the_states(where: str, kind: str, options: str) -> None:
    """Each batch silently began from zeros."""
    strategy = STRATEGIES[where]()
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = _model(kind, **OPTIONS[options])
    parts = [X[:4, :3], X[:4, 3:]]
    for part in parts:
        predicted = model.predict(part, batch_size=4, verbose=0)
    assert predicted.shape == (4, 3, 3)
    _assert_states_after(model, parts)
    model.fit(X[:, :3], Y[:, :3], batch_size=4, shuffle=False, verbose=0)
    model.evaluate(X[:4], Y[:4], batch_size=4, verbose=0)
    model.train_on_batch(X[4:], Y[4:])
    _assert_states_after(model, [*parts, X[:4, :3], X[4:, :3], X[:4], X[4:]])


class _Resetting(keras.callbacks.Callback):  # type: ignore[misc]  # without types
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(float(np.abs(_states(self.model)[0]).max()))
        self.model.layers[0].reset_state()


@pytest.mark.parametrize("where", STRATEGIES)
def test_a_callback_resets_the_states(where: str) -> None:
    strategy = STRATEGIES[where]()
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = _model("gru")
    resetting = _Resetting()
    model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[resetting])
    assert resetting.seen[0] > 0
    assert resetting.seen[1] == pytest.approx(resetting.seen[0])
    assert np.all(_states(model)[0] == 0)


def test_the_states_are_no_weights_and_are_saved_in_checkpoints(tmp_path: Path) -> None:
    model = _model("lstm")
    assert (len(model.weights), len(model.get_weights()), len(model.trainable_variables)) == (3, 3, 3)
    assert len({variable.path for variable in model.variables}) == len(model.variables)
    assert model.get_state_tree()
    model.predict(X[:4], batch_size=4, verbose=0)
    states = _states(model)
    path = mr.checkpoint.Checkpoint(model=model).save(tmp_path / "c")
    model.layers[0].reset_state()
    mr.checkpoint.Checkpoint(model=model).restore(path).assert_consumed()
    np.testing.assert_array_equal(states, _states(model))


def test_layers_that_are_not_stateful_have_no_further_variables() -> None:
    layer = L.LSTM(3)
    layer.build((None, 5, 2))
    assert [id(one) for one in layer.variables] == [id(one) for one in L.Layer.variables.fget(layer)]
    assert layer.states is None
