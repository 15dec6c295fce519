"""Trains until it is told to end, and goes on where it has ended: ``preempted.py FOLDER STEPS SECONDS``."""

from __future__ import annotations

import json
import sys
import time

import jax.numpy as jnp

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager

folder, steps, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
strategy = mr.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = mr.Variable(0.0, name="total")
manager = CheckpointManager(Checkpoint(total=total), folder, save_interval_steps=1000, save_on_preemption=True)
start = manager.restore_latest() or 0
print("START", start, float(total.numpy()), flush=True)


@mr.function
def step(x):
    def replica(y):
        return total.assign_add(mr.get_replica_context().all_reduce("SUM", y))

    return strategy.run(replica, args=(x,))


one = strategy.distribute_values_from_function(lambda context: jnp.float32(1.0))
for number in range(start + 1, steps + 1):
    step(one)
    time.sleep(seconds)
    manager.save(number)
    if number % 10 == 0:
        print("STEP", number, flush=True)
print("RESULT", json.dumps([start, float(total.numpy())]), flush=True)
