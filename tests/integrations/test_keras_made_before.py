"""Keras variables that were created before Keras was connected behave as those of a model outside of every scope."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored import integrations
from mirrored.errors import ContextError, OutOfScopeWarning
from mirrored.integrations.keras import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
X = np.ones((8, 4), np.float32)


@pytest.fixture
def unconnected() -> Iterator[None]:
    """Keras as it is before the first scope of the process."""
    integrations.disconnect("keras")
    yield
    integrations.connect("keras")


def connected() -> mr.MirroredStrategy:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        pass
    return strategy


def model_of(*layers: Any) -> Any:
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    return keras.Sequential([keras.Input((4,)), *layers, dense])


def gradients_by_tape(model: Any) -> Any:
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss((model(X) ** 2)[:, 0])
    return tape.gradient(loss, model.trainable_variables)


def gradients_by_jax(model: Any) -> Any:
    def loss(weights: Any) -> Any:
        return mr.losses.average_loss((model.stateless_call(weights, [], X)[0] ** 2)[:, 0])

    return jax.grad(loss)([one.value for one in model.trainable_variables])


def trained(strategy: Any, model: Any, optimizer: Any, gradients_of: Any, compiled: bool) -> list[np.ndarray]:
    def replica() -> None:
        optimizer.apply_gradients(zip(gradients_of(model), model.trainable_variables, strict=True))

    step = lambda: strategy.run(replica)  # noqa: E731
    step = mr.function(step) if compiled else step
    for _ in range(3):
        step()
    assert int(optimizer.iterations.value) == 3
    return [np.asarray(one) for one in model.variables]


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.01, momentum=0.5),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=1.0),
}


@pytest.mark.first(1)
@pytest.mark.sampled(6)
@pytest.mark.usefixtures("unconnected")
@pytest.mark.parametrize("gradients_of", [gradients_by_tape, gradients_by_jax])
@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_a_step_updates_a_model_and_an_optimizer_once_with_a_warning(compiled, built, made, gradients_of) -> None:
    """Otherwise, the replicas of an eager run would update them one after another."""
    model, optimizer = model_of(), made()
    if built:
        optimizer.build(model.trainable_variables)
    strategy = connected()
    with strategy.scope():
        expected = trained(strategy, model_of(), made(), gradients_of, compiled)
    with pytest.warns(OutOfScopeWarning, match=r"made outside of strategy\.scope"):
        found = trained(strategy, model, optimizer, gradients_of, compiled)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.first(1)
@pytest.mark.usefixtures("unconnected")
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_one_optimizer_over_variables_from_before_and_of_a_scope(compiled: bool) -> None:
    before = model_of()
    strategy = connected()
    with strategy.scope():
        inside, optimizer = model_of(), keras.optimizers.SGD(0.01)
        expected = trained(strategy, model_of(), keras.optimizers.SGD(0.01), gradients_by_tape, compiled)

    def replica() -> None:
        pairs = [zip(gradients_by_tape(one), one.trainable_variables, strict=True) for one in (before, inside)]
        optimizer.apply_gradients([pair for each in pairs for pair in each])

    step = lambda: strategy.run(replica)  # noqa: E731
    step = mr.function(step) if compiled else step
    with pytest.warns(OutOfScopeWarning):
        step()
    step()
    step()
    for model in (before, inside):
        jax.tree.map(np.testing.assert_array_equal, [np.asarray(one) for one in model.variables], expected)


@pytest.mark.usefixtures("unconnected")
def test_an_optimizer_whose_step_number_was_read_first_counts_each_step_once() -> None:
    optimizer = keras.optimizers.SGD(0.01)
    strategy = connected()
    with strategy.scope():
        model = model_of()
    strategy.run(lambda: optimizer.iterations.value)
    trained(strategy, model, optimizer, gradients_by_tape, compiled=False)


@pytest.mark.usefixtures("unconnected")
def test_a_metric_in_a_compiled_run_is_refused_and_keeps_its_state() -> None:
    """Otherwise, tracers would stay in it."""
    metric = keras.metrics.Mean()
    metric.update_state(4.0)
    strategy = connected()
    with pytest.raises(ContextError, match="inside `with strategy.scope"):
        mr.function(lambda: strategy.run(metric.update_state, args=(2.0,)))()
    assert float(metric.result()) == 4
    strategy.run(metric.update_state, args=(2.0,))
    assert [float(one.value) for one in metric.variables] == [8.0, 3.0]


@pytest.mark.usefixtures("unconnected")
def test_statistics_and_seeds_in_a_compiled_run_are_updated_once_with_a_warning() -> None:
    layers = keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5, seed=1)
    model = model_of(*layers)
    strategy = connected()
    step = mr.function(lambda: strategy.run(lambda: model(X, training=True)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
        step()
    told = " ".join(str(one.message) for one in caught if one.category is OutOfScopeWarning)
    assert all(name in told for name in ("moving_mean", "moving_variance", "seed_generator_state"))
    np.testing.assert_array_equal(layers[0].moving_mean.value, np.full(4, 0.75))
    np.testing.assert_array_equal(layers[1].seed_generator.state.value, [1, 2])


@pytest.mark.usefixtures("unconnected")
def test_a_compiled_function_reads_the_current_values() -> None:
    model = model_of()
    strategy = connected()
    output = mr.function(lambda: strategy.reduce("SUM", strategy.run(lambda: model(X)[0, 0]), axis=None))
    assert float(output()) == 8
    model.set_weights([2 * one for one in model.get_weights()])
    assert float(output()) == 16


@pytest.mark.usefixtures("unconnected")
def test_keras_alone_keeps_its_own_variables() -> None:
    model = model_of(keras.layers.BatchNormalization())
    connected()
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutOfScopeWarning)
        model.compile("sgd", "mse")
        model.fit(X, X[:, :1], verbose=0)
        model(X, training=True)
    assert {type(one) for one in model.variables} == {keras.Variable}
    assert not hasattr(keras.Variable.__new__(keras.Variable), "_value")


@pytest.mark.usefixtures("unconnected")
def test_a_model_that_replicas_have_trained_continues_with_fit() -> None:
    model = model_of()
    strategy = connected()
    with pytest.warns(OutOfScopeWarning):
        trained(strategy, model, keras.optimizers.SGD(0.01), gradients_by_tape, compiled=False)
    before = model.get_weights()
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], verbose=0)
    assert not np.array_equal(model.get_weights()[0], before[0])
