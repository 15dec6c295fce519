"""Counts steps together until a file is there: ``counting.py file``."""

from __future__ import annotations

import json
import os
import sys
import time

import jax
import jax.numpy as jnp

import mirrored as mr
from mirrored._jax import distributed

strategy = mr.MultiWorkerMirroredStrategy()
with strategy.scope():
    count = mr.Variable(0.0)
print("COORDINATOR", distributed.address().rpartition(":")[2], flush=True)


@mr.function
def step(stop):
    def replica_step():
        count.assign_add(1.0)
        return mr.get_replica_context().all_reduce("SUM", stop)

    return strategy.reduce("MEAN", strategy.run(replica_step), axis=None)


for number in range(20_000):
    if float(step(jnp.float32(os.path.exists(sys.argv[1])))) == 1.0 * strategy.num_replicas_in_sync:
        break
    if number == 10:
        print("READY", flush=True)
    time.sleep(0.005)
secure = [bool(getattr(jax.config, f"jax_mtls_{name}_file", None)) for name in ("cert", "ca")]
print("RESULT", json.dumps({"count": float(count.numpy()) > 0, "secure": secure}), flush=True)
