"""Algorithms for reductions over replicas, under TensorFlow's names.

| algorithm | what it compiles to, for any number of arrays | |---|---| | `AllReduce` | one all-reduce | |
`NcclAllReduce(num_packs)` | `num_packs` all-reduces of packed buffers | | `HierarchicalCopyAllReduce(num_packs)` |
two reduce-scatters (within groups, between groups) and an all-gather, for each pack | | `ReductionToOneDevice` | an
all-gather, then sums in replica order | | `OrderedTree` | log2(devices) all-reduces between pairs: the same bits on
any number of devices |

On one device none needs a collective.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from mirrored.collectives.algorithm import CrossDeviceOps as CrossDeviceOps
from mirrored.collectives.algorithm import stack_all
from mirrored.collectives.bucketing import SMALL_BYTES, over_buckets, over_small_buckets
from mirrored.collectives.fixed_order_tree import OrderedTree as OrderedTree
from mirrored.collectives.group import Group
from mirrored.collectives.pairwise_sum import tree_sum
from mirrored.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class AllReduce(CrossDeviceOps):
    """Sums local replicas, then all-reduces over devices, all arrays at once. The default.

    Across processes small arrays travel together in one buffer. The order of sums across devices is the backend's.
    """

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """One all-reduce."""
        totals = [tree_sum(components) for components in arrays]
        axis = group.axis
        if axis is not None and totals:
            pack = 0 if not group.spans_processes else SMALL_BYTES
            totals = over_small_buckets(lambda buffers: lax.psum(tuple(buffers), axis), totals, small_bytes=pack)
        return _for_each_local(totals, group)


@dataclasses.dataclass(frozen=True)
class NcclAllReduce(CrossDeviceOps):
    """`AllReduce` of packed buffers. On GPUs all-reduces are NCCL's in any case.

    Args:
        num_packs: Into how many buffers the arrays of one dtype are packed; 0: not packed, one all-reduce each.

    TensorFlow: `tf.distribute.NcclAllReduce`.
    """

    num_packs: int = 1

    def __post_init__(self) -> None:
        check_packs("NcclAllReduce", self.num_packs)

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """One all-reduce for each pack."""
        totals = [tree_sum(components) for components in arrays]
        axis = group.axis
        if axis is not None:
            totals = over_buckets(lambda buffer: lax.psum(buffer, axis), totals, num_packs=self.num_packs)
        return _for_each_local(totals, group)


@dataclasses.dataclass(frozen=True)
class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Reduces in two levels: within groups of neighbouring devices, then between the groups.

    Each device ends with one piece of the sum, and all pieces are gathered. Groups are as near to the square root of
    the number of devices as it divides; a prime number of devices has one level.

    Args:
        num_packs: Into how many buffers the arrays of one dtype are packed; 0: not packed.

    TensorFlow: `tf.distribute.HierarchicalCopyAllReduce`, which copies along a fixed tree of DGX-1 links.
    Source: two-level reduce-scatter, P. Sanders et al., "Two-tree algorithms for full bandwidth broadcast, reduction
    and scan", Parallel Computing 35 (2009), section 2, and NVIDIA NCCL's hierarchical rings.
    """

    num_packs: int = 1

    def __post_init__(self) -> None:
        check_packs("HierarchicalCopyAllReduce", self.num_packs)

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Two levels of reduce-scatter, and one all-gather."""
        totals = [tree_sum(components) for components in arrays]
        if group.axis is not None:
            collective = functools.partial(_two_levels, axis=group.axis, devices=group.devices)
            totals = over_buckets(collective, totals, num_packs=self.num_packs, multiple=group.devices)
        return _for_each_local(totals, group)


@dataclasses.dataclass(frozen=True)
class ReductionToOneDevice(CrossDeviceOps):
    """Brings all components to one place and adds them in replica order.

    Every device is that place, so that none has to broadcast. Needs the memory of all components at once.

    Args:
        reduce_to_device: Accepted for TensorFlow's sake: every device does the same.
        accumulation_fn: From a list of components to their sum; None: one after the other.

    TensorFlow: `tf.distribute.ReductionToOneDevice`.
    """

    reduce_to_device: Any = None
    accumulation_fn: Callable[[list[Any]], Any] | None = None

    def sum(self, arrays: Sequence[Sequence[Any]], group: Group) -> list[list[Any]]:
        """Gathers, then adds."""
        add = self.accumulation_fn or functools.partial(functools.reduce, operator.add)
        return _for_each_local([add(list(stack_all(components, group))) for components in arrays], group)


def check_packs(called: str, num_packs: Any) -> None:
    """Refuses a number of packs that is none."""
    if isinstance(num_packs, int) and not isinstance(num_packs, bool) and num_packs >= 0:
        return
    raise ArgumentError(
        called,
        found=f"num_packs={num_packs!r}",
        rule="arrays are packed into a number of buffers, 0 or more",
        remedy="leave num_packs away (1), or give 0 to pack nothing",
    )


def _for_each_local(totals: Sequence[Any], group: Group) -> list[list[Any]]:
    return [[total] * group.local for total in totals]


def _two_levels(buffer: Any, axis: str, devices: int) -> Any:
    """The sum of a buffer, whose length is a multiple of `devices`, by reduce-scatters within and between groups."""
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
