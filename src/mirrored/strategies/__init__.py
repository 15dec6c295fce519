"""Strategies: objects that run one training program synchronously on N replicas.

`strategy.run` goes to `compiled` inside a compiled function, and to `eager` otherwise:

- `strategy`, `mirrored`: the public classes; `scope`, `current`: the current strategy.
- `compiled`: traces the replica function on one device's local replicas (`tracing_runner`), fuses their loops and
  branches (`fusing`), checks the body (`analysis`), and binds one `shard_map`.
- `fixed_order_runs`: compiles runs with bit-identical results for a tape around the call.
- `padding`: prevents empty slots, to which no replica belongs, from having an effect.
- `eager`: runs the replica function in Python, one replica after another, and commits what they assigned
  (`eager_runner`), if they are equal (`eager_equality`).
- `context`, `merge_call`: what a replica can call: collectives and `merge_call`.
- `recorded_collectives`: collectives of several workers under a tape, in eager code.
- `reducing`, `inputs`, `extended`, `older_names`: the other methods of a strategy.
- `declared_results`: results that `out_specs` declares equal on all replicas.
- `checks`: contexts, diverging assignments, nested meshes, shardings, arrays of a mesh with explicit axes.
- `argument_checks`: positional arguments, axes, the shapes of gathered arrays.
"""

from mirrored.strategies.context import ReplicaContext as ReplicaContext
from mirrored.strategies.current import experimental_set_strategy as experimental_set_strategy
from mirrored.strategies.current import get_replica_context as get_replica_context
from mirrored.strategies.current import get_strategy as get_strategy
from mirrored.strategies.current import has_strategy as has_strategy
from mirrored.strategies.current import in_cross_replica_context as in_cross_replica_context
from mirrored.strategies.extended import StrategyExtended as StrategyExtended
from mirrored.strategies.inputs import ValueContext as ValueContext
from mirrored.strategies.mirrored import MirroredStrategy as MirroredStrategy
from mirrored.strategies.mirrored import OneDeviceStrategy as OneDeviceStrategy
from mirrored.strategies.strategy import Strategy as Strategy
