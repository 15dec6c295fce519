"""Warms up a worker before it joins a job, because its slow first step would make the other workers wait."""

from __future__ import annotations

import jax
import numpy as np

from mirrored._jax import distributed, recovery
from mirrored.compilation import function
from mirrored.losses import average_loss
from mirrored.optimizers import Adam
from mirrored.strategies import MirroredStrategy
from mirrored.tape import GradientTape
from mirrored.topology.independent_processes import job_is_formed
from mirrored.variables import Variable

_ROWS = 4


def warm_up() -> None:
    """Warms up Python and JAX by training a small model for one step in this process alone.

    Afterwards it removes JAX's devices, programs and arrays from this process.

    So Python has imported and executed the code of tracing, lowering, compiling and dispatching, and JAX has made the
    tables that do not depend on devices.

    Context: a new process of an elastic job, before it arrives.
    """
    job_is_formed()  # it trains by itself on purpose: no warning of independent processes
    _train()
    distributed.reset_for_another_job()
    for array in recovery.live_arrays():
        array.delete()
    recovery.leave()


def _train() -> None:
    strategy = MirroredStrategy(jax.local_devices()[:1], num_replicas=2, deterministic=True)
    with strategy.scope():
        weights = Variable(np.ones((_ROWS, 1), np.float32), name="weights")
        optimizer = Adam(1e-3)

    @function
    def step(x: jax.Array) -> jax.Array:
        def replica_step(x: jax.Array) -> jax.Array:
            with GradientTape() as tape:
                loss = average_loss((x @ weights.read_value())[:, 0] ** 2)
            gradients = tape.gradient(loss, [weights])
            optimizer.apply_gradients([(gradients[0], weights)])
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, (x,)), axis=None)  # type: ignore[no-any-return]

    batch = strategy.experimental_distribute_values_from_function(
        lambda context: np.full((_ROWS, _ROWS), context.replica_id_in_sync_group, np.float32)
    )
    jax.block_until_ready(step(batch))
