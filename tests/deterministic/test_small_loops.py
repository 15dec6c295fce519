"""`deterministic=True` with small loops in the program: XLA compiles them in another way on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

BATCH, STEPS, TRIALS = 8, 2, 6


def several_steps(devices: int, seed: int) -> bytes:
    """The weights after one call of several steps of Adam with clipping by the global norm."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=2, deterministic=True)
    draw = np.random.default_rng(seed)
    initial = [draw.normal(size=shape).astype(np.float32) / 2 for shape in ((3, 1), (1,))]
    x = draw.normal(size=(STEPS * BATCH, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32) + np.float32(0.1)
    with strategy.scope():
        w, b = (mr.Variable(value) for value in initial)
        optimizer = mr.optimizers.Adam(0.05, epsilon=1e-3, global_clipnorm=0.5)

    def replica(x: Any, y: Any) -> None:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss((x @ w + b - y)[:, 0] ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))

    step = mr.function(lambda x, y: strategy.run(replica, args=(x, y)), steps_per_call=STEPS)
    batches = [(x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, len(x), BATCH)]
    step(list(strategy.experimental_distribute_dataset(batches)))
    return w.numpy().tobytes() + b.numpy().tobytes()


def loop_in_the_replica(devices: int, seed: int) -> bytes:
    """The weights after a step whose loss is computed by a small scan."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=2, deterministic=True)
    draw = np.random.default_rng(seed)
    start, x = draw.normal(size=(3, 3)).astype(np.float32) / 2, draw.normal(size=(BATCH, 3)).astype(np.float32)
    with strategy.scope():
        w = mr.Variable(start)
        optimizer = mr.optimizers.Adam(0.05, global_clipnorm=0.5)

    def replica(x: Any) -> None:
        with mr.GradientTape() as tape:
            end, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w + 0.3 * h), None), x, None, length=3)
            loss = mr.losses.average_loss((end**2).sum(axis=1))
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    step = mr.function(lambda x: strategy.run(replica, args=(x,)))
    (batch,) = strategy.experimental_distribute_dataset([x])
    step(batch)
    step(batch)
    return w.numpy().tobytes()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("train", [several_steps, loop_in_the_replica])
@pytest.mark.long
def test_small_loops_have_the_same_bits_on_one_and_two_devices(train: Callable[[int, int], bytes]) -> None:
    different = [seed for seed in range(TRIALS) if train(1, seed) != train(2, seed)]
    assert different == []
