"""The README's program, with annotations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr

strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4)
with strategy.scope():
    w = mr.Variable(jnp.zeros((3, 1)), name="w")
    optimizer = mr.optimizers.Adam(0.1, clipnorm=1.0)


def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
    with mr.GradientTape() as tape:
        loss: jax.Array = mr.losses.average_loss(((x @ w - y) ** 2)[:, 0])
    optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w], strict=True))
    return loss


@mr.function
def train_step(batch: Any) -> Any:
    return strategy.reduce(mr.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)


x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
batches = [(x, x @ np.array([[1.0], [-2.0], [3.0]], np.float32))] * 2
for batch in strategy.experimental_distribute_dataset(batches):
    print(f"loss {train_step(batch):.2e}, on {strategy.num_replicas_in_sync} replicas")
print(w.numpy().ravel().round(2))
