"""Keras 3 models backed by strategy variables: custom loops and `fit` give the results of one device."""

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
from integrations.keras_models import Trained, build, data, scope, train_by_keras, train_by_loop
from mirrored.integrations.keras import StrategyVariable, keras

# Keras' own `numpy()` calls NumPy in a way that NumPy 2 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

STEPS = 5
MODELS = ("dense", "lstm", "attention", "strided")


@pytest.fixture(autouse=True)
def fresh_names() -> None:
    """Keras numbers layers per process: each test starts anew."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)


def assert_same(a: Trained, b: Trained) -> None:
    """Losses and weights within 1e-5."""
    np.testing.assert_allclose(a[0], b[0], rtol=1e-5)
    for mine, theirs in zip(a[1], b[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.sampled(4)
@pytest.mark.first(1)
@pytest.mark.long
def test_compiled_custom_loop_equals_single_device_keras(kind: str, replicas: int) -> None:
    assert_same(train_by_loop(kind, replicas, STEPS), train_by_keras(kind, STEPS))


@pytest.mark.parametrize("kind", ["dense"])
@pytest.mark.long
def test_eager_custom_loop_equals_single_device_keras(kind: str) -> None:
    assert_same(train_by_loop(kind, 2, STEPS, compiled=False), train_by_keras(kind, STEPS))


@pytest.mark.parametrize("batch_size", [8, 5], ids=["even", "uneven"])
@pytest.mark.parametrize("make", [lambda: build("dense"), lambda: with_statistics()], ids=["dense", "batchnorm"])
@pytest.mark.first(1)
def test_fit_equals_single_device_keras(make: Callable[[], Any], batch_size: int) -> None:
    histories, weights = [], []
    for replicas in (None, 2):
        keras.utils.set_random_seed(3)
        with scope(replicas):
            model = make()
            model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"])
        x, y = data()
        histories.append(model.fit(x, y, batch_size=batch_size, epochs=3, shuffle=False, verbose=0).history)
        weights.append([*model.get_weights(), model.predict(x, verbose=0), np.asarray(model.evaluate(x, y, verbose=0))])
    for name in histories[0]:
        np.testing.assert_allclose(histories[1][name], histories[0][name], rtol=1e-4)
    for mine, theirs in zip(weights[1], weights[0], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def with_statistics() -> Any:
    """A model with moving statistics."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6, 4)), layers.Conv1D(3, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(1)]
    )


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_moving_statistics_are_the_mean_over_replicas(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5, epsilon=1e-3)
        layer.build((None, 3))
    x = strategy.distribute_values_from_function(
        lambda context: np.full((4, 3), 1.0 + 2 * context.replica_id_in_sync_group, np.float32)
    )

    def step() -> Any:
        return strategy.run(lambda x: layer(x, training=True), args=(x,))

    (mr.function(step) if compiled else step)()
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.5 * np.full(3, 2.0), rtol=1e-6)
    assert [component.numpy().tolist() for component in layer.moving_mean.components] == [[0.5] * 3, [1.5] * 3]


