"""The pages' programs without variables, with annotations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr

P: Any = jax.P  # JAX does not annotate it

strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)


def replica_step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss_of(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.asarray(mr.losses.average_loss(((x @ params["w"] - y) ** 2)[:, 0]))

    loss, gradients = jax.value_and_grad(loss_of)(params)
    gradients = mr.get_replica_context().all_reduce("SUM", gradients)
    return jax.tree.map(lambda one, gradient: one - 0.1 * gradient, params, gradients), loss


@mr.function
def train_step(params: dict[str, jax.Array], x: Any, y: Any) -> Any:
    params, loss = strategy.run(replica_step, args=(params, x, y), out_specs=(P(), P("replica")))
    return params, strategy.reduce("SUM", loss, axis=None)


@mr.function(donate=False)
def masked(key: jax.Array, x: jax.Array) -> Any:
    def on_replica(key: jax.Array, x: jax.Array) -> jax.Array:
        key = jax.random.fold_in(key, mr.get_replica_context().replica_id_in_sync_group)
        return jax.random.bernoulli(key, 0.5, x.shape) * x

    return strategy.gather(strategy.run(on_replica, args=(key, x)), axis=0)


params = {"w": jnp.zeros((3, 1))}
x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
for batch in strategy.experimental_distribute_dataset([(x, x[:, :1])] * 2):
    params, loss = train_step(params, *batch)
    print(float(loss))
rows = next(iter(strategy.experimental_distribute_dataset([jnp.ones((64, 8))])))
print(masked(jax.random.key(0), rows).shape, mr.__version__)
