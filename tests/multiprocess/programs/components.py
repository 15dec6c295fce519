"""Components of this worker: those of a sync-on-read variable, in all contexts and in a checkpoint, and of values.

Usage: ``components.py folder``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.errors import ContextError

strategy = mr.MultiWorkerMirroredStrategy()
with strategy.scope():
    seen = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM", trainable=False, name="seen")
strategy.run(lambda: (seen.assign(mr.get_replica_context().replica_id_in_sync_group + 1.0), None)[1])
found: dict[str, Any] = {}


def components() -> list[float]:
    return [float(one.read_value()) for one in seen.values]


def merged() -> None:
    mr.get_replica_context().merge_call(lambda _: found.update(merged=components()))


def second() -> Any:
    return seen.values[1].read_value() * 1


def refused(program: Callable[[], Any]) -> str:
    try:
        mr.function(program)()
    except ContextError as error:
        return error.found
    return "accepted"


found["outside"] = components()
strategy.run(merged)
found["second, in a replica"] = [float(one) for one in strategy.local_results(strategy.run(second))]
found["function"] = refused(second)
found["compiled run"] = refused(lambda: strategy.run(second))
found["assigned"] = refused(lambda: seen.values[0].assign(50.0))
found["outside, after"] = components()

# Per-replica values without devices, which the program makes from its own components, and mirrored values.
me = strategy.cluster_resolver.task_id
for kind, convert in {"NumPy": np.float32, "Python": float}.items():
    given = mr.PerReplica([convert(2 * me + place) for place in range(2)])
    for way in ("eager", "compiled"):

        def run(value: Any) -> Any:
            return strategy.run(lambda x: x * 10, args=(value,))

        results = (run if way == "eager" else mr.function(run))(given)
        own = [float(one) for one in strategy.local_results(results)]
        found[f"{kind}, {way}"] = [own, float(strategy.reduce("SUM", results, axis=None))]
    found[f"{kind}, reduced"] = float(strategy.reduce("SUM", given, axis=None))
rows = mr.PerReplica([np.full(1, 2 * me + place, np.float32) for place in range(2)])
found["gathered"] = np.asarray(strategy.gather(rows, axis=0)).tolist()
mirrored = strategy.extended.broadcast_to(np.float32(3.0), seen)
found["mirrored"] = [float(one) for one in mirrored.values]
found["both"] = np.asarray(strategy.local_results((rows, mirrored))[1][0]).tolist()
traced = mr.function(lambda x, y: strategy.local_results((x, y))[1])(strategy.run(lambda x: x, args=(rows,)), mirrored)
found["both, traced"] = float(traced[1])
found["function of both"] = np.asarray(
    strategy.local_results(mr.function(lambda x, y: strategy.run(lambda x, y: x * y, args=(x, y)))(rows, mirrored))
).tolist()

# The shares of a sum are not its components; with `deterministic=True` a restore returns the components.
with mr.MultiWorkerMirroredStrategy(deterministic=True).scope() as deterministic:
    seen = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM", trainable=False, name="exact")
deterministic.run(lambda: (seen.assign((mr.get_replica_context().replica_id_in_sync_group + 1) / 10), None)[1])
path = Checkpoint(seen=seen).write(sys.argv[1])
found["saved"] = components()
deterministic.run(lambda: (seen.assign(0.0), None)[1])
Checkpoint(seen=seen).restore(path).assert_consumed()
found["restored"] = components()
print("RESULT", json.dumps(found), flush=True)
