"""Keras state that several replicas, loops or models share: losses of layers, flags, distributions, averages."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import VariableError
from mirrored.integrations.keras import keras

X = np.arange(4, dtype=np.float32)[:, None]
ONE_DEVICE, TWO_DEVICES = {"devices": ["CPU:0"], "num_replicas": 2}, {"devices": ["CPU:0", "CPU:1"]}


class Penalty(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(x**2))
        return x


@pytest.mark.first(1)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("layout", [ONE_DEVICE, TWO_DEVICES], ids=["one device", "two devices"])
@pytest.mark.parametrize("merge", ["weights", "statistics"])
def test_a_replica_reads_its_own_losses_after_a_merge(compiled: bool, layout: dict[str, Any], merge: str) -> None:
    strategy = mr.MirroredStrategy(**layout)
    with strategy.scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        synchronized = [keras.layers.BatchNormalization(synchronized=True)] if merge == "statistics" else []
        model = keras.Sequential([keras.Input((1,)), dense, Penalty(), *synchronized])

    def replica_step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            y = model(x, training=True)
            weights = {"sample_weight": keras.ops.ones(len(x))} if merge == "weights" else {}
            loss = mr.losses.average_loss(0 * y[:, 0], **weights)
            loss += mr.losses.scale_regularization_loss(sum(model.losses))
        gradient = tape.gradient(loss, model.trainable_variables[0])
        context = mr.get_replica_context()
        assert context is not None
        return loss, context.all_reduce("SUM", gradient)

    def run(x: Any) -> Any:
        return [strategy.reduce("SUM", one, axis=None) for one in strategy.run(replica_step, args=(x,))]

    loss, gradient = (mr.function(run) if compiled else run)(next(iter(strategy.distribute_dataset([X]))))
    assert float(loss) == pytest.approx(3.5)
    assert float(np.ravel(gradient)[0]) / strategy.num_replicas_in_sync == pytest.approx(7.0)


class Reconstruct(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def call(self, x: Any) -> Any:
        return x

    def train_step(self, images: Any) -> Any:
        self.seen.append(isinstance(images, tuple))
        return {"total": keras.ops.sum(images[0] if isinstance(images, tuple) else images)}


class Predicting(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, model: Any = None) -> None:
        super().__init__()
        self.other = model

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        (self.other or self.model).predict(np.ones((4, 2), np.float32), verbose=0)


def test_a_step_gets_bare_elements_after_a_callback_has_called_another_loop() -> None:
    with mr.MirroredStrategy(**ONE_DEVICE).scope():
        model = Reconstruct()
        model.compile("sgd")
    dataset = mr.data.Dataset.from_tensor_slices(np.ones((8, 2), np.float32)).batch(4)
    model.fit(dataset, epochs=2, verbose=0, callbacks=[Predicting()])
    assert model.seen
    assert not any(model.seen)


def test_the_validation_of_fit_gets_bare_elements() -> None:
    class Own(Reconstruct):
        def test_step(self, images: Any) -> Any:
            return self.train_step(images)

    with mr.MirroredStrategy(**ONE_DEVICE).scope():
        model = Own()
        model.compile("sgd")
    dataset = mr.data.Dataset.from_tensor_slices(np.ones((8, 2), np.float32)).batch(4)
    model.fit(dataset, validation_data=dataset, epochs=2, verbose=0)
    assert model.seen
    assert not any(model.seen)


def test_a_callback_may_call_a_model_without_a_strategy() -> None:
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with mr.MirroredStrategy(**TWO_DEVICES).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[Predicting(plain)])
    assert keras.distribution.distribution() is None


class OwnStep(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def trained(replicas: int, loss: Any, batch_size: int, weights: Any) -> Any:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(9, 3)).astype(np.float32), draw.normal(size=(9, 1)).astype(np.float32)
    with mr.MirroredStrategy(["CPU:0"], num_replicas=replicas).scope():
        model = OwnStep()
        model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(x, y, sample_weight=weights, batch_size=batch_size, shuffle=False, verbose=0)
    return model.dense.get_weights()


@pytest.mark.first(1)
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_without_examples_take_part_in_the_sum_of_the_weights(replicas: int) -> None:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    weights = np.linspace(0.5, 2, 9).astype(np.float32)
    for one, other in zip(trained(replicas, loss, 8, weights), trained(1, loss, 8, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.first(1)
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_loss_function_may_return_the_mean_of_its_batch(replicas: int) -> None:
    def loss(y: Any, prediction: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y - prediction))

    for one, other in zip(trained(replicas, loss, 4, None), trained(1, loss, 4, None), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_masked_values_that_are_not_finite_do_not_reach_synchronized_statistics() -> None:
    x = np.random.default_rng(0).normal(3, 2, size=(4, 3, 2)).astype(np.float32)
    mask = np.array([[True, True, False], [True, True, True], [True, False, False], [True, True, True]])
    x[~mask] = np.nan
    plain = keras.layers.BatchNormalization(momentum=0.5)
    plain.build((None, 3, 2))
    plain(x, training=True, mask=mask)
    strategy = mr.MirroredStrategy(**ONE_DEVICE)
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5, synchronized=True)
        layer.build((None, 3, 2))
    batch = next(iter(strategy.distribute_dataset([(x, mask)])))
    strategy.run(lambda x, m: layer(x, training=True, mask=m), args=batch)
    np.testing.assert_allclose(layer.moving_mean.numpy(), plain.moving_mean.numpy(), rtol=1e-4)
    np.testing.assert_allclose(layer.moving_variance.numpy(), plain.moving_variance.numpy(), rtol=1e-3)


class Unbuilt(keras.Model):  # type: ignore[misc]
    """A model whose layers Keras builds in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.normalization = keras.layers.Dense(1), keras.layers.BatchNormalization()

    def call(self, x: Any, training: bool = False) -> Any:
        return self.normalization(self.dense(x), training=training)


