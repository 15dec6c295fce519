"""Uses each public module."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr
import mirrored.data
from mirrored.checkpoint import CheckpointManager
from mirrored.errors import ArgumentError, MirroredError


@dataclasses.dataclass(frozen=True)
class Largest(mr.ReduceOp):
    """A reduction of one's own."""

    def __call__(self, per_replica: jax.Array) -> jax.Array:
        return jnp.max(per_replica, axis=0)


def norm(value: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(value)))


strategy: mr.Strategy = mr.MirroredStrategy(
    ["CPU:0"], mr.collectives.HierarchicalCopyAllReduce(num_packs=2), num_replicas=2
)
with strategy.scope():
    v = mr.Variable(
        [1.0, 2.0],
        trainable=True,
        name="v",
        synchronization=mr.VariableSynchronization.ON_WRITE,
        aggregation=mr.VariableAggregation.MEAN,
    )
    optimizers: list[mr.optimizers.Optimizer] = [
        mr.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        mr.optimizers.AdamW(1e-3, weight_decay=0.01, global_clipnorm=1.0),
        mr.optimizers.RMSprop(learning_rate=lambda step: 0.1 / (step + 1), name="rms"),
    ]

print(norm(v), jnp.dot(v, v), -v * 2 + v[0] > 1, v.shape.as_list(), float(v.read_value().sum()), v.mean())
v.assign(v + 1)
v.assign_add([1.0, 1.0])

with mr.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
    tape.watch(v)
    y = (v * v).sum()
(gradient,) = tape.gradient(y, [v], unconnected_gradients=mr.UnconnectedGradients.ZERO)
optimizers[0].apply_gradients([(gradient, v)])


@mr.custom_gradient
def clipped(x: jax.Array) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    return x, lambda upstream: jnp.clip(upstream, -1.0, 1.0)


largest: Any = strategy.reduce(Largest(), strategy.run(lambda: v.read_value()), axis=None)
dataset = mr.data.Dataset.from_tensor_slices({"x": np.ones((8, 2))}).shuffle(8, seed=0).repeat(2).batch(4)
options = mirrored.data.InputOptions(experimental_fetch_to_device=False)
for batch in strategy.experimental_distribute_dataset(dataset, options):
    print(batch["x"])
bar: mr.Progress[int] = mr.progress(range(3), total=3, description="epoch")
for index in bar:
    bar.show(index=index + 1, norm=norm(y))
checkpoint = mr.checkpoint.Checkpoint(v=v, optimizer=optimizers[0])
with tempfile.TemporaryDirectory() as folder:
    manager = CheckpointManager(checkpoint, folder, max_to_keep=2)
    manager.save()
    manager.restore_newest(partial=True)
    manifest: mr.checkpoint.Manifest = mr.checkpoint.read_manifest(checkpoint.save(f"{folder}/once"))
    print(manifest.shape_and_dtype["v"])
try:
    mr.Variable()
except (ArgumentError, mr.errors.ContextError) as error:
    known: MirroredError = error
    print(known)
cluster = mr.cluster.ClusterSpec({"worker": ["localhost:1"]})
print(cluster.num_tasks("worker"), mr.has_strategy(), mr.get_strategy(), mr.in_cross_replica_context(), clipped(y))
print([op.name for op in mr.ReduceOp], mr.config.virtual_kind(), mr.testing.WAYS, largest)
