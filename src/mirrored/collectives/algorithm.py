"""`CrossDeviceOps`, the base class of algorithms for reductions over replicas."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp
from jax import lax

from mirrored._jax.putting import as_array
from mirrored.collectives.group import Group
from mirrored.collectives.precision import narrow, widen
from mirrored.collectives.reduce_op import ReduceOp, as_reduce_op, check_reduction
from mirrored.errors import ArgumentError, StructureError


class CrossDeviceOps(abc.ABC):
    """Algorithm that reduces the values of all replicas to one value, which is equal on all of them.

    A subclass defines the sum. This class derives means, custom reductions and checks from it. A subclass needs
    equality and a hash, because the algorithm is part of the cache keys of compiled programs.

    TensorFlow: `tf.distribute.CrossDeviceOps`. There a subclass overrides `reduce_implementation` over eager values;
    here `sum` is traced into the compiled program of each device.
    """

    @abc.abstractmethod
    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Sums each array over all replicas. It is traced inside the body that every device executes.

        Args:
            arrays: For each array, its components on this device: `group.local` arrays of equal shape and dtype.
            group: The placement of the replicas on devices.

        Returns:
            For each array a list with its sum, once per virtual replica of the device. It is equal on all devices.
        """

    @property
    def as_written(self) -> bool:
        """Whether XLA compiles programs that use this algorithm without merging equal computations, which is slower."""
        return False

    @final
    def reduce_arrays(self, op: Any, arrays: Sequence[Sequence[Any]], group: Group) -> list[Any]:
        """Reduces each array over all replicas. The results are equal on all devices.

        Args:
            op: `ReduceOp.SUM`, `ReduceOp.MEAN`, or a custom reduction.
            arrays: For each array, its components on this device, in order of the device's virtual replicas.
            group: The placement of the replicas on devices.

        Raises:
            ArgumentError: `op` is a sum or mean and a component is boolean, or `op` is a custom reduction that changes
                the shape or dtype.
            StructureError: The components of an array have different shapes or dtypes.
        """
        return [results[0] for results in self.all_reduce(op, arrays, group)]

    @final
    def all_reduce(self, op: Any, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Reduces as `reduce_arrays` does, and returns each result once per virtual replica.

        The results of an array are equal, but each is differentiated separately: it receives the cotangent of its own
        replica. The gradient is the `all_reduce` of these cotangents by the same operation in the same order of sums.
        """
        op = as_reduce_op(op)
        lists = [checked(op, components) for components in arrays]
        if op is ReduceOp.SUM:
            return self.sum(lists, group)
        if op is ReduceOp.MEAN:
            # The sum of 16-bit floats may overflow although their mean does not, so the sum is computed in float32.
            wide = [[widen(floating(component)) for component in components] for components in lists]
            sums = self.sum(wide, group)
            return [
                [narrow(total / group.num_replicas, floating(components[0]).dtype) for total in totals]
                for totals, components in zip(sums, lists, strict=True)
            ]
        stacks = self.stack_each(lists, group)
        return [
            [custom(op, components[0], each[0], group)] * group.local
            for components, each in zip(lists, stacks, strict=True)
        ]

    def stack_each(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Stacks the components of all replicas, ``[replicas, ...]``, once per virtual replica of the device.

        As in `all_reduce`, the results of an array are equal, and each receives the cotangent of its own replica.
        """
        return [[stack_all(components, group)] * group.local for components in arrays]

    @final
    def gather(self, arrays: Sequence[Sequence[Any]], axis: int, group: Group) -> list[Any]:
        """Concatenates the components of each array along `axis`, in replica order."""
        return [jnp.concatenate(list(stack_all(components, group)), axis) for components in arrays]


def stack_all(components: Sequence[Any], group: Group) -> Any:
    """Stacks the components of all replicas in replica order, as ``[replicas, ...]``. The result is replicated."""
    stacked = jnp.stack(list(components))
    return stacked if group.axis is None else lax.all_gather(stacked, group.axis, axis=0, tiled=True)


def floating(array: Any) -> Any:
    """Converts integers and booleans to float32. Returns other arrays unchanged."""
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.float32)


def custom(op: ReduceOp, like: Any, stacked: Any, group: Group) -> Any:
    """Applies a custom reduction to the components of all replicas, ``[replicas, ...]``, each like `like`."""
    check_reduction(op, like, group.num_replicas)
    return op(stacked)


def checked(op: ReduceOp, components: Sequence[Any]) -> list[Any]:
    """Converts components to arrays, and checks that `op` can reduce them.

    Raises:
        ArgumentError: `op` is a sum or mean and the components are boolean.
        StructureError: The components have different shapes or dtypes.
    """
    arrays = [as_array(component) for component in components]
    kinds = {(array.shape, array.dtype) for array in arrays}
    if len(kinds) > 1:
        found = ", ".join(f"{dtype}[{', '.join(map(str, shape))}]" for shape, dtype in sorted(kinds, key=str))
        raise StructureError(
            f"{op!r}",
            found=f"components that differ: {found}",
            rule="a value that is reduced over replicas has the same shape and dtype on all of them",
            remedy="make the shapes equal (pad, or reduce an axis first), or use gather instead",
        )
    if arrays[0].dtype == jnp.bool_ and op in (ReduceOp.SUM, ReduceOp.MEAN):
        raise ArgumentError(
            f"{op!r}",
            found=f"booleans of shape {arrays[0].shape}",
            rule="booleans have no sum and no mean",
            remedy="convert them first: value.astype(jnp.int32) for a count, value.astype(jnp.float32) for a rate",
        )
    return arrays
