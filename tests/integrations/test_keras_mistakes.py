"""Common mistakes in custom loops with Keras raise errors or warnings that name the remedy."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from integrations.keras_models import build
from mirrored.errors import ReplicaDivergenceError
from mirrored.integrations.keras import LossReductionWarning, keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


def run_loss(loss_fn: Any, replicas: int, tape: bool = True) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])

    def replica_step() -> Any:
        if not tape:
            return loss_fn(np.ones((2, 1)), np.zeros((2, 1)))
        with mr.GradientTape():
            return loss_fn(np.ones((2, 1)), np.zeros((2, 1)))

    strategy.run(replica_step)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", "mean_with_sample_weight"])
def test_a_loss_that_is_averaged_per_replica_is_warned_of_once(reduction: str) -> None:
    loss_fn = keras.losses.MeanSquaredError(reduction=reduction)
    with pytest.warns(LossReductionWarning, match=r"2 times too large(.|\n)*reduction=None(.|\n)*average_loss"):
        run_loss(loss_fn, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_loss(loss_fn, 2)


@pytest.mark.parametrize(
    ("reduction", "replicas", "tape"), [(None, 2, True), ("sum", 2, True), ("mean", 1, True), ("mean", 2, False)]
)
def test_right_losses_are_not_warned_of(reduction: str | None, replicas: int, tape: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_loss(keras.losses.MeanSquaredError(reduction=reduction), replicas, tape)


def test_fit_is_not_warned_of() -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        model = build("dense")
        model.compile("sgd", keras.losses.MeanSquaredError())
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossReductionWarning)
        model.fit(np.ones((4, 6, 4)), np.ones((4, 1)), verbose=0)


@pytest.mark.parametrize("replicas", [None, 1, 2])
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.first(2)
def test_the_keys_of_dicts_are_no_gradients_and_no_variables(replicas: int | None, built: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        v = keras.Variable(np.ones(2, np.float32), name="v")
        optimizer = keras.optimizers.SGD(0.5)
        if built:
            optimizer.build([v])
    gradient = np.ones(2, np.float32)
    named = r"SGD.apply_gradients\(\[\(gradients\[name\], variables\[name\]\) for name in variables\]\)"
    calls: list[Callable[[], Any]] = [
        lambda: optimizer.apply_gradients(zip({"v": gradient}, {"v": v}, strict=True)),
        lambda: optimizer.apply_gradients(zip({"v": gradient}, [v], strict=True)),
        lambda: optimizer.apply_gradients(zip([gradient], {"v": v}, strict=True)),
        lambda: optimizer.apply({"v": gradient}, {"v": v}),
        lambda: optimizer.apply_gradients([({"v": gradient}, {"v": v})]),
        lambda: optimizer.apply_gradients([([gradient], [v])]),
    ]
    for call in calls:
        with pytest.raises(mr.errors.StructureError, match=named):
            strategy.run(call) if strategy else call()
    np.testing.assert_array_equal(np.asarray(v), 1.0)


@pytest.mark.parametrize("replicas", [None, 2])
def test_an_optimizer_of_mirrored_refuses_keras_variables(replicas: int | None) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        v = keras.Variable(np.ones(2, np.float32), name="v")
        optimizer = mr.optimizers.SGD(0.5)
    for call in (lambda: optimizer.apply_gradients([(np.ones(2, np.float32), v)]), lambda: optimizer.build([v])):
        with pytest.raises(mr.errors.StructureError, match=r"Variable 'v' of Keras(.|\n)*keras\.optimizers\.SGD"):
            strategy.run(call) if strategy else call()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_variable_in_two_pairs(devices: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices])
    with strategy.scope():
        shared, optimizer = keras.Variable(np.float32(10.0), name="shared"), keras.optimizers.SGD(1.0)
        optimizer.build([shared])
    with pytest.raises(mr.errors.ArgumentError, match="variable 'shared' was passed twice"):
        strategy.run(lambda: optimizer.apply_gradients([(np.float32(1.0), shared), (np.float32(2.0), shared)]))
    assert float(shared.value) == 10.0


@pytest.mark.first(6)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("replicas", [None, 1, 2])
@pytest.mark.parametrize("make", [tf.Variable, keras.Variable])
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_keras_optimizer_refuses_complex_variables(make: Any, replicas: int | None, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        weight, unused = make(np.complex64(3 + 4j)), make(np.complex64(1j))
        scale = make(np.float32(2.0))
        optimizer = keras.optimizers.SGD(0.1, clipnorm=1.0)
        optimizer.build([weight, unused, scale])

    def step(of_weight: bool) -> None:
        with mr.GradientTape() as tape:
            loss = tf.abs(tf.convert_to_tensor(weight)) ** 2 * tf.convert_to_tensor(scale)
        of_scale, of_complex = tape.gradient(loss, [scale, weight])
        optimizer.apply_gradients([(of_complex if of_weight else None, weight), (None, unused), (of_scale, scale)])

    def train(of_weight: bool) -> None:
        run = strategy.run if strategy else lambda function, args: function(*args)
        run(step, args=(of_weight,))

    called = mr.function(train) if compiled else train
    with pytest.raises(mr.errors.ArgumentTypeError, match=r"SGD\.apply_gradients(.|\n)*complex64(.|\n)*mirrored\.opt"):
        called(True)
    called(False)


@pytest.mark.parametrize("deterministic", [False, True])
def test_fit_refuses_complex_variables(deterministic: bool) -> None:
    class Scaled(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(2,), dtype="complex64", initializer="ones")

        def call(self, x: Any) -> Any:
            return tf.abs(tf.cast(x, tf.complex64) * tf.convert_to_tensor(self.scale))

    with mr.MirroredStrategy(jax.devices()[:2], deterministic=deterministic).scope():
        model = keras.Sequential([keras.Input((2,)), Scaled()])
        model.compile("sgd", "mse")
    with pytest.raises(mr.errors.ArgumentTypeError, match=r"SGD\.apply_gradients(.|\n)*complex64"):
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.first(1)
@pytest.mark.long
def test_one_optimizer_over_two_models(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        first, second = keras.layers.Dense(1), keras.layers.Dense(1)
        for layer in (first, second):
            layer.build((None, 2))
        optimizer = keras.optimizers.Adam(0.1)

    def train(layer: Any) -> None:
        with mr.GradientTape() as tape:
            loss = layer(np.ones((2, 2), np.float32)).sum()
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def step() -> None:
        strategy.run(lambda: (train(first), train(second)))

    step = mr.function(step) if compiled else step
    with pytest.raises(mr.errors.ArgumentError, match=r"optimizer.build\(first_model.trainable_variables \+ second"):
        step()
    with strategy.scope():
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build(first.trainable_variables + second.trainable_variables)
    before = [np.asarray(layer.kernel) for layer in (first, second)]
    step = mr.function(lambda: strategy.run(lambda: (train(first), train(second)))) if compiled else step
    step()
    assert all(
        np.abs(np.asarray(layer.kernel) - old).max() > 0 for layer, old in zip((first, second), before, strict=True)
    )
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_integers_that_do_not_fit_on_devices_are_refused(deterministic: bool, method: str) -> None:
    # Keras converts 64-bit integers with `jnp.asarray`, which keeps the lowest 32 bits.
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2, deterministic=deterministic)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((2,), dtype="int64"), keras.layers.Lambda(lambda x: x % 7)])
        model.compile("sgd", "mse", jit_compile=False)
    ids = np.array([[1, 2**40], [3, 4]])
    arguments = (ids,) if method == "predict" else (ids, np.zeros((2, 2)))
    with pytest.raises(mr.errors.ArgumentError, match=r"do not fit into int32(.|\n)*JAX_ENABLE_X64"):
        getattr(model, method)(*arguments, verbose=0)


def test_a_seed_generator_of_all_replicas_in_a_branch_that_one_replica_takes() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    seeds = keras.random.SeedGenerator(1)  # outside of the scope, so that the replicas share it

    def step(x: Any) -> Any:
        return tf.cond(x[0] > 0, lambda: x + keras.random.normal((1,), seed=seeds), lambda: x)

    batch = strategy.experimental_distribute_values_from_function(
        lambda context: np.full(1, context.replica_id_in_sync_group, np.float32)
    )
    with pytest.raises(ReplicaDivergenceError, match="all replicas must draw equally often") as raised:
        mr.function(lambda: strategy.run(step, (batch,)))()
    assert "draw before the branch" in str(raised.value)


class ReadsOnHost(keras.layers.Layer):  # type: ignore[misc]
    """A layer that converts its input, which is traced, to a NumPy array."""

    def call(self, x: Any) -> Any:
        return np.asarray(x)


class Decides(keras.layers.Layer):  # type: ignore[misc]
    """A layer with a condition on its input."""

    def call(self, x: Any) -> Any:
        return [one for one in (x, -x) if x.sum() > 0][0]


@pytest.mark.parametrize(
    ("layer", "error"),
    [(ReadsOnHost, jax.errors.TracerArrayConversionError), (Decides, jax.errors.TracerBoolConversionError)],
)
@pytest.mark.parametrize(
    "call_with",
    [
        lambda layer: layer(keras.Input((3,))),
        lambda layer: mr.function(lambda x: layer(x))(np.ones((2, 3), np.float32)),
    ],
    ids=["inferring shapes", "compiled"],
)
def test_an_error_about_a_traced_value_in_a_layer_is_shown(layer: Any, error: Any, call_with: Any) -> None:
    """Keras calls the class of an error with a message, but JAX's take a tracer: an AttributeError hid the error."""
    shown = f"Exception encountered when calling {layer.__name__}.call(.|\n)*(conversion|converted)"
    with pytest.raises(error, match=shown) as raised:
        call_with(layer())
    assert type(raised.value).__name__ == error.__name__
