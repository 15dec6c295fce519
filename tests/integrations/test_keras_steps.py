"""`train_step`, `test_step` and `predict_step` in TensorFlow's form, beside hand-written JAX on one device."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from integrations.keras_models import scope
from mirrored.errors import ReplicaDivergenceError, StructureError
from mirrored.integrations.keras import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
REPLICAS = pytest.mark.parametrize("replicas", [None, 2])
X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype("float32")
BATCH, RATE = 8, 0.1


def by_hand(epochs: int, momentum: float = 0.0) -> tuple[Any, list[float]]:
    """The weights after training on one device, and the mean loss of every epoch."""
    weights = (jnp.ones((3, 1)), jnp.zeros((1,)))
    speed = jax.tree.map(jnp.zeros_like, weights)
    losses = []

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ weights[0] + weights[1] - y) ** 2)

    for _ in range(epochs):
        seen = []
        for start in range(0, len(X), BATCH):
            loss, grads = jax.value_and_grad(loss_of)(weights, X[start : start + BATCH], Y[start : start + BATCH])
            speed = jax.tree.map(lambda v, g: momentum * v - RATE * g, speed, grads)
            weights = jax.tree.map(jnp.add, weights, speed)
            seen.append(float(loss))
        losses.append(float(np.mean(seen)))
    return weights, losses


class Guide(keras.Model):
    """The steps of TensorFlow's guide `Customize what happens in Model.fit`."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        trainable = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, trainable), trainable, strict=True))
        return self._measured(y, y_pred, loss)

    def test_step(self, data: Any) -> Any:
        x, y = data
        y_pred = self(x, training=False)
        return self._measured(y, y_pred, self.compute_loss(y=y, y_pred=y_pred))

    def predict_step(self, data: Any) -> Any:
        x = data[0] if isinstance(data, tuple) else data
        return 2.0 * self(x, training=False)

    def _measured(self, y: Any, y_pred: Any, loss: Any) -> Any:
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def model_of(kind: type[Any], **options: Any) -> Any:
    inputs = keras.Input((3,))
    model = kind(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
    model.compile(**{"optimizer": keras.optimizers.SGD(RATE), "loss": "mse", "metrics": ["mae"], **options})
    return model


def assert_weights(model: Any, expected: Any) -> None:
    for ours, theirs in zip(model.get_weights(), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("replicas", "options"),
    [(None, {}), (1, {}), (4, {}), (None, {"run_eagerly": True}), (2, {"run_eagerly": True}),
     (2, {"steps_per_execution": 2})],
)  # fmt: skip
@pytest.mark.first(2)
def test_train_step(replicas: int | None, options: dict[str, Any]) -> None:
    expected, losses = by_hand(2)
    with scope(replicas):
        model = model_of(Guide, **options)
    history = model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    assert_weights(model, expected)
    # As in TensorFlow, a loss is the replica's part of the global mean.
    np.testing.assert_allclose(np.asarray(history["loss"]) * (replicas or 1), losses, rtol=1e-5)
    assert sorted(history) == ["loss", "mae"]


@REPLICAS
@pytest.mark.first(1)
def test_validation_evaluate_and_predict(replicas: int | None) -> None:
    with scope(replicas):
        model = model_of(Guide)
    history = model.fit(X, Y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, validation_data=(X, Y)).history
    expected, _ = by_hand(1)
    plain = X @ np.asarray(expected[0]) + np.asarray(expected[1])
    mae = float(np.abs(plain - Y).mean())
    np.testing.assert_allclose(history["val_mae"], [mae], rtol=1e-5)
    np.testing.assert_allclose(model.evaluate(X, Y, batch_size=BATCH, verbose=0)[1], mae, rtol=1e-5)
    np.testing.assert_allclose(model.predict(X[:7], batch_size=4, verbose=0), 2 * plain[:7], rtol=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(X[:4]), 2 * plain[:4], rtol=1e-5)


class Inherited(keras.Model):
    """Augments the data, and leaves the rest to the inherited steps."""

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        return super().train_step((x * 1.0, y, weights))

    def test_step(self, data: Any) -> Any:
        return super().test_step(data)

    def predict_step(self, data: Any) -> Any:
        return super().predict_step(data) + 1.0


@REPLICAS
@pytest.mark.first(1)
@pytest.mark.long
def test_inherited_steps(replicas: int | None) -> None:
    expected, losses = by_hand(2)
    with scope(replicas):
        model = model_of(Inherited)
    history = model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    assert_weights(model, expected)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    plain = X @ np.asarray(expected[0]) + np.asarray(expected[1])
    loss, mae = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose([loss, mae], [np.square(plain - Y).mean(), np.abs(plain - Y).mean()], rtol=1e-5)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain + 1.0, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.test_on_batch(X, Y), [loss, mae], rtol=1e-5)
    np.testing.assert_allclose(model.train_on_batch(X, Y), [loss, mae], rtol=1e-5)


