"""Keras loops with `deterministic=True` are bit-identical on any number of devices and replicas."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.integrations.keras import keras
from mirrored.variables import access, sync_on_read

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
    pytest.mark.timeout(300),
]
# Devices and replicas: one replica per device, and several.
LAYOUTS = {"1 device": (1, 1), "4 devices": (4, 4), "3 devices": (3, 3), "2 x 2": (2, 4)}
X = np.random.default_rng(0).normal(size=(13, 6)).astype(np.float32)
Y = (X.sum(1, keepdims=True) > 0).astype(np.float32)
WEIGHTS = np.linspace(0.1, 2.0, 13).astype(np.float32)


def strategy_of(layout: str) -> Any:
    devices, replicas = LAYOUTS[layout]
    return mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=True)


def compiled_model(layout: str, **options: Any) -> Any:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    layers = keras.layers
    with strategy_of(layout).scope():
        model = keras.Sequential(
            [
                layers.Dense(9, "tanh"),
                layers.BatchNormalization(),
                layers.Dropout(0.4),
                layers.Dense(5, "gelu"),
                layers.Dense(1, "sigmoid"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.05),
            "binary_crossentropy",
            metrics=["mae", keras.metrics.AUC(name="auc")],
            weighted_metrics=[keras.metrics.MeanSquaredError(name="weighted")],
            **options,
        )
    return model


@pytest.mark.long
def test_equal_statistics_are_read_without_a_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled_model("4 devices")
    model.fit(X, Y, verbose=0)
    statistic = model.layers[1].moving_mean
    monkeypatch.setattr(sync_on_read, "reduce_stacked", lambda *args: pytest.fail("reduced"))
    assert bits(model.get_weights()[4:6]) == bits([statistic.mirrored.values[0], model.layers[1].moving_variance.value])


@pytest.mark.parametrize("kind", ["trainable_variables", "non_trainable_variables", "metrics_variables"])
def test_the_value_of_a_variable_is_read_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled_model("2 x 2")
    model.fit(X, Y, verbose=0)
    reads = []
    monkeypatch.setattr(mr.Variable, "checked_value", lambda self: reads.append(1) or access.read(self))
    for variable in getattr(model, kind):
        reads.clear()
        assert np.asarray(variable.value).shape == variable.shape
        assert len(reads) <= 1


def bits(values: Any) -> list[bytes]:
    return [np.asarray(value).tobytes() for value in jax.tree.leaves(values)]


def trained(layout: str) -> dict[str, list[bytes]]:
    """Everything that a user sees, as bits."""
    model = compiled_model(layout)
    history = model.fit(
        X, Y, batch_size=5, epochs=2, sample_weight=WEIGHTS, validation_data=(X[:5], Y[:5]), verbose=0
    ).history
    found = {"history": bits([np.float64(value) for one in sorted(history) for value in history[one]])}
    found["weights"] = bits(model.get_weights())
    found["slots"] = bits([variable.value for variable in model.optimizer.variables])
    found["evaluate"] = bits(
        list(map(np.float64, model.evaluate(X, Y, batch_size=5, sample_weight=WEIGHTS, verbose=0)))
    )
    found["predict"] = bits(model.predict(X, batch_size=5, verbose=0))
    stepped = model.train_on_batch(X[:5], Y[:5], sample_weight=WEIGHTS[:5])
    found["train_on_batch"] = bits(list(map(np.float64, stepped)))
    found["test_on_batch"] = bits(list(map(np.float64, model.test_on_batch(X[:5], Y[:5]))))
    found["predict_on_batch"] = bits(model.predict_on_batch(X[:5]))
    found["weights after"] = bits(model.get_weights())
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, list[bytes]]:
    return trained("1 device")


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "1 device"])
@pytest.mark.sampled(8)
@pytest.mark.long
def test_the_same_bits_on_any_layout(expected: dict[str, list[bytes]], layout: str) -> None:
    found = trained(layout)
    assert {name: found[name] == expected[name] for name in expected} == dict.fromkeys(expected, True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{"steps_per_execution": 3}, {"run_eagerly": True}], ids=["steps", "eagerly"])
@pytest.mark.long
def test_the_same_bits_with_options_of_compile(options: dict[str, Any]) -> None:
    found = []
    for layout in ("1 device", "2 x 2"):
        model = compiled_model(layout, **options)
        model.fit(X[:10], Y[:10], batch_size=5, epochs=2, verbose=0)
        found.append(bits(model.get_weights()))
    assert found[0] == found[1]


@pytest.mark.long
def test_weights_stay_on_all_devices() -> None:
    model = compiled_model("4 devices")
    model.fit(X, Y, batch_size=5, verbose=0)
    assert {len(variable.value.sharding.device_set) for variable in model.trainable_variables} == {4}
    for variable in model.trainable_variables:
        copies = {np.asarray(component).tobytes() for component in variable.components}
        assert len(copies) == 1


@pytest.mark.long
def test_a_callback_may_read_the_weights_in_the_middle_of_an_epoch() -> None:
    class Reading(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(bits(self.model.get_weights()))

    found = []
    for layout in ("1 device", "3 devices"):
        seen: list[list[bytes]] = []
        model = compiled_model(layout)
        model.fit(X, Y, batch_size=5, epochs=2, callbacks=[Reading()], verbose=0)
        found.append([*seen, bits(model.get_weights())])
    assert found[0] == found[1]


@pytest.mark.parametrize("built_by", ["input", "fit"])
def test_statistics_are_read_with_the_bits_that_fit_has_stored(built_by: str) -> None:
    """The mean of three equal components can differ from them in the last bit."""
    found = []
    for layout in ("1 device", "3 devices"):
        with strategy_of(layout).scope():
            layer = keras.layers.BatchNormalization()
            model = keras.Sequential([*([keras.Input((6,))] if built_by == "input" else []), layer])
            model.compile("sgd", "mse")
        model.fit(X, X, batch_size=5, epochs=2, shuffle=False, verbose=0)
        found.append(bits([layer.moving_mean.value, layer.moving_variance.numpy()]))
    assert found[0] == found[1]


class Counting(keras.layers.Layer):  # type: ignore[misc]
    """Updates a metric in each call, also in those of `predict`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x: Any) -> Any:
        self.seen.update_state(keras.ops.mean(x))
        return x


@pytest.mark.first(2)
@pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("layout", ["4 devices", "2 x 2"])
def test_a_step_may_read_variables_that_are_not_weights_of_the_model(layout: str, eagerly: bool) -> None:
    """Without compilation, JAX's error about incompatible devices: they are on all devices, and the batch is on one."""

    def results(layout: str) -> list[bytes]:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        with strategy_of(layout).scope():
            teacher = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
            factor = keras.Variable(0.5)
            model = keras.Sequential([keras.Input(X.shape[1:]), Counting(), keras.layers.Dense(1)])
            known = keras.ops.ones((1, *X.shape[1:]))
            loss = lambda y, out: keras.ops.mean((out - factor * teacher(known) - y) ** 2, -1)  # noqa: E731
            model.compile("sgd", loss, run_eagerly=eagerly)
        history = model.fit(X[:8], Y[:8], batch_size=4, verbose=0).history
        found = [np.float64(history["loss"][0]), np.float64(model.evaluate(X[:8], Y[:8], verbose=0)[0])]
        return bits([*found, model.predict(X[:8], verbose=0), *model.get_weights()])

    assert results(layout) == results("1 device")
