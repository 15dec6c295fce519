"""What every algorithm for reductions over replicas shares."""

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
    """How values of several replicas become one, equal on all.

    A subclass says how to sum; the rest (mean, custom reductions, checks) is the same for all. Give it equality and a
    hash: compiled programs are found again by it.

    TensorFlow: `tf.distribute.CrossDeviceOps`. There a subclass overrides `reduce_implementation` over eager values;
    here `sum` is traced into the compiled program of each device.
    """

    @abc.abstractmethod
    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Sums over all replicas. Traced inside the body that every device runs.

        Args:
            arrays: For each array, its components on this device: `group.local` of equal shape and dtype.
            group: How the replicas lie.

        Returns:
            For each array the sum, once for each local replica; equal on all devices.
        """

    @property
    def as_written(self) -> bool:
        """Whether programs that use it are compiled as written, equal computations not merged (slower)."""
        return False

    @final
    def reduce_arrays(self, op: Any, arrays: Sequence[Sequence[Any]], group: Group) -> list[Any]:
        """Reduces each array over all replicas; the results are equal on all devices.

        Args:
            op: `ReduceOp.SUM`, `MEAN`, or a custom reduction.
            arrays: For each array, its components on this device, in order of local replicas.
            group: How the replicas lie.

        Raises:
            ArgumentError: A sum or mean of booleans, or a custom reduction that does not keep shape and dtype.
            StructureError: Components of different shapes or dtypes.
        """
        return [results[0] for results in self.all_reduce(op, arrays, group)]

    @final
    def all_reduce(self, op: Any, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """The same as `reduce_arrays`, once for each local replica.

        The values are equal; their gradients are not one: with each replica's cotangent at its own result, the
        gradient is the `all_reduce` of the cotangents by the same operation and in the same order of sums.
        """
        op = as_reduce_op(op)
        lists = [checked(op, components) for components in arrays]
        if op is ReduceOp.SUM:
            return self.sum(lists, group)
        if op is ReduceOp.MEAN:
            # 16-bit floats are summed in float32: their sum may be too large for them where the mean is not.
            wide = [[widen(floating(component)) for component in components] for components in lists]
            sums = self.sum(wide, group)
            return [
                [narrow(total / group.num_replicas, floating(components[0]).dtype) for total in totals]
                for totals, components in zip(sums, lists, strict=True)
            ]
        return [[custom(op, components, group)] * group.local for components in lists]

    @final
    def gather(self, arrays: Sequence[Sequence[Any]], axis: int, group: Group) -> list[Any]:
        """Concatenates each array's components of all replicas along `axis`, in replica order."""
        return [jnp.concatenate(list(stack_all(components, group)), axis) for components in arrays]


def stack_all(components: Sequence[Any], group: Group) -> Any:
    """The components of all replicas, in replica order: ``[replicas, ...]``, equal on all devices."""
    stacked = jnp.stack(list(components))
    return stacked if group.axis is None else lax.all_gather(stacked, group.axis, axis=0, tiled=True)


def floating(array: Any) -> Any:
    """`array`, integers as float32."""
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.float32)


def custom(op: ReduceOp, components: Sequence[Any], group: Group) -> Any:
    """A custom reduction, of all components, on every device."""
    check_reduction(op, components[0], group.num_replicas)
    return op(stack_all(components, group))


def checked(op: ReduceOp, components: Sequence[Any]) -> list[Any]:
    """Components as arrays of one shape and dtype that `op` can reduce.

    Raises:
        ArgumentError: A sum or mean of booleans.
        StructureError: Components of different shapes or dtypes.
    """
    arrays = [as_array(component) for component in components]
    kinds = {(array.shape, array.dtype) for array in arrays}
    if len(kinds) > 1:
        found = ", ".join(f"{dtype}[{', '.join(map(str, shape))}]" for shape, dtype in sorted(kinds, key=str))
        raise StructureError(
            f"{op!r}",
            found=f"components that differ: {found}",
            rule="values that are reduced over replicas have one shape and dtype on all of them",
            remedy="bring them to one shape (pad, or reduce an axis first), or gather them",
        )
    if arrays[0].dtype == jnp.bool_ and op in (ReduceOp.SUM, ReduceOp.MEAN):
        raise ArgumentError(
            f"{op!r}",
            found=f"booleans of shape {arrays[0].shape}",
            rule="booleans have no sum and no mean",
            remedy="convert them first: value.astype(jnp.int32) to count, jnp.float32 for a rate",
        )
    return arrays