@pytest.mark.parametrize("penalty", [None, "l2"], ids=["no penalty", "penalty"])
@pytest.mark.parametrize("rows", [9, 7, 2])
@pytest.mark.parametrize(("replicas", "options"), [(4, {}), (2, {}), (1, {}), (4, {"deterministic": True})], ids=str)
@pytest.mark.first(1)
@pytest.mark.long
def test_uneven_batches_have_the_updates_of_one_device(
    replicas: int, options: dict[str, Any], rows: int, penalty: str | None
) -> None:
    """A replica without examples had a loss of shape (0,), so the logs were NaN or a penalty raised a TypeError.

    The update was that of the mean of the replicas' means.
    """

    def trained(kind: type[Any], around: Any, run_eagerly: bool) -> tuple[Any, ...]:
        keras.utils.set_random_seed(0)
        with around:
            inputs = keras.Input((3,))
            model = kind(inputs, keras.layers.Dense(1, kernel_regularizer=penalty)(inputs))
            model.compile(keras.optimizers.SGD(RATE), "mse", metrics=["mae"], run_eagerly=run_eagerly)
        given = {"batch_size": rows, "shuffle": False, "verbose": 0}
        logs = model.fit(X[:rows], Y[:rows], epochs=2, validation_data=(X[:rows], Y[:rows]), **given).history
        return model.get_weights(), logs, model.evaluate(X[:rows], Y[:rows], batch_size=rows, verbose=0)

    expected = trained(keras.Model, scope(None), run_eagerly=False)
    for run_eagerly in (False, True):
        strategy = mr.MirroredStrategy(jax.devices()[:replicas], **options)
        weights, logs, evaluated = trained(Delegating, strategy.scope(), run_eagerly)
        for one, other in zip(weights, expected[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert logs.keys() == expected[1].keys()
        for name, values in logs.items():
            np.testing.assert_allclose(values, expected[1][name], rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(evaluated, expected[2], rtol=1e-5)


class Delegating(keras.Model):
    """Overrides the steps only to call them."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)

    def test_step(self, data: Any) -> Any:
        return super().test_step(data)


@REPLICAS
def test_an_inherited_step_of_a_frozen_model_warns_and_updates_nothing(replicas: int | None) -> None:
    with scope(replicas):
        model = model_of(Delegating)
    for layer in model.layers:
        layer.trainable = False
    before = model.get_weights()
    with pytest.warns(UserWarning, match="does not have any trainable weights") as found:
        history = model.fit(X, Y, batch_size=BATCH, verbose=0).history
    assert {one.filename for one in found} == {__file__}
    np.testing.assert_allclose(history["loss"], model.evaluate(X, Y, batch_size=BATCH, verbose=0)[:1], rtol=1e-5)
    assert_weights(model, before)
    assert int(model.optimizer.iterations) == 0


class WithLayers(keras.Model):
    """A model whose loss depends on masks, weights or a loss of a layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.before = keras.layers.Masking(0.0)
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)

    def call(self, x: Any) -> Any:
        if self.kind == "loss of a layer":
            self.add_loss(0.1 * keras.ops.mean(x))
        return self.dense(self.before(x) if self.kind == "mask" else x)


@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize("kind", ["mask", "weights", "loss of a layer"])
@pytest.mark.first(1)
@pytest.mark.long
def test_masks_weights_and_losses_of_layers_are_those_of_the_global_batch(kind: str, rows: int) -> None:
    """A masked mean divided by the valid entries of one replica; the means of a replica without examples were NaN."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(8, 3, width)).astype("float32") for width in (2, 1))
    x[0, 1:], x[1, 1:], x[4, 2:] = 0.0, 0.0, 0.0
    if kind == "weights":
        x, y = x[:, 2], y[:, 2]
    weights = np.float32([0.0, 0.0, 0.5, 2.0, 0.25, 1.0, 1.0, 3.0])
    reduction = "mean_with_sample_weight" if kind == "weights" else "sum_over_batch_size"

    def trained(replicas: int) -> tuple[Any, ...]:
        with scope(replicas):
            model = WithLayers(kind)
            model.compile(keras.optimizers.SGD(RATE), keras.losses.MeanSquaredError(reduction=reduction))
        given = {"sample_weight": weights[:rows]} if kind == "weights" else {}
        logs = model.fit(x[:rows], y[:rows], batch_size=rows, epochs=2, shuffle=False, verbose=0, **given).history
        return model.dense.get_weights(), logs["loss"]

    expected = trained(1)
    found = trained(4)
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.long
def test_the_statistics_of_batches_ignore_a_replica_without_examples() -> None:
    with scope(4):
        inputs = keras.Input((3,))
        norm = keras.layers.BatchNormalization(momentum=0.5)
        model = Delegating(inputs, keras.layers.Dense(1)(norm(inputs)))
        model.compile(keras.optimizers.SGD(RATE), "mse")
    losses = model.fit(X[:5], Y[:5], batch_size=5, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert all(np.isfinite(one).all() for one in model.get_weights())
    assert np.abs(norm.moving_mean.numpy()).min() > 0


@pytest.mark.parametrize("given", ["schedule", "function"])
@pytest.mark.parametrize("replicas", [None, 2])
def test_a_replaced_schedule_or_a_function_changes_the_rate_of_eager_steps(given: str, replicas: int | None) -> None:
    rates = [1.0]
    constant = keras.optimizers.schedules.PiecewiseConstantDecay
    with scope(replicas):
        strategy = mr.get_strategy()
        variable = keras.Variable(np.float32(10.0))
        optimizer = keras.optimizers.SGD(constant([1000], [1.0, 1.0]) if given == "schedule" else lambda: rates[0])
        optimizer.build([variable])

    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(1.0 / (replicas or 1)), variable)]))

    step()
    if given == "schedule":
        optimizer.learning_rate = constant([1000], [0.1, 0.1])
    rates[0] = 0.1
    step()
    np.testing.assert_allclose(np.asarray(variable.value), 8.9, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean"])
@pytest.mark.parametrize("shape", [(0, 1), (0, 5, 1)], ids=str)
def test_the_loss_of_a_replica_without_examples_is_a_scalar(shape: tuple[int, ...], reduction: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        weight = mr.Variable(2.0)
    loss_fn = keras.losses.MeanSquaredError(reduction=reduction)

    def replica_step() -> Any:
        with mr.GradientTape() as tape:
            loss = loss_fn(jnp.zeros(shape), jnp.zeros(shape) * weight) / 8.0
        return loss, tape.gradient(loss, weight, unconnected_gradients="zero")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)  # of the reduction
        results = strategy.run(replica_step)
    for result in results:
        assert [np.asarray(one).tolist() for one in strategy.experimental_local_results(result)] == [0.0, 0.0]


class TwoOptimizers(keras.Model):
    """As in the guide's GAN: no `call`, an optimizer for each part, metrics of its own, a plain variable."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(1, kernel_initializer="ones")
        self.second = keras.layers.Dense(1, kernel_initializer="ones")
        self.loss_tracker = keras.metrics.Mean(name="first_loss")
        self.steps = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]

    def compile(self, optimizers: list[Any], loss_fn: Any) -> None:
        super().compile()
        self.optimizers, self.loss_fn = optimizers, loss_fn

    @tf.function
    def train_step(self, data: Any) -> Any:
        x, y = data
        for optimizer, layer in zip(self.optimizers, (self.first, self.second), strict=True):
            with tf.GradientTape() as tape:
                loss = self.loss_fn(y, layer(x))
            weights = layer.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            if layer is self.first:
                self.loss_tracker.update_state(loss)
        self.steps.assign_add(1)
        return {"first_loss": self.loss_tracker.result()}


@REPLICAS
@pytest.mark.first(1)
def test_several_optimizers_without_call(replicas: int | None) -> None:
    with scope(replicas):
        model = TwoOptimizers()
        optimizers = [keras.optimizers.SGD(RATE), keras.optimizers.SGD(RATE, momentum=0.9)]
        model.compile(optimizers, keras.losses.MeanSquaredError())
    model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH), epochs=3, verbose=0)
    assert int(model.steps.numpy()) == 6
    assert_weights(model.first, by_hand(3)[0])
    assert_weights(model.second, by_hand(3, momentum=0.9)[0])


