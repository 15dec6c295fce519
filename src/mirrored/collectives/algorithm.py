"""`CrossDeviceOps`: the base class of all-reduce algorithms, the default `AllReduce`, and bucketing of arrays."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import jax.numpy as jnp
from jax import lax

from mirrored._jax.arrays import as_array
from mirrored.collectives.reduce_op import ReduceOp, as_reduce_op, check_dtype, check_reduction
from mirrored.collectives.summation import (
    Group,
    floating,
    narrow,
    not_constant,
    quotient,
    tree_sum,
    widen,
    without_padding_gradient,
)
from mirrored.errors import StructureError

if TYPE_CHECKING:
    import jax

# `CrossDeviceOps`, the base class of algorithms for reductions over replicas.


class CrossDeviceOps(abc.ABC):
    """Base class of algorithms that reduce values over replicas, so that every replica gets the result.

    A subclass defines the sum. This class derives means, custom reductions and checks from it. A subclass needs
    equality and a hash, because the algorithm is part of the cache keys of compiled programs.

    Example:
        >>> import dataclasses
        >>> import jax
        >>> import mirrored as mr
        >>> @dataclasses.dataclass(frozen=True)
        ... class Plain(mr.collectives.CrossDeviceOps):
        ...     def sum(self, arrays, group):
        ...         totals = [sum(components) for components in arrays]  # the replicas of this device
        ...         if group.axis is not None:
        ...             totals = [jax.lax.psum(total, group.axis) for total in totals]
        ...         return [[total] * group.local for total in totals]
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4, cross_device_ops=Plain())
        >>> ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 1.0)
        >>> float(strategy.reduce("SUM", ids, axis=None))
        10.0

    TensorFlow: `tf.distribute.CrossDeviceOps`. There a subclass overrides `reduce_implementation` over eager values;
    here `sum` is traced into the compiled program of each device.
    """

    @abc.abstractmethod
    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Sums each array over all replicas, inside the `shard_map` body that every device executes.

        Args:
            arrays: For each array, its components on this device: `group.local` arrays of equal shape and dtype. The
                component of an empty slot (`group.padded`) is the neutral element, -0.0; if the algorithm
                `ignores_empty_slots`, its values are unspecified.
            group: The placement of the replicas on devices.

        Returns:
            For each array a list with its sum, once per virtual replica of the device. The sum is equal on all devices.
        """

    @property
    def requires_bit_identity(self) -> bool:
        """Whether XLA must compile programs with this algorithm without merging equal operations (CSE).

        XLA then also omits other rewrites whose effect depends on the number of devices. So results are bit-identical
        on any number of devices.
        """
        return False

    @property
    def ignores_empty_slots(self) -> bool:
        """Whether `sum` and its gradient ignore the padding arrays of devices with fewer replicas.

        A device with one replica fewer than others has a padding array in an empty slot. For algorithms that do not
        ignore its contents, `all_reduce` fills the array with -0.0.
        """
        return False

    @property
    def calls_user_code(self) -> bool:
        """Whether the algorithm calls a user function, whose results may depend on changing state."""
        return False

    @final
    def reduce_arrays(
        self, op: ReduceOp | str | Callable[[Any], Any], arrays: Sequence[Sequence[Any]], group: Group
    ) -> list[Any]:
        """Reduces each array over all replicas; the results are equal on all devices.

        Args:
            op: `ReduceOp.SUM`, `ReduceOp.MEAN`, or a custom reduction.
            arrays: For each array, its components on this device, in order of the device's virtual replicas.
            group: The placement of the replicas on devices.

        Raises:
            ArgumentError: `op` is a sum or mean and a component has booleans or typed PRNG keys, or `op` is a custom
                reduction that changes the shape or dtype.
            StructureError: The components of an array have different shapes or dtypes.
        """
        return [results[0] for results in self.all_reduce(op, arrays, group)]

    @final
    def all_reduce(
        self, op: ReduceOp | str | Callable[[Any], Any], arrays: Sequence[Sequence[Any]], group: Group
    ) -> list[list[Any]]:
        """Reduces each array over all replicas; returns a list per array, with the result once per local replica slot.

        The results of an array are equal. Those of a sum or mean are differentiated separately: each receives the
        cotangent of its own replica, and the gradient is the `all_reduce` of these by the same operation in the same
        order of sums. A custom reduction is computed once per device, and JAX adds the cotangents of its copies.
        """
        op = as_reduce_op(op)
        lists = [checked(op, components) for components in arrays]
        if op is ReduceOp.SUM:
            return self._sum(lists, group)
        if op is ReduceOp.MEAN:
            # The sum of 16-bit floats may overflow although their mean does not, so the sum is computed in float32.
            wide = [[widen(floating(component)) for component in components] for components in lists]
            sums = self._sum(wide, group)
            return [
                [narrow(quotient(total, group.num_replicas), floating(components[0]).dtype) for total in totals]
                for totals, components in zip(sums, lists, strict=True)
            ]
        stacks = self.stack_each(lists, group)
        return [
            group.for_each_local(custom(op, components[0], each[0], group))
            for components, each in zip(lists, stacks, strict=True)
        ]

    def stack_each(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """All-gathers each array from all replicas, stacked along a new first axis.

        Returns a list per array: the stacked array ``[replicas, ...]``, once per replica slot of this device. As in
        `all_reduce`, the results of an array are equal, and each receives the cotangent of its own replica.
        """
        return [group.for_each_local(stack_all(components, group)) for components in arrays]

    def _sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        if not group.padded or self.ignores_empty_slots:
            return self.sum(arrays, group)
        sums = self.sum([group.with_neutral(components) for components in arrays], group)
        return [[*copies[:-1], without_padding_gradient(copies[-1], group.is_real())] for copies in sums]

    @final
    def gather(self, arrays: Sequence[Sequence[Any]], axis: int, group: Group) -> list[Any]:
        """Concatenates each array over all replicas along `axis`, in replica order."""
        return [jnp.concatenate(list(stack_all(components, group)), axis) for components in arrays]


def stack_all(components: Sequence[Any], group: Group) -> Any:
    """All-gathers one array over all replicas as ``[replicas, ...]``, in replica order."""
    stacked = jnp.stack(group.sent(components))
    return stacked if group.axis is None else group.slots.rows(lax.all_gather(stacked, group.axis, axis=0, tiled=True))


def reduced_single_replica(op: ReduceOp, array: jax.Array) -> Any:
    """Returns the result of a reduction when there is only one replica.

    A custom reduction receives ``[1, ...]``.

    The dtype is the one that the result has on any number of replicas.
    """
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        return floating(array) if op is ReduceOp.MEAN else array
    check_reduction(op, array, 1)
    return op(array[None])


def custom(op: ReduceOp, like: jax.Array, stacked: jax.Array, group: Group) -> Any:
    """Applies a custom reduction to the stacked values of all replicas, after checking the result's shape and dtype.

    Each component has the shape and dtype of `like`.
    """
    check_reduction(op, like, group.num_replicas)
    return op(stacked)


def checked(op: ReduceOp, components: Sequence[Any]) -> list[Any]:
    """Converts the replicas' values to JAX arrays; checks that they have one shape and a dtype that `op` supports.

    Raises:
        ArgumentError: `op` is a sum or mean and the components are booleans or typed PRNG keys.
        StructureError: The components have different shapes or dtypes.
    """
    arrays = [as_array(component) for component in components]
    kinds = {(array.shape, array.dtype) for array in arrays}
    if len(kinds) > 1:
        found = ", ".join(f"{dtype}[{', '.join(map(str, shape))}]" for shape, dtype in sorted(kinds, key=str))
        raise StructureError(
            f"{op!r}",
            found=f"the components differ: {found}",
            rule="a value that is reduced over replicas must have the same shape and dtype on all of them",
            remedy="make the shapes equal (pad, or reduce an axis first), or use gather instead",
        )
    check_dtype(f"{op!r}", op, arrays[0].dtype)
    return arrays


# Bucketing: packs many arrays into few flat buffers, so that fewer collectives are issued.

SMALL_BYTES: Final = 128 * 1024
"""The largest array, in bytes, that is bucketed across processes, where each buffer costs a separate message.

Measured on loopback with 2 processes: 100 x 1 KiB 21 -> 1.3 ms, 32 x 64 KiB 8.1 -> 2.9 ms, but 8 x 1 MiB
10.1 -> 12.2 ms.
"""


def over_buckets(
    collective: Callable[[Any], Any], arrays: Sequence[Any], *, num_packs: int = 1, multiple: int = 1
) -> list[Any]:
    """Applies a collective to arrays packed into flat buffers (buckets), and unpacks the results.

    Args:
        collective: Maps a flat buffer to a flat buffer of the same length.
        arrays: Arrays of any shapes and dtypes. Empty arrays are returned as they are.
        num_packs: The maximum number of buckets per dtype. 0 means one per array.
        multiple: The length of each buffer is padded to a multiple of this number.

    Returns:
        The results, in the order and shapes of `arrays`.
    """
    results = list(arrays)
    for positions in _buckets(arrays, num_packs):
        buffer = jnp.concatenate([jnp.ravel(arrays[i]) for i in positions])
        padded = jnp.pad(buffer, (0, -buffer.size % multiple))
        reduced = collective(padded)[: buffer.size]
        start = 0
        for i in positions:
            results[i] = reduced[start : start + arrays[i].size].reshape(arrays[i].shape)
            start += arrays[i].size
    return results


def over_small_buckets(
    collective: Callable[[list[Any]], Sequence[Any]],
    arrays: Sequence[Any],
    *,
    small_bytes: int = SMALL_BYTES,
    kernel: Callable[..., list[Any]] | None = None,
) -> list[Any]:
    """Applies a collective to arrays, with the small arrays of each dtype packed into one buffer.

    Args:
        collective: Maps a list of arrays to a list of arrays of the same shapes, element-wise.
        arrays: Arrays of any shapes and dtypes.
        small_bytes: The maximum size in bytes of an array that is bucketed.
        kernel: Runs packing and unpacking as ``kernel(function, arrays)``, for instance behind a fusion boundary. None
            calls the function directly.

    Returns:
        The results, in the order and shapes of `arrays`.
    """
    run = kernel or (lambda function, operands: function(operands))
    small = [i for i, array in enumerate(arrays) if 0 < array.size * array.dtype.itemsize <= small_bytes]
    buckets = [
        [i for i in small if arrays[i].dtype == dtype] for dtype in dict.fromkeys(arrays[i].dtype for i in small)
    ]
    buckets = [positions for positions in buckets if len(positions) > 1]
    bucketed = {i for positions in buckets for i in positions}
    single = [i for i, array in enumerate(arrays) if i not in bucketed and array.size]
    buffers = [run(_pack, [arrays[i] for i in positions])[0] for positions in buckets]
    reduced = list(collective([*buffers, *(arrays[i] for i in single)])) if buckets or single else []
    results = list(arrays)
    for i, array in zip(single, reduced[len(buckets) :], strict=True):
        results[i] = array
    for positions, buffer in zip(buckets, reduced, strict=False):
        unpack = functools.partial(unpack_buckets, shapes=[arrays[i].shape for i in positions])
        for i, array in zip(positions, run(unpack, [buffer]), strict=True):
            results[i] = array
    return results


def _pack(arrays: Sequence[Any]) -> list[Any]:
    return [jnp.concatenate([jnp.ravel(array) for array in arrays])]


def unpack_buckets(buffers: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Splits one flat buffer into arrays of the given shapes.

    Elements at its end may be left over.
    """
    sizes = [math.prod(shape) for shape in shapes]
    starts = itertools.accumulate(sizes, initial=0)
    return [
        buffers[0][start : start + size].reshape(shape)
        for start, size, shape in zip(starts, sizes, shapes, strict=False)
    ]


def _buckets(arrays: Sequence[Any], num_packs: int) -> list[list[int]]:
    """Returns the positions of the arrays in each bucket; a bucket holds consecutive arrays of one dtype.

    The buckets of a dtype have about the same size.
    """
    buckets: list[list[int]] = []
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        positions = [i for i, array in enumerate(arrays) if array.dtype == dtype and array.size]
        buckets += _split(positions, [arrays[i].size for i in positions], num_packs or len(positions))
    return buckets


def _split(positions: Sequence[int], sizes: Sequence[int], count: int) -> list[list[int]]:
    target = math.ceil(sum(sizes) / count) if sizes else 0
    buckets: list[list[int]] = []
    filled = target
    for position, size in zip(positions, sizes, strict=True):
        if filled >= target or (buckets and count == len(positions)):
            buckets.append([])
            filled = 0
        buckets[-1].append(position)
        filled += size
    return buckets


# The default algorithm.


@dataclasses.dataclass(frozen=True)
class AllReduce(CrossDeviceOps):
    """The default all-reduce algorithm: sums values on each device, then all-reduces all arrays at once.

    Across processes, small arrays share one bucket. The backend chooses the order of sums across devices.

    Example:
        >>> import mirrored as mr
        >>> from mirrored.collectives import AllReduce
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4, cross_device_ops=AllReduce())
        >>> ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 1.0)
        >>> float(strategy.reduce("SUM", ids, axis=None))
        10.0

    TensorFlow: no equivalent; the default there is `tf.distribute.NcclAllReduce`.
    """

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Sums all arrays over replicas with a single all-reduce."""
        totals = [not_constant(tree_sum(components)) for components in arrays]
        axis = group.axis
        if axis is not None and totals:
            pack = 0 if not group.spans_processes else SMALL_BYTES
            totals = over_small_buckets(lambda buffers: lax.psum(tuple(buffers), axis), totals, small_bytes=pack)
        return for_each_local(totals, group)


def for_each_local(totals: Sequence[Any], group: Group) -> list[list[Any]]:
    """Returns one list per sum, which repeats the sum for each replica of this device.

    A device's empty slot gets a copy, too. `CrossDeviceOps.sum` returns its results in this form.
    """
    return [[total] * group.local for total in totals]