@pytest.mark.parametrize("loop", ["fit", "evaluate", "predict"])
def test_a_model_that_a_loop_builds_has_statistics_of_each_replica(loop: str) -> None:
    """Keras initializes the variables when no layer is being built any more."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        model = keras.Sequential([layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.zeros((4, 3), np.float32)
    getattr(model, loop)(rows, *([] if loop == "predict" else [rows[:, :1]]), verbose=0)
    x = strategy.distribute_values_from_function(
        lambda context: np.full((4, 3), 1.0 + 2 * context.replica_id_in_sync_group, np.float32)
    )
    strategy.run(lambda x: model(x, training=True), args=(x,))
    assert [component.numpy().tolist() for component in layer.moving_mean.components] == [[0.5] * 3, [1.5] * 3]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_dropout_masks_differ_between_replicas_and_steps(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=1)

    def step() -> Any:
        return strategy.run(lambda: layer(jax.numpy.ones(64), training=True))

    run = mr.function(step) if compiled else step
    masks = [np.asarray(mask).tolist() for _ in range(2) for mask in strategy.local_results(run())]
    assert len({tuple(mask) for mask in masks}) == 4


def test_variables_are_mirrored_and_metrics_are_summed() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        model, metric = build("dense"), keras.metrics.Mean()
    assert all(isinstance(variable, StrategyVariable) for variable in model.variables)
    assert len(model.trainable_variables[0].components) == 2

    def replica() -> None:
        metric.update_state(jax.numpy.float32(mr.get_replica_context().replica_id_in_sync_group))

    strategy.run(replica)
    mr.function(lambda: strategy.run(replica))()
    assert float(metric.result()) == 0.5


def test_clipping_acts_on_the_summed_gradient() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v, optimizer = mr.Variable(0.0), keras.optimizers.SGD(1.0, clipnorm=1.0)
    strategy.run(lambda: optimizer.apply_gradients([(jax.numpy.float32(10.0), v)]))
    assert float(v) == pytest.approx(-1.0)


@pytest.mark.parametrize("way_of_run", ["eager", "compiled", "outside"])
@pytest.mark.filterwarnings("ignore::mirrored.errors.OutOfScopeWarning")
def test_variables_that_are_overwritten_get_the_largest_value(way_of_run: str) -> None:
    """As scales of float8 layers, whose gradient is their new value."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope() if way_of_run != "outside" else contextlib.nullcontext():
        weight, amax = keras.Variable(np.float32(10.0)), keras.Variable(np.float32(0.0))
        amax.overwrite_with_gradient = True
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight, amax])

    def replica() -> None:
        number = jax.numpy.float32(mr.get_replica_context().replica_id_in_sync_group)
        optimizer.apply_gradients([(jax.numpy.float32(0.5), weight), (number + 2.0, amax)])

    run = mr.function(lambda: strategy.run(replica)) if way_of_run == "compiled" else lambda: strategy.run(replica)
    for _ in range(2):
        run()
    assert (float(weight.value), float(amax.value)) == (8.0, 3.0)


class _OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    def __init__(self, rate: Any) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate * 1.0


@pytest.mark.parametrize(
    "changing", ["attribute", "variable", "schedule of Keras", "constraint", "constraint of Keras"]
)
def test_an_eager_update_follows_its_schedule_and_constraint(changing: str) -> None:
    strategy, bound = mr.MirroredStrategy(jax.devices()[:2]), [100.0]
    schedules = keras.optimizers.schedules
    with strategy.scope():
        weight = keras.Variable(np.array([10.0], np.float32))
        rate = keras.Variable(np.float32(1.0), trainable=False)
        schedule: Any = _OwnSchedule(rate if changing == "variable" else 1.0)
        if changing == "schedule of Keras":
            schedule = schedules.ExponentialDecay(1.0, 1, 1.0)
        if changing == "constraint":
            weight.constraint = lambda value: keras.ops.minimum(value, bound[0])
        if changing == "constraint of Keras":
            weight.constraint = keras.constraints.MaxNorm(100.0, axis=0)
        optimizer = keras.optimizers.SGD(1.0 if "constraint" in changing else schedule)
        optimizer.build([weight])

    def step() -> float:
        strategy.run(lambda: optimizer.apply_gradients([(np.array([0.5], np.float32), weight)]))
        return float(weight.value[0])

    assert step() == 9.0
    changes = {
        "attribute": lambda: setattr(schedule, "rate", 0.0),
        "variable": lambda: rate.assign(0.0),
        "schedule of Keras": lambda: setattr(schedule, "initial_learning_rate", 0.0),
        "constraint": lambda: bound.__setitem__(0, 5.0),
        "constraint of Keras": lambda: setattr(weight.constraint, "max_value", 5.0),
    }
    changes[changing]()
    assert step() == pytest.approx(5.0 if "constraint" in changing else 9.0)


