"""What a strategy does, on several workers: each prints what it has seen."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager

strategy = mr.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
found: dict[str, Any] = {
    "replicas": strategy.num_replicas_in_sync,
    "task": [strategy.cluster_resolver.task_type, me],
    "devices": list(strategy.extended.worker_devices),
    "chief": strategy.extended.should_checkpoint,
}


def plain(values: Any) -> Any:
    return jax.tree.map(lambda value: np.asarray(value).tolist(), values)


# Variables: worker 0's value, mean and sync-on-read.
with strategy.scope():
    v = mr.Variable(10.0, name="v", aggregation=mr.VariableAggregation.MEAN)
    drawn = mr.Variable(np.random.default_rng().normal(size=3), name="drawn")
    count = mr.Variable(
        0.0, synchronization=mr.VariableSynchronization.ON_READ, aggregation=mr.VariableAggregation.SUM, name="count"
    )
    own = mr.Variable(0, synchronization=mr.VariableSynchronization.ON_READ, name="own")
found["drawn"] = drawn.numpy().tolist()

ids = strategy.distribute_values_from_function(lambda context: jnp.float32(context.replica_id_in_sync_group))
found["ids"] = plain(strategy.local_results(ids))


def merge(strategy: Any, value: Any) -> Any:
    return strategy.extended.reduce_to("SUM", value, v)


def replica(x: Any) -> Any:
    context = mr.get_replica_context()
    total = context.all_reduce("SUM", {"x": x, "twice": 2 * x})
    mean = context.all_reduce(mr.ReduceOp.MEAN, x)
    everyone = context.all_gather(x[None], 0)
    merged = context.merge_call(merge, args=(x,))
    with mr.GradientTape() as tape:
        tape.watch(x)
        y = context.all_reduce("SUM", x * x)
    count.assign_add(1.0)
    v.assign_add(x)
    return {
        "total": total["twice"],
        "mean": mean,
        "all": everyone,
        "merged": merged,
        "gradient": tape.gradient(y, x),
        "x": x,
    }


@mr.function
def compiled(x: Any) -> Any:
    return strategy.run(replica, args=(x,))


for name, run in {"eager": lambda x: strategy.run(replica, args=(x,)), "compiled": compiled}.items():
    result = run(ids)
    found[name] = {key: plain(strategy.local_results(value)) for key, value in result.items()}
    found[name]["sum"] = float(strategy.reduce("SUM", result["x"], axis=None))
    found[name]["mean over rows"] = float(strategy.reduce("MEAN", result["all"], axis=0))
    found[name]["v"] = float(v.numpy())
    found[name]["count"] = float(count.numpy())
    found[name]["gathered"] = strategy.gather(result["all"], 0).tolist()
own_eager = strategy.run(lambda: own.assign(jnp.int32(mr.get_replica_context().replica_id_in_sync_group)))
found["own"] = [int(component.numpy()) for component in own.values]

# A function as a reduction: its address differs between processes.
with strategy.scope():
    largest = mr.Variable(0.0, aggregation=lambda stacked: jnp.max(stacked, axis=0), name="largest")
strategy.run(lambda x: largest.assign(x), args=(ids,))
found["largest"] = float(largest.numpy())
found["largest id"] = float(strategy.reduce(lambda stacked: jnp.max(stacked, axis=0), ids, axis=None))

# Sizes that differ between replicas, and workers.
ragged = strategy.run(lambda: jnp.full((mr.get_replica_context().replica_id_in_sync_group,), 1.0 + me))
found["ragged"] = strategy.gather(ragged, 0).tolist()
found["ragged, compiled"] = mr.function(lambda: strategy.gather(ragged, 0) * 2)().tolist()
try:
    strategy.run(lambda: mr.get_replica_context().all_gather(jnp.zeros((1, 1 + me)), 0))
except mr.errors.ArgumentError as error:
    found["refused gather"] = error.found
found["ragged mean"] = float(strategy.reduce("MEAN", ragged, axis=0))

# Assigning: the same everywhere, or refused by name.
v.assign(5.0)
try:
    v.assign(5.0 + me)
except mr.errors.DisagreementError as error:
    found["refused"] = error.found
found["v"] = float(v.numpy())
try:
    strategy.run(lambda: drawn.assign(jnp.full(3, float(me))))
except mr.errors.DisagreementError as error:
    found["refused in run"] = error.found
except mr.errors.ReplicaDivergenceError as error:
    found["refused in run"] = error.found


# A tape outside of `run` sees the one value of a mirrored variable, on all workers or on one alone.
def outside_run() -> Any:
    with mr.GradientTape() as outer, mr.GradientTape() as tape:
        y = jnp.sum(drawn.read_value() ** 3)
        gradient = tape.gradient(y, drawn)
    return plain([gradient, outer.gradient(gradient, drawn)])


found["outside run"] = outside_run()
found["outside run, alone"] = outside_run() if me == 1 else None


# It cannot record an eager run: the gradient would be that of this worker's replicas.
def around_run(of: str) -> str:
    values = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.ones(1) * context.replica_id_in_sync_group
    )
    functions = {
        "variable": lambda x: x * drawn,
        "argument": lambda x: mr.get_replica_context().all_reduce("SUM", x),
        "result": lambda x: x * 2.0,
    }
    try:
        with mr.GradientTape() as tape:
            tape.watch(values)
            strategy.run(functions[of], args=(values,))
    except mr.errors.TapeError as error:
        return error.found
    return "not refused"


found["around run"] = [around_run(of) for of in ("variable", "argument", "result")]

# Steps per call.
many = mr.function(lambda x: strategy.reduce("SUM", strategy.run(replica, args=(x,))["x"], axis=None), steps_per_call=2)
found["two steps"] = many([(ids,), (ids,)]).tolist()

# Checkpoints: written once, restored by all.
folder = Path(sys.argv[1])
checkpoint = Checkpoint(v=v, count=count, own=own, drawn=drawn)
manager = CheckpointManager(checkpoint, folder, max_to_keep=2)
found["none yet"] = manager.restore_latest()
before = [v.numpy().tolist(), count.numpy().tolist(), [int(one.numpy()) for one in own.values]]
for step in (1, 2, 3):
    manager.save(step)
v.assign(-1.0)
strategy.run(lambda: (count.assign(7.0), own.assign(jnp.int32(9))))
found["restored"] = manager.restore_latest()
found["as before"] = before == [v.numpy().tolist(), count.numpy().tolist(), [int(one.numpy()) for one in own.values]]
found["kept"] = sorted(os.path.basename(path) for path in manager.checkpoints)
pending = checkpoint.write(folder / "pending", wait=False)
checkpoint.restore(pending)
found["own folder"] = os.path.basename(Checkpoint(v=v).write(folder / f"of-worker-{me}"))

print("RESULT", json.dumps(found), flush=True)
