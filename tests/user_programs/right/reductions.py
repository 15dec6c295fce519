"""Reductions by name, and the components of what `run` returns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import mirrored as mr
import mirrored.tf as tf

strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
tf_strategy = tf.distribute.MirroredStrategy(["CPU:0"], num_replicas=2)


class Largest(mr.ReduceOp):
    """A reduction without arguments."""

    def __call__(self, per_replica: jax.Array) -> jax.Array:
        return jnp.max(per_replica, axis=0)


class Quantile(mr.ReduceOp):
    """A reduction with arguments of its own."""

    def __init__(self, q: float) -> None:
        super().__init__()
        self.q = q

    def __call__(self, per_replica: jax.Array) -> jax.Array:
        return jnp.quantile(per_replica, self.q, axis=0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantile) and other.q == self.q

    def __hash__(self) -> int:
        return hash(self.q)


def replica_id() -> jax.Array:
    return jnp.float32(mr.get_replica_context().replica_id_in_sync_group)


by_name: mr.ReduceOp = mr.ReduceOp("sum")
ops: list[mr.ReduceOp] = [by_name, mr.ReduceOp("MEAN"), mr.ReduceOp["SUM"], *mr.ReduceOp, Largest(), Quantile(0.5)]
value: mr.PerReplica = strategy.run(replica_id)
components: tuple[Any, ...] = value.values
print([float(strategy.reduce(op, value, axis=None)) for op in ops], components, len(value), value.component_shape)

unannotated = strategy.run(replica_id)
first, second = unannotated.values
print(first + second, [one.shape for one in strategy.experimental_local_results(unannotated)])

tf_value: tf.distribute.DistributedValues = tf_strategy.run(lambda: tf.constant(1.0))
print(tf_value.values[0] + 1, tf_strategy.reduce(tf.distribute.ReduceOp("mean"), tf_value, axis=None))