def test_loss_scaling_skips_a_step_that_overflowed_on_one_replica() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v = mr.Variable(1.0)
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=4.0)
        optimizer.build([v])

    @mr.function
    def step(gradient: Any) -> None:
        strategy.run(lambda g: optimizer.apply_gradients([(g, v)]), args=(gradient,))

    for gradients in ((4.0, 4.0), (float("inf"), 4.0)):
        step(strategy.distribute_values_from_function(lambda c, g=gradients: np.float32(g[c.replica_id_in_sync_group])))
    assert float(v) == 1.0 - 0.5 * 8.0 / 4.0
    assert float(optimizer.dynamic_scale.numpy()) == 2.0


def test_an_optimizer_in_cross_replica_context_says_where_to_call_it() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v, optimizer = mr.Variable(0.0), keras.optimizers.SGD(1.0)
        with pytest.raises(mr.errors.ContextError, match="cross-replica context"):
            optimizer.apply_gradients([(jax.numpy.float32(1.0), v)])


def test_fit_takes_our_datasets() -> None:
    x, y = data()
    dataset = mr.data.Dataset.from_tensor_slices((x, y)).batch(4)
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        model = build("dense")
        model.compile("sgd", "mse")
    assert len(model.fit(dataset, epochs=2, verbose=0).history["loss"]) == 2


def test_save_and_load_onto_another_number_of_replicas(tmp_path: Any) -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        model = build("dense")
    model.save(tmp_path / "m.keras")
    with mr.MirroredStrategy(jax.devices()[:4]).scope():
        loaded = keras.models.load_model(tmp_path / "m.keras")
    for mine, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(loaded.trainable_variables[0].components) == 4


@pytest.mark.filterwarnings("error")
def test_variables_become_numpy_arrays_without_a_warning() -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    kernel = model.weights[0]
    taken = model.get_weights()
    found = [taken[0], kernel.numpy(), np.asarray(kernel), np.array(kernel, np.float64), np.array(kernel, copy=True)]
    assert all(np.array_equal(one, [[1.0], [1.0]]) for one in found)
    assert found[3].dtype == np.float64
    taken[0][...] = 5.0  # a copy of its own
    assert np.array_equal(kernel.numpy(), [[1.0], [1.0]])
    model.set_weights([np.zeros((2, 1)), np.zeros(1)])
    assert np.array_equal(found[2], [[1.0], [1.0]])
    assert int(np.asarray(optimizer.iterations)) == 0
    with pytest.raises(ValueError, match="copy"):
        np.array(optimizer.iterations, np.float64, copy=False)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("built", [False, True], ids=["built in the first step", "built before"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.sampled(3)
@pytest.mark.first(1)
def test_a_loss_scale_that_grows_leaves_the_updates_as_they_are(replicas: int, built: bool, compiled: bool) -> None:
    """Until the optimizer is built, Keras' `scale_loss` multiplies by a Python number, which a trace would keep."""
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=replicas)
    with strategy.scope():
        w = keras.Variable([0.0, 0.0], name="w")
        inner = keras.optimizers.SGD(0.5)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0, dynamic_growth_steps=2)
        if built:
            optimizer.build([w])

    def replica_step() -> None:
        with mr.GradientTape() as tape:
            loss = optimizer.scale_loss(keras.ops.sum(w * 2.0) / replicas)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w], strict=True))

    def step() -> None:
        strategy.run(replica_step)

    step = mr.function(step) if compiled else step
    seen = []
    for _ in range(5):
        step()
        seen.append((float(np.asarray(w)[0]), float(optimizer.dynamic_scale), int(optimizer.step_counter)))
    assert seen == [(-1.0, 8.0, 1), (-2.0, 16.0, 0), (-3.0, 16.0, 1), (-4.0, 32.0, 0), (-5.0, 32.0, 1)]
    assert [variable.name for variable in optimizer.variables] == [
        *("iteration", "learning_rate", "step_counter", "dynamic_scale"),
        *("iteration", "learning_rate"),
    ]
