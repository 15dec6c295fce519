"""The main names of `mirrored` (strategies, tapes, variables, ...), imported together when one is first accessed.

No import is deferred further, because a module that is imported while JAX traces would keep tracers in its globals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mirrored.collectives.reduce_op import ReduceOp as ReduceOp
from mirrored.compilation import Function as Function
from mirrored.compilation import function as function
from mirrored.config import functions_run_eagerly as functions_run_eagerly
from mirrored.config import run_functions_eagerly as run_functions_eagerly
from mirrored.strategies import MirroredStrategy as MirroredStrategy
from mirrored.strategies import OneDeviceStrategy as OneDeviceStrategy
from mirrored.strategies import ReplicaContext as ReplicaContext
from mirrored.strategies import Strategy as Strategy
from mirrored.strategies import experimental_set_strategy as experimental_set_strategy
from mirrored.strategies import get_strategy as get_strategy
from mirrored.strategies import has_strategy as has_strategy
from mirrored.strategies import in_cross_replica_context as in_cross_replica_context
from mirrored.tape import GradientTape as GradientTape
from mirrored.tape import UnconnectedGradients as UnconnectedGradients
from mirrored.tape import custom_gradient as custom_gradient
from mirrored.tape import stop_gradient as stop_gradient
from mirrored.values.distributed_values import DistributedValues as DistributedValues
from mirrored.values.distributed_values import Mirrored as Mirrored
from mirrored.values.distributed_values import PerReplica as PerReplica
from mirrored.variables import Variable as Variable
from mirrored.variables import VariableAggregation as VariableAggregation
from mirrored.variables import VariableSynchronization as VariableSynchronization
from mirrored.variables import variable_creator_scope as variable_creator_scope

if TYPE_CHECKING:

    def get_replica_context() -> ReplicaContext | Any:
        """Returns the replica context, in `Strategy.run` or outside any strategy; None in cross-replica context.

        For type checkers `Any` takes the place of None: programs call it where they know that a replica runs.
        """

else:
    from mirrored.strategies import get_replica_context as get_replica_context
