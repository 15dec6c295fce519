"""Maps names such as `tf.distribute.MirroredStrategy` and `tf.Variable` to the classes of `mirrored`."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from mirrored.collectives.reduce_op import ReduceOp
from mirrored.config import functions_run_eagerly, run_functions_eagerly
from mirrored.errors import ArgumentError
from mirrored.losses import compute_average_loss, scale_regularization_loss
from mirrored.strategies import (
    MirroredStrategy,
    OneDeviceStrategy,
    ReplicaContext,
    Strategy,
    StrategyExtended,
    ValueContext,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from mirrored.tape import GradientTape, UnconnectedGradients, custom_gradient, stop_gradient
from mirrored.tape.forward_accumulator import ForwardAccumulator
from mirrored.tf._distribute import cross_device as _cross_device
from mirrored.values.distributed_values import DistributedValues
from mirrored.variables import Variable, VariableAggregation, VariableSynchronization, variable_creator_scope


class CommunicationImplementation(enum.Enum):
    """TensorFlow's names of communication libraries; accepted, but ignored.

    XLA uses NCCL on GPUs, and Gloo or its own implementation on CPUs.
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"

    @classmethod
    def _missing_(cls, value: object) -> CommunicationImplementation | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Options of a cross-device reduction; accepted, but ignored: XLA chooses how devices communicate.

    Args:
        bytes_per_pack: Accepted and ignored; not negative.
        timeout_seconds: Accepted and ignored.
        implementation: A `CommunicationImplementation`, or its name in any case.

    Raises:
        ValueError: The size is negative, or the implementation does not exist.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        if self.bytes_per_pack < 0:
            raise ArgumentError(
                "CommunicationOptions",
                found=f"`bytes_per_pack` is {self.bytes_per_pack}",
                rule="`bytes_per_pack` must be 0 or more",
                remedy="omit the argument, which has no effect",
            )
        object.__setattr__(self, "implementation", CommunicationImplementation(self.implementation))


def collective_hints(bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> CommunicationOptions:
    """Creates a `CommunicationOptions` object (`CollectiveHints` is TensorFlow's former name for that class)."""
    return CommunicationOptions(bytes_per_pack=bytes_per_pack, timeout_seconds=timeout_seconds)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of `Strategy.run`; accepted, but ignored.

    Shapes may always differ between replicas.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None


NAMES: dict[str, Any] = {
    "GradientTape": GradientTape,
    "UnconnectedGradients": UnconnectedGradients,
    "Variable": Variable,
    "VariableAggregation": VariableAggregation,
    "VariableSynchronization": VariableSynchronization,
    "config.experimental_functions_run_eagerly": functions_run_eagerly,
    "config.experimental_run_functions_eagerly": run_functions_eagerly,
    "config.functions_run_eagerly": functions_run_eagerly,
    "config.run_functions_eagerly": run_functions_eagerly,
    "autodiff.ForwardAccumulator": ForwardAccumulator,
    "autodiff.GradientTape": GradientTape,
    "custom_gradient": custom_gradient,
    "distribute.DistributedValues": DistributedValues,
    "distribute.MirroredStrategy": MirroredStrategy,
    "distribute.OneDeviceStrategy": OneDeviceStrategy,
    "distribute.ReduceOp": ReduceOp,
    "distribute.ReplicaContext": ReplicaContext,
    "distribute.RunOptions": RunOptions,
    "distribute.Strategy": Strategy,
    "distribute.StrategyExtended": StrategyExtended,
    "distribute.experimental.CollectiveCommunication": CommunicationImplementation,
    "distribute.experimental.CollectiveHints": collective_hints,
    "distribute.experimental.CommunicationImplementation": CommunicationImplementation,
    "distribute.experimental.CommunicationOptions": CommunicationOptions,
    "distribute.experimental.ValueContext": ValueContext,
    "distribute.experimental_set_strategy": experimental_set_strategy,
    "distribute.get_replica_context": get_replica_context,
    "distribute.get_strategy": get_strategy,
    "distribute.has_strategy": has_strategy,
    "distribute.in_cross_replica_context": in_cross_replica_context,
    "nn.compute_average_loss": compute_average_loss,
    "nn.scale_regularization_loss": scale_regularization_loss,
    "stop_gradient": stop_gradient,
    "variable_creator_scope": variable_creator_scope,
    **_cross_device.NAMES,
}
_NEWER = ("distribute.MirroredStrategy", "distribute.OneDeviceStrategy")
# compat.v1 has the same names; `_distribute.v1` defines its two strategies.
NAMES.update({f"compat.v1.{n}": v for n, v in NAMES.items() if n.startswith("distribute.") and n not in _NEWER})
