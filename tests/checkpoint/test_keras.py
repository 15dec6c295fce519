"""Keras models, optimizers and metrics in checkpoints."""

from __future__ import annotations

import contextlib
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointReader
from mirrored.integrations.keras import keras

# Keras' own `numpy()` calls NumPy in a way that NumPy 2 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


class Training:
    def __init__(self, replicas):
        self.strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else None
        layers = keras.layers
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            self.model = keras.Sequential(
                [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)]
            )
            self.optimizer, self.metric = keras.optimizers.Adam(0.01), keras.metrics.Mean()
        self.checkpoint = Checkpoint(model=self.model, optimizer=self.optimizer, metric=self.metric)

    def step(self):
        def replica_step():
            with mr.GradientTape() as tape:
                loss = jnp.sum(self.model(np.ones((3, 4), np.float32), training=True) ** 2)
            self.metric.update_state(loss)
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

        self.strategy.run(replica_step)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    training = Training(2)
    training.step()
    training.step()
    return training, training.checkpoint.save(tmp_path_factory.mktemp("keras") / "c")


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_restores_on_any_number_of_replicas(saved, replicas):
    source, path = saved
    target = Training(replicas)
    target.checkpoint.restore(path).assert_consumed()
    for here, there in zip(target.model.trainable_variables, source.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(here.numpy(), there.numpy())
    for here, there in zip(target.optimizer.variables, source.optimizer.variables, strict=True):
        np.testing.assert_array_equal(here.numpy(), there.numpy())
    np.testing.assert_allclose(float(target.metric.result()), float(source.metric.result()), rtol=1e-6)
    assert all(one.mirrored.num_replicas == replicas for one in target.optimizer.variables)


def test_restores_without_a_strategy(saved):
    source, path = saved
    target = Training(0)
    target.checkpoint.restore(path).assert_consumed()
    for here, there in zip(target.model.variables, source.model.variables, strict=True):
        if "seed" not in here.path:
            np.testing.assert_allclose(here.numpy(), there.numpy(), rtol=1e-6)


def test_names_do_not_depend_on_how_many_layers_were_made_before(saved):
    _, path = saved
    names = CheckpointReader(path).names
    assert {"model/layers/0/kernel", "model/layers/1/moving_mean", "model/layers/3/bias"} <= set(names)
    assert {"optimizer/iteration", "optimizer/slots/0/0", "metric/total"} <= set(names)


def test_subclassed_model_goes_by_attributes(tmp_path):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.layers.Dense(3)
            self.blocks = [keras.layers.Dense(2)]

        def call(self, x):
            return self.blocks[0](self.encoder(x))

    source, target = Net(), Net()
    for net in (source, target):
        net(np.ones((1, 2), np.float32))
    path = Checkpoint(source).write(tmp_path / "c")
    assert set(CheckpointReader(path).names) == {
        "encoder/kernel", "encoder/bias", "blocks/0/kernel", "blocks/0/bias"
    }  # fmt: skip
    Checkpoint(target).restore(path).assert_consumed()
    np.testing.assert_array_equal(target.encoder.kernel.numpy(), source.encoder.kernel.numpy())
