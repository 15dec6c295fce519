"""The all-reduce algorithms under TensorFlow's names, such as `NcclAllReduce`.

| algorithm                              | collectives, for any number of arrays                                     |
|----------------------------------------|---------------------------------------------------------------------------|
| `AllReduce`                            | one all-reduce                                                            |
| `NcclAllReduce(num_packs)`             | `num_packs` all-reduces of buckets                                        |
| `HierarchicalCopyAllReduce(num_packs)` | per bucket two reduce-scatters (within and between groups), an all-gather |
| `ReductionToOneDevice`                 | an all-gather, then sums in replica order                                 |
| `OrderedTree`                          | log2(devices) all-reduces between pairs of devices; the result is         |
|                                        | bit-identical on any number of devices                                    |

On one device, no algorithm needs a collective.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.promotion import promoted
from mirrored.collectives.algorithm import AllReduce as AllReduce
from mirrored.collectives.algorithm import CrossDeviceOps as CrossDeviceOps
from mirrored.collectives.algorithm import for_each_local, over_buckets, stack_all
from mirrored.collectives.fixed_order_tree import OrderedTree as OrderedTree
from mirrored.collectives.summation import Group, not_constant, tree_sum
from mirrored.errors import ArgumentError

if TYPE_CHECKING:
    import jax


@dataclasses.dataclass(frozen=True)
class NcclAllReduce(CrossDeviceOps):
    """An all-reduce algorithm that packs arrays into buckets, as TensorFlow's class does.

    On GPUs, XLA uses NCCL for the all-reduces of every algorithm.

    Args:
        num_packs: The maximum number of buckets for the arrays of one dtype. 0 means one all-reduce per array.

    Example:
        >>> import mirrored as mr
        >>> from mirrored.collectives import NcclAllReduce
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4, cross_device_ops=NcclAllReduce(num_packs=2))
        >>> ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 1.0)
        >>> float(strategy.reduce("SUM", ids, axis=None))
        10.0

    TensorFlow: `tf.distribute.NcclAllReduce`.
    """

    num_packs: int = 1

    def __post_init__(self) -> None:
        check_packs("NcclAllReduce", self.num_packs)

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Sums arrays over replicas with one all-reduce per bucket of packed arrays."""
        totals = [not_constant(tree_sum(components)) for components in arrays]
        axis = group.axis
        if axis is not None:
            totals = over_buckets(lambda buffer: lax.psum(buffer, axis), totals, num_packs=self.num_packs)
        return for_each_local(totals, group)


