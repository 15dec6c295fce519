"""Keras' own steps read the current values of variables that the model does not list, as on TensorFlow."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

keras = tf.keras
L = keras.layers
X, Y = np.ones((8, 1), np.float32), np.zeros((8, 1), np.float32)
STRATEGIES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "1 replica": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
    "2 replicas": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "deterministic": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], deterministic=True),
}
OPTIONS: dict[str, dict[str, Any]] = {"compiled": {}, "eager": {"run_eagerly": True}, "two": {"steps_per_execution": 2}}
VARIABLES: dict[str, Callable[[], Any]] = {
    "keras": lambda: keras.Variable(0.0, trainable=False),
    "tf": lambda: tf.Variable(0.0, trainable=False),
}


def _scope(strategy: Any) -> Any:
    return strategy.scope() if strategy else contextlib.nullcontext()


def _squares(y: Any, prediction: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y - prediction), -1)


def _nothing(y: Any, prediction: Any) -> Any:
    return 0.0 * keras.ops.mean(prediction, -1)


class _Loss(keras.losses.Loss):  # type: ignore[misc]  # without types, as the classes below
    def __init__(self, variable: Any) -> None:
        super().__init__()
        self.variable = variable

    def call(self, y: Any, prediction: Any) -> Any:
        return self.variable * _squares(y, prediction)


class _Regularizer(keras.regularizers.Regularizer):  # type: ignore[misc]
    def __init__(self, variable: Any) -> None:
        self.variable = variable

    def __call__(self, x: Any) -> Any:
        return self.variable * keras.ops.sum(x**2)


class _Penalty(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self._read = read

    def call(self, x: Any) -> Any:
        self.add_loss(self._read() * keras.ops.mean(x**2))
        return x


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    def __init__(self, variable: Any) -> None:
        self.variable = variable

    def __call__(self, step: Any) -> Any:
        return 0.1 * self.variable


def _branching(variable: Any) -> Any:
    return lambda y, p: tf.cond(tf.reduce_sum(y) > -1.0, lambda: variable * 1.0, lambda: 0.0) * _squares(y, p)


# What reads the variable: the arguments of the model's parts.
READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "loss function": lambda v: {"loss": lambda y, p: v * _squares(y, p)},
    "loss": lambda v: {"loss": _Loss(v)},
    "regularizer": lambda v: {"loss": _nothing, "regularizer": _Regularizer(v)},
    "add_loss": lambda v: {"loss": _nothing, "layer": _Penalty(lambda: v)},
    "schedule": lambda v: {"optimizer": keras.optimizers.SGD(_Schedule(v))},
    "branch": lambda v: {"loss": _branching(v)},
}


def _model(
    loss: Any = _squares, regularizer: Any = None, layer: Any = None, optimizer: Any = None, **options: Any
) -> Any:
    dense = L.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer=regularizer)
    model = keras.Sequential([keras.Input((1,)), dense, *([layer] if layer else [])])
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **options)
    return model


class _Assigning(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, variable: Any) -> None:
        super().__init__()
        self.variable = variable

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.variable.assign(float(epoch))


_CASES = list(itertools.product(STRATEGIES, READERS, VARIABLES, OPTIONS))
_CASES.sort(key=lambda case: (case[3] != "compiled", case[0] not in ("none", "2 replicas"), case[2] == "tf"))


@pytest.mark.first(24)
@pytest.mark.parametrize(("where", "reader", "kind", "options"), _CASES)
def test_a_step_reads_the_current_value(where: str, reader: str, kind: str, options: str) -> None:
    """The first value was a constant of the compiled step, silently; a `tf.Variable` was refused."""
    strategy = STRATEGIES[where]()
    with _scope(strategy):
        variable = VARIABLES[kind]()
        model = _model(**READERS[reader](variable), **OPTIONS[options])
    model.fit(X, Y, batch_size=2, epochs=3, shuffle=False, verbose=0, callbacks=[_Assigning(variable)])
    expected = 0.8**4 * 0.6**4  # w -= 0.1 * v * 2 * w in 4 steps with v = 0, 1 and 2
    np.testing.assert_allclose(model.get_weights()[0], [[expected]], rtol=1e-5)


@pytest.mark.parametrize("outside", [False, True], ids=["in scope", "outside"])
@pytest.mark.parametrize("where", STRATEGIES)
def test_evaluate_and_predict_read_the_current_weights_of_another_model(where: str, outside: bool) -> None:
    strategy = STRATEGIES[where]()
    teacher = _model() if outside else None
    with _scope(strategy):
        teacher = teacher or _model()
        model = _model(loss=lambda y, p: _squares(teacher(y + 1.0), p))
    found = []
    for weight in (1.0, 3.0):
        teacher.set_weights([np.full((1, 1), weight, np.float32)])
        found.append(float(model.evaluate(X, Y, verbose=0)))
        teacher.fit(X, Y, epochs=1, batch_size=8, verbose=0)
        found.append(float(model.evaluate(X, Y, verbose=0)))
    np.testing.assert_allclose(found, [0.0, 0.2**2, 4.0, (3 * 0.8 - 1) ** 2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("where", STRATEGIES)
def test_a_forward_pass_reads_the_optimizer(where: str, options: str) -> None:
    """The number of the step, for example, with which a layer anneals a loss."""
    strategy = STRATEGIES[where]()
    with _scope(strategy):
        optimizer = keras.optimizers.SGD(0.1)
        layer = _Penalty(lambda: keras.ops.cast(optimizer.iterations, "float32"))
        model = _model(loss=_nothing, layer=layer, optimizer=optimizer, **OPTIONS[options])
    model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [[1.0 * 0.8 * 0.6 * 0.4]], rtol=1e-5)


def test_a_step_with_many_such_variables_is_traced_three_times() -> None:
    """And Keras infers shapes once."""
    traces = []
    others = [keras.Variable(1.0) for _ in range(6)]

    def loss(y: Any, prediction: Any) -> Any:
        traces.append(1)
        return sum(one.value for one in others) * _squares(y, prediction)

    model = _model(loss=loss)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    assert len(traces) == 4
    others[0].assign(2.0)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    assert len(traces) == 4


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("where", STRATEGIES)
def test_a_variable_may_share_the_array_of_a_weight(where: str, options: str) -> None:
    """A penalty on the distance from the first weights; the step donates their array."""
    strategy = STRATEGIES[where]()
    with _scope(strategy):
        model = _model(**OPTIONS[options])
        first = keras.Variable(model.layers[0].kernel.value, trainable=False)
        model.compile(keras.optimizers.SGD(0.1), lambda y, p: _squares(first[0, 0] + 1.0, p), **OPTIONS[options])
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [[2.0 - 0.8**4]], rtol=1e-5)


class _Counting(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self, variable: Any) -> None:
        super().__init__()
        self._held = [lambda: variable]

    def call(self, x: Any) -> Any:
        self._held[0]().assign_add(1.0)
        return x


class _Doubling(keras.layers.Layer):  # type: ignore[misc]
    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(), initializer="ones")

    def call(self, x: Any) -> Any:
        self.w.assign(self.w * 2.0)
        return x * self.w


class _OwnStep(keras.Sequential):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@pytest.mark.parametrize("options", ["compiled", "eager"])
@pytest.mark.parametrize("where", STRATEGIES)
@pytest.mark.parametrize("kind", ["other", "trainable"])
def test_values_that_the_step_drops_are_reported_and_the_remedy_keeps_them(kind: str, where: str, options: str) -> None:
    strategy = STRATEGIES[where]()
    results = []
    for model_class in (keras.Sequential, _OwnStep):
        with _scope(strategy):
            counter = keras.Variable(1.0, trainable=False)
            layer = _Counting(counter) if kind == "other" else _Doubling()
            model = model_class([keras.Input((1,)), L.Dense(1), layer])
            model.compile(keras.optimizers.SGD(0.0), "mse", **OPTIONS[options])
        before = float(counter.value if kind == "other" else layer.w.value)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
        results.append((float(counter.value if kind == "other" else layer.w.value) / before, len(caught)))
        if caught:
            assert "the value is lost" in str(caught[0].message)
            assert "super().train_step(data)" in str(caught[0].message)
    assert results == [(1.0, 1), (3.0 if kind == "other" else 4.0, 0)]


@pytest.mark.parametrize("where", STRATEGIES)
def test_fit_with_spectral_normalization_keeps_the_normalized_weights(where: str) -> None:
    """The step silently dropped them, so that only the losses of `fit` were those of the normalized weights."""
    strategy = STRATEGIES[where]()
    with _scope(strategy):
        dense = L.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(3.0))
        model = keras.Sequential([keras.Input((1,)), L.SpectralNormalization(dense)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    history = model.fit(X, Y, batch_size=4, epochs=1, verbose=0, validation_data=(X, Y)).history
    np.testing.assert_allclose([history["loss"][0], history["val_loss"][0], dense.kernel[0, 0]], 1.0, rtol=1e-5)


@pytest.mark.parametrize("where", ["none", "2 replicas"])
def test_fit_keeps_its_results_when_a_callback_freezes_spectral_normalization(where: str) -> None:
    """The steps after that assigned the weights, and the old ones replaced those at the end of the epoch, silently."""
    strategy = STRATEGIES[where]()
    with _scope(strategy):
        normalized = L.SpectralNormalization(L.Dense(1, use_bias=False))
        model = keras.Sequential([keras.Input((1,)), normalized, L.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.0), "mse")

    def freeze(epoch: int, logs: Any = None) -> None:
        normalized.trainable = epoch == 0

    model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=[keras.callbacks.LambdaCallback(freeze)])
    assert int(model.optimizer.iterations) == 6
    with pytest.raises(ValueError, match="optimizer was built with"):  # as for any other layer, without `compile`
        model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    assert int(model.optimizer.iterations) == 2


class _ScopedStep(keras.Sequential):  # type: ignore[misc]
    """Assigns trainable weights in scopes, as a step with an optimizer for each of two parts, and returns them."""

    def train_step(self, state: Any, data: Any) -> Any:
        weights, others, slots, metrics = state
        with keras.StatelessScope(list(zip(self.trainable_variables, weights, strict=True))) as scope:
            for one in self.trainable_variables:
                one.assign(one * 2.0)
        weights = [scope.get_current_value(one) for one in self.trainable_variables]
        gradients = [keras.ops.ones_like(one) for one in weights]
        weights, _ = self.second.stateless_apply(self.slots_of_second, gradients, weights)
        return {}, (weights, others, slots, metrics)


def test_values_that_an_overridden_step_returns_are_not_reported() -> None:
    """A warning said that they were lost."""
    model = _ScopedStep([keras.Input((1,)), L.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.second = keras.optimizers.SGD(0.5)
    model.second.build(model.trainable_variables)
    model.slots_of_second = [np.asarray(one.value) for one in model.second.variables]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [[4.0 - 1.0 - 0.5]])