class WithoutCall(keras.Model):
    """Its steps call the layer, which the first step builds."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def test_step(self, data: Any) -> Any:
        return {"total": tf.reduce_sum(self.predict_step(data))}

    def predict_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.dense(x)


@REPLICAS
@pytest.mark.parametrize("method", ["predict", "predict_on_batch", "evaluate"])
def test_a_model_without_call_is_built_by_its_step(method: str, replicas: int | None) -> None:
    with scope(replicas):
        model = WithoutCall()
        model.compile()
    data, options = X[:8], {} if "_on_" in method else {"verbose": 0}
    if method == "evaluate":
        assert model.evaluate(data, batch_size=8, return_dict=True, **options)
    else:
        np.testing.assert_allclose(getattr(model, method)(data, **options), data.sum(1, keepdims=True), rtol=1e-5)


class Reconstruct(keras.Model):
    """Its datasets have elements that are no tuples."""

    def call(self, x: Any) -> Any:
        return x

    def train_step(self, images: Any) -> Any:
        assert not isinstance(images, tuple)
        return {"total": tf.reduce_sum(images)}


def test_elements_that_are_no_tuples() -> None:
    with scope(2):
        model = Reconstruct()
        model.compile(optimizer="sgd")
    dataset = tf.data.Dataset.from_tensor_slices(np.ones((8, 2), "float32")).batch(4)
    assert model.fit(dataset, verbose=0).history == {"total": [4.0]}  # the mean over replicas


class Regularized(Guide):
    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return {"part": sum(self.losses)}


@REPLICAS
def test_regularization_counts_once(replicas: int | None) -> None:
    with scope(replicas):
        inputs = keras.Input((3,))
        layer = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
        model = Guide(inputs, layer(inputs))
        model.compile(keras.optimizers.SGD(RATE), "mse")
    model.fit(X[:BATCH], Y[:BATCH], batch_size=BATCH, verbose=0)

    def loss_of(kernel: Any) -> Any:
        return jnp.mean((X[:BATCH] @ kernel - Y[:BATCH]) ** 2) + 0.5 * jnp.sum(kernel**2)

    kernel = jnp.ones((3, 1))
    np.testing.assert_allclose(model.get_weights()[0], kernel - RATE * jax.grad(loss_of)(kernel), rtol=1e-5)


class Branching(Guide):
    def train_step(self, data: Any) -> Any:
        x, y = data
        if tf.reduce_sum(x) > 1e6:  # AutoGraph
            x = x * 0.0
        for _ in tf.range(2):
            x = x + 0.0
        return super().train_step((x, y))


@REPLICAS
def test_autograph_in_train_step(replicas: int | None) -> None:
    with scope(replicas):
        model = model_of(Branching)
    model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert_weights(model, by_hand(2)[0])


class AbsoluteSum(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(shape[-1], 1), initializer="ones", name="w")

    def call(self, x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            result = tf.matmul(x, self.w)
        else:
            result = tf.matmul(-x, self.w)
        return result


class CompiledAbsoluteSum(AbsoluteSum):
    @tf.function
    def call(self, x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            return tf.matmul(x, self.w)
        return tf.matmul(-x, self.w)


@REPLICAS
@pytest.mark.parametrize("layer", [AbsoluteSum, CompiledAbsoluteSum])
@pytest.mark.first(2)
def test_call_with_control_flow_in_fit(layer: type[Any], replicas: int | None) -> None:
    x, y = np.abs(X), np.abs(Y)

    def loss_of(kernel: Any, sign: int) -> Any:
        return jnp.mean((sign * (sign * x) @ kernel - y) ** 2)

    with scope(replicas):
        model = keras.Sequential([layer()])
        model.compile(keras.optimizers.SGD(RATE), "mse")
    kernel = jnp.ones((3, 1))
    for sign in (1, -1):
        model.fit(sign * x, y, batch_size=len(x), verbose=0)
        kernel = kernel - RATE * jax.grad(loss_of)(kernel, sign)
        np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-5)
    inputs = keras.Input((3,))
    assert keras.Model(inputs, layer()(inputs)).output_shape == (None, 1)


@pytest.mark.long
def test_function_on_call_of_a_model() -> None:
    class Compiled(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        @tf.function
        def call(self, x: Any) -> Any:
            return self.dense(x)

    for replicas in (None, 2):
        with scope(replicas):
            model = Compiled()
            model.compile(keras.optimizers.SGD(RATE), "mse")
        model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        assert_weights(model, by_hand(2)[0])
        np.testing.assert_allclose(model(X[:2]), model.predict(X[:2], verbose=0), rtol=1e-5)


def test_callbacks_read_the_newest_weights() -> None:
    seen: list[Any] = []

    class Watching(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(self.model.get_weights()[0].copy())

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = RATE if epoch == 0 else 0.0

    with scope(2):
        model = model_of(Guide)
    model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[Watching()])
    assert len(seen) == 4
    assert not np.array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[1], seen[3])  # the second epoch has the learning rate 0
    np.testing.assert_allclose(seen[1], by_hand(1)[0][0], rtol=1e-5)


def test_compiling_again_uses_the_new_loss() -> None:
    with scope(2):
        model = model_of(Guide, optimizer=keras.optimizers.SGD(0.0))
        first = model.fit(X, Y, batch_size=BATCH, verbose=0).history["loss"]
        model.compile(keras.optimizers.SGD(0.0), "mae", metrics=["mae"])
        second = model.fit(X, Y, batch_size=BATCH, verbose=0).history
    assert first != second["loss"]
    np.testing.assert_allclose(np.asarray(second["loss"]) * 2, second["mae"], rtol=1e-5)


def test_replicas_that_would_diverge_are_refused() -> None:
    class Diverging(Guide):
        def train_step(self, data: Any) -> Any:
            x, _ = data
            self.layers[1].bias.assign(tf.reduce_sum(x, 0)[:1])
            return {}

    with scope(2):
        model = model_of(Diverging)
    before = model.get_weights()
    with pytest.raises(ReplicaDivergenceError):
        model.fit(X, Y, batch_size=BATCH, verbose=0)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


class Measured(keras.Model):
    """TensorFlow's signature, Keras' own steps."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)

    def test_step(self, data: Any) -> Any:
        return super().test_step(data)


