"""Batch statistics over all replicas: `SyncBatchNormalization` and ``synchronized=True``."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.integrations.keras import SyncBatchNormalization, keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
X = np.random.default_rng(0).normal(3.0, 2.0, size=(8, 5, 3)).astype("float32")


def make(kind: str) -> Any:
    """The layer in the three ways of writing it."""
    layers = keras.layers
    layer = {
        "class": lambda: SyncBatchNormalization(momentum=0.5),
        "option": lambda: layers.BatchNormalization(momentum=0.5, synchronized=True),
        "experimental": lambda: layers.experimental.SyncBatchNormalization(momentum=0.5),
        "plain": lambda: layers.BatchNormalization(momentum=0.5),
    }[kind]()
    layer.build((None, 5, 3))
    return layer


def on_one_device(mask: Any = None) -> tuple[np.ndarray, Any]:
    layer = make("plain")
    return np.asarray(layer(X, training=True, mask=mask)), layer


@pytest.mark.parametrize(
    ("kind", "compiled"), [("class", False), ("class", True), ("option", True), ("experimental", False)]
)
@pytest.mark.first(1)
@pytest.mark.long
def test_statistics_are_those_of_the_whole_batch(kind: str, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:4])
    with strategy.scope():
        layer = make(kind)

    def step(x: Any) -> Any:
        return strategy.gather(strategy.run(lambda x: layer(x, training=True), args=(x,)), 0)

    result = (mr.function(step) if compiled else step)(*strategy.distribute_dataset([X]))
    expected, alone = on_one_device()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.moving_variance.numpy(), alone.moving_variance.numpy(), rtol=1e-5)
    np.testing.assert_allclose(layer.moving_mean.numpy(), alone.moving_mean.numpy(), rtol=1e-5)


@pytest.mark.long
def test_uneven_shares_and_masks_count_by_their_examples() -> None:
    mask = np.arange(8 * 5).reshape(8, 5) % 3 > 0
    strategy = mr.MirroredStrategy(jax.devices()[:3])
    with strategy.scope():
        layer = make("class")
    batch = next(iter(strategy.distribute_dataset([(X, mask)])))
    parts = strategy.run(lambda x, m: layer(x, training=True, mask=m), args=batch)
    result = np.concatenate([np.asarray(part) for part in strategy.local_results(parts)])
    np.testing.assert_allclose(result, on_one_device(mask)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_gradients_flow_through_the_statistics() -> None:
    weights = np.random.default_rng(1).normal(size=X.shape).astype("float32")
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        layer = make("class")

    def replica_step(x: Any, w: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            loss = (layer(x, training=True) * w).sum()
        return tape.gradient(loss, x)

    @mr.function
    def step(x: Any, w: Any) -> Any:
        return strategy.gather(strategy.run(replica_step, args=(x, w)), 0)

    gradients = step(*next(iter(strategy.distribute_dataset([(X, weights)]))))
    alone = make("plain")
    trainable = [variable.value for variable in alone.trainable_variables]
    variables = [variable.value for variable in alone.non_trainable_variables]

    def loss(x: Any) -> Any:
        return (alone.stateless_call(trainable, variables, x, training=True)[0] * weights).sum()

    np.testing.assert_allclose(gradients, jax.grad(loss)(X), rtol=1e-4, atol=1e-4)


def test_the_facade_has_the_layer_where_tensorflow_has_it() -> None:
    assert tf.keras.layers.experimental.SyncBatchNormalization is SyncBatchNormalization


def test_the_layer_is_saved_and_loaded(tmp_path: Any) -> None:
    for kind in ("class", "option"):
        model = keras.Sequential([keras.Input((5, 3)), make(kind)])
        model.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras")
        assert loaded.layers[0].synchronized
        np.testing.assert_allclose(loaded(X), model(X), rtol=1e-6)


def spectral_training(replicas: int, compiled: bool) -> tuple[list[float], list[np.ndarray]]:
    """A custom loop with `SpectralNormalization`, and batches of which some replicas get no example."""
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        keras.utils.set_random_seed(3)
        body = keras.layers.SpectralNormalization(keras.layers.Dense(4))
        model = keras.Sequential([keras.Input((3,)), body, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)

    def replica_step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(((model(x, training=True) - 1.0) ** 2)[:, 0])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    train = mr.function(step) if compiled else step
    batches = [X[:, 0], X[:3, 1], X[:, 2]]
    losses = [float(train(x)) for x in strategy.experimental_distribute_dataset(batches)]
    return losses, model.get_weights()


@pytest.mark.parametrize(("replicas", "compiled"), [(2, True), (4, True), (4, False)])
@pytest.mark.first(1)
@pytest.mark.long
def test_spectral_normalization_has_the_state_of_one_device(replicas: int, compiled: bool) -> None:
    """Its state depends on the weights only; as statistics of each replica they would make the weights differ."""
    expected_losses, expected = spectral_training(1, True)
    losses, weights = spectral_training(replicas, compiled)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
