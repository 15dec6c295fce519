"""Trains, until a worker of it is gone."""

from __future__ import annotations

import sys
import time

import jax.numpy as jnp

import mirrored as mr

strategy = mr.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id


@mr.function
def step():
    def replica_step():
        return mr.get_replica_context().all_reduce("SUM", jnp.ones(3))

    return strategy.reduce("SUM", strategy.run(replica_step), axis=None)


for number in range(10_000):
    if number < 5 or sys.argv[1] != "alone":
        float(step()[0])
    if number == 10:
        print("READY", flush=True)
    if number == 20 and sys.argv[1] == "fails" and worker == 1:
        raise ValueError("the loss is not a number")
    time.sleep(0.01)
