"""Elements of `values` of a sync-on-read variable, in all contexts and in a checkpoint: ``components.py folder``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

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
