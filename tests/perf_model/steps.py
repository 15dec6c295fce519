"""A small training program whose step the tests plan."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import mirrored as mr

WIDTH, PARAMETERS_BYTES = 16, 4 * (16 * 16 + 16)


def program(devices: int, calls: int = 50, share: int = 8, deterministic: bool = False):
    """A function that trains; each replica has `share` examples."""
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], deterministic=deterministic)
    with strategy.scope():
        w, b = mr.Variable(np.ones((WIDTH, WIDTH), np.float32)), mr.Variable(np.zeros(WIDTH, np.float32))

    @mr.function
    def step(x, rate):
        def replica(x):
            with mr.GradientTape() as tape:
                loss = jnp.square(x @ w + b).mean() / strategy.num_replicas_in_sync
            sums = mr.get_replica_context().all_reduce(mr.ReduceOp.SUM, tape.gradient(loss, [w, b]))
            for variable, total in zip((w, b), sums, strict=True):
                variable.assign_sub(rate * total)
            return loss

        return strategy.run(replica, args=(x,))

    def train():
        x = strategy.distribute_values_from_function(lambda c: np.ones((share, WIDTH), np.float32))
        for _ in range(calls):
            step(x, jnp.float32(0.1))

    return train