@pytest.mark.long
@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_logs_of_a_batch_are_the_metrics_results_over_all_replicas(eager: bool) -> None:
    labels = np.array([[1.0]] * 2 + [[0.0]] * 5, np.float32)  # all positives are on the first replica
    with scope(2):
        metrics = [keras.metrics.Recall(name="recall"), "mae"]
        model = model_of(Measured, metrics=metrics, run_eagerly=eager)
    predicted = X[:7].sum(1, keepdims=True)
    recall = np.mean(predicted[:2] > 0.5)
    expected = [np.mean((predicted - labels) ** 2), recall, np.abs(predicted - labels).mean()]
    seen: list[list[float]] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append([logs[name] for name in ("loss", "recall", "mae")])
    )
    np.testing.assert_allclose(model.test_on_batch(X[:7], labels), expected, rtol=1e-5)
    model.fit(X[:7], labels, batch_size=7, verbose=0, callbacks=[callback])
    np.testing.assert_allclose(seen[0], expected, rtol=1e-5)


def test_a_scalar_in_a_batch_is_refused_by_name() -> None:
    with scope(2):
        model = model_of(Measured)
    with pytest.raises(StructureError, match=r"(?s)train_on_batch: the leaf element\[1\] is a scalar.*batch dim"):
        model.train_on_batch(X, np.float32(1))
