"""`mirrored` variables that are attributes of Keras layers are ordinary weights of the layer."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from integrations.keras_models import scope
from mirrored.errors import TransformError
from mirrored.integrations.keras import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
X = np.linspace(-2, 2, 64, dtype=np.float32)[:, None]
Y = 3 * X + 2


class Line(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.w = mr.Variable(5.0, name="w")
        self.inner = {"b": [mr.Variable(0.0, name="b")]}
        self.calls = mr.Variable(0.0, trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        return self.w * x + self.inner["b"][0]


def made(replicas: int | None) -> Any:
    with scope(replicas):
        model = Line()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("replicas", [None, 1, 4])
def test_fit_trains_them(replicas: int | None) -> None:
    model = made(replicas)
    losses = model.fit(X, Y, epochs=5, batch_size=16, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.1 * losses[0]
    np.testing.assert_allclose([model.w.numpy(), model.inner["b"][0].numpy()], [3, 2], atol=0.3)
    assert float(model.calls.numpy()) == 20.0


def test_the_same_numbers_as_keras_own_variables() -> None:
    class OwnLine(keras.Model):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(), initializer=keras.initializers.Constant(5.0))
            self.b = self.add_weight(shape=(), initializer="zeros")

        def call(self, x: Any) -> Any:
            return self.w * x + self.b

    own = OwnLine()
    own.compile(keras.optimizers.SGD(0.1), "mse")
    models = [own, made(None), made(2)]
    losses = [model.fit(X, Y, epochs=3, batch_size=16, shuffle=False, verbose=0).history["loss"] for model in models]
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)


def test_evaluate_predict_and_weights(tmp_path: Any) -> None:
    model, other = made(2), made(None)
    model.fit(X, Y, epochs=1, batch_size=16, verbose=0)
    model.save_weights(str(tmp_path / "line.weights.h5"))
    other(X)
    other.load_weights(str(tmp_path / "line.weights.h5"))
    np.testing.assert_allclose(other.w.numpy(), model.w.numpy())
    np.testing.assert_allclose(other.predict(X, verbose=0), np.asarray(model(X)), rtol=1e-5, atol=1e-6)
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(float(np.mean((np.asarray(model(X)) - Y) ** 2)), rel=1e-5)
    assert [one.shape for one in model.trainable_variables] == [(), ()]
    assert len(model.variables) == 3


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.first(2)
def test_a_custom_loop_over_the_models_variables(replicas: int, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model, optimizer = Line(), keras.optimizers.SGD(0.1)

    def replica_step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss((model(x) - y) ** 2)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return gradients

    def step() -> Any:
        return strategy.run(replica_step, args=(jnp.asarray(X), jnp.asarray(Y)))

    (mr.function(step) if compiled else step)()
    expected = np.stack([np.mean(2 * (5 * X - Y) * X), np.mean(2 * (5 * X - Y))])
    now = np.stack([model.w.numpy(), model.inner["b"][0].numpy()])
    np.testing.assert_allclose(now, [5, 0] - 0.1 * expected, rtol=1e-4)


def test_a_variable_that_no_layer_has_is_read_but_not_assigned() -> None:
    outside = mr.Variable(2.0, name="outside")
    assigned: list[float] = []

    class Using(Line):
        def call(self, x: Any) -> Any:
            for one in assigned:
                outside.assign(one)
            return super().call(x) * outside

    model = Using()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(X, Y, verbose=0)
    for value in (2.0, 3.0):
        outside.assign(value)
        expected = np.mean((np.asarray(model(X)) - Y) ** 2)
        assert model.evaluate(X, Y, verbose=0) == pytest.approx(expected, rel=1e-5)
    assigned.append(4.0)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    with pytest.raises(TransformError, match="'outside' was assigned under a JAX transform"):
        model.fit(X, Y, verbose=0)


def test_it_is_saved_by_checkpoints(tmp_path: Any) -> None:
    model, other = made(2), made(None)
    model.w.assign(7.0)
    path = mr.checkpoint.Checkpoint(model=model).save(str(tmp_path / "c"))
    mr.checkpoint.Checkpoint(model=other).restore(path)
    assert float(other.w.numpy()) == 7.0


def test_a_layer_that_makes_its_variables_in_build_or_in_its_first_call() -> None:
    class Dense(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, units: int) -> None:
            super().__init__()
            self.units = units

        def build(self, shape: Any) -> None:
            self.w = mr.Variable(jnp.ones((shape[-1], self.units)), name="w")

        def call(self, x: Any) -> Any:
            return jnp.matmul(x, self.w.read_value())

    inputs = keras.Input((3,))
    functional = keras.Model(inputs, Dense(2)(Dense(4)(inputs)))
    sequential = keras.Sequential([Dense(4), Dense(2)])
    for model in (functional, sequential):
        np.testing.assert_allclose(model(np.ones((5, 3), np.float32)), np.full((5, 2), 12.0))
        assert [one.shape for one in model.trainable_variables] == [(3, 4), (4, 2)]
        model.compile(keras.optimizers.SGD(0.001), "mse")
        losses = model.fit(np.ones((8, 3)), np.zeros((8, 2)), epochs=2, verbose=0).history["loss"]
        assert losses[1] < losses[0]


def test_the_loss_scale_of_a_keras_optimizer_outside_of_a_scope_is_read_under_grad() -> None:
    """It was made after a scope had been opened, but belongs to no strategy: it works as in Keras."""
    with scope(2):
        pass
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    optimizer.build([keras.Variable(1.0)])
    gradient = jax.grad(lambda w: optimizer.scale_loss(w**2))
    np.testing.assert_allclose(gradient(3.0), 48.0)
    np.testing.assert_allclose(jax.vmap(gradient)(jnp.arange(3.0)), [0.0, 16.0, 32.0])
    optimizer.dynamic_scale.assign(2.0)
    np.testing.assert_allclose(gradient(3.0), 12.0)
    with pytest.raises(TransformError, match="was read under a JAX transform"):
        jax.jit(gradient)(3.0)


@pytest.mark.long
def test_spectral_normalization_outside_of_a_scope_works_under_grad() -> None:
    with scope(2):
        pass
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(2))
    layer.build((None, 3))
    x = np.ones((4, 3), np.float32)
    fixed = [variable.value for variable in layer.non_trainable_variables]

    def loss(weights: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        output, state = layer.stateless_call(weights, fixed, x, training=True)
        return jnp.sum(output**2), state

    gradients, state = jax.grad(loss, has_aux=True)([variable.value for variable in layer.trainable_variables])
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert not np.allclose(state[0], fixed[0])