@pytest.mark.first(1)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("layout", [ONE_DEVICE, TWO_DEVICES], ids=["one device", "two devices"])
def test_a_replica_builds_a_model_after_a_stateless_call_outside_of_runs(compiled, layout) -> None:
    """Keras keeps a list of variables to initialize per thread; replicas that shared it initialized them twice."""
    with keras.StatelessScope():
        pass  # so that this thread has such a list
    strategy = mr.MirroredStrategy(**layout)
    with strategy.scope():
        model, optimizer = Unbuilt(), keras.optimizers.SGD(0.1)

    def replica_step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(model(x, training=True)[:, 0] ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = lambda x: strategy.run(replica_step, args=(x,))  # noqa: E731
    step = mr.function(step) if compiled else step
    for batch in strategy.distribute_dataset([X] * 2):
        step(batch)
    assert int(optimizer.iterations.value) == 2


@pytest.mark.parametrize("layout", [ONE_DEVICE, TWO_DEVICES], ids=["one device", "two devices"])
def test_a_recurrent_layer_is_called_in_an_eager_run_without_a_tape(layout: dict[str, Any]) -> None:
    """Keras runs its loop with `lax.scan`, in which reads of variables are refused otherwise."""
    strategy = mr.MirroredStrategy(**layout)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3, 1)), keras.layers.LSTM(2)])
        count = mr.Variable(0.0, synchronization="on_read", aggregation="sum")
    x = np.arange(6, dtype=np.float32).reshape(2, 3, 1)

    def replica_step(x: Any) -> Any:
        count.assign_add(1.0)
        return model(x, training=False)

    (batch,) = strategy.experimental_distribute_dataset([x])
    found = strategy.gather(strategy.run(replica_step, args=(batch,)), axis=0)
    np.testing.assert_allclose(found, model(x), rtol=1e-6)
    assert float(count) == 2.0


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_the_components_of_a_metric_of_64_bits_keep_their_width() -> None:
    """Outside of 64-bit mode, the metric got components of 32 bits, or an error of XLA at its next compiled update."""
    strategy = mr.MirroredStrategy(**TWO_DEVICES)
    with jax.enable_x64(True), strategy.scope():
        metric, array = keras.metrics.Mean(dtype="float64"), jax.numpy.asarray(1 / 3)
    metric.total.assign(array)
    assert float(metric.total.numpy()) == 1 / 3
    with pytest.raises(VariableError, match=r"dtype float64, which was created in 64-bit mode"):
        metric.reset_state()
    with jax.enable_x64(True):
        metric.reset_state()
        metric.update_state([1 / 3])
        assert float(metric.result()) == 1 / 3


class LastSum(keras.layers.Layer):  # type: ignore[misc]
    """Assigns the sum of the batch to a variable with the given options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.last = self.add_weight(shape=(), initializer="zeros", **options)

    def call(self, x: Any) -> Any:
        self.last.assign(keras.ops.cast(keras.ops.sum(x), self.last.dtype))
        return x


def first_replica_variables() -> dict[str, Any]:
    first: Any = {"aggregation": "only_first_replica"}
    return {
        "standalone": keras.Variable(0.0, trainable=False, **first),
        "int32": LastSum(dtype="int32", trainable=False, **first).last,
        "trainable": LastSum(trainable=True, **first).last,
    }


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("layout", [ONE_DEVICE, TWO_DEVICES], ids=["one device", "two devices"])
def test_a_variable_with_only_first_replica_takes_the_value_of_replica_0(
    compiled: bool, layout: dict[str, Any]
) -> None:
    strategy = mr.MirroredStrategy(**layout)
    with strategy.scope():
        variables = first_replica_variables()

    def replica_step(x: Any) -> None:
        for one in variables.values():
            one.assign(keras.ops.cast(keras.ops.sum(x), one.dtype))

    def run(x: Any) -> None:
        strategy.run(replica_step, args=(x,))

    (mr.function(run) if compiled else run)(next(iter(strategy.distribute_dataset([X]))))  # 0 + 1, and 2 + 3
    assert {name: float(np.asarray(one)) for name, one in variables.items()} == dict.fromkeys(variables, 1.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("layout", [ONE_DEVICE, TWO_DEVICES], ids=["one device", "two devices"])
def test_a_declared_aggregation_applies_to_the_floating_state_of_a_layer(
    compiled: bool, layout: dict[str, Any]
) -> None:
    strategy = mr.MirroredStrategy(**layout)
    expected = {None: 3.0, "mean": 3.0, "sum": 6.0, "only_first_replica": 1.0}  # of 0 + 1, and 2 + 3
    with strategy.scope():
        layers = {given: LastSum(trainable=False, aggregation=given) for given in expected}

    def run(x: Any) -> None:
        strategy.run(lambda x: [layer(x) for layer in layers.values()], args=(x,))

    (mr.function(run) if compiled else run)(next(iter(strategy.distribute_dataset([X]))))
    assert {given: float(np.asarray(layer.last)) for given, layer in layers.items()} == expected


class Counting(keras.Model):  # type: ignore[misc]
    """Assigns the number of examples of a replica's batch to a state with aggregation SUM."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, aggregation="sum")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        self.count.assign(keras.ops.cast(len(data[0]), "float32"))
        return super().train_step(data)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_declared_aggregation_applies_in_an_own_step_of_fit(run_eagerly: bool) -> None:
    with mr.MirroredStrategy(**ONE_DEVICE).scope():
        model = Counting()
        model.compile("sgd", "mse", run_eagerly=run_eagerly)
    model.fit(X, X, batch_size=4, verbose=0)
    assert float(np.asarray(model.count)) == 4.0
