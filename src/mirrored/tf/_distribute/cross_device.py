"""`tf.distribute.CrossDeviceOps`: classes whose methods reduce per-replica values across devices, as in TensorFlow.

TensorFlow's `reduce` takes a per-replica value; strategies call `reduce_arrays` of `mirrored.collectives` instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax

from mirrored._typing import PyTree
from mirrored.collectives import cross_device_ops as core
from mirrored.collectives.algorithm import reduced_single_replica
from mirrored.collectives.reduce_op import ReduceOp, check_dtype
from mirrored.collectives.stacked import check_components, reduce_stacked
from mirrored.collectives.summation import Group
from mirrored.errors import ArgumentError
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues, Mirrored, PerReplica
from mirrored.values.stacking import as_given
from mirrored.variables import Variable

Destinations: TypeAlias = DistributedValues | Variable | str
"""Where a result is needed: a per-replica value, a variable, or a device name."""


class Direct(core.CrossDeviceOps):
    """Base class of the `CrossDeviceOps` classes; provides TensorFlow's `reduce`, `batch_reduce` and `broadcast`."""

    def reduce(
        self, reduce_op: ReduceOp, per_replica_value: PyTree, destinations: Destinations, options: object = None
    ) -> Any:
        """Sums or averages a per-replica value over all replicas.

        Context: cross-replica.

        Args:
            reduce_op: `ReduceOp.SUM` or `ReduceOp.MEAN` (as in TensorFlow, not a name).
            per_replica_value: The value; of a value that is not per-replica, MEAN converts integers to float32, as with
                several replicas; otherwise such a value is returned unchanged.
            destinations: A per-replica value or variable, or a device name.
            options: Accepted for compatibility and ignored.

        Returns:
            A mirrored value, or with a device name the unwrapped result.

        Raises:
            ArgumentError: `reduce_op` is not a `ReduceOp`, there are no destinations, or the value consists of booleans
                or typed PRNG keys.
        """
        del options
        _check_op(reduce_op)
        _check_destinations(destinations)
        if isinstance(per_replica_value, jax.Array):
            check_dtype("CrossDeviceOps.reduce", reduce_op, per_replica_value.dtype)
            return reduced_single_replica(reduce_op, per_replica_value)
        if not isinstance(per_replica_value, PerReplica):
            return per_replica_value
        return _delivered(self._reduced(reduce_op, per_replica_value), per_replica_value, destinations)

    def batch_reduce(
        self, reduce_op: ReduceOp, value_destination_pairs: Sequence[Any], options: object = None
    ) -> list[Any]:
        """Sums or averages several per-replica values, given as pairs (value, destinations).

        Raises:
            ArgumentError: `reduce_op` is not a `ReduceOp`, or an element is not a pair of a value and its destinations.
        """
        for pair in value_destination_pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ArgumentError(
                    "CrossDeviceOps.batch_reduce",
                    found=f"{pair!r} is not a pair",
                    rule="each element of `value_destination_pairs` must be a tuple of a value and its destinations",
                    remedy="pass [(value, destinations), ...]",
                )
        return [self.reduce(reduce_op, value, place, options) for value, place in value_destination_pairs]

    def broadcast(self, tensor: PyTree, destinations: Destinations) -> Any:
        """Returns a value, mirrored on all replicas of `destinations`; unchanged if `destinations` is a device name.

        Raises:
            ArgumentError: There are no destinations.
        """
        _check_destinations(destinations)
        return _delivered(structures.map_leaves(as_given, tensor), destinations, destinations)

    def _reduced(self, op: ReduceOp, value: PerReplica) -> Any:
        if value.device_assignment is not None:
            check_components("CrossDeviceOps.reduce", [value], value.device_assignment)
            return reduce_stacked(self, op, [value.stacked(value.device_assignment)], value.device_assignment)[0]
        group = Group(axis=None, devices=1, local=len(value.values))
        return self.reduce_arrays(op, [list(value.values)], group)[0]


def _delivered(result: PyTree, value: object, destinations: object) -> Any:
    if isinstance(destinations, str) or not isinstance(value, DistributedValues):
        return result
    return Mirrored(result, len(value.values))


def _check_op(op: object) -> None:
    if not isinstance(op, ReduceOp):
        raise ArgumentError(
            "CrossDeviceOps.reduce",
            found=f"`reduce_op` is {op!r}",
            rule="`reduce_op` must be a ReduceOp",
            remedy="pass tf.distribute.ReduceOp.SUM or tf.distribute.ReduceOp.MEAN",
        )


def _check_destinations(destinations: object) -> None:
    if not isinstance(destinations, (str, DistributedValues)):
        raise ArgumentError(
            "CrossDeviceOps.reduce",
            found=f"`destinations` is {destinations!r}",
            rule="`destinations` must be a DistributedValues object, a tf.Variable or a device string",
            remedy="pass the value itself, to keep the result on the devices of the value",
        )


@dataclasses.dataclass(frozen=True)
class NcclAllReduce(Direct, core.NcclAllReduce):
    """`mirrored.collectives.NcclAllReduce` with TensorFlow's `reduce`, `batch_reduce` and `broadcast`."""


@dataclasses.dataclass(frozen=True)
class HierarchicalCopyAllReduce(Direct, core.HierarchicalCopyAllReduce):
    """`mirrored.collectives.HierarchicalCopyAllReduce` with TensorFlow's `reduce`, `batch_reduce` and `broadcast`."""


@dataclasses.dataclass(frozen=True)
class ReductionToOneDevice(Direct, core.ReductionToOneDevice):
    """`mirrored.collectives.ReductionToOneDevice` with TensorFlow's `reduce`, `batch_reduce` and `broadcast`."""


NAMES: dict[str, Any] = {
    "distribute.CrossDeviceOps": core.CrossDeviceOps,
    "distribute.HierarchicalCopyAllReduce": HierarchicalCopyAllReduce,
    "distribute.NcclAllReduce": NcclAllReduce,
    "distribute.ReductionToOneDevice": ReductionToOneDevice,
}