@dataclasses.dataclass(frozen=True)
class HierarchicalCopyAllReduce(CrossDeviceOps):
    """An all-reduce algorithm in two levels: within groups of adjacent devices, then between the groups.

    The reduce-scatters leave one piece of the sum on each device, and an all-gather collects the pieces. The group size
    is the largest divisor of the number of devices that is at most its square root. A prime number of devices therefore
    has one level.

    Args:
        num_packs: The maximum number of buckets for the arrays of one dtype. 0 means one per array.

    Example:
        >>> import mirrored as mr
        >>> from mirrored.collectives import HierarchicalCopyAllReduce
        >>> algorithm = HierarchicalCopyAllReduce(num_packs=2)
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4, cross_device_ops=algorithm)
        >>> ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 1.0)
        >>> float(strategy.reduce("SUM", ids, axis=None))
        10.0

    TensorFlow: `tf.distribute.HierarchicalCopyAllReduce`, which copies along a fixed tree of DGX-1 links.
    Source: hierarchical all-reduce, X. Jia et al., "Highly Scalable Deep Learning Training System with Mixed-Precision:
    Training ImageNet in Four Minutes", arXiv:1807.11205 (2018).
    """

    num_packs: int = 1

    def __post_init__(self) -> None:
        check_packs("HierarchicalCopyAllReduce", self.num_packs)

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Sums arrays over replicas with two reduce-scatters, one per level of the hierarchy, and one all-gather."""
        totals = [not_constant(tree_sum(components)) for components in arrays]
        if group.axis is not None:
            collective = functools.partial(_two_levels, axis=group.axis, devices=group.devices)
            totals = over_buckets(collective, totals, num_packs=self.num_packs, multiple=group.devices)
        return for_each_local(totals, group)


@dataclasses.dataclass(frozen=True)
class ReductionToOneDevice(CrossDeviceOps):
    """An algorithm that all-gathers the values of all replicas and adds them in replica order.

    Every device gathers and adds, so no broadcast follows. Each device needs memory for all components at once.

    Args:
        reduce_to_device: Has no effect. It is accepted for compatibility with TensorFlow; every device reduces.
        accumulation_fn: Maps a list of components to their sum, of their shape and of their dtype or a wider one. None
            adds them one after another.

    Raises:
        ArgumentError: When the reduction runs, `accumulation_fn` returns another shape or a narrower dtype.

    Example:
        >>> import mirrored as mr
        >>> from mirrored.collectives import ReductionToOneDevice
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4, cross_device_ops=ReductionToOneDevice())
        >>> ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + 1.0)
        >>> float(strategy.reduce("SUM", ids, axis=None))
        10.0

    TensorFlow: `tf.distribute.ReductionToOneDevice`.
    """

    reduce_to_device: Any = None
    accumulation_fn: Callable[[list[Any]], Any] | None = None

    @property
    def calls_user_code(self) -> bool:
        """Whether the user has passed an `accumulation_fn`, which then adds the replicas' values."""
        return self.accumulation_fn is not None

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Sums arrays over replicas with an all-gather and local additions."""
        add = self.accumulation_fn or functools.partial(functools.reduce, operator.add)
        totals = [add(list(stack_all(components, group))) for components in arrays]
        for total, components in zip(totals, arrays, strict=True):
            _check_total(total, components[0])
        return for_each_local(totals, group)


def _check_total(total: object, component: jax.Array) -> None:
    shape, dtype = getattr(total, "shape", None), getattr(total, "dtype", None)
    # A wider dtype is right: 16-bit floats may be added in float32, and `jnp.sum` returns int32 for small integers.
    if dtype is not None and shape == component.shape and promoted(dtype, component.dtype) == dtype:
        return
    what = f"of shape {shape} and dtype {dtype}" if dtype is not None else "that is no array"
    raise ArgumentError(
        "ReductionToOneDevice",
        found=f"accumulation_fn returned a {type(total).__name__} {what} for components of shape {component.shape} and "
        f"dtype {component.dtype}",
        rule="the sum must have the shape of one component, and its dtype or a wider one",
        remedy="add along axis 0 only, and keep the dtype: jnp.sum(jnp.stack(parts), axis=0, dtype=parts[0].dtype)",
    )


def check_packs(called: str, num_packs: object) -> None:
    """Raises an error unless `num_packs`, the number of buckets, is an integer of 0 or more.

    Raises:
        ArgumentError: It is not an integer of 0 or more.
    """
    if isinstance(num_packs, int) and not isinstance(num_packs, bool) and num_packs >= 0:
        return
    raise ArgumentError(
        called,
        found=f"num_packs={num_packs!r}",
        rule="num_packs, the number of buckets per dtype, must be an integer of 0 or more",
        remedy="omit num_packs (the default is 1), or pass 0 to disable bucketing",
    )


def _two_levels(buffer: jax.Array, axis: str, devices: int) -> Any:
    """Sums `buffer` by reduce-scatters within and between groups of devices; `devices` must divide its length."""
    size = max(n for n in range(1, math.isqrt(devices) + 1) if devices % n == 0)
    groups = [[start + i for i in range(size)] for start in range(0, devices, size)]
    across = [list(peers) for peers in zip(*groups, strict=True)]
    piece = buffer
    for level in (groups, across):
        if len(level) == 1:
            piece = lax.psum_scatter(piece, axis, tiled=True)
        elif len(level[0]) > 1:
            piece = lax.psum_scatter(piece, axis, axis_index_groups=level, tiled=True)
    pieces = lax.all_gather(piece, axis).reshape(devices // size, size, -1)
    return jnp.swapaxes(pieces, 0, 1).reshape(buffer.shape)
