"""A compiled step of a Keras and of a Flax NNX model on virtual replicas of one GPU, equal to a single replica's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest

import mirrored as mr
from on_gpu.programs import REPLICAS, strategy_of

pytestmark = [
    pytest.mark.gpu,
    # Keras' own `numpy()` calls NumPy in a way that NumPy 2 has deprecated.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
STEPS = 3


def examples() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
    return x, x.sum(1, keepdims=True)


def losses_of(strategy: Any, replica_step: Any) -> list[float]:
    """Of some compiled steps over the distributed batch."""

    @mr.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    with jax.default_matmul_precision("highest"):
        return [float(step(x, y)) for x, y in strategy.distribute_dataset([examples()] * STEPS)]


def by_nnx(replicas: int) -> list[float]:
    nnx = pytest.importorskip("flax.nnx")
    strategy = strategy_of(replicas)
    with strategy.scope():
        rngs = nnx.Rngs(0)
        model = nnx.Sequential(nnx.Linear(6, 8, rngs=rngs), nnx.relu, nnx.Linear(8, 1, rngs=rngs))
        optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)

    def replica_step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(((model(x) - y) ** 2)[:, 0])
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))
        return loss

    return losses_of(strategy, replica_step)


def by_keras(replicas: int) -> list[float]:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(3)
    strategy = strategy_of(replicas)
    with strategy.scope():
        layers = [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.LayerNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)

    def replica_step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(((model(x, training=True) - y) ** 2)[:, 0])
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return losses_of(strategy, replica_step)


@pytest.mark.parametrize("train", [by_nnx, by_keras], ids=["nnx", "keras"])
def test_virtual_replicas_train_like_one(train):
    np.testing.assert_allclose(train(REPLICAS), train(1), rtol=1e-4)
