"""A model belongs to the strategy in whose scope it was created, wherever it is built and compiled."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ContextError, OutOfScopeWarning
from mirrored.integrations.keras import keras

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
    pytest.mark.timeout(120),
]
X = np.ones((8, 4), np.float32)
Y = X.sum(1, keepdims=True)


def sequential(*, built: bool) -> Any:
    layers = keras.layers
    return keras.Sequential([*([keras.Input((4,))] if built else []), layers.Dense(3, "tanh"), layers.Dense(1)])


def strategy(first: int = 0) -> Any:
    return mr.MirroredStrategy(jax.devices()[first : first + 2])


def devices(*variables: Any) -> set[int]:
    return {len(variable.value.sharding.device_set) for variable in variables}


@pytest.mark.long
def test_a_model_is_compiled_again_outside_of_its_scope() -> None:
    with strategy().scope():
        model = sequential(built=True)
        model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    assert devices(*model.variables, *model.optimizer.variables, *model.metrics_variables) == {2}


def test_optimizers_and_metrics_that_are_made_outside_move_to_the_model() -> None:
    with strategy().scope():
        model = sequential(built=True)
    model.compile(keras.optimizers.Adam(0.125), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    model.fit(X, Y, verbose=0)
    assert devices(*model.variables, *model.optimizer.variables, *model.metrics_variables) == {2}
    assert float(model.optimizer.learning_rate.value) == 0.125
    assert np.isfinite(model.evaluate(X, Y, verbose=0)).all()


@pytest.mark.parametrize(
    "build",
    [
        lambda model: model(X),
        lambda model: model.build((None, 4)),
        lambda model: model.predict(X, verbose=0),
        lambda model: (model.compile("sgd", "mse"), model.fit(X, Y, verbose=0)),
    ],
    ids=["call", "build", "predict", "fit"],
)
def test_a_model_is_built_outside_of_its_scope(build: Any) -> None:
    with strategy().scope():
        model = sequential(built=False)
    build(model)
    assert devices(*model.variables) == {2}


def test_a_model_without_a_strategy_cannot_be_compiled_in_a_scope() -> None:
    model = sequential(built=True)
    with strategy().scope(), pytest.raises(ContextError, match=r"created outside strategy.scope\(\)"):
        model.compile("adam", "mse")


def test_a_model_of_one_strategy_cannot_be_compiled_in_the_scope_of_another() -> None:
    with strategy().scope():
        model = sequential(built=True)
    with strategy(2).scope(), pytest.raises(ContextError, match="is compiled in the scope of"):
        model.compile("adam", "mse")


def test_an_optimizer_of_another_strategy_is_refused_before_jax_does() -> None:
    with strategy(2).scope():
        optimizer = keras.optimizers.Adam()
    with strategy().scope():
        model = sequential(built=True)
    model.compile(optimizer, "mse")
    with pytest.raises(ContextError, match=r"'adam.*' belongs to another strategy"):
        model.fit(X, Y, verbose=0)


def test_a_model_without_any_strategy_is_trained_as_ever() -> None:
    model = sequential(built=False)
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    assert devices(*model.variables) == {1}


def test_a_deep_copy_belongs_to_the_strategy_of_its_model() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.fit(x, y, verbose=0)
    before = model.get_weights()
    twin = copy.deepcopy([model])[0]
    assert all(variable.mirrored.strategy is strategy for variable in (*twin.variables, *twin.optimizer.variables))
    twin.fit(x, y, epochs=2, verbose=0)
    for mine, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, kept)
    assert int(model.optimizer.iterations.value) == 1
    assert int(twin.optimizer.iterations.value) == 3
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    np.testing.assert_array_equal(copy.deepcopy(plain).get_weights()[0], plain.get_weights()[0])


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.125),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.125), initial_scale=8.0, dynamic_growth_steps=2
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.first(1)
def test_an_optimizer_that_is_made_outside_of_the_scope_makes_one_step_per_run(made, built, compiled, replicas) -> None:
    """Otherwise, every replica would update it again."""
    optimizers = [made()]
    owner = mr.MirroredStrategy(jax.devices()[:2], num_replicas=replicas)
    with owner.scope():
        optimizers.append(made())
        models = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")]) for _ in "12"]
    outcomes = []
    for model, optimizer in zip(models, optimizers, strict=True):
        variables = model.trainable_variables
        if built:
            optimizer.build(variables)

        def replica(x: Any, model: Any = model, optimizer: Any = optimizer, variables: Any = variables) -> None:
            with mr.GradientTape() as tape:
                loss = optimizer.scale_loss((model(x) ** 2).mean() / replicas)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        step = lambda x, replica=replica: owner.run(replica, args=(x,))  # noqa: E731
        step = mr.function(step) if compiled else step
        for _ in range(5):
            step(X)
        assert int(optimizer.iterations.value) == 5
        outcomes.append([np.asarray(one) for one in (*variables, *optimizer.variables)])
    jax.tree.map(np.testing.assert_array_equal, *outcomes)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_a_metric_that_is_made_outside_of_the_scope_counts_all_or_is_refused(compiled) -> None:
    """Otherwise, compiled replicas would add its total again in every step."""
    owner, metric = strategy(), keras.metrics.Mean()
    values = owner.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group))
    step = lambda x: owner.run(metric.update_state, args=(x,))  # noqa: E731
    if compiled:
        with pytest.raises(ContextError, match="inside `with strategy.scope"):
            mr.function(step)(values)
        assert float(metric.result()) == 0
        return
    step(values)
    step(values)
    assert [float(one.value) for one in metric.variables] == [2.0, 4.0]


@pytest.mark.long
def test_compiled_and_eager_steps_share_an_optimizer_that_is_made_outside() -> None:
    """A batch with uneven per-replica batches runs eagerly, between compiled steps."""
    owner, optimizer = strategy(), keras.optimizers.SGD(0.125)
    with owner.scope():
        model = sequential(built=True)
    variables = model.trainable_variables

    def replica(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss((model(x) ** 2).mean(-1))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = mr.function(lambda batch: owner.run(replica, args=batch))
    even, uneven = [next(iter(owner.experimental_distribute_dataset([(x,)]))) for x in (X, X[:5])]
    for number, batch in enumerate([even, uneven, even, even, uneven, even], start=1):
        step(batch)
        assert int(optimizer.iterations.value) == number
    optimizer.learning_rate = 0.0
    before = [np.asarray(one) for one in variables]
    step(even)
    step(uneven)
    jax.tree.map(np.testing.assert_array_equal, [np.asarray(one) for one in variables], before)


@pytest.mark.parametrize("parts", ["model", "model and optimizer"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.first(1)
def test_a_model_that_is_made_outside_of_the_scope_is_updated_once_with_a_warning(compiled, parts) -> None:
    """Otherwise, the replicas of an eager run would apply the sum of all gradients one after another."""
    owner = mr.MirroredStrategy(jax.devices()[:2], num_replicas=4)

    def model_of() -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])

    def optimizer_of() -> Any:
        return keras.optimizers.SGD(0.125, momentum=0.5)

    with owner.scope():
        right, optimizer_inside = (model_of(), optimizer_of()), optimizer_of()
    outside = model_of(), optimizer_of() if "optimizer" in parts else optimizer_inside
    outcomes = []
    for model, optimizer in (right, outside):
        variables = model.trainable_variables

        def replica(x: Any, model: Any = model, optimizer: Any = optimizer, variables: Any = variables) -> None:
            with mr.GradientTape() as tape:
                loss = mr.losses.average_loss((model(x) ** 2)[:, 0])
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        step = lambda x, replica=replica: owner.run(replica, args=(x,))  # noqa: E731
        step = mr.function(step) if compiled else step
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in owner.experimental_distribute_dataset([X] * 3):
                step(batch)
        told = [one for one in caught if one.category is OutOfScopeWarning]
        assert bool(told) == (model is outside[0])
        for one in told:  # the line of the program, not one of Keras
            assert one.filename == __file__
            assert ".py:" not in str(one.message) or "test_keras_belonging.py:" in str(one.message)
        assert int(optimizer.iterations.value) == 3
        outcomes.append([np.asarray(one) for one in variables])
    jax.tree.map(np.testing.assert_array_equal, *outcomes)


@pytest.mark.long
@pytest.mark.parametrize("change", ["enable_lora", "quantize"])
def test_weights_that_a_layer_adds_after_the_scope_belong_to_its_strategy(change: str) -> None:
    with strategy().scope():
        layers = [keras.layers.Dense(3, "tanh", use_bias=False), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
    before = model.predict(X, verbose=0)
    if change == "quantize":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the input layer has nothing to quantize
            model.quantize("int8")
    else:
        layers[0].enable_lora(2)
    np.testing.assert_allclose(model.predict(X, verbose=0), before, rtol=0.1, atol=0.05)
    assert devices(*model.variables) == {2}


def test_a_layer_that_was_built_outside_is_named() -> None:
    normalization = keras.layers.Normalization(name="scaled")
    normalization.adapt(X)
    with strategy().scope():
        model = keras.Sequential([keras.Input((4,)), normalization, keras.layers.Dense(1)])
    with pytest.raises(
        ContextError, match=r"(?s)Model\.predict: variable 'scaled/mean' .* outside .*create layer 'scaled'"
    ):
        model.predict(X, verbose=0)
